"""How far rounding moves the hinges of packed examples in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.kinds.examples import Examples, Model

_SAMPLE = 32  # tokens whose scores are estimated
_SHARE = 0.5  # of the largest rounding of each term of a sum: the roundings have either sign


class HingeRounding:
    """The typical rounding of a hinge, from a sample of tokens that is chosen once: the largest, and some others.

    Args:
        examples: The training set.
    """

    def __init__(self, examples: Examples) -> None:
        kind, lengths = examples.kind, np.diff(examples.start)
        links = getattr(kind, "links", None)  # edges with features
        self._edges = 1.0 if links is None else float(np.abs(links.z).sum(1).max(initial=0.0))
        # A labeling differs from the target's at some tokens; of long sequences, more and more of them are doubtful.
        self._differing = float((np.sqrt(2.0 * lengths) + 0.05 * lengths).mean())
        many = len(examples.x) if examples.dense else len(examples.row) - 1
        if examples.dense:
            sizes = np.einsum("tf,tf->t", examples.x, examples.x)
        elif len(examples.value):
            sums = np.append(0.0, np.square(examples.value, dtype=np.float64).cumsum())[examples.row]
            sizes = np.diff(sums)
        else:
            sizes = np.diff(examples.row)
        largest = np.argpartition(sizes, max(many - _SAMPLE // 2, 0))[-(_SAMPLE // 2) :]
        rows = np.unique(np.append(largest, np.linspace(0, many - 1, _SAMPLE // 2).astype(np.int64)))
        self._columns: Any = None  # the features that the sample has; None is all
        if examples.dense:
            self._sizes = np.abs(examples.x[rows], dtype=np.float64)
            return
        lists = [np.arange(examples.row[row], examples.row[row + 1]) for row in rows]
        places = np.concatenate(lists)
        owner = np.repeat(np.arange(len(rows)), [len(own) for own in lists])
        columns = examples.column[places].astype(np.int64)
        if hasattr(kind, "known_start"):  # columns are numbered within each example
            own = np.searchsorted(examples.line, rows[owner], side="right") - 1
            columns = kind.known[kind.known_start[own] + columns]
        self._columns, at = np.unique(columns, return_inverse=True)
        self._sizes = np.zeros((len(rows), len(self._columns)))
        np.add.at(self._sizes, (owner, at), np.abs(examples.value[places]) if len(examples.value) else 1.0)

    def __call__(self, model: Model) -> float:
        """Of the scores that these weights give; the weights are float32."""
        rows = model.emission if self._columns is None else model.emission[self._columns]
        terms = self._sizes @ np.abs(rows)
        others = (self._edges * model.transition, model.bias, model.first, model.last)
        largest = sum(float(np.abs(array).max(initial=0.0)) for array in others)
        share = _SHARE * float(np.finfo(np.float32).eps) / 2
        return share * self._differing * (float(np.sqrt(np.square(terms).mean())) + largest)


def widen(arrays: Any) -> Any:
    """A copy of named arrays whose float32 arrays are float64."""
    if isinstance(arrays, np.ndarray):
        return arrays.astype(np.float64) if arrays.dtype == np.float32 else arrays
    if isinstance(arrays, tuple):
        made = map(widen, arrays)
        return arrays._make(made) if hasattr(arrays, "_make") else tuple(made)
    return arrays
