"""Benchmarks: `python -m bench NAME` measures, writes JSON lines, and makes tables and plots from them."""
