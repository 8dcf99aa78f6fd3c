"""Dictionary Annealing against Faiss quantizers, one thread against one thread.

    python -m bench quantizer --data DIR training [--prefix photosift500k] [--bytes 8] [--methods da,rq]
    python -m bench quantizer --data DIR encoding
    python -m bench quantizer --data DIR online [--batches 47]
    python -m bench quantizer --data DIR wide [--words 4096]
    python -m bench quantizer --data DIR norms
    python -m bench quantizer report

DIR holds PREFIX_base and PREFIX_learn (bvecs), for `norms` also PREFIX_query and PREFIX_groundtruth. Training
is on the learn file, E is the mean squared error on the base file; --rows takes that many of it, evenly
spread, the same for all methods. Times are processor seconds of this one process and one thread, so that a
busy machine hardly enters. `report` writes the tables from bench/results/quantizer.jsonl alone; all rows of a
training table come from one run. `python -m bench numbers` draws the plots.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from aggtree.engine.clustering.distances import NearestWord
from aggtree.engine.coding.encoding import Encoder
from aggtree.engine.coding.wide_dictionary import TwoStage, learn_first_dictionary
from aggtree.engine.dictionaries import CodeLayout, Dictionaries
from aggtree.engine.exact.neighbours import ExactSearch
from aggtree.engine.params import SearchParams, TreeParams
from aggtree.engine.search.searcher import Searcher
from aggtree.engine.training.annealing import DictionaryAnnealing
from aggtree.engine.tree.layout import build_tree
from aggtree.storage.sources.base import read_ground_truth
from bench import record
from bench.data.data_sets import read_vectors
from bench.report import quantizer_report

BEAM = 10
CURVE_ROWS = 10_000
HELD_OUT = 20_000
BATCH = 100_000
TURNS = 5


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench quantizer", description=__doc__)
    parser.add_argument("table", choices=[*TABLES, "report"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--prefix", default="photosift500k")
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rows", type=int, default=0, help="rows of the base file, 0 for all")
    parser.add_argument("--methods", default="da,rq,lsq,pq,opq")
    parser.add_argument("--batches", type=int, default=47)
    parser.add_argument("--words", type=int, default=4096)
    return parser.parse_args(arguments)


def spread(rows: np.ndarray, count: int) -> np.ndarray:
    """`count` evenly spread rows, all for 0."""
    return rows if not 0 < count < len(rows) else rows[np.linspace(0, len(rows) - 1, count).astype(int)]


def error(rows: np.ndarray, decoded: np.ndarray) -> float:
    return float(((rows - decoded) ** 2).sum(axis=1, dtype=np.float64).mean())


def our_error(dictionaries: Dictionaries, rows: np.ndarray, beam: int = BEAM) -> float:
    encoder = Encoder(dictionaries, beam)
    errors = [
        (error(part, dictionaries.decode(encoder.encode(part))), len(part))
        for part in np.array_split(rows, max(1, len(rows) // 50_000))
    ]
    return float(np.average([value for value, _ in errors], weights=[count for _, count in errors]))


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    answer = function()
    return answer, time.process_time() - start


def train_ours(options: argparse.Namespace, learn: np.ndarray, base: np.ndarray) -> dict[str, Any]:
    """Offline DA; `curve` is (seconds, E on a sample of the base) after each round."""
    trainer = DictionaryAnnealing(options.bytes, 256, beam=BEAM, rounds=options.rounds)
    Encoder(DictionaryAnnealing(2, 16, rounds=1).fit(learn[:1000]).dictionaries, BEAM).encode(learn[:100])
    sample, curve, looked = spread(base, CURVE_ROWS), [], 0.0
    start = time.process_time()

    def look(number: int, trained: float) -> None:
        nonlocal looked
        before = time.process_time()
        curve.append((before - start - looked, our_error(trainer.dictionaries, sample), trained))
        looked += time.process_time() - before

    trainer.fit(learn, progress=look)
    seconds = time.process_time() - start - looked
    encoder = Encoder(trainer.dictionaries, BEAM)
    codes, encoding = timed(lambda: encoder.encode(base[:CURVE_ROWS]))
    return {
        "seconds": seconds,
        "curve": curve,
        "E": our_error(trainer.dictionaries, base),
        "learn_E": our_error(trainer.dictionaries, spread(learn, CURVE_ROWS)),
        "rows_per_second": len(codes) / encoding,
        "sample_E": curve[-1][1],
    }


def faiss_quantizer(method: str, dimension: int, width: int) -> Any:
    if method == "rq":
        quantizer = faiss.ResidualQuantizer(dimension, width, 8)
        quantizer.max_beam_size = BEAM
        quantizer.use_beam_LUT = 1
        return quantizer
    if method == "lsq":
        return faiss.LocalSearchQuantizer(dimension, width, 8)
    return faiss.ProductQuantizer(dimension, width, 8)


def train_faiss(
    method: str, options: argparse.Namespace, learn: np.ndarray, base: np.ndarray
) -> dict[str, Any]:
    learn32 = learn.astype(np.float32)
    rotation = faiss.OPQMatrix(learn.shape[1], options.bytes) if method == "opq" else None
    quantizer = faiss_quantizer(method, learn.shape[1], options.bytes)

    def train() -> None:
        if rotation is not None:
            rotation.train(learn32)
        quantizer.train(rotation.apply(learn32) if rotation is not None else learn32)

    _, seconds = timed(train)

    def encode(rows: np.ndarray) -> np.ndarray:
        return quantizer.compute_codes(rotation.apply(rows) if rotation is not None else rows)

    def decode(codes: np.ndarray) -> np.ndarray:
        decoded = quantizer.decode(codes)
        return rotation.reverse_transform(decoded) if rotation is not None else decoded

    def mean_error(rows: np.ndarray) -> float:
        parts = np.array_split(rows.astype(np.float32), max(1, len(rows) // 20_000))
        return float(
            np.average([error(p, decode(encode(p))) for p in parts], weights=[len(p) for p in parts])
        )

    few = base[: CURVE_ROWS // 4].astype(np.float32)
    _, encoding = timed(lambda: encode(few))
    return {
        "seconds": seconds,
        "E": mean_error(base),
        "learn_E": mean_error(spread(learn, CURVE_ROWS)),
        "rows_per_second": len(few) / encoding,
        "sample_E": mean_error(spread(base, CURVE_ROWS)),
    }


def training(options: argparse.Namespace) -> None:
    learn, base = (
        read_vectors(options.data, options.prefix, "learn"),
        spread(read_vectors(options.data, options.prefix, "base"), options.rows),
    )
    run = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for method in options.methods.split(","):
        if method == "da":
            results = train_ours(options, learn, base)
        else:
            results = train_faiss(method, options, learn, base)
        parameters = {"run": run, "method": method, "base_rows": len(base), "rounds": options.rounds}
        save(options, parameters, results)


def save(options: argparse.Namespace, parameters: dict[str, Any], results: dict[str, Any]) -> None:
    common = {"table": options.table, "prefix": options.prefix, "bytes": options.bytes}
    record.write("quantizer", common | parameters, results)


def encoding(options: argparse.Namespace) -> None:
    """Both encoders in turns on the same dictionaries and rows; E against the beam width."""
    learn, base = (
        read_vectors(options.data, options.prefix, "learn"),
        spread(read_vectors(options.data, options.prefix, "base"), options.rows or 100_000),
    )
    trainer = DictionaryAnnealing(options.bytes, 256, beam=BEAM, rounds=3).fit(learn[:50_000])
    dictionaries = trainer.dictionaries
    rival = faiss_quantizer("rq", learn.shape[1], options.bytes)
    faiss.copy_array_to_vector(dictionaries.words.ravel(), rival.codebooks)
    rival.is_trained = True
    rival.set_derived_values()
    rival.compute_codebook_tables()
    rows = base[:CURVE_ROWS]
    rows32 = rows.astype(np.float32)
    encoder = Encoder(dictionaries, BEAM)
    encoder.encode(rows[:100])
    ours, theirs = [], []
    for _ in range(TURNS):
        codes, seconds = timed(lambda: encoder.encode(rows))
        ours.append(len(rows) / seconds)
        rival_codes, seconds = timed(lambda: rival.compute_codes(rows32))
        theirs.append(len(rows) / seconds)
    beams = {}
    for beam in (1, 2, 4, 8, 10, 16, 32, 64):
        encoder = Encoder(dictionaries, beam)
        _, seconds = timed(lambda encoder=encoder: encoder.encode(rows))
        beams[beam] = (our_error(dictionaries, rows, beam), len(rows) / seconds)
    results = {
        "rows_per_second": ours,
        "faiss_rows_per_second": theirs,
        "E": error(rows, dictionaries.decode(codes)),
        "faiss_E": error(rows, rival.decode(rival_codes)),
        "beams": beams,
    }
    save(options, {"rows": len(rows)}, results)


def online(options: argparse.Namespace) -> None:
    """Batches of the base file as a shuffled stream, in passes; E on rows held out, after every batch."""
    base = read_vectors(options.data, options.prefix, "base")
    count = min(HELD_OUT, len(base) // 5)
    held = spread(base, count)
    kept = np.ones(len(base), bool)
    kept[np.linspace(0, len(base) - 1, count).astype(int)] = False
    stream = base[kept][np.random.default_rng(0).permutation(int(kept.sum()))]
    rows = min(BATCH, len(stream))
    trainer = DictionaryAnnealing(options.bytes, 256, beam=BEAM)
    errors, seconds = [], []
    for batch in range(options.batches):
        places = (batch * rows + np.arange(rows)) % len(stream)
        _, spent = timed(lambda places=places: trainer.partial_fit(stream[places]))
        seconds.append(spent)
        errors.append(our_error(trainer.dictionaries, held))
        if batch % 8 == 7 or batch + 1 == options.batches:
            save(options, {"batch_rows": rows, "held_out": count}, {"E": errors, "seconds": seconds})


def wide(options: argparse.Namespace) -> None:
    """Two-stage against exact choice of the first word: what it loses in E, and its speed."""
    learn, base = (
        read_vectors(options.data, options.prefix, "learn"),
        spread(read_vectors(options.data, options.prefix, "base"), options.rows or 20_000),
    )
    words = learn_first_dictionary(learn, options.words, np.random.default_rng(0))
    two, exact = TwoStage(words), NearestWord(words)
    (labels, _), two_seconds = timed(lambda: two.assign(base))
    (best, _), exact_seconds = timed(lambda: exact.assign(base))
    (labels, _), two_seconds = timed(lambda: two.assign(base))
    first = {"two_stage": error(base, words[labels]), "exact": error(base, words[best])}
    sizes = (256,) * options.bytes
    residue = learn - words[two.assign(learn)[0]]
    narrow = DictionaryAnnealing(words=sizes, beam=BEAM, rounds=5).fit(residue).dictionaries
    whole = {
        name: our_error(Dictionaries(narrow.words, CodeLayout(sizes)), base - words[chosen])
        for name, chosen in (("two_stage", labels), ("exact", best))
    }
    results = {
        "first_E": first,
        "E": whole,
        "seconds": {"two_stage": two_seconds, "exact": exact_seconds},
        "same": float((labels == best).mean()),
    }
    save(options, {"words": options.words, "rows": len(base)}, results)


def norms(options: argparse.Namespace) -> None:
    """Recall of the exhaustive ranking by stored norms of 1, 2 and 4 bytes; 4 are exact."""
    base = spread(read_vectors(options.data, options.prefix, "base"), options.rows)
    queries = read_vectors(options.data, options.prefix, "query")
    if len(base) == options.rows:
        exact = ExactSearch(queries, 1)
        exact.add(base, 0)
        truth = exact.result()[0]
    else:
        truth = read_ground_truth(options.data / f"{options.prefix}_groundtruth.ivecs")
    learn = read_vectors(options.data, options.prefix, "learn")
    trainer = DictionaryAnnealing(options.bytes, 256, beam=BEAM, rounds=options.rounds).fit(learn)
    codes, ids = trainer.encode(base), np.arange(len(base), dtype=np.uint32)
    recalls, sizes = {}, {}
    for size in (1, 2, 4):
        tree = build_tree(codes, ids, trainer.dictionaries, TreeParams(norm_bytes=size), trainer.norm_ranges)
        found = Searcher(tree, trainer.dictionaries).search(queries, 100, SearchParams.unlimited())[0]
        recalls[size] = [float((found[:, :r] == truth[:, :1]).any(axis=1).mean()) for r in (1, 10, 100)]
        sizes[size] = sum(array.nbytes for array in tree) / len(base)
    results = {"recall": recalls, "bytes_per_vector": sizes, "queries": len(queries)}
    save(options, {"base_rows": len(base), "rounds": options.rounds}, results)


TABLES = {"training": training, "encoding": encoding, "online": online, "wide": wide, "norms": norms}


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.table == "report":
        quantizer_report.write(record.read("quantizer"), record.RESULTS)
        return 0
    if options.data is None:
        raise SystemExit("bench quantizer: --data DIR is needed")
    faiss.omp_set_num_threads(1)
    with threadpool_limits(1):
        TABLES[options.table](options)
    return 0
