"""Is every byte of an index right? Checksums, structure, norms, and the codes themselves."""
