"""The rules of the house that a machine can check: layers, cycles, kernels and their twins, sizes."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import naive
import pytest
from helpers.places import ROOT

LAYERS = {"engine": 0, "storage": 1, "jobs": 2}
MODULES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]
DECORATORS = ("kernel", "inlined")
KERNEL_MODULES = sorted((ROOT / "engine").rglob("*_kernels.py"))
SOURCES = [path for folder in (*LAYERS, "tests", "bench") for path in sorted((ROOT / folder).rglob("*.py"))]
MOST_MODULES = 14
# Inside the engine the folders point one way too.
ENGINE_FOLDERS = (
    *("simd", "clustering", "coding", "training", "tree", "exact", "scan", "search", "synthetic"),
)


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@cache
def imported_names(path: Path) -> frozenset[str]:
    """Full names of everything a module imports, inside functions too; with the names taken from packages."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{short(path)} imports relatively"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


@pytest.mark.parametrize("path", MODULES, ids=short)
def test_imports_point_one_way(path: Path) -> None:
    own = LAYERS[layer_of(path)]
    for name in imported_names(path):
        package, _, rest = name.partition(".")
        if package != "aggtree":
            continue
        layer = rest.partition(".")[0]
        assert layer in LAYERS, f"{short(path)} imports the facade"
        assert LAYERS[layer] <= own, f"{short(path)} imports {name}, a layer above its own"


@pytest.mark.parametrize("path", sorted((ROOT / "engine").rglob("*.py")), ids=short)
def test_the_engine_needs_numpy_and_numba_only(path: Path) -> None:
    allowed = {"numpy", "numba", "llvmlite", "aggtree"} | set(sys.stdlib_module_names)
    files_and_clocks = {"os", "io", "pathlib", "shutil", "time", "tempfile", "pickle"}
    forbidden = files_and_clocks | {"subprocess", "multiprocessing"}
    if path.name == "kernel_cache.py":  # machine code is kept on disk; no data is
        forbidden -= {"os", "pathlib", "tempfile", "pickle"}
    if path.name == "compile_notice.py":  # the only wait that is the engine's own
        forbidden -= {"time"}
    for name in imported_names(path):
        package = name.partition(".")[0]
        assert package in allowed - forbidden, f"{short(path)} imports {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "engine").rglob("*.py")), ids=short)
def test_folders_of_the_engine_point_one_way(path: Path) -> None:
    own = path.relative_to(ROOT).parts[1]
    if own not in ENGINE_FOLDERS:
        return
    for name in imported_names(path):
        parts = name.split(".")
        if parts[:2] == ["aggtree", "engine"] and len(parts) > 2 and parts[2] in ENGINE_FOLDERS:
            below = ENGINE_FOLDERS.index(parts[2]) <= ENGINE_FOLDERS.index(own)
            assert below, f"{short(path)} imports {name}, a folder above its own"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("aggtree", *parts)).removesuffix(".__init__")


def test_no_modules_import_each_other() -> None:
    known = {module_name(path): path for path in MODULES}
    graph = {name: set(imported_names(path)) & known.keys() - {name} for name, path in known.items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"cycle: {' → '.join((*above[above.index(name) :], name))}"
        if name not in done:
            for below in sorted(graph[name]):
                visit(below, (*above, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def kernels(path: Path) -> list[str]:
    """Public functions of a kernel module that carry one of the project's decorators."""
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and any(isinstance(mark, ast.Name) and mark.id in DECORATORS for mark in node.decorator_list)
    ]


@pytest.mark.parametrize("path", KERNEL_MODULES, ids=short)
def test_each_kernel_has_a_brute_force_twin(path: Path) -> None:
    missing = [name for name in kernels(path) if not callable(getattr(naive, name, None))]
    assert not missing, f"tests/naive.py has no twin of {', '.join(missing)}"


def test_kernels_are_in_kernel_modules() -> None:
    assert [short(path) for path in MODULES if path not in KERNEL_MODULES and kernels(path)] == []


def test_numba_is_used_through_one_decorator() -> None:
    for path in MODULES:
        packages = {name.partition(".")[0] for name in imported_names(path)}
        # simd gives kernels the decorator, its cache, and instructions that numba has no name for.
        assert path.parent.name == "simd" or "numba" not in packages, f"{short(path)} uses numba directly"


def test_modules_stay_small() -> None:
    long = {short(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def test_folders_stay_small() -> None:
    counts: dict[str, int] = {}
    for path in SOURCES:
        if path.stem not in ("__init__", "__main__"):
            counts[short(path.parent)] = counts.get(short(path.parent), 0) + 1
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_each_folder_answers_a_question() -> None:
    folders = sorted({path.parent for path in MODULES})
    unexplained = [
        short(folder)
        for folder in folders
        if not (folder / "__init__.py").exists()
        or not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    ]
    assert unexplained == []


def test_a_query_process_does_not_load_the_scheduler() -> None:
    code = "import sys, aggtree; print(sorted({'dask', 'distributed', 'zarr'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
