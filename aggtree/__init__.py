"""aggtree: out-of-core, billion-scale nearest-neighbour indexing.

The names a user needs, re-exported; the work is in `aggtree.engine` (algorithms on arrays),
`aggtree.storage` (what is on disk) and `aggtree.jobs` (memory, order, resume, command line).
"""
