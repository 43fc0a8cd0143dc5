"""How Numba compiles kernels, and the kernels that they call."""

from __future__ import annotations

import functools
import gc
import operator
from types import BuiltinFunctionType
from typing import Any

from llvmlite.binding import (  # type: ignore[import-untyped]
    Linkage,
    create_pass_builder,
    create_pipeline_tuning_options,
)
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.typed_passes import NativeLowering

from torchssvm.compiler.by_kind import KindFunction
from torchssvm.compiler.kernel_code import Lowering


class _Typing:
    """Numba's typing context, which resolves a built-in operation once for the same types of arguments.

    A kernel repeats each operation some 12 times, and Numba tries every overload at each use. Operations whose
    implementation Numba compiles itself, with the options of the kernel, are not stored.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._signatures: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_setitem(self, target: Any, index: Any, value: Any) -> Any:
        return self.resolve_function_type(operator.setitem, (target, index, value), {})

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        if isinstance(func, BuiltinFunctionType):
            func = self.resolve_value_type(func)
        if isinstance(func, types.Dispatcher | KindFunction):
            args = tuple(map(types.unliteral, args))  # a constant is no reason to compile a kernel again
        if isinstance(func, types.Function) and not kws and (func, args) in self._signatures:
            return self._signatures[func, args]
        signature = self._context.resolve_function_type(func, args, kws)
        if isinstance(func, types.Function) and not kws and func.get_impl_key(signature) is func.typing_key:
            self._signatures[func, args] = signature
        return signature


_typing = functools.cache(_Typing)


class _PrivateCode(JITCodeLibrary):
    """Code that shares no function with other kernels."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.enable_object_caching()

    def finalize(self) -> None:
        """Link every callee once, also one that several callees call."""
        self._linking_libraries = list(_reached(self, {}))
        super().finalize()

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout  # the passes over the whole kernel do the rest

    def _optimize_final_module(self) -> None:
        """Run LLVM's passes once, without unrolling.

        Numba runs them twice, and removes reference counts in between. Kernels have none. What is worth unrolling is
        written in vectors.
        """
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.linkonce_odr:
                function.linkage = "internal"
        tuning = create_pipeline_tuning_options(speed_level=3)
        tuning.loop_unrolling = False
        builder = create_pass_builder(self._codegen._tm, tuning)
        builder.getModulePassManager().run(self._final_module, builder)


class _Library(JITCodeLibrary):
    """Code without an address, which kernels contain and optimise."""

    @property
    def codegen(self) -> Any:
        """Numba stores the globals of a function beside its machine code; there is none."""
        return _WithoutGlobals(self._codegen)

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def add_llvm_module(self, module: Any) -> None:
        """Keep the code of the one function as it is."""
        module.data_layout = self._codegen._data_layout
        for function in module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"
        self._final_module = self._shared_module = module

    def finalize(self) -> None:
        """Leave linking and optimising to kernels."""
        self._finalize_dynamic_globals()
        self._finalized = True


def _reached(library: Any, seen: dict[Any, None]) -> dict[Any, None]:
    """The libraries of all callees, behind a caller: LLVM links what is called."""
    for callee in library._linking_libraries:
        if callee not in seen:
            seen[callee] = None
            if isinstance(callee, _Library):
                _reached(callee, seen)
    return seen


class _WithoutGlobals:
    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, env: Any) -> None:
        pass


_UNUSED = {
    "AnnotateTypes",
    "DumpParforDiagnostics",
    "FindLiterallyCalls",
    "InlineClosureLikes",
    "InlineInlinables",
    "LiteralPropagationSubPipelinePass",
    "LiteralUnroll",
    "MakeFunctionToJitFunction",
    "NopythonRewrites",
    "RewriteDynamicRaises",
    "WithLifting",
}
"""Passes for what kernels do not do: expressions of whole arrays, closures, literals, parallel loops, ``with``."""


class _KernelCompiler(Compiler):
    _library: type[JITCodeLibrary]

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, args: Any, result: Any, flags: Any, *rest: Any):
        super().__init__(_typing(typingctx), targetctx, library, args, result, flags, *rest)
        self.state.library = self._library(self.state.targetctx.codegen(), "kernel")

    def define_pipelines(self) -> Any:
        """Numba's passes that kernels need, with our lowering."""
        [manager] = super().define_pipelines()
        once = dict(manager.passes)  # Numba repeats some
        wanted = ((made, name) for made, name in once.items() if made.__name__ not in _UNUSED)
        manager.passes = [(Lowering if made is NativeLowering else made, name) for made, name in wanted]
        manager.finalize()
        return [manager]


class KernelCompiler(_KernelCompiler):
    """Numba's compiler for kernels that Python calls.

    Stock Numba shares the code of a callee between its callers. A process then keeps the first copy that it loads, and
    LLVM may round another copy differently, so that bits depend on the kernels loaded before. Here nothing is shared.
    """

    _library = _PrivateCode

    def compile_extra(self, func: Any) -> Any:
        """Compile a function, without searching all of Python's objects for cycles again and again."""
        collects = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(func)
        finally:
            if collects:
                gc.enable()


class InlinedCompiler(_KernelCompiler):
    """Numba's compiler for callees, which stops at LLVM's code.

    Numba also optimises every function and makes machine code of it. For callees that is wasted, as their callers
    contain their code and are optimised as a whole.
    """

    _library = _Library
