"""Benchmarks of dictionaries and codes."""
