"""Work that takes hours: plans, memory, order, resume, Dask, and the command line."""
