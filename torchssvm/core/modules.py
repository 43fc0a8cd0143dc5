"""Calls of users' modules: features with lengths, and calls that leave no trace in the module."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.batch import device_of
from torchssvm.core.operators import on_host

_LONG = 1000  # entries of a list or a dict that is not copied in every step


def largest_feature(dtype: torch.dtype) -> float:
    """The largest size of a feature: sums of a million squares do not overflow."""
    return 1e-3 * torch.finfo(dtype).max ** 0.5


def knows_padding(features: nn.Module) -> str | None:
    """``"lengths"`` or ``"attention_mask"``, if ``forward`` has such a parameter; wrappers are unwrapped."""
    inside = getattr(features, "_orig_mod", features)
    if isinstance(inside, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return knows_padding(inside.module)
    names = inspect.signature(inside.forward).parameters
    return next((name for name in ("lengths", "attention_mask") if name in names), None)


def apply_features(features: nn.Module, x: Any, lengths: Tensor | None = None) -> Any:
    """``features(x)``, with ``lengths=`` or ``attention_mask=`` if ``forward`` takes it; ``lengths`` is ``[B]`` int64.

    Of the output of an encoder of ``transformers``, ``last_hidden_state`` is returned.
    """
    how = None if lengths is None else knows_padding(features)
    if how == "lengths":
        output = features(x, lengths=lengths)
    elif how is not None and lengths is not None:
        output = features(x, attention_mask=(torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)).long())
    else:
        output = features(x)
    return getattr(output, "last_hidden_state", output)


@torch.no_grad()
def check_padded_ids(features: nn.Module, x: Any, lengths: Tensor | None) -> bool:
    """Raise ValueError if the shortest example of a batch of ids has other features without its padding.

    ``features`` are called in evaluation mode, on their device. Returns whether the check is done: the batch had
    padding, or ``features`` takes lengths, or does not return features for each id.
    """
    if not isinstance(x, Tensor) or x.is_floating_point() or knows_padding(features) is not None:
        return True
    sizes = None if lengths is None else on_host(lengths)
    if sizes is None or int(sizes.min()) >= x.shape[1]:
        return False
    row, length, device = int(sizes.argmin()), int(sizes.min()), device_of(features)
    row_x = x[row : row + 1].to(device)
    kind, devices = generators_of([device])
    buffers = [(buffer, buffer.clone()) for buffer in features.buffers()]
    with evaluating(features), state_kept(features), torch.random.fork_rng(devices, device_type=kind):
        padded, alone = apply_features(features, row_x), None
        if isinstance(padded, Tensor) and padded.shape[:2] == row_x.shape[:2]:
            padded = padded[:, :length].clone()
            with suppress(RuntimeError):  # it takes one length only
                alone = apply_features(features, row_x[:, :length])
        for buffer, before in buffers:
            buffer.copy_(before)
    if alone is None:
        return True
    if float((alone - padded).abs().amax()) > 1e-3 * float(alone.abs().amax()):
        raise ValueError(
            f"features={type(features).__name__} depend on the padding: forward must take lengths, [B], or "
            "attention_mask, [B, N], and ignore the padding"
        )
    return True


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Evaluation mode inside the ``with`` block; afterwards every submodule has its former mode.

    Modes are set without ``eval()`` and ``train()``, which may change the weights of users' modules.
    """
    modes = [(part, part.training) for part in module.modules()] if isinstance(module, nn.Module) else []
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def state_kept(head: nn.Module) -> Iterator[None]:
    """Restore the attributes of ``head`` afterwards, and the contents of short lists, dicts and sets among them."""
    attributes = [vars(module) for module in head.modules()]
    values = [value for each in attributes for value in each.values()]
    short = [value for value in values if isinstance(value, list | dict | set) and len(value) < _LONG]
    copies: list[tuple[Any, Any]] = [(value, value.copy()) for value in [*short, *attributes]]
    try:
        yield
    finally:
        for value, before in copies:
            if isinstance(value, list):
                value[:] = before
            else:
                value.clear()
                value.update(before)


def generators_of(devices: Iterable[torch.device]) -> tuple[str, list[int]]:
    """The type and the indices of the accelerators among ``devices``, for ``fork_rng``."""
    accelerators = {(device.type, device.index or 0) for device in devices if device.type in ("cuda", "xpu")}
    kind = min((kind for kind, _ in accelerators), default="cuda")
    return kind, sorted(number for its, number in accelerators if its == kind)
