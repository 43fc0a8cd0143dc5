"""Operators of this package, plain operators for tracing, and numbers known to the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# `torch.library.custom_op` needs less code, but 9 microseconds for each call instead of 2 (measured on one CPU core);
# decoding a short chain takes less than that.
_library = torch.library.Library("torchssvm", "DEF")

ON_CUDA: dict[str, Callable[..., Any]] = {}
"""The implementation for CUDA tensors by the name of the operator, for tests without a device."""


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


def plain() -> bool:
    """Whether torch traces what runs now (``torch.compile``, ``torch.export``, ``torch.jit.trace``)."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


_sources = WeakIdKeyDictionary()  # of device tensors: the CPU tensor with their numbers, and the versions of both


def upload(tensor: Tensor, device: torch.device | str) -> Tensor:
    """``tensor`` on ``device``; a copy of a CPU tensor remembers it, as :func:`known` says."""
    if torch.device(device).type == "cpu":
        return tensor.to(device)
    moved = tensor.to(device, non_blocking=True)
    return known(moved, tensor) if tensor.is_cpu else moved


def known(tensor: Tensor, source: Tensor) -> Tensor:
    """``tensor``, which remembers that the CPU tensor ``source`` holds its numbers, until one of them is written to.

    Torch's version counters miss writes through ``.data`` or numpy; inference tensors have none and remember nothing.
    """
    if not (tensor.is_cpu or plain() or tensor.is_inference() or source.is_inference()):
        _sources[tensor] = source, source._version, tensor._version
    return tensor


_copies = WeakIdKeyDictionary()


def constant(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; the copy is kept for the next call, until ``tensor`` is written to or goes."""
    if tensor.device == device or plain() or tensor.is_inference():  # nothing counts writes to the last
        return tensor.to(device)
    now = tensor._version, device
    if (kept := _copies.get(tensor)) is None or kept[0] != now:
        with torch.inference_mode(False):  # autograd may save the copy in a later call
            # The copy remembers no source, which would keep ``tensor`` alive.
            kept = now, tensor.to(device, non_blocking=device.type != "cpu")
        _copies[tensor] = kept
    return kept[1]


def pick(tensor: Tensor, rows: Tensor) -> Tensor:
    """``tensor[rows]``, which remembers its numbers where ``tensor`` and the int64 ``rows`` both do."""
    chosen = tensor[rows]
    if tensor.is_cpu or (numbers := source(tensor)) is None or (places := source(rows)) is None:
        return chosen
    return known(chosen, numbers[places])


def apart(tensor: Any) -> Any:
    """A copy of a CPU tensor, so that no other thread changes it after a check; anything else as it is."""
    return tensor.clone() if isinstance(tensor, Tensor) and tensor.is_cpu and not plain() else tensor


def read_together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The numbers of tensors of one device on the CPU, after one wait; tensors of the CPU are given as they are."""
    if tensors[0].is_cpu:
        return tensors
    flat = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    parts = torch.cat(flat).cpu().split([len(part) for part in flat])
    return tuple(part.clone().view(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True))


def scalars(*numbers: Tensor) -> list[float]:
    """The values of tensors of one number each, all of one device, after one wait."""
    if numbers[0].is_cpu:
        return [float(number) for number in numbers]
    return torch.stack([number.to(torch.float64) for number in numbers]).tolist()


def on_host(tensor: Tensor) -> Tensor:
    """The numbers of ``tensor`` on the CPU; those of a device tensor that remembers no source are read, which waits."""
    if tensor.is_cpu:
        return tensor
    if (numbers := source(tensor)) is None:
        known(tensor, numbers := tensor.cpu())
    return numbers


def source(tensor: Tensor) -> Tensor | None:
    """The CPU tensor that ``tensor`` remembers; None where it remembers none, or one of them was written to."""
    numbers, *versions = _sources.get(tensor, (None,))
    return None if numbers is None or [numbers._version, tensor._version] != versions else numbers


def first_occurrences(index: Tensor) -> Tensor:
    """Rows with the first occurrence of each number of ``index``, ``[B]`` int64, in ascending order: ``[R]`` int64."""
    size = index.shape[0]
    if len(set(on_host(index).tolist())) == size:
        return _everyone(size, index.device)
    ordered, rows = on_host(index).sort(stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return upload(rows[first].sort().values, index.device)


@lru_cache(maxsize=64)
def _everyone(size: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(size, device="cpu").to(device)  # it is there when this returns, for every stream


def transformed() -> bool:
    """Whether a transform of ``torch.func``, or forward-mode differentiation, is under way.

    These do not take custom functions without rules of their own.
    """
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return (active is not None and active()) or getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
