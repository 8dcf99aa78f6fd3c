"""How good the codes of an index are, and what a search finds by them; `sampled_search` measures it."""

from dataclasses import dataclass

COARSE = 0.85
"""A search that finds less than this share of what the codes allow is not to be trusted."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What was measured on a sample of the rows of an index, some of which were the queries.

    rows : in the sample.
    distortion : mean squared error of their codes.
    recall : share of the ten true nearest neighbours in the sample among the ten that a search finds there.
    possible : the same of a ranking by exact distances to the reconstructions.
    """

    rows: int
    distortion: float
    recall: float
    possible: float

    @property
    def too_coarse(self) -> bool:
        """Whether a search finds far less than the codes allow."""
        return self.recall < COARSE * self.possible
