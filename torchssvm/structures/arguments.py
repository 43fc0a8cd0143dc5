"""Checks of the arguments of structures and heads: structures, lengths, labels; and weighted labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchssvm.core.arguments import NO_LABEL, check_int64, check_length_form, describe, read_numbers, row_name
from torchssvm.core.operators import apart, plain
from torchssvm.core.structure import Structure

Kind = TypeVar("Kind", bound=Structure)


def check_structure(structure: Kind | None, such: str, *settings: str) -> Kind | None:
    """The ``structure`` argument of a head, if it suits the head.

    Args:
        structure: A structure, or None.
        such: A suitable structure, for the error message.
        settings: Names of the attributes that the head reads.

    Raises:
        TypeError: ``structure`` is neither None nor a :class:`Structure` with these attributes.
    """
    if structure is not None:
        missing = [name for name in settings if not hasattr(structure, name)]
        if not isinstance(structure, Structure) or missing:
            why = f": it has no {' and no '.join(missing)}" if isinstance(structure, Structure) else ""
            raise TypeError(f"structure={structure!r} must be one such as {such}{why}")
    return structure


def fitting(
    structure: Kind | None, make: Callable[[], Kind], such: str, also: Sequence[str] = (), **settings: Any
) -> Kind:
    """The ``structure`` argument of a head, which must have these settings, or what ``make`` makes where it is None.

    Raises:
        TypeError: See :func:`check_structure`; it must have the attributes ``also``, too.
        ValueError: A setting is another.
    """
    if check_structure(structure, such, *settings, *also) is None:
        return make()
    wanted = {name: _plain(value) for name, value in settings.items()}
    if {name: _plain(getattr(structure, name)) for name in settings} != wanted:
        raise ValueError(f"structure={structure} does not fit {', '.join(f'{n}={v}' for n, v in wanted.items())}")
    return structure  # type: ignore[return-value]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


class WeightedLabels(NamedTuple):
    """A target of a chain or graph with a weight for each token or node.

    Attributes:
        labels: ``[B, N]`` int64.
        weights: ``[B, N]``, non-negative; the cost of a wrong label at each token or node.

    Example:
        >>> target = WeightedLabels(labels=torch.tensor([[0, 1]]), weights=torch.tensor([[3.0, 1.0]]))
        >>> Chain(2, normalize=False).loss(torch.tensor([[1, 1]]), target)
        tensor([3.], dtype=torch.float64)
    """

    labels: Tensor
    weights: Tensor


def check_lengths(lengths: Tensor | None, batch: int, longest: int, device: torch.device) -> Tensor:
    """The mask of real positions, ``[B, N]`` bool.

    Raises:
        TypeError: ``lengths`` is not a tensor.
        ValueError: ``lengths`` is not int64 ``[B]``, or a length is less than 1 or more than N.
    """
    if lengths is None:
        return torch.ones(batch, longest, dtype=torch.bool, device=device)
    check_range(lengths, batch, longest)
    return torch.arange(longest, device=device) < lengths.unsqueeze(1)


def own_lengths(lengths: Tensor | None, batch: int, longest: int) -> Tensor | None:
    """The lengths, checked by :func:`check_range`, in memory of their own, so that no other thread changes them."""
    if lengths is not None:
        check_range(lengths := apart(lengths), batch, longest)
    return lengths


def check_range(lengths: Tensor, batch: int, longest: int) -> tuple[int, int]:
    """The smallest and the largest length.

    Raises:
        TypeError: ``lengths`` is not a tensor.
        ValueError: ``lengths`` is not int64 ``[B]``, or a length is less than 1 or more than N.
    """
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths must be an int64 tensor [{batch}], not {describe(lengths)}")
    # A traced graph that reads a size for a message is for this size only.
    such = "" if plain() else f", one for each example of a batch of {batch} padded to {longest}"
    check_length_form(lengths, batch, such)
    if (numbers := read_numbers(lengths)) is None:  # under torch.vmap the first call of the head has checked them
        return 1, longest
    low, high = min(numbers, default=1), max(numbers, default=1)
    if low < 1 or high > longest:
        raise ValueError(f"lengths must lie between 1 and the padded length {longest}, got {low} to {high}")
    return low, high


def check_edges(edges: Tensor, links: int, nodes: Sequence[int], lengths: Tensor | None) -> Tensor:
    """The ends of the edges, in memory of their own.

    Args:
        edges: ``[B, E, 2]`` int64, two nodes of the example, or (-1, -1).
        links: E, the number of edges.
        nodes: B, the number of examples, and N, the number of nodes.
        lengths: ``[B]`` int64, 1 to N; None means N for all.

    Raises:
        ValueError: ``edges`` is not such a tensor.
    """
    batch, longest = nodes[:2]
    edges = apart(check_int64(edges, "edges", (batch, links, 2), ", the two ends of every edge"))
    limit = longest if lengths is None else lengths.view(-1, 1)
    first, second = edges.unbind(2)
    joined = (first >= 0) & (second >= 0) & (first < limit) & (second < limit) & (first != second)
    wrong = ~(joined | ((first == -1) & (second == -1)))
    if bool(wrong.any()):
        row, place = wrong.nonzero()[0].tolist()
        size = longest if lengths is None else int(lengths[row])
        raise ValueError(
            f"edges has {edges[row, place].tolist()} at place {place} in {row_name(row)}: an edge joins two "
            f"different nodes, 0 to {size - 1}; -1 and -1 where there is none"
        )
    return edges


def check_labels(target: Tensor, num_states: int, where: Tensor | None = None) -> None:
    """Raise ValueError if a label (among those that the mask ``where`` selects) is not in 0 .. num_states - 1.

    Args:
        target: ``[B]`` or ``[B, N]`` int64.
        num_states: Their number.
        where: Shaped like ``target``.
    """
    wrong = (target < 0) | (target >= num_states)
    if where is not None:
        wrong &= where
    if bool(wrong.any()):
        row, *position = wrong.nonzero()[0].tolist()
        at = f"at position {position[0]} of " if position else "in "
        label = int(target[wrong][0])
        raise ValueError(
            f"target has label {label} {at}{row_name(row)}; labels are 0 to {num_states - 1}"
            + (NO_LABEL if position and label < 0 else "")
        )
