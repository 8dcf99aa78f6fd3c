"""Benchmarks of searches."""
