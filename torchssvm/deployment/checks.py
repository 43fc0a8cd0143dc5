"""What fits together in a model: head and structure, the names of its outputs, and those of its features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from torchssvm.core.structure import Structure
from torchssvm.structures.arborescence.head import LinearArcs
from torchssvm.structures.chain.sparse_head import SparseLinearChain
from torchssvm.structures.graph_cut.structure import GraphCut
from torchssvm.structures.multilabel.sparse_head import SparseLinearMultilabel
from torchssvm.structures.slack_rescaling.structure import SlackRescaling

_SIZES = ("num_states", "num_classes", "num_labels", "pairwise", "shared", "parent", "shapes")


def check_fit(head: nn.Module, structure: Structure) -> None:
    """Raise ValueError if ``structure`` reads other potentials than a head with a structure of its own gives.

    A structure or a head that is not of this package is not looked at.
    """
    own = getattr(head, "structure", None)
    if structure is own or not isinstance(own, Structure):
        return
    made, given = (one.structure if isinstance(one, SlackRescaling) else one for one in (own, structure))
    kinds = _kind(made), _kind(given)
    if None not in kinds and (kinds[0] is not kinds[1] or _sizes(made) != _sizes(given)):
        raise ValueError(f"structure={structure} does not fit head={type(head).__name__}, made for {own}: leave it out")


def _kind(structure: Structure) -> type | None:
    """The class of this package that a structure is of, or is derived from."""
    return next((cls for cls in type(structure).__mro__ if cls.__module__.startswith("torchssvm.structures.")), None)


def _sizes(structure: Structure) -> list[Any]:
    found = (getattr(structure, name, None) for name in _SIZES)
    return [value.tolist() if isinstance(value, Tensor) else value for value in found]


def check_labels(labels: Any, structure: Structure) -> list[str]:
    """The names of the outputs of a structure of this package, if there is a different one for each.

    Raises:
        TypeError: ``labels`` are no strings.
        ValueError: There are more or fewer names than outputs, a name occurs twice, or UTF-8 cannot encode it.
    """
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not all(isinstance(one, str) for one in labels):
        raise TypeError(f"labels must be a list of strings, one for each state, class or label; got {labels!r}")
    structure = structure.structure if isinstance(structure, SlackRescaling) else structure
    kind = type(structure).__name__
    sizes = (getattr(structure, name, None) for name in ("num_states", "num_classes", "num_labels"))
    count = 2 if isinstance(structure, GraphCut) else next((size for size in sizes if size is not None), None)
    if count is None:
        raise ValueError(f"labels={labels!r} name the states, classes or labels, and {kind} has none: leave them out")
    if len(labels) != count:
        raise ValueError(f"labels has {len(labels)} names, and {kind} has {count} of them to name")
    if twice := _twice(labels):
        raise ValueError(f"labels has the name {twice[0]!r} twice: give every state, class or label its own name")
    _check_utf8(labels, "labels")
    return list(labels)


def check_vocabulary(vocabulary: Any, head: nn.Module) -> dict[str, int]:
    """The columns of the features by name, if the head has them.

    Raises:
        TypeError: ``vocabulary`` is not a mapping of strings to whole numbers, or the head takes no lists of features.
        ValueError: A column is not one of the head's or has two names, or UTF-8 cannot encode a name.
    """
    if not isinstance(vocabulary, Mapping) or not all(
        isinstance(name, str) and type(column) is int for name, column in vocabulary.items()
    ):
        raise TypeError("vocabulary must be a mapping of names of features (strings) to columns (int)")
    if not isinstance(head, SparseLinearChain | SparseLinearMultilabel | LinearArcs):
        raise TypeError(f"vocabulary is for heads that take lists, and head is a {type(head).__name__}: leave it out")
    size = len(head.weight) if isinstance(head, LinearArcs) else head.in_features
    for name, column in vocabulary.items():
        if not 0 <= column < size:
            raise ValueError(f"vocabulary holds the column {column} for {name!r}: columns are 0 to {size - 1}")
    if twice := _twice(vocabulary.values()):
        names = [name for name, column in vocabulary.items() if column == twice[0]]
        raise ValueError(f"vocabulary has the column {twice[0]} for {names[:3]}: give every feature its own column")
    _check_utf8(vocabulary, "vocabulary")
    return dict(vocabulary)


def _twice(values: Iterable[Any]) -> list[Any]:
    """Each value that has occurred before, in order."""
    seen: set[Any] = set()
    return [value for value in values if value in seen or seen.add(value)]  # type: ignore[func-returns-value]


def _check_utf8(names: Iterable[str], argument: str) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{argument} has {name!r}, which UTF-8 cannot encode: read it in the right encoding"
            ) from error
