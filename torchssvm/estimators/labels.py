"""Labels of tokens and nodes: checked, and turned to states and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.class_weight import compute_class_weight

from torchssvm.estimators.examples import padded


def check_lists(X: Any, y: Any, sizes: Sequence[int], what: str) -> None:
    """Raise ValueError if ``y`` is not a list with as many labels for every example as it has tokens or nodes."""
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} examples and y has {len(y)}: each example needs its labels")
    for place, (size, labels) in enumerate(zip(sizes, y, strict=True)):
        if isinstance(labels, str) or not hasattr(labels, "__len__"):
            raise ValueError(f"y[{place}]={labels!r} must be a list of labels, one for each {what} of X[{place}]")
        if size != len(labels):
            raise ValueError(f"X[{place}] has {size} {what}s and y[{place}] has {len(labels)} labels")


def states_of(y: Sequence[Sequence[Any]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct labels in ascending order, and the state of each label.

    Raises:
        ValueError: There is only one label.
    """
    everything = np.array(list(itertools.chain.from_iterable(y)))
    classes, states = np.unique(everything, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has one label only, {classes.tolist()}: at least two classes are needed")
    ends = np.cumsum([len(labels) for labels in y])[:-1]
    return classes, np.split(states.astype(np.int64), ends)


def weights_of(class_weight: Any, classes: np.ndarray, states: Sequence[np.ndarray]) -> torch.Tensor | None:
    """The cost of a wrong label by the true class, ``[K]`` float64; None for 1 throughout."""
    if class_weight is None:
        return None
    everything = classes[np.concatenate(states)]
    found = compute_class_weight(class_weight, classes=classes, y=everything)
    if not (np.isfinite(found).all() and (found >= 0.0).all()):
        raise ValueError(f"class_weight={class_weight!r} must hold finite numbers that are not negative")
    return torch.from_numpy(found)


def padded_states(states: Sequence[np.ndarray], rows: np.ndarray) -> torch.Tensor:
    """``[B, N]`` int64, -1 where padded."""
    return padded([states[i] for i in rows], -1)


def accuracy(y: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> float:
    """The share of right labels among all."""
    pairs = [(a, b) for true, own in zip(y, found, strict=True) for a, b in zip(true, own, strict=True)]
    return sum(a == b for a, b in pairs) / max(len(pairs), 1)
