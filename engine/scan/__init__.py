"""How does one query run over the arrays of a tree? First level, sieve, leaf scan, and lists of the best."""
