"""Which instructions do kernels use that numba has no name for? One module for each kind of loop."""
