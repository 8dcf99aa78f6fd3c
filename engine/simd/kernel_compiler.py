"""How kernels become machine code: a kernel that is called from Python, with all that it calls, at once.

numba compiles each function by itself: it optimizes it, turns it into machine code, writes a wrapper for
calls from Python, and optimizes it once more within each function that calls it. Kernels call each other ten
levels deep, so a search would spend two thirds of its compilation on code that nobody runs. Here

- a kernel that other kernels call is a *part*: LLVM code as numba writes it, and nothing else;
- a kernel that Python calls is an *entry*: it is linked with all its parts, which no other code can refer to,
  optimized once, turned into machine code and kept on disk.

A kernel may be both. Parts are compiled for types, not for the numbers that they happen to be called with.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite.binding import parse_assembly
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher

from aggtree.engine.simd.compile_notice import compiling
from aggtree.engine.simd.kernel_cache import KernelCache

_types: Any = types  # numba has none for mypy
ENVIRONMENT = "_ZN08NumbaEnv"
"""How numba begins the names of variables that hold what a kernel needs of Python."""


class _NoEngine:
    """Stands for the engine that holds machine code, for a library that has none."""

    def set_env(self, name: str, environment: object) -> None:
        """Nothing refers to the environment of code that is not there."""


class PartLibrary(JITCodeLibrary):
    """Code to be linked into other libraries."""

    codegen = _NoEngine()

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Zero: there is no machine code."""
        self._ensure_finalized()
        return 0


class EntryLibrary(JITCodeLibrary):
    """Code that Python calls, and all the parts that it needs."""

    def add_linking_library(self, library: Any) -> None:
        """Link a library, and those that it would have been linked with."""
        if library in self._linking_libraries:
            return
        super().add_linking_library(library)
        if isinstance(library, PartLibrary):
            for inner in library._linking_libraries:
                self.add_linking_library(inner)

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        # What only this library can call need not be kept once it is inlined, and is inlined more readily.
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        super()._optimize_final_module()

    def external_symbols(self) -> list[str]:
        """Names of what the code calls or reads outside, but for LLVM's own."""
        module = self._final_module
        return [
            symbol.name
            for symbol in (*module.functions, *module.global_variables)
            if symbol.is_declaration and not symbol.name.startswith("llvm.")
        ]

    def serialize_using_object_code(self) -> tuple[str, str, tuple[bytes, bytes]]:
        """The machine code, and the names of what it defines; nothing will be linked with it."""
        self._ensure_finalized()
        defined = [function.name for function in self.get_defined_functions()]
        stubs = "".join(f'define void @"{name}"() {{ unreachable }}\n' for name in defined)
        stubs += "".join(
            f'@"{variable.name}" = global i8* null\n'
            for variable in self._final_module.global_variables
            if variable.name.startswith(ENVIRONMENT)
        )
        return self.name, "object", (self._get_compiled_object(), parse_assembly(stubs).as_bitcode())


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the collector, which looks through the many objects of a compiler and finds no garbage."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


class KernelMissingError(RuntimeError):
    """A kernel would have to be compiled."""


_FORBIDDEN = threading.Lock()
"""Held while nothing may be compiled."""


@contextmanager
def compiling_forbidden() -> Iterator[None]:
    """No kernel is compiled meanwhile, on any thread: KernelMissingError for one that is not on disk."""
    with _FORBIDDEN:
        yield


class _PartCompiler(Compiler):
    library_class: Any = PartLibrary

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing_context, target_context, library, *rest)
        self.state.library = self.library_class(target_context.codegen(), "kernel")
        self.state.library.enable_object_caching()


class _EntryCompiler(_PartCompiler):
    library_class = EntryLibrary

    def compile_extra(self, function: Any) -> Any:
        """Compile a function that is not on disk."""
        if _FORBIDDEN.locked():
            raise KernelMissingError(function.__name__)
        with compiling(), _collector_paused():
            return super().compile_extra(function)


class _Part(CPUDispatcher):
    """A kernel as other kernels call it."""

    def get_call_template(self, positional: Any, named: Any) -> Any:
        """What a call with arguments of these types refers to.

        True and False are types of their own: a kernel that is given them has two versions.
        """
        return super().get_call_template(
            [_general(kind) for kind in positional], {name: _general(kind) for name, kind in named.items()}
        )


def _general(kind: Any) -> Any:
    return kind if isinstance(kind, _types.BooleanLiteral) else _types.unliteral(kind)


class _Entry(CPUDispatcher):
    """A kernel as Python calls it."""

    part: _Part

    @property
    def _numba_type_(self) -> Any:
        """What other kernels see of it."""
        return _types.Dispatcher(self.part)


def compiled(function: Callable[..., Any], options: dict[str, Any], *, inlined: bool) -> Callable[..., Any]:
    """A kernel with numba's options, compiled at its first call.

    inlined : whether it is made part of each kernel that calls it, however large
    """
    only_linked = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": inlined}
    common = {"nopython": True, "no_cfunc_wrapper": True, **options}
    entry: Any = _Entry(function, targetoptions=common, pipeline_class=_EntryCompiler)
    entry.part = _Part(function, targetoptions={**common, **only_linked}, pipeline_class=_PartCompiler)
    entry._cache = KernelCache(function)
    found: Callable[..., Any] = entry
    return found
