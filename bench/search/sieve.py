"""What the sieve is worth: queries of one index with and without it, on one thread.

    python -m bench sieve --index INDEX --queries SOURCE [--limits 20,1024]

Both give the same answers, which is checked. Without limits those that the index suggests are used. On a
processor that cannot sieve nothing is measured.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.engine.params import SearchParams
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.simd.instructions.sieve import CAN_SIEVE
from aggtree.jobs.search import read_queries
from bench import record
from bench.search.search import K, Search, measure


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench sieve", description=__doc__)
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--queries", required=True)
    parser.add_argument("--limits", help="of level 1 and of those below")
    return parser.parse_args(arguments)


def search_of(searcher: Searcher, params: SearchParams) -> Search:
    return lambda queries: searcher.search(queries, K, params).ids


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if not CAN_SIEVE:
        print("this processor has no byte permutations (AVX-512 VBMI): there is no sieve to measure")
        return 0
    with aggtree.open(options.index) as index, threadpool_limits(1):
        index.warm()
        queries = read_queries(options.queries, index.dimension).astype(np.float32)
        own = index.searcher
        params = own.default_params
        if options.limits:
            params = SearchParams(limits=tuple(int(limit) for limit in options.limits.split(",")))
        plain = Searcher(own.tree, own.dictionaries, sieve=False)
        searches = {"sieved": search_of(own, params), "plain": search_of(plain, params)}
        answers, counts = own.search_with_counts(queries, K, params)
        for one, other in zip(answers, plain.search(queries, K, params), strict=True):
            if not np.array_equal(one, other):
                raise SystemExit("the sieve has changed an answer")
        results: dict[str, Any] = {"leaves": float(counts.leaves.mean())}
        # One after the other: the second to scan the same leaves finds them in the cache.
        for name, search in searches.items():
            results |= measure({name: search}, queries)
        parameters = {"rows": len(index), "queries": options.queries, "limits": list(params.limits)}
    record.write("sieve", parameters, results)
    return 0
