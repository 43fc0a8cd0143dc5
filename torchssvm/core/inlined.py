"""How Numba compiles kernels for the kernels that call them: to LLVM's code, and no further.

Numba optimises every function that it compiles and makes machine code of it. The code of these kernels is taken up by
their callers, where both is done once more; without it the first call of a kernel takes two thirds of the time.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.datamodel import models, register_default


class InlinedCompiler(Compiler):
    """Numba's compiler, which keeps the code of a function only for callers that are compiled later."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state.library = _Library(self.state.targetctx.codegen(), "inlined")


class _Library(JITCodeLibrary):
    """Code that its callers optimise, and that has no address."""

    @property
    def codegen(self) -> Any:
        """Numba keeps the globals of a function where its machine code is; there is none."""
        return _WithoutGlobals(self._codegen)

    def get_pointer_to_function(self, name: str) -> int:
        """No address."""
        return 0

    def _optimize_final_module(self) -> None:
        """Left to the callers."""

    def _finalize_final_module(self) -> None:
        """As far as callers need it."""
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _WithoutGlobals:
    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, env: Any) -> None:
        """Nothing to set."""


class KindFunction(types.Callable, types.Dummy):
    """The type of a :class:`~torchssvm.core.jit.ByKind`: a call is one of the version for its first argument."""

    def __init__(self, function: Any) -> None:
        self.function = function
        super().__init__(f"ByKind({function.__module__}.{function.__name__})")

    def _version(self, arguments: Any) -> Any:
        return self.function.version(getattr(arguments[0], "instance_class", None))._numba_type_

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """That of the version."""
        return self._version(args).get_call_type(context, args, kws)

    def get_call_signatures(self) -> Any:
        """Any."""
        return (), True

    def get_impl_key(self, sig: Any) -> Any:
        """That of the version."""
        return self._version(sig.args).get_impl_key(sig)


register_default(KindFunction)(models.OpaqueModel)
