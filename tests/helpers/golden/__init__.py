"""Programs that write the indexes of older formats in tests/data."""
