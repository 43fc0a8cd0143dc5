"""Lines such as ``1 qid:3 12:0.5 90:1``, of SVMlight and LIBSVM, parsed by scikit-learn; errors name the line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from torchssvm.core.arguments import needs

from .lines import is_plain


class Parsed(NamedTuple):
    """The examples of a file: ``features``, a CSR matrix ``[n, F]``, ``labels``, and ``queries`` if they were read.

    ``lines`` are the numbers of their lines.
    """

    features: Any
    labels: Any
    queries: np.ndarray | None
    lines: list[int]


def parse(
    path: str | os.PathLike[str], lines: Sequence[str], form: str, *, start: int = 1, queries: bool = False
) -> Parsed:
    """Parse lines that begin at line ``start`` of a file: with queries and one number in front, or several labels.

    Columns are the numbers in the file. ``form`` is how a line looks, for messages.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: A line has another form, or a value that is no finite float32; the message names file and line.
    """
    with needs("these files need scikit-learn: pip install 'torchssvm[data]'", "sklearn"):
        from sklearn.datasets import load_svmlight_file
    given = _Lines(lines, start, queries)
    try:
        features, labels, *numbers = load_svmlight_file(
            given, dtype=np.float32, multilabel=not queries, zero_based=True, query_id=queries
        )
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path}, line {given.at}: {error}; lines are {form}, rising") from error
    if not (finite := np.isfinite(features.data)).all():
        row = np.searchsorted(features.indptr, np.argmin(finite), side="right") - 1
        raise ValueError(f"{path}, line {given.numbers[row]}: a value must be a finite float32 number")
    return Parsed(features, labels, numbers[0] if queries else None, given.numbers)


class _Lines:
    """A file, as far as scikit-learn asks, that knows the line which it is at."""

    def __init__(self, lines: Sequence[str], start: int, queries: bool) -> None:
        self.lines, self.at, self.queries = lines, start, queries
        self.numbers: list[int] = []

    def __iter__(self) -> Iterator[bytes]:
        for at, line in enumerate(self.lines, self.at):
            self.at = at
            text = line.partition("#")[0]
            if text.strip():
                if not is_plain(text):
                    raise ValueError("numbers are written in ASCII digits, without underscores")
                if ("qid:" in text) != self.queries:
                    raise ValueError("no query id, qid:" if self.queries else "a query id, qid:, is for ranking")
                self.numbers.append(self.at)
                yield text.encode()

    def read(self) -> None:
        """Scikit-learn looks whether there is such a method, and iterates."""
