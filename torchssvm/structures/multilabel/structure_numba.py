"""Sums over pairs of labels that are on, compiled by Numba; matrix products in ``multilabel.py`` give the same."""

from __future__ import annotations

from typing import Any

from torchssvm.core.jit import compiled


@compiled
def add_pairs(labelings: Any, mass: Any, total: Any) -> None:
    """``total[b, p] += mass[b, c]`` where both labels of pair p are on in ``labelings[b, c]``.

    Few are on: what takes time is to look at each label once.
    """
    size = labelings.shape[2]
    for b in range(labelings.shape[0]):
        for c in range(labelings.shape[1]):
            labels = labelings[b, c]
            for i in range(size):
                if labels[i] == 1:
                    # The pairs of i begin after those of all before it: (size - 1) + (size - 2) + ...
                    before = i * size - i * (i + 1) // 2 - i - 1
                    for j in range(i + 1, size):
                        if labels[j] == 1:
                            total[b, before + j] += mass[b, c]
