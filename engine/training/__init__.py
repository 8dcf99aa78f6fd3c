"""How are dictionaries learned? Dictionary Annealing, offline and online, and measures of its codes."""
