"""Processes that let float32 matrix products round their factors, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: What multiplies matrices, below torch.matmul, einsum and linear.
PRODUCTS = {"mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "baddbmm", "addbmm", "addr", "linear"}

_get = getattr(torch._C, "_get_fp32_precision_getter", None)
_set = getattr(torch._C, "_set_fp32_precision_setter", None)
_KINDS = [("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("mkldnn", "all"), ("mkldnn", "matmul")]


def _allow_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def _new(backend: str, kind: str, precision: str) -> Callable[[], None]:
    return lambda: _set(backend, kind, precision)


#: Ways to ask for fewer digits; each lowers the precision on a CPU, on a CUDA device, or on both.
SETTINGS: dict[str, Callable[[], None]] = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "allow_tf32": _allow_tf32,
}
if _set is not None:
    SETTINGS |= {
        "cuda.matmul tf32": _new("cuda", "matmul", "tf32"),
        "cuda tf32": _new("cuda", "all", "tf32"),
        "mkldnn.matmul bf16": _new("mkldnn", "matmul", "bf16"),
        "mkldnn tf32": _new("mkldnn", "all", "tf32"),
        "all tf32": _new("generic", "all", "tf32"),
        "all bf16": _new("generic", "all", "bf16"),
    }


def is_rounded() -> bool:
    """Whether products lose digits on some kind of device, as the kernels read it."""
    if _get is None:
        return torch.get_float32_matmul_precision() != "highest"
    return any(_get(backend, "matmul") in ("tf32", "bf16") for backend in ("cuda", "mkldnn"))


def state() -> list[str]:
    """All settings as stored, not as inherited."""
    try:
        results = [torch.get_float32_matmul_precision()]
    except RuntimeError:
        results = ["the old name and the newer settings differ"]
    return results if _get is None else results + [_held(*kind) for kind in _KINDS]


def _held(backend: str, kind: str) -> str:
    """What inherits changes with its parent."""
    if backend == "generic":
        return _get(backend, kind)
    parent = (backend, "all") if kind != "all" else ("generic", "all")
    before, seen = _held(*parent), set()
    for precision in ("ieee", "tf32"):
        _set(*parent, precision)
        seen.add(_get(backend, kind))
    _set(*parent, before)
    return seen.pop() if len(seen) == 1 else "none"


class RoundedProducts(TorchDispatchMode):
    """Rounds the factors of every product to bfloat16 where the process lets it, whatever the CPU can do.

    Attributes:
        products: How many float32 products were made.
        rounded: Those whose factors were rounded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products = 0
        self.rounded: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in PRODUCTS and any(isinstance(a, Tensor) and a.dtype == torch.float32 for a in args):
            self.products += 1
            if is_rounded():
                self.rounded.append(name)
                args = [a.bfloat16().float() if isinstance(a, Tensor) else a for a in args]
        return func(*args, **(kwargs or {}))


@contextmanager
def lowered(setting: str) -> Iterator[RoundedProducts]:
    """A process with this setting, which must be as it was afterwards; then everything is full again."""
    assert not is_rounded()
    try:
        SETTINGS[setting]()
        before = state()
        with RoundedProducts() as seen:
            yield seen
        assert state() == before, "the precision of the process was left changed"
        assert is_rounded()
    finally:
        torch.set_float32_matmul_precision("highest")
        if _set is not None:
            for backend, kind in _KINDS:
                _set(backend, kind, "none")
