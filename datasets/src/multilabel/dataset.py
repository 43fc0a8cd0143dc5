"""Multilabel classification: an example has any number of K labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_choice, check_flags, check_seed
from torchssvm.core.batch import Batch
from torchssvm.core.sparse_features import SparseFeatures

from ..files import find
from ..padded import PADDING, Example, collating, padded, place_of, places_of
from ..parts import size_of_share
from .libsvm import read_libsvm
from .mulan import LabelledRows, read_mulan
from .scaling import Scaling, Unscaled
from .sparse_rows import SparseRows

PAGE = "https://mulan.sourceforge.net/datasets-mlc.html"
NAMES = ("bibtex", "medical", "scene")


class Multilabel(Dataset[Example]):
    """A map-style dataset of examples with sets of labels; :meth:`collate` and ``__getitems__`` make its batches.

    ``Multilabel("bibtex", "train")`` reads a dataset of Mulan's page, ``from_mulan`` and ``from_libsvm`` any file.

    ========  =========  ======  ========  ======
    name      train      test    features  labels
    ========  =========  ======  ========  ======
    bibtex         4880    2515      1836     159
    medical         333     645      1449      45
    scene          1211    1196       294       6
    ========  =========  ======  ========  ======

    An item is ``(x, y, index)``: ``SparseFeatures`` with columns int64 ``[P]`` and values float32 ``[P]``, or, if
    ``dense``, float32 ``[F]``; int64 ``[K]``, 1 for its labels and 0 for the others; and its number. A batch has x
    ``[B, P]``, columns -1 where padded, or ``[B, F]`` if ``dense``, and y ``[B, K]``.

    The files lie under ``TORCHSSVM_DATA`` as ``multilabel/bibtex/bibtex-train.arff`` and ``.xml``. They are not
    downloaded, because the page has RAR archives, which Python cannot unpack.

    Args:
        name: ``"bibtex"``, ``"medical"`` or ``"scene"``.
        split: ``"train"`` or ``"test"``.
        scaling: How features are scaled: :class:`ByDensity`, :class:`Standardised`, :class:`UnitRows`, fitted to these
            examples unless it is fitted already, or None for features as they are. Give the test set the ``scaling`` of
            the training set.
        bias: Whether there is one more feature, the last, that is always 1 (after ``scaling``).
        dense: Whether ``x`` is a dense tensor.
        root: The folder that has ``multilabel``; None is ``TORCHSSVM_DATA`` and the cache.

    Attributes:
        features: ``[n, F]`` by rows; ``indptr``, ``indices`` and ``values`` are its arrays, for compiled loops.
        labels: ``[n, K]`` by rows; all values are 1.
        label_names: Name of every label.
        feature_names: Name of every feature.
        scaling: The fitted scaling.
        source: The file.

    Raises:
        FileNotFoundError: A file is missing; the message says where to put it.
        TypeError: An argument is of another kind.
        ValueError: There is no such name or split, or a file is malformed (the message has the line), or the test set
            is given a scaling that is not fitted.

    Example:
        >>> train = Multilabel("scene", "train", scaling=Standardised(), dense=True)
        >>> len(train), train.in_features, train.num_labels
        (1211, 294, 6)
    """

    features: SparseRows
    labels: SparseRows
    label_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    scaling: Scaling
    source: str

    def __init__(
        self,
        name: Literal["bibtex", "medical", "scene"],
        split: Literal["train", "test"] = "train",
        *,
        scaling: Scaling | None = None,
        bias: bool = False,
        dense: bool = False,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        arff, xml = locate(name, split, root)
        if split == "test" and isinstance(scaling, Scaling) and not scaling.fitted:
            raise ValueError(
                f"scaling={scaling!r} is not fitted, and must not be fitted to the test set: give train.scaling"
            )
        self._hold(read_mulan(arff, xml, page=PAGE), scaling, bias, dense)

    @classmethod
    def from_mulan(
        cls,
        arff: str | os.PathLike[str],
        labels: str | os.PathLike[str] | int | None = None,
        *,
        scaling: Scaling | None = None,
        bias: bool = False,
        dense: bool = False,
    ) -> Multilabel:
        """Read files in Mulan's or MEKA's format.

        Args:
            arff: The file of examples.
            labels: Mulan's XML file, which names the labels, in its order; or their number, as in MEKA: the first
                attributes are labels, the last if it is negative. None is MEKA's number if the file's ``@relation`` has
                one (``-C 6``), else the XML file beside it, ``scene.xml`` for ``scene-train.arff``.
            scaling, bias, dense: See the class.

        Raises:
            OSError: A file cannot be opened.
            ValueError: One is malformed, or they do not fit together; the message begins with file and line.
        """
        return cls._of(read_mulan(arff, labels), scaling, bias, dense)

    @classmethod
    def from_libsvm(
        cls,
        path: str | os.PathLike[str],
        num_features: int | None = None,
        num_labels: int | None = None,
        *,
        first_feature: int = 1,
        first_label: int = 0,
        scaling: Scaling | None = None,
        bias: bool = False,
        dense: bool = False,
    ) -> Multilabel:
        """Read a file in LIBSVM's format, ``1,5,7 12:0.5 90:1``.

        Args:
            path: The file.
            num_features: Number of features without the bias, equal for training and test set; None if the first
                line of the file has the numbers of examples, features and labels.
            num_labels: Number of labels; None likewise.
            first_feature: The number of the first feature in the file, 0 or 1.
            first_label: The number of the first label in the file, 0 or 1.
            scaling, bias, dense: See the class.

        Raises:
            OSError: The file cannot be opened.
            ValueError: The file is malformed (the message begins with file and line), or an argument is out of range.
        """
        rows = read_libsvm(path, num_features, num_labels, first_feature=first_feature, first_label=first_label)
        return cls._of(rows, scaling, bias, dense)

    @classmethod
    def _of(cls, rows: LabelledRows, scaling: Scaling | None, bias: bool, dense: bool) -> Multilabel:
        made = cls.__new__(cls)
        made._hold(rows, scaling, bias, dense)
        return made

    def _hold(self, rows: LabelledRows, scaling: Scaling | None, bias: bool, dense: bool) -> None:
        check_flags(bias=bias, dense=dense)
        if scaling is not None and not isinstance(scaling, Scaling):
            raise TypeError(f"scaling={scaling!r} must be an object: ByDensity(), Standardised(), UnitRows() or None")
        names = rows.feature_names
        self.scaling = (Unscaled() if scaling is None else scaling).fit(rows.features)
        features = self.scaling.apply(rows.features)
        if bias:
            features, names = features.with_ones(), (*names, "bias")
        self.features, self.feature_names = features, names
        self.labels, self.label_names = rows.labels, rows.label_names
        self.source = rows.source
        self.dense = dense

    def split(self, share: float, seed: int) -> tuple[Multilabel, Multilabel]:
        """All examples but a share of them, and that share, drawn at random; features as they are here.

        Args:
            share: Of the second part; more than 0 and less than 1.
            seed: Of the draw.

        Raises:
            ValueError: A part would be empty.
        """
        count = size_of_share(len(self), share)
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(check_seed(seed)))
        first, second = (copy(self) for _ in range(2))
        for part, rows in ((first, order[count:]), (second, order[:count])):
            part.features, part.labels = self.features.take(rows.sort().values), self.labels.take(rows.sort().values)
        return first, second

    def scaled(self, scaling: Scaling) -> Multilabel:
        """The same examples, scaled; the rule is fitted to them unless it is fitted already.

        Raises:
            ValueError: The features are scaled, or have a bias, already; or the rule fits other features.
        """
        if self.feature_names[-1:] == ("bias",) or not isinstance(self.scaling, Unscaled):
            raise ValueError("the features are scaled or have a bias already: read the examples without")
        made = copy(self)
        made.scaling = scaling.fit(self.features)
        made.features = made.scaling.apply(self.features)
        return made

    @property
    def in_features(self) -> int:
        """F, with the bias if there is one."""
        return self.features.num_columns

    @property
    def num_labels(self) -> int:
        """K."""
        return self.labels.num_columns

    @property
    def indptr(self) -> Tensor:
        """int64 ``[n + 1]``: example i has the entries ``indptr[i]`` to ``indptr[i + 1] - 1``."""
        return self.features.indptr

    @property
    def indices(self) -> Tensor:
        """int32 ``[M]``, the nonzero features, ascending within an example."""
        return self.features.indices

    @property
    def values(self) -> Tensor:
        """float32 ``[M]``, the values of these features."""
        return self.features.values

    @property
    def label_counts(self) -> Tensor:
        """int64 ``[K]``, number of examples with each label."""
        return self.labels.counts()

    @property
    def labels_per_example(self) -> Tensor:
        """int64 ``[n]``."""
        return self.labels.indptr.diff()

    def names(self, i: int) -> list[str]:
        """The names of the labels of an example."""
        at = place_of(i, len(self))
        start, stop = self.labels.indptr[at : at + 2].tolist()
        return [self.label_names[label] for label in self.labels.indices[start:stop].tolist()]

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, i: int) -> Example:
        batch = self.__getitems__([place_of(i, len(self))])
        x = batch.x[0] if self.dense else SparseFeatures(batch.x.columns[0], batch.x.values[0])
        return Example(x, batch.y[0], int(batch.index[0]))

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """The examples at ``indices`` as one batch; a ``DataLoader`` calls this."""
        index = torch.tensor(places_of(indices, len(self)), dtype=torch.int64)
        x = self.features.dense(index) if self.dense else SparseFeatures(*self.features.lists(index))
        return Batch(x=x, y=self.labels.dense(index).long(), index=index)

    @staticmethod
    @collating
    def collate(examples: Sequence[Example]) -> Batch:
        """Examples; lists of features are padded to the longest."""
        xs, ys, numbers = zip(*examples, strict=True)
        if isinstance(xs[0], Tensor):
            x: Any = torch.stack(xs)
        else:
            x = SparseFeatures(padded([each.columns for each in xs], PADDING), padded([each.values for each in xs], 0))
        return Batch(x=x, y=torch.stack(ys), index=torch.tensor(numbers))

    def __repr__(self) -> str:
        sizes = f"{self.in_features} features, {self.num_labels} labels"
        return f"{type(self).__name__}: {len(self)} examples, {sizes}, {Path(self.source).name}"


def locate(name: str, split: str, root: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
    """The ARFF and the XML file of a dataset; arguments and errors as in :class:`Multilabel`."""
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, not {name!r}; Multilabel.from_mulan reads any files")
    check_choice(split, "split", "train", "test")
    page = f"{PAGE} (unpack {name}.rar)"
    folder = f"multilabel/{name}/{name}"
    return find(f"{folder}-{split}.arff", page, root), find(f"{folder}.xml", page, root)
