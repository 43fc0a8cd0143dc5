"""Which of a test's many cases, and of a kind's variants, say something new: the others run with the slow tests.

The whole battery runs once for each kind. A class marked ``variant`` runs its own tests, and of those that it inherits
the ones marked ``every_variant``.

Where a test has three arguments or more, every two of their values meet in one case at least; where it has two and more
than half a dozen cases, every value occurs. The first case of a test is always among them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

import pytest

FEW, SIX = 4, 6
"""So many cases of any number of arguments, and of two, are not worth a choice."""


def mark_repeated(items: Sequence[pytest.Item]) -> None:
    """Mark as slow what variants inherit, and the cases of each test whose values meet in others as well."""
    tests = defaultdict(list)
    for item in items:
        inherited = item.get_closest_marker("variant") and item.originalname not in vars(item.cls)
        if inherited and not item.get_closest_marker("every_variant"):
            item.add_marker("slow")
        if (case := getattr(item, "callspec", None)) is not None:
            tests[item.nodeid.partition("[")[0]].append((tuple(case._idlist), item))
    for cases in tests.values():
        if len(cases) > FEW:
            chosen = cover([values for values, _ in cases])
            for place, (_, item) in enumerate(cases):
                if place not in chosen:
                    item.add_marker("slow")


def cover(cases: Sequence[tuple[str, ...]]) -> set[int]:
    """Places of cases in which all pairs of values meet (of two arguments with many: all occur), chosen greedily."""
    varied = [values for values in zip(*cases, strict=True) if len(set(values)) > 1]
    if len(varied) < 2 or (len(varied) == 2 and len(cases) <= SIX):
        return set(range(len(cases)))
    together = min(2, len(varied) - 1)
    rows = zip(*varied, strict=True)
    meetings = [set(itertools.combinations(enumerate(row), together)) for row in rows]
    left, chosen = set().union(*meetings), set()
    while left:
        best = max(range(len(cases)), key=lambda place: len(meetings[place] & left))
        chosen.add(best)
        left -= meetings[best]
    return chosen
