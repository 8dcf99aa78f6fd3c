"""Compile kernels ahead of time: in an image, after an upgrade, before a service takes requests."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from aggtree.engine.simd.compile_notice import notice_shown_by
from aggtree.engine.simd.kernel_compiler import KernelMissingError, compiling_forbidden
from aggtree.engine.simd.primitive import JIT
from aggtree.jobs.planning.recipe import Choices, choose_recipe
from aggtree.jobs.running.progress import Progress, ProgressChoice, make_progress
from aggtree.jobs.running.warm_up import compile_kernels, is_compiled
from aggtree.storage.index.opened.vectors import Vectors
from aggtree.storage.index.reader import open_index
from aggtree.storage.keywords import explain_keywords

FEW_ROWS, MANY_ROWS = 10_000, 1_000_000
"""Without and with a wide first dictionary."""
EMBEDDING_BYTES = 32

Step = tuple[str, Callable[[], object], Callable[[], bool]]
"""What is compiled, how, and whether it was."""


@explain_keywords
def warm_up(
    index: str | os.PathLike[str] | None = None,
    *,
    vectors: Vectors | None = None,
    check: bool = False,
    progress: ProgressChoice = None,
) -> tuple[str, ...]:
    """Compile the kernels for this processor, which the first build and searches would wait for.

    Returns what was not compiled yet, by name.

    index : compile what its searches need; without one, what builds and searches of all kinds need
    vectors : those of the index, if they moved since the build; re-ranking depends on their type
    check : compile nothing
    """
    with make_progress(progress) as shown, notice_shown_by(shown.note):
        if not JIT:
            return ()
        steps = _steps_without_index(shown) if index is None else _steps_of_index(Path(index), vectors)
        return _carry_out(list(steps), shown, check=check)


def _carry_out(steps: list[Step], shown: Progress, *, check: bool) -> tuple[str, ...]:
    missing = []
    shown.begin("check" if check else "compile", len(steps), unit="kinds")
    for name, prepare, is_there in steps:
        if not is_there():
            missing.append(name)
            if not check:
                prepare()
        shown.advance(1)
    shown.end()
    return tuple(missing)


def _steps_of_index(path: Path, vectors: Vectors | None) -> Iterator[Step]:
    index = open_index(path, vectors)
    for name, prepare in index.preparations():
        yield name, prepare, lambda prepare=prepare: _needs_no_compiler(prepare)  # type: ignore[misc]


def _needs_no_compiler(prepare: Callable[[], object]) -> bool:
    try:
        with compiling_forbidden():
            prepare()
    except KernelMissingError:
        return False
    return True


def _steps_without_index(shown: Progress) -> Iterator[Step]:
    kinds = {
        "few vectors": choose_recipe(FEW_ROWS),
        "many vectors": choose_recipe(MANY_ROWS),
        "leaves in planes": choose_recipe(MANY_ROWS, Choices(bytes_per_vector=EMBEDDING_BYTES)),
    }
    for name, recipe in kinds.items():
        for dtype in ("uint8", "float32"):
            facts = {"rows": FEW_ROWS, "dimension": 128, "dtype": dtype}
            yield (
                f"{dtype}, {name}",
                lambda recipe=recipe, facts=facts: compile_kernels(recipe, facts, shown, search=True),  # type: ignore[misc]
                lambda recipe=recipe, facts=facts: is_compiled(recipe, facts, search=True),  # type: ignore[misc]
            )
