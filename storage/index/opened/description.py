"""A description of an index for people, from its manifest alone."""

from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path

from aggtree.storage.index.first_groups import groups_record
from aggtree.storage.index.format import ARRAYS, CODES, DICTIONARIES, FIRST_GROUPS, OWN_IDS, TREE
from aggtree.storage.index.manifest import IndexManifest
from aggtree.storage.index.segment_manifest import SegmentManifest

LIVE = "live"


def bytes_by_part(manifest: IndexManifest) -> dict[str, int]:
    """Bytes of all segments: dictionaries, arrays of the tree, own ids, codes, and which rows are live."""
    total: Counter[str] = Counter()
    for segment in manifest.segments:
        total.update(_segment_bytes(segment))
    total.update({LIVE: manifest.live.file.bytes} if manifest.live else {})
    return dict(total)


def _segment_bytes(segment: SegmentManifest) -> dict[str, int]:
    sizes = {DICTIONARIES: segment.file(DICTIONARIES).bytes}
    sizes |= {f"{TREE}/{spec.name}": segment.tree_file(spec.name).bytes for spec in ARRAYS}
    groups = groups_record(segment)
    sizes |= {FIRST_GROUPS: groups.bytes} if groups else {}
    sizes |= {OWN_IDS: segment.file(OWN_IDS).bytes} if segment.own_ids else {}
    start = f"{segment.directory}/{CODES}/"
    return sizes | {CODES: sum(record.bytes for record in segment.files if record.path.startswith(start))}


def format_words(manifest: IndexManifest) -> str:
    """Sizes of the dictionaries, such as 4096+256+256."""
    return "+".join(str(size) for size in manifest.words)


def index_facts(path: Path, manifest: IndexManifest) -> dict[str, str]:
    """The main facts about an index."""
    needed = sum(size for name, size in bytes_by_part(manifest).items() if name != CODES)
    return {
        "path": str(path),
        "rows": f"{manifest.live_rows:,}",
        "dimension": str(manifest.dimension),
        "metric": manifest.metric,
        "words": format_words(manifest),
        "bytes per vector": f"{needed / max(1, manifest.live_rows):.2f}, without codes",
        "segments": str(len(manifest.segments)),
        "deleted rows": f"{manifest.live.deleted if manifest.live else 0:,}",
    }


def html_table(facts: Mapping[str, str]) -> str:
    """A table of two columns; whatever the facts hold is shown as text."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(fact)}</td></tr>"
        for name, fact in facts.items()
    )
    return f"<table>{rows}</table>"
