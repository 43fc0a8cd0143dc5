"""Calls of the features below a head, with the lengths of the examples where they take them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn


def largest_feature(dtype: torch.dtype) -> float:
    """The largest size of a feature: sums of a million squares do not overflow."""
    return 1e-3 * torch.finfo(dtype).max ** 0.5


def takes_lengths(features: nn.Module) -> bool:
    """Whether ``features.forward`` has a parameter called ``lengths``; of a wrapped module, the module inside."""
    inside = getattr(features, "_orig_mod", features)
    if isinstance(inside, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return takes_lengths(inside.module)
    return "lengths" in inspect.signature(inside.forward).parameters


def apply_features(features: nn.Module, x: Any, lengths: Tensor | None = None) -> Any:
    """``features(x, lengths=lengths)`` if there are lengths and ``forward`` takes them; else ``features(x)``.

    Args:
        features: The module below the head.
        x: Its input.
        lengths: ``[B]`` int64, where examples differ in length.
    """
    return features(x) if lengths is None or not takes_lengths(features) else features(x, lengths=lengths)
