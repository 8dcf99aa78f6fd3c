"""How is a query answered? Requests, searchers, metrics, filters, ranges, re-ranking and tuned parameters."""
