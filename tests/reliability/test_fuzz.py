"""Every reader gets spoiled files: it reads them, or raises an error of ours, on one line."""

import pytest

from reliability.programs.fuzz_readers import KINDS, fuzz, make_kinds


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return make_kinds(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("name", KINDS)
def test_spoiled_files_are_read_or_refused(kinds, name):
    count = 10 * kinds[name].speed
    refused = fuzz(kinds[name], count, 0)
    # A damaged record of a partition, or of facts, counts as absent; a lock without a name as nobody's.
    assert refused > count // 4 or name in ("partition record", "job facts", "lock")


def test_every_kind_is_fuzzed(kinds):
    assert set(kinds) == set(KINDS)
