"""The rules of the house that a machine can check: layers, kernels and their twins, sizes of modules."""

import ast
import subprocess
import sys
from pathlib import Path

import naive
import pytest

ROOT = Path(__file__).parent.parent
LAYERS = {"engine": 0, "storage": 1, "jobs": 2}
MODULES = [path for layer in LAYERS for path in sorted((ROOT / layer).glob("*.py"))]
DECORATORS = ("kernel", "inlined")
KERNEL_MODULES = sorted((ROOT / "engine").glob("*_kernels.py"))


def imported_names(path: Path) -> set[str]:
    """Full names of everything a module imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_imports_point_one_way(path: Path) -> None:
    own = LAYERS[path.parent.name]
    for name in imported_names(path):
        package, _, rest = name.partition(".")
        if package != "aggtree":
            continue
        layer = rest.partition(".")[0]
        assert layer in LAYERS, f"{path} imports the facade"
        assert LAYERS[layer] <= own, f"{path} imports {name}, a layer above its own"


@pytest.mark.parametrize("path", sorted((ROOT / "engine").glob("*.py")), ids=lambda path: path.name)
def test_the_engine_needs_numpy_and_numba_only(path: Path) -> None:
    allowed = {"numpy", "numba", "llvmlite", "aggtree"} | set(sys.stdlib_module_names)
    files_and_clocks = {"os", "io", "pathlib", "shutil", "time", "tempfile", "pickle"}
    forbidden = files_and_clocks | {"subprocess", "multiprocessing"}
    if path.name == "kernel_cache.py":  # machine code is kept on disk; no data is
        forbidden -= {"os", "pathlib", "tempfile", "pickle"}
    for name in imported_names(path):
        package = name.partition(".")[0]
        assert package in allowed - forbidden, f"engine/{path.name} imports {name}"


def kernels(path: Path) -> list[str]:
    """Public functions of a kernel module that carry one of the project's decorators."""
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and any(isinstance(mark, ast.Name) and mark.id in DECORATORS for mark in node.decorator_list)
    ]


@pytest.mark.parametrize("path", KERNEL_MODULES, ids=lambda path: path.name)
def test_each_kernel_has_a_brute_force_twin(path: Path) -> None:
    missing = [name for name in kernels(path) if not callable(getattr(naive, name, None))]
    assert not missing, f"tests/naive.py has no twin of {', '.join(missing)}"


def test_numba_is_used_through_one_decorator() -> None:
    # Besides the decorator, some modules give kernels single instructions that numba has no name for.
    plain = ("compiled.py", "kernel_cache.py", "intrinsics.py", "vector_code.py")
    for path in MODULES:
        if path.name in plain or path.stem.endswith("_instructions"):
            continue
        packages = {name.partition(".")[0] for name in imported_names(path)}
        assert "numba" not in packages, f"{path} uses numba directly"


def test_modules_stay_small() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def test_a_query_process_does_not_load_the_scheduler() -> None:
    code = "import sys, aggtree; print(sorted({'dask', 'distributed', 'zarr'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
