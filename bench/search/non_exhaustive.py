"""The paper's table of non-exhaustive search: IVFADC, Multi-D-ADC, A-Tree, and exhaustive ADC, one thread.

    python -m bench non_exhaustive --data DIR [--prefix photosift500k] [--cells 2048] [--bits 8] [--cache DIR]
    python -m bench non_exhaustive --data DIR --prefix bigann --index sift1b.index --systems default

DIR holds PREFIX_base, PREFIX_learn, PREFIX_query and PREFIX_groundtruth; `sift`, `gist` and `bigann` are
the paper's sets by their official names. Codes of 8 bytes for all:

    ivfadc        Faiss IVF<cells>,PQ8          residues of a coarse quantizer
    multi_d_adc   Faiss IMI2x<bits>,PQ8         residues of a product of two coarse quantizers
    a_tree        8 dictionaries of 256, T = 1, limits L_0 · L_s^i with L_s = 1.25: the paper's own
    default       what `aggtree build` makes; of --index if given, built with the defaults otherwise
    exhaustive    all codes of a_tree, one by one
    pq            all codes of Faiss PQ8, one by one

Each system is driven through several efforts, all timed in turns; every point is recorded.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

import aggtree
from aggtree.engine.params import SearchParams, TreeParams, parse_words
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.tree.layout import build_tree
from bench import record
from bench.data.data_sets import read_truth, read_vectors, vector_file
from bench.search.paper_search import limits_of
from bench.search.search import K, Search, learned, measure, recall, with_effort

SYSTEMS = ("ivfadc", "multi_d_adc", "a_tree", "default", "exhaustive", "pq")
EFFORTS = (4, 8, 16, 32, 64, 128, 256)
GROWTH = 1.25
FEW = 200
"""Queries of the systems that look at everything."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench non_exhaustive", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--cells", type=int, default=2048, help="of IVFADC; the paper's SIFT1B has 8192")
    parser.add_argument("--bits", type=int, default=8, help="of each half of the multi-index; the paper's 14")
    parser.add_argument("--words", type=parse_words, default=parse_words("256x8"), help="of a_tree")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--index", type=Path, help="an index of the base file, for `default`")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--cache", type=Path, help="keep dictionaries and codes of a_tree here")
    options = parser.parse_args(arguments)
    unknown = set(options.systems.split(",")) - set(SYSTEMS)
    if unknown:
        parser.error(f"systems {', '.join(sorted(unknown))}: expected some of {', '.join(SYSTEMS)}")
    return options


Efforts = dict[int, Search]


def faiss_efforts(options: argparse.Namespace, name: str) -> tuple[Efforts, float]:
    """Searches by effort, and bytes per vector."""
    learn, base = (
        read_vectors(options.data, options.prefix, part).astype(np.float32) for part in ("learn", "base")
    )
    index = faiss.index_factory(base.shape[1], name)
    index.train(learn)
    index.add(base)
    size = len(faiss.serialize_index(index)) / len(base)
    if name == "PQ8":
        return {len(base): lambda queries: index.search(queries, K)[1]}, size
    prober = faiss.extract_index_ivf(index)

    def make(probes: int) -> Search:
        def search(queries: np.ndarray) -> np.ndarray:
            prober.nprobe = probes
            return index.search(queries, K)[1]

        return search

    # A cell of the multi-index holds far fewer rows than one of IVFADC.
    factor = max(1, 4**options.bits // (8 * options.cells)) if name.startswith("IMI") else 1
    return {factor * probes: make(factor * probes) for probes in EFFORTS}, size


def tree_efforts(options: argparse.Namespace, *, everything: bool) -> tuple[Efforts, float]:
    """The paper's own tree, by L_0; or all its leaves."""
    codes, dictionaries, ranges = learned(options)
    ids = np.arange(len(codes), dtype=np.uint32)
    tree = build_tree(codes, ids, dictionaries, TreeParams(bucket=1), ranges)
    searcher = Searcher(tree, dictionaries)

    def make(params: SearchParams) -> Search:
        return lambda queries: searcher.search(queries, K, params).ids

    size = sum(getattr(tree, name).nbytes for name in tree._fields) / len(codes)
    if everything:
        return {len(codes): make(SearchParams.unlimited())}, size
    levels = dictionaries.layout.levels
    return {start: make(limits_of(start, GROWTH, levels)) for start in EFFORTS}, size


def default_efforts(options: argparse.Namespace, folder: Path) -> tuple[Efforts, float]:
    """An index as `aggtree build` makes it, by the limit of the first level."""
    path = options.index or folder / "index"
    if options.index is None:
        aggtree.build(vector_file(options.data, options.prefix, "base"), path, memory=options.memory)
    index = aggtree.open(path)
    index.warm()
    needed = sum(size for part, size in index.bytes_by_part().items() if part != "codes.zarr")

    def make(first: int) -> Search:
        params = with_effort(index, first)
        return lambda queries: index.search(queries, K, params, rerank=0).ids

    return {first: make(first) for first in EFFORTS}, needed / len(index)


def makers(options: argparse.Namespace, folder: Path) -> dict[str, Callable[[], tuple[Efforts, float]]]:
    return {
        "ivfadc": lambda: faiss_efforts(options, f"IVF{options.cells},PQ8"),
        "multi_d_adc": lambda: faiss_efforts(options, f"IMI2x{options.bits},PQ8"),
        "a_tree": lambda: tree_efforts(options, everything=False),
        "default": lambda: default_efforts(options, folder),
        "exhaustive": lambda: tree_efforts(options, everything=True),
        "pq": lambda: faiss_efforts(options, "PQ8"),
    }


def points(
    systems: dict[str, tuple[Efforts, float]], queries: np.ndarray, truth: np.ndarray
) -> list[dict[str, Any]]:
    """Recall and times of every system at every effort."""
    searches = {(name, at): search for name, (group, _) in systems.items() for at, search in group.items()}
    whole = {key: search for key, search in searches.items() if key[0] in ("exhaustive", "pq")}
    quick = {key: search for key, search in searches.items() if key not in whole}
    found = []
    for group, count in ((quick, len(queries)), (whole, FEW)):
        few, wanted = queries[:count], truth[:count]
        ids = {key: search(few) for key, search in group.items()}
        times = measure({str(key): search for key, search in group.items()}, few)
        for name, effort in group:
            answer = ids[name, effort]
            point = {"system": name, "effort": effort, "queries": len(few)}
            point["recall"] = [recall(answer, wanted, depth) for depth in (1, 10, K)]
            found.append(point | times[str((name, effort))] | {"bytes_per_vector": systems[name][1]})
    return found


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    faiss.omp_set_num_threads(1)
    queries = read_vectors(options.data, options.prefix, "query")[: options.queries].astype(np.float32)
    rows = len(aggtree.open(options.index)) if options.index else None
    truth = read_truth(options.data, options.prefix, rows)[: options.queries]
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        known = makers(options, Path(folder))
        found = points({name: known[name]() for name in options.systems.split(",")}, queries, truth)
    shown = {name: value for name, value in vars(options).items() if name not in ("data", "cache", "index")}
    record.write("non_exhaustive", shown, {"points": found})
    return 0
