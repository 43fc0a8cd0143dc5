"""Labels of tokens and nodes: checked, and turned to states and back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.utils.class_weight import compute_class_weight

from torchssvm.core.arguments import name_rows, number_of
from torchssvm.core.batch import Batch
from torchssvm.estimators.examples import Examples, padded, size_of
from torchssvm.structures.common import WeightedLabels

NO_LABELS = (-1, -100)
"""Numbers that stand for a missing label elsewhere, in scikit-learn and torch."""


def check_lists(y: Any, sizes: Sequence[int], what: str) -> list[Sequence[Any]]:
    """The labels of every example, if there is one, a text or a number, for each of its tokens or nodes.

    Args:
        y: The user's argument.
        sizes: The number of tokens or nodes of each example.
        what: "token" or "node", for error messages.
    """
    if not hasattr(y, "__len__") or len(sizes) != len(y):
        count = len(y) if hasattr(y, "__len__") else f"={y!r}"
        raise ValueError(f"X has {len(sizes)} examples and y has {count}: each example needs its labels")
    y = [np.asarray(labels) if hasattr(labels, "__array__") else labels for labels in y]
    kinds: set[type] = set()
    for row, (size, labels) in enumerate(zip(sizes, y, strict=True)):
        place = number_of(row)
        if isinstance(labels, str) or not hasattr(labels, "__len__"):
            raise ValueError(f"y[{place}]={labels!r} must be a list of labels, one for each {what} of X[{place}]")
        if getattr(labels, "ndim", 1) != 1:
            raise ValueError(f"y[{place}] has shape {list(labels.shape)}, and [N] is expected: a label for each {what}")
        if size != len(labels):
            raise ValueError(f"X[{place}] has {size} {what}s and y[{place}] has {len(labels)} labels")
        for at, label in enumerate(labels):
            kind = str if isinstance(label, str) else Real if isinstance(label, Real | np.bool_) else None
            if kind is None or label != label:
                raise ValueError(f"y[{place}][{at}]={label!r} must be a text or a number, the label of a {what}")
            if kind is Real and label in NO_LABELS:
                raise ValueError(
                    f"y[{place}][{at}]={label!r} marks a {what} without a label, and every {what} needs one: leave "
                    f"such {what}s out of X and y; where it is a label of its own, give texts, as str(label)"
                )
            kinds.add(kind)
            if len(kinds) > 1:
                raise ValueError(
                    f"y has texts and numbers, and y[{place}][{at}]={label!r} is the first of the second kind: give "
                    "labels of one kind, as str(label)"
                )
    return y


def check_classes(y: np.ndarray, classes: np.ndarray) -> None:
    """Raise ValueError for one class, or -100, which torch leaves out; -1 is one of two classes in scikit-learn."""
    missing = y == -100 if y.dtype.kind in "if" else np.zeros(len(y), bool)
    if missing.any():
        place = number_of(int(missing.argmax()))
        raise ValueError(
            f"y[{place}]=-100 marks an example without a class: leave such examples out of X and y; "
            "where it is a class of its own, give texts, as y.astype(str)"
        )
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {classes.tolist()[0]!r}: at least two classes are needed")


def states_of(y: Sequence[Sequence[Any]], known: np.ndarray | None = None) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct labels, those that are ``known`` first and the others in ascending order; the state of each label."""
    everything = np.array(list(itertools.chain.from_iterable(y)))
    classes, states = np.unique(everything, return_inverse=True)
    if len(classes) < 2 and known is None:
        raise ValueError(f"y has one label only, {classes.tolist()}: at least two classes are needed")
    if known is not None:
        if (known.dtype.kind == "U") != (classes.dtype.kind == "U"):
            raise ValueError(f"y has labels such as {classes[0]!r}, and had {known[0]!r} before: give one kind")
        both = np.concatenate([known, classes[~np.isin(classes, known)]])
        order = both.argsort()
        states, classes = order[both[order].searchsorted(classes)][states], both
    ends = np.cumsum([len(labels) for labels in y])[:-1]
    return classes, np.split(states.astype(np.int64), ends)


def times_of(sample_weight: Any, n: int) -> np.ndarray:
    """How often each example counts, ``[n]`` float64, checked."""
    found = np.asarray(sample_weight, np.float64)
    if found.shape != (n,):
        raise ValueError(
            f"sample_weight has shape {list(found.shape)}, and [{n}] is expected, a number for each example"
        )
    if not (np.isfinite(found).all() and (found >= 0.0).all() and found.any()):
        raise ValueError("sample_weight must hold finite numbers that are not negative, and not only zeros")
    return found


def counted(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, np.ndarray | None, float | None]:
    """The examples whose weight is not 0; their weights divided by the mean, ``[n]``, and the sum of the weights.

    Both are None where no weights are given: then n takes the place of the sum. Errors of ``fit`` name the examples by
    their places among all.
    """
    if sample_weight is None:
        return X, y, None, None
    times = times_of(sample_weight, size_of(X))
    kept = times.nonzero()[0]
    if len(kept) < len(times) == len(y):
        X, y = (own[kept] if hasattr(own, "shape") else [own[i] for i in kept] for own in (X, y))
        times = times[kept]
        name_rows(torch.from_numpy(kept))
    return X, y, times / times.mean(), float(times.sum())


def weights_of(
    class_weight: Any, classes: np.ndarray, codes: np.ndarray, sample_weight: np.ndarray | None = None
) -> np.ndarray:
    """The weight of the loss of each true class, ``[K]`` float64.

    Args:
        class_weight: None, "balanced", or a dictionary by class.
        classes: ``[K]``.
        codes: The class of every label, 0 to K - 1.
        sample_weight: How often each label counts in "balanced"; None is once.
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(codes, sample_weight, len(classes)).astype(np.float64)
        least = counts[counts > 0.0].min(initial=np.inf)  # that of a class which does not occur
        return counts.sum() / (len(classes) * np.maximum(counts, least))
    if class_weight is not None and not isinstance(class_weight, dict):
        raise ValueError(f"class_weight={class_weight!r} must be None, 'balanced' or a dictionary by class")
    known, named = set(classes.tolist()), class_weight or {}
    if known - set(named) and (others := [name for name in named if name not in known]):
        raise ValueError(f"class_weight names {others[0]!r}, and the classes are {classes.tolist()}")
    found = compute_class_weight(class_weight, classes=classes, y=classes)
    if not (np.isfinite(found).all() and (found >= 0.0).all()):
        raise ValueError(f"class_weight={class_weight!r} must hold finite numbers that are not negative")
    return found


def state_weights(
    class_weight: Any, classes: np.ndarray, states: Sequence[np.ndarray], times: np.ndarray | None = None
) -> torch.Tensor | None:
    """:func:`weights_of` for lists of states, and how often each list counts; None for 1 throughout."""
    if class_weight is None:
        return None
    each = None if times is None else np.repeat(times, [len(own) for own in states])
    return torch.from_numpy(weights_of(class_weight, classes, np.concatenate(states), each))


def labelled(
    lengths: Sequence[int],
    states: Sequence[np.ndarray] | None,
    features: Callable[[np.ndarray], Any],
    costs: torch.Tensor | None = None,
) -> Examples:
    """A training set of examples with a state for each token or node.

    Args:
        lengths: The number of tokens or nodes of each example.
        states: The states of each example; None, to predict, is 0 throughout.
        features: Places ``[B]`` -> the features of these examples.
        costs: ``[K]``, of a wrong label, by the true one: targets are then :class:`WeightedLabels`.
    """
    sizes = np.asarray(lengths, np.int64)
    y = [np.zeros(size, np.int64) for size in sizes] if states is None else states

    def fetch(rows: np.ndarray) -> Batch:
        target: Any = padded([y[i] for i in rows], -1)
        if costs is not None:
            target = WeightedLabels(target, costs[target.clamp(min=0)])
        return Batch(features(rows), target, torch.from_numpy(rows), torch.from_numpy(sizes[rows]))

    return Examples(fetch, sizes)


def accuracy(y: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> float:
    """The share of right labels among all."""
    pairs = [(a, b) for true, own in zip(y, found, strict=True) for a, b in zip(true, own, strict=True)]
    return sum(a == b for a, b in pairs) / max(len(pairs), 1)
