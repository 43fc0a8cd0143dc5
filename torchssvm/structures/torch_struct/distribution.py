"""Calls of torch-struct's distributions on padded batches, so that a result depends on its own example only.

torch-struct, the extra ``torchssvm[torch-struct]``, is not imported here; the user passes one of its classes. These
behaviours are worked around:

* torch-struct scores impossible parts -1e5 or -1e9; potentials of that size make them possible, and the result may be
  empty or not an output. The potentials of each example are scaled by a power of two that keeps every output's score
  well below 1e5; this is exact in floating point and changes no maximiser.
* One of the lengths must be the padded length: the batch is cropped to its longest example, and the result padded.
* ``SemiMarkovCRF`` forbids long segments beyond the end of the batch's shortest example: it gets no lengths, but
  potentials with a path of score 0 through the padding.
* ``DependencyCRF`` sets ``multiroot`` on a class that all its instances share: the old value is restored.
* Decoding computes a gradient: gradients are enabled for it, also under ``no_grad`` and ``inference_mode``, on a copy.

``torch.max`` breaks ties: it takes the first of equal scores and passes the gradient to that one alone. So the result
is a single output even if all potentials are equal, and it is the same with and without padding.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.extras import needs

SCORE_LIMIT = 2.0**14
"""Largest absolute score of an output after scaling; torch-struct's smallest penalty is -1e5."""

FORBIDDEN = -(2.0**16)
"""Score of a forbidden part: no other parts can make up for it."""


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """``values`` ``[B]`` with an axis of size 1 for every other axis of ``like``."""
    return values.view(-1, *[1] * (like.ndim - 1))


def bridge_padding(scores: Tensor, extents: Tensor) -> Tensor:
    """Semi-Markov potentials in which every path ends a segment where the example ends, and then scores 0.

    Args:
        scores: ``[B, N-1, K, C, C]``, zero in the padding.
        extents: ``[B]``, where each example ends.
    """
    _, longest, durations, states, _ = scores.shape
    start = torch.arange(longest, device=scores.device).view(1, -1, 1)
    duration = torch.arange(durations, device=scores.device).view(1, 1, -1)
    end = extents.view(-1, 1, 1)
    idle = (start >= end) & (duration == 1)  # [B, N-1, K]
    crosses = (start + duration > end) & ~idle
    same = torch.eye(states, dtype=torch.bool, device=scores.device)
    return scores.masked_fill(crosses[..., None, None] | (idle[..., None, None] & ~same), FORBIDDEN)


@cache
def silent(kind: type[Any]) -> type[Any]:
    """The same distribution without torch's warning that it declares no ``arg_constraints``."""
    if not isinstance(getattr(kind, "arg_constraints", None), property):
        return kind
    return type(kind.__name__, (kind,), {"arg_constraints": {}, "__module__": kind.__module__})


_multiroot_lock = threading.RLock()


@contextmanager
def multiroot_put_back(name: str) -> Iterator[None]:
    """Restore ``multiroot``, which a DependencyCRF sets on a class shared by all instances."""
    if name != "DependencyCRF":
        yield
        return
    with needs("TorchStruct needs torch-struct: pip install 'torchssvm[torch-struct]'", "torch_struct"):
        from torch_struct.deptree import DepTree

    with _multiroot_lock:
        before = vars(DepTree).get("multiroot")
        try:
            yield
        finally:
            if before is not None:
                DepTree.multiroot = before
            elif "multiroot" in vars(DepTree):
                del DepTree.multiroot
