"""Numba's type of a function by kind."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import models, register_model
from typing_extensions import override


class KindFunction(types.Callable, types.Dummy):
    """Type of a :class:`~torchssvm.compiler.jit.ByKind`: a call takes the version for its first argument."""

    def __init__(self, function: Any) -> None:
        self.function = function
        super().__init__(f"ByKind({function.__module__}.{function.__name__})")

    def _version(self, arguments: Any) -> Any:
        return self.function.version(getattr(arguments[0], "instance_class", None))._numba_type_

    @override
    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        return self._version(args).get_call_type(context, args, kws)

    @override
    def get_call_signatures(self) -> Any:
        return (), True

    @override
    def get_impl_key(self, sig: Any) -> Any:
        return self._version(sig.args).get_impl_key(sig)


register_model(KindFunction)(models.OpaqueModel)
