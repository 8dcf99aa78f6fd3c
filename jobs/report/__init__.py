"""What does the HTML report show? Its figures, charts and page."""

import os
from pathlib import Path

from aggtree.storage.index.opened.vectors import Vectors
from aggtree.storage.keywords import explain_keywords


@explain_keywords
def report(
    index: str | os.PathLike[str],
    out: str | os.PathLike[str] = "report.html",
    *,
    vectors: Vectors | None = None,
) -> Path:
    """Write a page about an index to `out`, one HTML file that needs nothing else; returns its path.

    Parameters, sizes, the branching of the tree, use of the dictionaries, the learning curve, what the build
    took, and recall against time if the index was tuned. A large index is sampled, so it takes seconds.

    vectors : where the vectors are, if not where they were at the build.
    """
    from aggtree.jobs.report.page import write_page

    write_page(Path(index), Path(out), vectors)
    return Path(out)
