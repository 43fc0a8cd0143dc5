"""How torch-struct's distributions pad their events, and which of them cannot decode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


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
