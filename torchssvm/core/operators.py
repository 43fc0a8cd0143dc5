"""The ``torchssvm`` namespace of torch operators, and where plain torch operators alone may run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# `torch.library.custom_op` needs less code, but 9 microseconds for each call instead of 2 (measured on one CPU core);
# decoding a short chain takes less than that.
_library = torch.library.Library("torchssvm", "DEF")

ON_CUDA: dict[str, Callable[..., Any]] = {}
"""What runs for CUDA tensors, by the name of the operator. Torch tells nobody, and tests without a device ask."""


def define(
    schema: str,
    *,
    fake: Callable[..., Any],
    cpu: Callable[..., Any],
    cuda: Callable[..., Any],
    default: Callable[..., Any],
) -> Any:
    """Define an operator without gradient: its results are detached for any arguments.

    ``schema`` has name and arguments, as ``torch.library.Library.define`` takes them; ``fake`` makes empty results, for
    tracing; ``default`` is for devices other than CPU and CUDA.
    """
    name = schema[: schema.index("(")]
    _library.define(schema)
    _library.impl(name, default, "CompositeExplicitAutograd")
    _library.impl(name, cpu, "CPU")
    _library.impl(name, cuda, "CUDA")
    ON_CUDA[name] = cuda
    # Decoding is piecewise constant, and losses treat its result as a constant. The fallthrough is free; without it
    # torch would attach a node to the results that fails in backward.
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"torchssvm::{name}", fake, lib=_library)
    return getattr(torch.ops.torchssvm, name).default


_here = threading.local()


def plain() -> bool:
    """Whether torch traces what runs now (``torch.compile``, ``torch.export``), or plain operators were asked for."""
    return torch.compiler.is_compiling() or getattr(_here, "asked", False)


@contextmanager
def plain_operators() -> Iterator[None]:
    """Ask for plain operators in this thread, so that what runs at once is what would be traced."""
    before = getattr(_here, "asked", False)
    _here.asked = True
    try:
        yield
    finally:
        _here.asked = before
