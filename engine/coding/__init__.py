"""Which code describes a vector? Multi-path (beam) encoding, and the word of a wide first dictionary."""
