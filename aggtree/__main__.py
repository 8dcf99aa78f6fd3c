"""`python -m aggtree`: the command line."""

from aggtree.jobs.cli.main import main

main()
