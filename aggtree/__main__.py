"""`python -m aggtree`: the command line."""

from aggtree.jobs.command_line import main

main()
