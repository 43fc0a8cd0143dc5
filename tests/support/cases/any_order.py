"""Sums whose terms come in any order, as the threads of a CUDA device add them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ADDING = {"scatter_add", "scatter_add_", "index_add", "index_add_", "put_", "put"}


class AnyOrder(TorchDispatchMode):
    """Looks whether the order matters of what a CUDA device adds by atomic operations.

    Attributes:
        sums: How many such operations there were.
        depend: Those whose result depends on the order of the terms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sums = 0
        self.depend: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name not in ADDING or (name in ("put_", "put") and not (args[3:] or kwargs.get("accumulate"))):
            return func(*args, **kwargs)
        self.sums += 1
        target = args[0]
        before = target.clone()
        result = func(*args, **kwargs)
        for seed in range(3):
            again = func(*_shuffled(name, before.clone(), args, torch.Generator().manual_seed(seed)), **kwargs)
            if not torch.equal(again, result):
                self.depend.append(f"{name} on {list(target.shape)}")
                break
        return result


def _shuffled(name: str, target: torch.Tensor, args: Any, random: torch.Generator) -> tuple[Any, ...]:
    if name.startswith("put"):
        order = torch.randperm(args[1].numel(), generator=random)
        return target, args[1].flatten()[order], args[2].flatten()[order], *args[3:]
    _, axis, index, terms, *rest = args
    if index.ndim == 0:
        return target, *args[1:]
    along = axis if name.startswith("scatter") else 0
    order = torch.randperm(index.shape[along], generator=random)
    return target, axis, index.index_select(along, order), terms.index_select(axis, order), *rest


@contextmanager
def on_a_device() -> Iterator[AnyOrder]:
    """The code paths of devices, on the CPU: no compiled kernels, and nothing adds in order by itself."""
    with AnyOrder() as seen:
        patches = [
            mock.patch.object(module, name, _no)
            for module in [module for name, module in sys.modules.items() if name.startswith("torchssvm")]
            for name in ("fits_numba", "adds_in_order")
            if hasattr(module, name)
        ]
        for patch in patches:
            patch.start()
        try:
            yield seen
        finally:
            for patch in patches:
                patch.stop()


def _no(*tensors: torch.Tensor) -> bool:
    return False
