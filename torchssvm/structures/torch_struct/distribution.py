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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import needs

SCORE_LIMIT = 2.0**14
"""Largest absolute score of an output after scaling; torch-struct's smallest penalty is -1e5."""

FORBIDDEN = -(2.0**16)
"""Score of a forbidden part: no other parts can make up for it."""


class Convention(NamedTuple):
    """How a distribution pads its events."""

    axes: tuple[int, ...]  # the axes of ``[B, *event]`` that are padded
    offset: int  # size of these axes minus the length, e.g. -1 for an axis of pairs of neighbours
    name: str = ""  # the name of the class in torch-struct; empty for other classes
    layout: str = ""  # the potentials' shape in words; empty if it is not checked
    ndims: tuple[int, ...] = ()  # the numbers of axes that potentials may have
    square: bool = False  # whether the last two axes are the next and the previous state


_KNOWN = {
    known.name: known
    for known in (
        Convention(
            (1,), -1, "LinearChainCRF", "[B, N-1, C, C] (position, next state, previous state)", (4,), square=True
        ),
        Convention(
            (1,),
            -1,
            "SemiMarkovCRF",
            "[B, N-1, K, C, C] (start, duration < K, next state, previous state) with K > 1",
            (5,),
            square=True,
        ),
        Convention(
            (1, 2), 0, "DependencyCRF", "[B, N, N] or [B, N, N, L] (head, child; roots on the diagonal)", (3, 4)
        ),
        Convention((1, 2), 0, "TreeCRF", "[B, N, N, NT] (first token, last token, nonterminal)", (4,)),
    )
}

_UNSUPPORTED = {
    "AlignmentCRF": "it decodes with the package genbmm, which torchssvm does not support",
    "HMM": "it computes its potentials itself; use LinearChainCRF",
    "NonProjectiveDependencyCRF": "torch-struct has no argmax for it; use DependencyCRF",
    "SentCFG": "it takes three tensors of potentials, and a TorchStruct takes one",
}


def convention_of(kind: type[Any], axes: Sequence[int] | None, offset: int | None) -> Convention:
    """The convention of a class of torch-struct or of a subclass; for other classes made of ``axes`` and ``offset``.

    Raises:
        ValueError: torch-struct cannot decode with ``kind``, or ``axes`` and ``offset`` are missing, wrong or given for
            a class of torch-struct.
    """
    if name := _known_as(kind, _UNSUPPORTED):
        raise ValueError(f"distribution={kind.__name__}: {_UNSUPPORTED[name]}")
    if name := _known_as(kind, _KNOWN):
        if axes is not None or offset is not None:
            raise ValueError(f"padded_axes and length_offset of {name} are known: leave them out")
        return _KNOWN[name]
    if axes is None or offset is None:
        raise ValueError(
            f"distribution={kind.__name__} is none of {sorted(_KNOWN)}: say how it pads its events with padded_axes, "
            "e.g. (1, 2), and length_offset, size of these axes minus the length"
        )
    if not axes or min(axes) < 1 or len(set(axes)) != len(axes):
        raise ValueError(f"padded_axes={axes} must be different axes of [B, *event], from 1 on")
    return Convention(tuple(axes), offset)


def _known_as(kind: type[Any], names: Iterable[str]) -> str | None:
    """The first of ``names`` that is a class of torch-struct and ``kind`` or one of its bases."""
    for base in kind.__mro__:
        if base.__name__ in names and base.__module__.partition(".")[0] == "torch_struct":
            return base.__name__
    return None


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """``values`` ``[B]`` with an axis of size 1 for every other axis of ``like``."""
    return values.view(-1, *[1] * (like.ndim - 1))


def bridge_padding(scores: Tensor, extents: Tensor) -> Tensor:
    """Semi-Markov potentials in which every path ends a segment where the example ends, and then scores 0.

    ``scores`` ``[B, N-1, K, C, C]`` are zero in the padding; ``extents`` ``[B]`` is where each example ends.
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
