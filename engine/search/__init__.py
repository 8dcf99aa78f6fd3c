"""How is a query answered? Searchers of one tree and of several, metrics, filters, re-ranking."""
