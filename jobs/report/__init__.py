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
    """Write a report about an index to `out`, one self-contained HTML file; returns its path.

    It shows parameters, sizes, the branching of the tree, use of the dictionaries, the learning curve, the
    cost of the build, and recall against time if the index was tuned. A large index is sampled, so this takes
    seconds.

    vectors : where the vectors are now, if they moved since the build.
    """
    from aggtree.jobs.report.page import write_page

    write_page(Path(index), Path(out), vectors)
    return Path(out)
