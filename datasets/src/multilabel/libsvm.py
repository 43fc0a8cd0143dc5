"""Multilabel data in the format of LIBSVM: ``1,5,7 12:0.5 90:1``, labels and then features, an example a line.

https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multilabel.html has such files; those of the extreme
classification repository begin with a line of three numbers: examples, features, labels. scikit-learn parses them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO

import numpy as np

from torchssvm.core.arguments import check_whole, needs

from ..lines import UNPACKED_LIMIT, is_blank, read_lines
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
    header = lines[0].split()
    told = len(header) == 3 and all(token.isascii() and token.isdigit() for token in header)
    if told:
        num_features = _agreed(num_features, int(header[1]), "num_features", path)
        num_labels = _agreed(num_labels, int(header[2]), "num_labels", path)
    if num_features is None or num_labels is None:
        name = "num_labels" if num_labels is None and num_features is not None else "num_features"
        raise ValueError(f"{name} is needed: the first line of the file does not say (examples, features, labels)")
    check_whole(num_features, "num_features")
    check_whole(num_labels, "num_labels")
    numbers = []  # line numbers of the examples
    for number, line in enumerate(lines[told:], start=1 + told):
        if line.partition("#")[0].strip():
            numbers.append(number)
        elif "#" not in line and len(lines) > 1:
            raise ValueError(
                f"{path}, line {number}: an empty line, and more after it; an example has a label or a feature"
            )
    if not numbers:
        raise ValueError(f"{path} has no example")
    if told and len(numbers) != int(header[0]):
        raise ValueError(f"{path}, line 1: {header[0]} examples, but {len(numbers)} follow; is it cut off?")
    try:
        matrix, labels = _load(lines[told:])
    except (ValueError, OverflowError):
        for number in numbers:  # scikit-learn does not name the line
            try:
                _load([lines[number - 1]])
            except (ValueError, OverflowError) as error:
                raise ValueError(f"{path}, line {number}: {error}; lines are 1,5 12:0.5 90:1, rising") from error
        raise
    if not (finite := np.isfinite(matrix.data)).all():
        row = np.searchsorted(matrix.indptr, np.argmin(finite), side="right") - 1
        raise ValueError(f"{path}, line {numbers[row]}: a value must be a finite float32 number")
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


def _load(lines: list[str]) -> tuple:
    """The features, a CSR matrix whose columns are the numbers in the file, and the labels of each example."""
    with needs("LIBSVM files need scikit-learn: pip install 'torchssvm[data]'", "sklearn"):
        from sklearn.datasets import load_svmlight_file
    text = "\n".join(line.partition("#")[0] for line in lines)
    if "qid:" in text:
        raise ValueError("a query id, qid:, is for ranking")
    return load_svmlight_file(BytesIO(text.encode()), dtype=np.float32, multilabel=True, zero_based=True)


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


def _agreed(given: int | None, found: int, name: str, path: str | os.PathLike[str]) -> int:
    if given not in (None, found):
        raise ValueError(f"{path}, line 1: {found}, but {name}={given}; leave the argument out")
    return found
