"""What all tests share: examples of hypothesis have no deadline, and one small index serves many."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.places import TESTS
from helpers.small_builds import SMALL, vectors
from hypothesis import HealthCheck, settings

# Programs that tests start import the helpers as the tests do.
# The key with which this user seals places is one of the tests, not one of who runs them.
DATA_HOME = tempfile.TemporaryDirectory(prefix="aggtree-tests-")
os.environ["XDG_DATA_HOME"] = DATA_HOME.name
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))

# No test depends on how fast the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of small vectors."""
    path = tmp_path_factory.mktemp("source") / "base.npy"
    np.save(path, vectors())
    return path


@pytest.fixture(scope="session")
def reference(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its index as this process builds it, one task after the other; not to be changed."""
    from aggtree.jobs.build import build

    index = tmp_path_factory.mktemp("reference") / "index"
    build(source, index, workers=0, **SMALL)
    return index
