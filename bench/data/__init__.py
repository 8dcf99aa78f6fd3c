"""Data sets, and programs that derive them."""
