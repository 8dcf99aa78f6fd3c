"""Readers while the index is replaced: each sees the old index or the new one, whole."""

from reliability.long import readers, threads


def test_readers_see_whole_indexes_while_it_is_replaced(tmp_path):
    counts = readers.run(tmp_path, 0, readers=2, seconds=3, commits=4)
    assert (counts["wrong answers"], counts["errors"], counts["crashes"]) == (0, 0, 0)
    assert counts["commits"] >= 4
    assert counts["answers"] > 0


def test_threads_that_share_an_index(tmp_path):
    counts = threads.stress(tmp_path, 0, 3000)
    assert counts["answers"] >= 3000 and counts["calls of a closed index"] > 0
    assert {counts.get(name, 0) for name in ("wrong answers", "other errors", "crashes or hangs")} == {0}
