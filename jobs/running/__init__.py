"""How does a job run? Executors, tasks, memory, progress, streams of rows, compiled kernels."""
