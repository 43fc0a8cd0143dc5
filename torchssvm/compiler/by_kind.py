"""The type of functions by kind, in Numba's words."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import models, register_model


class KindFunction(types.Callable, types.Dummy):
    """The type of a :class:`~torchssvm.compiler.jit.ByKind`: a call is one of the version for its first argument."""

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


register_model(KindFunction)(models.OpaqueModel)
