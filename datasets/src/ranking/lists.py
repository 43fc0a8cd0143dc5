"""Queries with lists of graded documents, from the flat arrays that rankers take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torchssvm.core.arguments import check_choice, check_readable, check_tensor, check_whole
from torchssvm.core.memory import available_memory

from ..files import find, read_arrays
from ..lines import UNPACKED_LIMIT, read_lines
from ..padded import PADDING, PaddedDataset
from ..svmlight import parse

_PAGE = (
    "https://github.com/microsoft/LightGBM/tree/master/examples/lambdarank (rank.train and rank.test, packed by "
    "numpy.savez as x_train, y_train, queries_train, x_test, y_test and queries_test)"
)


class RankedLists(PaddedDataset):
    """Queries as examples: an item is ``(x, y, index)``, features float32 ``[N, F]`` and grades int64 ``[N]``.

    Args:
        x: ``[D, F]``, features of all documents, query by query; finite.
        y: ``[D]``, their grades: whole numbers, 0 for not relevant and more for better.
        sizes: ``[Q]`` int64, the number of documents of each query; they sum to D.
        relevant: Lists without a document of this grade or more are left out, as no order of them is better than
            another for average precision and NDCG; 0 keeps all, which ``PairSwaps()`` trains on, and of which
            :func:`ranking_scores` says with ``without_relevant`` what they count.

    Attributes:
        num_left_out: How many lists were left out.

    Raises:
        ValueError: Sizes do not fit, a grade is negative or not whole, a feature is not finite, or no list is left.

    Example:
        >>> lists = RankedLists(torch.rand(5, 3), torch.tensor([0, 2, 1, 0, 0]), torch.tensor([3, 2]))
        >>> lists  # the second one has no relevant document
        RankedLists: 1 examples, x [1, 3, 3], y [1, 3], 1 list without relevant documents left out
        >>> lists[0].y
        tensor([0, 2, 1])
    """

    def __init__(self, x: Tensor, y: Tensor, sizes: Tensor | Sequence[int], relevant: int = 1):
        check_whole(relevant, "relevant", 0)
        y, sizes = _numbers(y, "y"), _numbers(sizes, "sizes")
        if check_tensor(x, "x").ndim != 2 or y.shape != x.shape[:1]:
            raise ValueError(f"x and y must be [D, F] and [D], got {list(x.shape)} and {list(y.shape)}")
        if sizes.is_floating_point():
            raise ValueError(f"sizes must be whole numbers of documents, got {sizes.dtype}: convert sizes by .long()")
        if sizes.ndim != 1 or bool((sizes < 1).any()) or int(sizes.sum()) != len(x):
            raise ValueError(
                f"sizes must be [Q], at least 1, and sum to the {len(x)} documents, got {int(sizes.sum())} of shape "
                f"{list(sizes.shape)}"
            )
        if bool((wrong := ~torch.isfinite(x).all(1)).any()):
            raise ValueError(f"x is not finite in row {int(wrong.nonzero()[0])}")
        grades = y.to(torch.int64)
        if bool((wrong := (y < 0) | (grades != y)).any()):
            row = int(wrong.nonzero()[0])
            raise ValueError(f"y has {y[row].item()} in row {row}; grades are whole numbers, 0 or more")
        if not len(x):
            raise ValueError("x holds no document")
        pairs = zip(x.split(sizes.tolist()), grades.split(sizes.tolist()), strict=True)
        kept = [(features, grades) for features, grades in pairs if int(grades.max()) >= relevant]
        if not kept:
            raise ValueError(f"no list has a document of grade {relevant} or more: lower relevant={relevant}")
        self.relevant, self.num_left_out = relevant, len(sizes) - len(kept)
        super().__init__(
            pad_sequence([features for features, _ in kept], batch_first=True),
            pad_sequence([grades for _, grades in kept], batch_first=True, padding_value=PADDING),
            torch.tensor([len(grades) for _, grades in kept]),
        )

    @classmethod
    def of_queries(cls, x: Tensor, y: Tensor, qid: Tensor | Sequence[int], relevant: int = 1) -> RankedLists:
        """The lists of documents that come in any order, each with the number of its query.

        Args:
            x: ``[D, F]``, as above, like ``y`` and ``relevant``.
            y: ``[D]``.
            qid: ``[D]``, whole numbers: documents with the same one are a list, in their order; lists are in the order
                of their numbers.

        Raises:
            ValueError: As above, or ``qid`` is no whole number for each document.

        Example:
            >>> RankedLists.of_queries(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]), qid=[7, 3, 7, 3])[1].y
            tensor([0, 1])
        """
        numbers, x, y = _numbers(qid, "qid"), _numbers(x, "x"), _numbers(y, "y")
        if numbers.is_floating_point() or numbers.is_complex() or numbers.shape != y.shape or numbers.ndim != 1:
            raise ValueError(
                f"qid is {numbers.dtype} {list(numbers.shape)}, and must be a whole number for each of the documents"
            )
        if len(x) != len(y):
            raise ValueError(f"x has {len(x)} documents, and y {len(y)}: each needs its grade")
        order = numbers.argsort(stable=True)
        return cls(x[order], y[order], numbers[order].unique_consecutive(return_counts=True)[1], relevant)

    @classmethod
    def svmlight(
        cls,
        path: str | os.PathLike[str],
        relevant: int = 1,
        in_features: int | None = None,
        *,
        first_feature: int = 1,
        limit: int = UNPACKED_LIMIT,
    ) -> RankedLists:
        """The lists of a file in the form of SVMlight: ``grade qid:3 1:0.5 7:1`` for each document.

        Args:
            path: The file, plain or packed by gzip; it is parsed by scikit-learn.
            relevant: As above.
            in_features: F, for test files, in which the last features may not occur; None is the largest number.
            first_feature: The number of the first feature in the file, 1 as in LETOR's, or 0 as in LightGBM's and
                XGBoost's.
            limit: Bytes that a gzip file may unpack to.

        Raises:
            ValueError: As above, or the file has another form, no document, or one without a query; the message begins
                with the file and, if known, the line. Values such as ``NULL`` are refused: fill them in.
            MemoryError: The features, which are kept dense, would not fit.
            ImportError: scikit-learn is missing.
        """
        path = os.fspath(path)
        check_choice(first_feature, "first_feature", 0, 1)
        if in_features is not None:
            check_whole(in_features, "in_features")
        x, y, qid, numbers = parse(path, read_lines(path, limit), "grade qid:3 1:0.5 7:1", queries=True)
        if not len(y):
            raise ValueError(f"{path} has no document")
        for wrong, what in (
            (x.indices < first_feature, "feature 0, and they are numbered from 1: give first_feature=0"),
            (x.indices - first_feature >= (in_features or np.inf), f"a feature beyond in_features={in_features}"),
        ):
            if wrong.any():
                row = np.searchsorted(x.indptr, wrong.argmax(), side="right") - 1
                raise ValueError(f"{path}, line {numbers[row]}: {what}")
        if (wrong := ~((y >= 0) & (y == y.round()) & (y < 2**31))).any():
            row = wrong.argmax()
            raise ValueError(f"{path}, line {numbers[row]}: grade {y[row]:g}; grades are whole numbers, 0 or more")
        width = in_features or x.shape[1] - first_feature
        needed, free = 12 * len(y) * width, available_memory(torch.device("cpu"))  # copied, then padded
        if needed > free:
            raise MemoryError(
                f"{path} has {len(y)} documents and features up to {x.shape[1] - 1}, which would take "
                f"{needed / 2**20:,.0f} MiB where {free / 2**20:,.0f} MiB are free: number the features without gaps"
            )
        x.resize(len(y), width + first_feature)
        features = torch.from_numpy(x.toarray()[:, first_feature:])
        return cls.of_queries(features, torch.from_numpy(y), torch.from_numpy(qid), relevant)

    @classmethod
    def lightgbm(
        cls, split: Literal["train", "test"] = "train", root: str | os.PathLike[str] | None = None
    ) -> RankedLists:
        """LightGBM's example of lambdarank: 201 and 50 web queries, 301 features, grades 0 to 4; 3 are left out.

        Args:
            split: ``"train"`` or ``"test"``.
            root: The folder that has ``ranking.npz``; None is ``TORCHSSVM_DATA`` and the cache.

        Raises:
            ValueError: There is no such split.
            FileNotFoundError: The file is missing; the message says what to fetch and where to put it.
            RuntimeError: The file is corrupt.
        """
        check_choice(split, "split", "train", "test")
        arrays = read_arrays(find("ranking.npz", _PAGE, root), *(f"{name}_{split}" for name in ("x", "y", "queries")))
        x, y, sizes = map(torch.from_numpy, arrays)
        return cls(x, y, sizes.to(torch.int64))

    def __repr__(self) -> str:
        gone = self.num_left_out
        left_out = f", {gone} list{'s' * (gone > 1)} without relevant documents left out" if gone else ""
        return super().__repr__() + left_out

    @property
    def in_features(self) -> int:
        """F, numbers per document."""
        return self._held.shape[2]


def _numbers(given: Any, name: str) -> Tensor:
    check_readable(given, name)
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:  # texts, ragged lists, None
        raise ValueError(f"{name} must be numbers, not {given!r}") from error
