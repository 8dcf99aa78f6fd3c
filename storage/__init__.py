"""What is on disk: vector files, code shards, trees, and how they are committed and checked."""
