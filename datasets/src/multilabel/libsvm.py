"""Multilabel data in the format of LIBSVM: ``1,5,7 12:0.5 90:1``, labels and then features, an example a line.

https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multilabel.html has such files; files of the extreme
classification repository begin with a line of three numbers: examples, features, labels. scikit-learn parses them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from torchssvm.core.arguments import check_whole

from ..lines import UNPACKED_LIMIT, is_blank, read_lines, whole
from ..svmlight import parse
from .mulan import LabelledRows
from .sparse_rows import SparseRows


def read_libsvm(
    path: str | os.PathLike[str],
    num_features: int | None = None,
    num_labels: int | None = None,
    *,
    first_feature: int = 1,
    first_label: int = 0,
    limit: int = UNPACKED_LIMIT,
) -> LabelledRows:
    """Read a file, plain or gzipped; see ``Multilabel.from_libsvm``. It may unpack to ``limit`` bytes.

    A line without labels begins with its first feature or a blank; features ascend within a line. Text after ``#`` is a
    comment.

    Raises:
        ImportError: scikit-learn is not installed.
        OSError: The file cannot be opened.
        ValueError: The file is malformed (the message begins with its name and, if known, the line);
            ``num_features`` or ``num_labels`` is needed; or the first numbers are not 0 or 1.
    """
    for name, value in (("first_feature", first_feature), ("first_label", first_label)):
        if isinstance(value, bool) or value not in (0, 1):
            raise ValueError(f"{name}={value!r} must be 0 or 1, the number of the first one in the file")
    lines = read_lines(path, limit)
    while is_blank(lines[-1]) and len(lines) > 1:
        del lines[-1]
    sizes = [size for token in lines[0].split() if (size := whole(token)) is not None]
    told = len(sizes) == len(lines[0].split()) == 3
    if told:
        num_features = _agreed(num_features, sizes[1], "num_features", path)
        num_labels = _agreed(num_labels, sizes[2], "num_labels", path)
    if num_features is None or num_labels is None:
        name = "num_labels" if num_labels is None and num_features is not None else "num_features"
        raise ValueError(f"{name} is needed: the first line of the file does not say (examples, features, labels)")
    check_whole(num_features, "num_features")
    check_whole(num_labels, "num_labels")
    examples = 0
    for number, line in enumerate(lines[told:], start=1 + told):
        if line.partition("#")[0].strip():
            examples += 1
        elif "#" not in line and len(lines) > 1:
            raise ValueError(
                f"{path}, line {number}: an empty line, and more after it; an example has a label or a feature"
            )
    if not examples:
        raise ValueError(f"{path} has no example")
    if told and examples != sizes[0]:
        raise ValueError(f"{path}, line 1: {sizes[0]} examples, but {examples} follow; is it cut off?")
    matrix, labels, _, numbers = parse(path, lines[told:], "1,5 12:0.5 90:1", start=1 + told)
    features = [row.tolist() for row in np.split(matrix.indices, matrix.indptr[1:-1])]
    places = [
        _places(features, numbers, "feature", first_feature, num_features, path),
        _places(labels, numbers, "label", first_label, num_labels, path),
    ]
    counts = [[len(row) for row in rows] for rows in (features, labels)]
    return LabelledRows(
        SparseRows.of(counts[0], places[0], matrix.data, num_features),
        SparseRows.of(counts[1], places[1], np.ones(len(places[1])), num_labels),
        tuple(str(place + first_feature) for place in range(num_features)),
        tuple(str(place + first_label) for place in range(num_labels)),
        str(path),
    )


def _places(
    rows: Sequence[Sequence[float]], lines: list[int], what: str, first: int, total: int, path: str | os.PathLike[str]
) -> np.ndarray:
    """The numbers of all rows counted from 0, one row after another."""
    for row, line in zip(rows, lines, strict=True):
        if len(set(row)) < len(row):
            twice = next(number for number in row if list(row).count(number) > 1)
            raise ValueError(f"{path}, line {line}: {what} {twice:g} comes twice; leave one out")
        for number in row:
            if not (first <= number < first + total and number == int(number)):
                raise ValueError(
                    f"{path}, line {line}: {what} {number:g} is out of range, must be {first} to {first + total - 1}"
                )
    return np.array([number for row in rows for number in row], np.int64) - first


def _agreed(given: int | None, counted: int, name: str, path: str | os.PathLike[str]) -> int:
    if given not in (None, counted):
        raise ValueError(f"{path}, line 1: {counted}, but {name}={given}; leave the argument out")
    return counted
