"""Benchmarks of jobs that write an index."""
