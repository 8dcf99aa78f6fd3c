"""aggtree in ann-benchmarks: copy this folder to `ann_benchmarks/algorithms/aggtree` of that project."""

import shutil
import tempfile
from pathlib import Path

import numpy as np

import aggtree

from ..base.module import BaseANN

METRICS = {"euclidean": "l2", "angular": "cosine"}


class Aggtree(BaseANN):
    """One index in a temporary directory; candidates are compared with the vectors themselves."""

    def __init__(self, metric: str, words: str) -> None:
        if metric not in METRICS:
            raise NotImplementedError(f"aggtree doesn't support metric {metric}")
        self._metric = METRICS[metric]
        self._words = None if words == "default" else words
        self._place = Path(tempfile.mkdtemp(prefix="aggtree-"))
        self._params = aggtree.SearchParams()
        self._rerank = 0
        self.name = f"aggtree(words={words})"

    def fit(self, X: np.ndarray) -> None:
        vectors = np.ascontiguousarray(X, dtype=np.float32)
        aggtree.build(vectors, self._place / "index", words=self._words, metric=self._metric)
        self._index = aggtree.open(self._place / "index", vectors=vectors)
        self._index.warm()

    def set_query_arguments(self, first: int, below: int, rerank: int) -> None:
        """Nodes kept at the first level and at those below, and candidates compared exactly; 0 for none."""
        self._params = aggtree.SearchParams(limits=(first, below))
        self._rerank = rerank
        self.name = f"aggtree(words={self._words}, limits={first},{below}, rerank={rerank})"

    def query(self, q: np.ndarray, n: int) -> np.ndarray:
        return self._found(q[None], n)[0]

    def batch_query(self, X: np.ndarray, n: int) -> None:
        self.res = self._found(X, n)

    def _found(self, queries: np.ndarray, n: int) -> np.ndarray:
        rerank = max(n, self._rerank) if self._rerank else 0
        return self._index.search(queries, n, self._params, rerank=rerank).ids

    def done(self) -> None:
        self._index.close()
        shutil.rmtree(self._place, ignore_errors=True)
