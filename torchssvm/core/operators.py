"""The torch operators of this package, where plain ones alone may run, and numbers that the host knows already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

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


_SOURCE = "_torchssvm_source"


def upload(tensor: Tensor, device: torch.device | str) -> Tensor:
    """``tensor`` on ``device``; a copy of a CPU tensor remembers it, as :func:`known` says."""
    moved = tensor.to(device, non_blocking=torch.device(device).type != "cpu")
    return known(moved, tensor) if tensor.is_cpu else moved


def known(tensor: Tensor, source: Tensor) -> Tensor:
    """``tensor``, which remembers that the CPU tensor ``source`` holds its numbers, until one of them is written to.

    Torch's version counters miss writes through ``.data`` or numpy; inference tensors have none and remember nothing.
    """
    if not (tensor.is_cpu or plain() or tensor.is_inference() or source.is_inference()):
        setattr(tensor, _SOURCE, (source, source._version, tensor._version))
    return tensor


_copies = WeakIdKeyDictionary()


def constant(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; the copy is kept for the next call, until ``tensor`` is written to or goes."""
    if tensor.device == device or plain() or tensor.is_inference():  # nothing counts writes to the last
        return tensor.to(device)
    now = tensor._version, device
    if (held := _copies.get(tensor)) is None or held[0] != now:
        with torch.inference_mode(False):  # autograd may save the copy in a later call
            # It remembers no source: that would keep ``tensor``, and so itself, for ever.
            held = now, tensor.to(device, non_blocking=device.type != "cpu")
        _copies[tensor] = held
    return held[1]


def pick(tensor: Tensor, rows: Tensor) -> Tensor:
    """``tensor[rows]``, which remembers its numbers where ``tensor`` and the int64 ``rows`` both do."""
    chosen = tensor[rows]
    if tensor.is_cpu or (held := source(tensor)) is None or (places := source(rows)) is None:
        return chosen
    return known(chosen, held[places])


def apart(tensor: Any) -> Any:
    """A CPU tensor in memory of its own, so that no other thread changes it once it is checked; the rest as it is."""
    return tensor.clone() if isinstance(tensor, Tensor) and tensor.is_cpu and not plain() else tensor


def read_together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The numbers of tensors of one device on the CPU, after one wait; tensors of the CPU are given as they are."""
    if tensors[0].is_cpu:
        return tensors
    flat = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    parts = torch.cat(flat).cpu().split([len(part) for part in flat])
    return tuple(part.clone().view(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True))


def bring(tensors: Sequence[Tensor], rows: Tensor, size: int) -> list[Tensor]:
    """Tensors of one device on the CPU, after one wait; of those with a row for each of ``size`` examples, ``rows``.

    ``rows`` are int64 on the CPU. A row that all examples share comes once, ``[1, ...]``.
    """
    found, there = [], None
    for tensor in tensors:
        held = tensor if tensor.is_cpu or (read := source(tensor)) is None else read
        if tensor.shape[:1] == (size,) and held.stride(0) and not held.is_cpu:
            held = held[there := upload(rows, held.device) if there is None else there]
        elif tensor.shape[:1] == (size,):
            held = held[rows] if held.stride(0) else held[:1]
        found.append(held)
    numbers = iter(read_together(*away) if (away := [t for t in found if not t.is_cpu]) else ())
    return [held if held.is_cpu else next(numbers) for held in found]


class Reading:
    """Reads numbers of one device; those that are wanted ``later`` come with the next that are needed, in one wait."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Sequence[Tensor], Callable[..., None]]] = []

    def later(self, tensors: Sequence[Tensor], use: Callable[..., None]) -> None:
        """Call ``use`` with the numbers of ``tensors`` on the CPU when the next ones are read."""
        self._waiting.append((tensors, use))

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """As :func:`read_together`."""
        waiting, self._waiting = self._waiting, []
        found = read_together(*tensors, *(tensor for some, _ in waiting for tensor in some))
        begin = len(tensors)
        for some, use in waiting:
            use(*found[begin : begin + len(some)])
            begin += len(some)
        return found[: len(tensors)]


def scalars(*numbers: Tensor) -> list[float]:
    """The values of tensors of one number each, all of one device, after one wait."""
    if numbers[0].is_cpu:
        return [float(number) for number in numbers]
    return torch.stack([number.to(torch.float64) for number in numbers]).tolist()


def on_host(tensor: Tensor) -> Tensor:
    """The numbers of ``tensor`` on the CPU; those of a device tensor that remembers no source are read, which waits."""
    if tensor.is_cpu:
        return tensor
    if (held := source(tensor)) is None:
        known(tensor, held := tensor.cpu())
    return held


def source(tensor: Tensor) -> Tensor | None:
    """The CPU tensor that ``tensor`` remembers; None where it remembers none, or one of them was written to."""
    held, *versions = getattr(tensor, _SOURCE, (None,))
    return None if held is None or [held._version, tensor._version] != versions else held
