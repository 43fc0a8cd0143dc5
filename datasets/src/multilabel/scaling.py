"""How features are scaled before training: objects that are fitted to the training rows, then applied to any rows."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from torchssvm.core.arguments import check_number, check_object
from torchssvm.core.packages import warn

from .sparse_rows import SparseRows


class Scaling:
    """A rule of scaling; use :class:`ByDensity`, :class:`UnitRows`, :class:`Standardised` or :class:`Unscaled`.

    Example:
        >>> rows = SparseRows.of_dense(torch.tensor([[3.0, 4.0]]))
        >>> rules = [Unscaled(), UnitRows(), Standardised()]
        >>> [isinstance(rule, Scaling) and rule.fitted for rule in rules]
        [True, True, False]
    """

    @property
    def fitted(self) -> bool:
        """Whether nothing more is needed from the training rows."""
        return True

    def fit(self, features: SparseRows) -> Scaling:
        """The rule with what it needs of the training rows, ``[n, F]``; a fitted rule is returned as it is."""
        return self

    def apply(self, features: SparseRows) -> SparseRows:
        """The scaled rows, ``[m, F]``.

        Raises:
            ValueError: The rule is not fitted, or was fitted to rows of another F.
        """
        raise NotImplementedError(f"{type(self).__name__} has no apply")


@dataclass(frozen=True)
class Unscaled(Scaling):
    """Features as they are in the file.

    Example:
        >>> rows = SparseRows.of_dense(torch.tensor([[3.0, 4.0]]))
        >>> Unscaled().apply(rows).dense()
        tensor([[3., 4.]])
    """

    def apply(self, features: SparseRows) -> SparseRows:
        """The same rows."""
        return features


@dataclass(frozen=True)
class UnitRows(Scaling):
    """Each example's features divided by their Euclidean norm: for sparse features, such as counts of words.

    Example:
        >>> rows = SparseRows.of_dense(torch.tensor([[3.0, 4.0]]))
        >>> UnitRows().apply(rows).dense()
        tensor([[0.6000, 0.8000]])
    """

    def apply(self, features: SparseRows) -> SparseRows:
        """Rows of norm 1; zero rows stay zero."""
        _check_rows(features)
        return features.unit_rows()


@dataclass(frozen=True, eq=False)
class Standardised(Scaling):
    """Every feature with mean 0 and variance 1/F on the training rows: for dense features.

    With a variance of 1/F the mean squared norm of a training row is 1, as with :class:`UnitRows`, so that lam means
    about the same; F counts the features that vary, and those that do not vary become 0. Rows are dense afterwards.

    Attributes:
        mean: ``[F]`` float64, means of the training rows; None before :meth:`fit`.
        scale: ``[F]`` float64, what features are multiplied by after the mean is subtracted; None before.

    Example:
        >>> rows = SparseRows.of_dense(torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
        >>> scaling = Standardised().fit(rows)
        >>> scaling.apply(rows).dense()
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """

    mean: Tensor | None = None
    scale: Tensor | None = None

    @property
    def fitted(self) -> bool:
        """Whether means and scales are known."""
        return self.mean is not None and self.scale is not None

    def fit(self, features: SparseRows) -> Standardised:
        """Means and scales of these rows, unless they are known."""
        if self.fitted:
            return self
        _check_rows(features)
        rows = features.dense().double()
        mean = rows.mean(0)
        deviation = (rows - mean).square().mean(0).sqrt()
        varies = deviation > torch.finfo(features.values.dtype).eps * mean.abs()  # of which they were rounded
        if lost := ((rows != rows[:1]).any(0) & ~varies).nonzero().flatten().tolist():
            warn(f"columns {lost[:8]} differ by rounding alone and become 0: subtract their mean, in float64")
        size = math.sqrt(max(int(varies.sum()), 1))
        return Standardised(mean, torch.where(varies, 1.0 / (size * deviation), 0.0))

    def apply(self, features: SparseRows) -> SparseRows:
        """``(x - mean) * scale``."""
        if self.mean is None or self.scale is None:
            raise ValueError("Standardised() knows no means yet: give scaling=train.scaling, or call fit")
        _check_rows(features)
        if len(self.mean) != features.num_columns:
            raise ValueError(f"the scaling is of {len(self.mean)} features, and these rows have {features.num_columns}")
        return SparseRows.of_dense(((features.dense().double() - self.mean) * self.scale).float())


@dataclass(frozen=True)
class ByDensity(Scaling):
    """:class:`Standardised` if most values of the training rows are not zero, else :class:`UnitRows`; says which.

    Args:
        dense_above: The share of values that are not zero above which features are dense; 0 to 1.

    Raises:
        TypeError: ``dense_above`` is not a number.
        ValueError: It is out of range.

    Example:
        >>> rows = SparseRows.of_dense(torch.tensor([[3.0, 4.0, 0.0, 0.0, 0.0]]))
        >>> ByDensity().fit(rows).apply(rows).dense()
        tensor([[0.6000, 0.8000, 0.0000, 0.0000, 0.0000]])
    """

    dense_above: float = 0.5

    def __post_init__(self) -> None:
        share = check_number(self.dense_above, "dense_above", 0.0)
        if share > 1.0:
            raise ValueError(f"dense_above={share} must be at most 1: it is a share of values")

    @property
    def fitted(self) -> bool:
        """False: the choice needs the training rows."""
        return False

    def fit(self, features: SparseRows) -> Scaling:
        """The chosen rule, fitted; the choice is printed to standard error."""
        _check_rows(features)
        share = features.values.count_nonzero().item() / max(len(features) * features.num_columns, 1)
        dense = share > self.dense_above
        chosen: Scaling = Standardised().fit(features) if dense else UnitRows()
        print(
            f"torchssvm: {share:.1%} of the training features are not zero, so they are "
            f"{'standardised' if dense else 'divided by the norm of their row'}; "
            f"scaling={'UnitRows' if dense else 'Standardised'}() chooses the other way",
            file=sys.stderr,
            flush=True,
        )
        return chosen

    def apply(self, features: SparseRows) -> SparseRows:
        """Not possible: see :meth:`fit`."""
        raise ValueError("ByDensity() has not chosen yet: give the training set's, scaling=train.scaling, or call fit")


def _check_rows(features: SparseRows) -> None:
    check_object(features, "features", "unit_rows", "SparseRows.of_dense(matrix)")
