"""The names a user imports: typed, documented, completed by an editor, and explained when misspelt."""

import ast
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.places import ROOT

import aggtree
from aggtree.storage import errors

VERBS = (
    *("append", "build", "compact", "delete", "exact", "export"),
    *("open", "open_source", "plan", "report", "tune", "verify", "warm_up"),
)
NAMES = [name for name in aggtree.__all__ if name != "__version__"]


def test_every_verb_and_every_error_is_exported() -> None:
    classes = [name for name, kind in vars(errors).items() if isinstance(kind, type)]
    assert {*VERBS, *classes} <= {*aggtree.__all__}


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented(name: str) -> None:
    public = getattr(aggtree, name)
    assert inspect.getdoc(public)
    if not isinstance(public, type):
        return
    undocumented = [
        member
        for member in vars(public)
        if not member.startswith("_") and not member.endswith("_json")
        if inspect.isroutine(getattr(public, member)) and not inspect.getdoc(getattr(public, member))
    ]
    assert undocumented == []


def functions() -> Iterator[Any]:
    """Public functions, and the public methods of public classes, but for what files keep of them."""
    for name in NAMES:
        public = getattr(aggtree, name)
        if not isinstance(public, type):
            yield pytest.param(public, id=name)
            continue
        for member, value in inspect.getmembers(public, inspect.isroutine):
            if member.startswith("_") or member.endswith("_json"):
                continue
            if str(getattr(value, "__module__", "")).startswith("aggtree"):
                yield pytest.param(value, id=f"{name}.{member}")


def leaves_open(hint: object) -> bool:
    """Whether a type says Any; the types of numpy are its own affair."""
    if hint is Any:
        return True
    if (getattr(typing.get_origin(hint), "__module__", None) or "").startswith("numpy"):
        return False
    return any(leaves_open(part) for part in typing.get_args(hint))


@pytest.mark.parametrize("function", list(functions()))
def test_public_signatures_are_typed(function: Callable[..., object]) -> None:
    hints = typing.get_type_hints(inspect.unwrap(function))
    named = {*inspect.signature(function).parameters} - {"self", "cls"}
    assert named <= hints.keys() and "return" in hints
    assert not [name for name, hint in hints.items() if leaves_open(hint)]


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_name_their_keywords(verb: str) -> None:
    kinds = {one.kind for one in inspect.signature(getattr(aggtree, verb)).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


@pytest.mark.parametrize(
    ("verb", "wrong", "right"),
    [("build", "metrc", "metric"), ("open", "vector", "vectors"), ("tune", "groundtruth", "ground_truth")],
)
def test_the_nearest_name_is_proposed_for_a_misspelt_keyword(verb: str, wrong: str, right: str) -> None:
    expected = f"^{verb}\\(\\) got an unexpected keyword '{wrong}': did you mean '{right}'\\?$"
    with pytest.raises(TypeError, match=expected):
        getattr(aggtree, verb)("base.npy", **{wrong: "cosine"})


def test_what_a_function_takes_is_listed_for_a_keyword_like_none() -> None:
    with pytest.raises(TypeError, match=r"delete\(\) got an unexpected keyword 'xyz': it takes index, ids$"):
        getattr(aggtree, "delete")("my.index", xyz=1)  # noqa: B009  (a type checker would refuse it)


SCRIPT = """
import numpy as np
import aggtree

vectors = np.zeros((100, 4), np.float32)
aggtree.build(vectors, "my.index", metric="cosine", words="4096,256x8", progress=False)
aggtree.build(["a.npy", vectors], "my.index", words=(16, 16), ids=np.arange(100), memory="1GiB")
aggtree.append("my.index", vectors, workers=0)
found = aggtree.exact("base.bvecs", vectors, k=10, metric="ip")
print(found.ids.shape, aggtree.plan("base.bvecs").plan.projected, aggtree.verify("my.index"))
aggtree.build("base.npy", "my.index", metrc="cosine")
aggtree.build("base.npy", "my.index", metric="cosinus")
"""
ERROR = re.compile(r":(\d+): error: (.*)")
WRONG_LINES = {
    10: 'Unexpected keyword argument "metrc" for "build"',
    11: 'Argument "metric" to "build" has incompatible type',
}


def test_a_type_checker_sees_misspelt_keywords(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.lstrip())
    # From the checkout, whose .typing/ shows a type checker the package as it is installed.
    command = [sys.executable, "-m", "mypy", "--follow-imports", "silent", str(script)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {int(line): text for line, text in ERROR.findall(answer.stdout)}
    assert found.keys() == WRONG_LINES.keys(), answer.stdout + answer.stderr
    assert all(found[line].startswith(text) for line, text in WRONG_LINES.items()), answer.stdout


def test_importing_the_package_imports_nothing_else() -> None:
    """Each name is imported when it is used; neither numba nor Dask nor zarr before."""
    script = (
        "import sys, aggtree; heavy = {'numpy', 'numba', 'dask', 'distributed', 'zarr'} & {*sys.modules};"
        "assert not heavy, heavy; assert {*aggtree.__all__} <= {*dir(aggtree)};"
        "aggtree.open; heavy = {'dask', 'distributed', 'zarr', 'click', 'rich', 'psutil'} & {*sys.modules};"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_type_checkers_see_the_names_that_are_imported_late() -> None:
    for package in (aggtree, aggtree.engine):
        tree = ast.parse(Path(str(package.__file__)).read_text())
        (seen,) = (node for node in tree.body if isinstance(node, ast.If))
        homes = {
            alias.name: (node.module or "").removeprefix(f"{package.__name__}.")
            for node in seen.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert homes == package._HOMES and {*homes} == {*package.__all__}
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        getattr(aggtree, "ser" + "ach")
