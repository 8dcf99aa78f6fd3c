"""Long tests that count: one module each, with `run` and `met`."""
