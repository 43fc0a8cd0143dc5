"""Sparse features of tokens, flattened to one list for a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_tensor
from torchssvm.core.gradients import largest_feature
from torchssvm.core.row_sparse import per_example_rows
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.core.token_products import STORED


class Lists(NamedTuple):
    """Features, token after token; the columns of each token are ascending and unique.

    ``counts`` ``[tokens]`` int64 are the numbers of features of each token, ``columns`` ``[M]`` int32, and ``values``
    ``[M]`` of the weights' dtype.
    """

    counts: Tensor
    columns: Tensor
    values: Tensor


def check_finite(x: Tensor | SparseFeatures, index: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError, naming example and place, for the first feature that is not finite or overflows when squared.

    ``index`` ``[B]`` int64 are the examples, ``dtype`` is that of the weights.
    """
    columns, numbers = (x.columns, x.values) if isinstance(x, SparseFeatures) else (None, x)
    if numbers is None:
        return
    if columns is not None:
        numbers = torch.where(columns >= 0, numbers, 0.0)
    wrong = ~(numbers.detach().to(dtype).abs() <= largest_feature(dtype))  # true of NaN
    if not bool(wrong.any()):
        return
    place = wrong.nonzero()[0].tolist()
    column = place[-1] if columns is None else int(columns[tuple(place)])
    token, padding = (f"token {place[1]}, ", ", padding included") if len(place) > 2 else ("", "")
    finite = bool(torch.isfinite(numbers[tuple(place)].to(dtype)))
    fault = "overflow when squared" if finite else "are not finite"
    raise ValueError(
        f"x of example {int(index[place[0]])} holds numbers that {fault} in {dtype}{padding}: "
        f"{float(numbers[tuple(place)])} at {token}column {column}"
    )


def lists_of(x: Tensor) -> Lists:
    """The lists of dense features ``[tokens, F]``."""
    rows, columns = x.nonzero(as_tuple=True)
    return Lists(torch.bincount(rows, minlength=len(x)), columns.to(torch.int32), x[rows, columns])


@torch.no_grad()
def lists_within(x: Any, inside: Tensor, num_features: int, dtype: torch.dtype) -> Lists:
    """The lists of :class:`torchssvm.SparseFeatures` at the positions ``inside`` ``[B, N]``; repeated columns add up.

    Raises:
        TypeError, ValueError: As :func:`as_lists`.
    """
    lists = as_lists(x, num_features, dtype)
    real = inside.flatten()
    keep = real[lists.token]
    place = (real.cumsum(0) - 1)[lists.token[keep]]  # among the tokens that are inside
    key = place * num_features + lists.columns[keep]
    values = torch.ones(len(key), dtype=dtype) if lists.values is None else lists.values[keep]
    if not bool((key.diff() > 0).all()):
        key, order = key.sort(stable=True)
        key, first = key.unique_consecutive(return_inverse=True)
        values = torch.zeros(len(key), dtype=dtype).index_add_(0, first, values[order])
    counts = torch.bincount(key // num_features, minlength=int(real.sum()))
    return Lists(counts, (key % num_features).to(torch.int32), values)


class TokenLists(NamedTuple):
    """The features of a batch's tokens, one token after another.

    Attributes:
        columns: ``[M]`` int64.
        values: ``[M]`` of the weights' dtype; None means all 1.
        token: ``[M]`` int64, ascending: the token of each feature, 0 to B N - 1.
        starts: ``[B N]`` int64, the first feature of each token.
        shape: B and N.
    """

    columns: Tensor
    values: Tensor | None
    token: Tensor
    starts: Tensor
    shape: tuple[int, int]

    def emission(self, weight: Tensor) -> Tensor:
        """``x W``, ``[B, N, K]``, in plain operations."""
        rows = weight[self.columns] if self.values is None else weight[self.columns] * self.values.unsqueeze(1)
        total = weight.new_zeros(len(self.starts), weight.shape[1]).index_add(0, self.token, rows)
        return total.view(*self.shape, weight.shape[1])

    def per_example(self, v: Tensor, num_features: int) -> Tensor:
        """``sum_t x_t v_t^T`` of every example, ``[B, F, K]``: a coalesced sparse tensor with K dense numbers a row."""
        batch, longest = self.shape
        rows = v.reshape(batch * longest, -1)
        keep = (rows != 0).any(1)[self.token]
        token, columns = self.token[keep], self.columns[keep]
        values = rows[token]
        if self.values is not None:
            values = values * self.values.detach()[keep].unsqueeze(1)
        return per_example_rows(token // longest, columns, values, (batch, num_features, rows.shape[1]))

    def respond(self) -> Callable[[Tensor], Tensor]:
        """A function of v ``[B, N, K]``, used several times a batch: ``x x^T v`` of every example, ``[B, N, K]``."""
        products = functools.cache(self.token_products)
        return lambda v: products(v.dtype) @ v if self.shape[1] <= STORED else self._by_weights(v)

    def _by_weights(self, v: Tensor) -> Tensor:
        """``x x^T v``, over the columns that occur in an example."""
        width = int(self.columns.max()) + 1 if len(self.columns) else 0
        own, place = (self.token // self.shape[1] * width + self.columns).unique(return_inverse=True)
        factors = torch.ones_like(self.columns) if self.values is None else self.values.detach()
        factors, rows = factors.to(v.dtype).unsqueeze(1), v.flatten(0, 1)
        weights = v.new_zeros(len(own), v.shape[2]).index_add_(0, place, factors * rows[self.token])
        return torch.zeros_like(rows).index_add_(0, self.token, factors * weights[place]).view_as(v)

    def token_products(self, dtype: torch.dtype) -> Tensor:
        """``x_t . x_u`` of each example's tokens, ``[B, N, N]``, over the columns that occur in the example."""
        batch, longest = self.shape
        values = torch.ones(len(self.token), dtype=dtype, device=self.token.device)
        if self.values is not None:
            values = self.values.detach()
        products = values.new_empty(batch, longest, longest)
        sizes = torch.bincount(self.token // longest, minlength=batch).tolist()
        tokens, columns, held = (t.split(sizes) for t in (self.token, self.columns, values))
        for b in range(batch):
            own, place = columns[b].unique(return_inverse=True)
            x = values.new_zeros(longest, len(own))
            # A column may occur twice in a list; CUDA sorts the places and adds in a fixed order.
            x.index_put_((tokens[b] - b * longest, place), held[b], accumulate=True)
            torch.mm(x, x.t(), out=products[b])
        return products


def check_lists(x: Any) -> SparseFeatures:
    """The features, if type, shapes and dtypes fit; see :func:`as_lists`."""
    if not isinstance(x, SparseFeatures):
        raise TypeError(f"x must be torchssvm.SparseFeatures(columns, values), not a {type(x).__name__}")
    columns, values = x
    if not isinstance(columns, Tensor) or columns.dtype not in (torch.int64, torch.int32) or columns.ndim != 3:
        found = f"{columns.dtype} {list(columns.shape)}" if isinstance(columns, Tensor) else type(columns).__name__
        raise ValueError(f"x.columns must be int64 [B, N, P], got {found}")
    check_tensor(columns, "x.columns")
    if values is not None:
        check_tensor(values, "x.values")
    if values is not None and (not values.is_floating_point() or values.shape != columns.shape):
        raise ValueError(
            f"x.values must be floats {list(columns.shape)}, or None for 1; got {values.dtype} {list(values.shape)}"
        )
    return x


def one_token(x: SparseFeatures) -> SparseFeatures:
    """Lists ``[B, P]`` as those of examples of one token; ValueError for another shape."""
    if check_tensor(x.columns, "x.columns").ndim != 2:
        raise ValueError(f"x.columns must be int64 [B, P], a list for each example, got {list(x.columns.shape)}")
    return SparseFeatures(x.columns.unsqueeze(1), None if x.values is None else x.values.unsqueeze(1))


@torch.no_grad()
def lists_of_rows(x: SparseFeatures, num_features: int, dtype: torch.dtype) -> Lists:
    """The lists of features ``[B, P]``, one for each example; repeated columns add up. Errors as :func:`as_lists`."""
    columns, values = check_lists(one_token(x))
    real = columns.squeeze(1) >= 0
    flat, counts = x.columns[real], real.sum(1)
    starts = counts.cumsum(0) - counts
    ascending = flat.diff() > 0
    ascending[starts[(starts > 0) & (starts < len(flat))] - 1] = True  # where the next list begins
    if not bool(ascending.all()):
        inside = torch.ones(len(x.columns), 1, dtype=torch.bool)
        return lists_within(SparseFeatures(columns, values), inside, num_features, dtype)
    _check_columns(columns, num_features)
    own = torch.ones(len(flat), dtype=dtype) if x.values is None else x.values[real].to(dtype)
    return Lists(counts, flat.to(torch.int32), own)


def _check_columns(columns: Tensor, num_features: int) -> None:
    if columns.numel() and (int(columns.min()) < -1 or int(columns.max()) >= num_features):
        raise ValueError(
            f"x.columns holds {int(columns.min())} to {int(columns.max())}: columns are 0 to {num_features - 1}, and "
            "-1 behind a list"
        )


def padded_product(x: Any, weight: Tensor) -> Tensor:
    """``x W`` with the lists as they are padded, in plain operators: ``[B, N, P]`` and ``[F, K]`` -> ``[B, N, K]``.

    Columns are 0 to F - 1, which a traced graph does not check, and -1 as padding; errors are those of
    :func:`as_lists`.
    """
    columns, values = check_lists(x)
    if not torch.compiler.is_compiling():
        _check_columns(columns, len(weight))
    real = columns >= 0
    factors = real.to(weight.dtype) if values is None else torch.where(real, values.to(weight.dtype), 0.0)
    batch, longest = columns.shape[:2]
    flat = nn.functional.embedding_bag(
        columns.clamp(min=0).flatten(0, 1), weight, mode="sum", per_sample_weights=factors.flatten(0, 1)
    )
    return flat.view(batch, longest, weight.shape[1])


def as_lists(x: Any, num_features: int, dtype: torch.dtype) -> TokenLists:
    """Check a batch of features and drop the padding of the lists.

    Raises:
        TypeError: ``x`` is not :class:`SparseFeatures`.
        ValueError: A shape, a dtype or a column does not fit.
    """
    columns, values = check_lists(x)
    real = columns >= 0
    flat = columns[real].to(torch.int64)
    _check_columns(columns, num_features)
    counts = real.sum(2).flatten()
    ends = counts.cumsum(0)
    token = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=len(flat))
    chosen = None if values is None else values[real].to(dtype)
    return TokenLists(flat, chosen, token, ends - counts, (columns.shape[0], columns.shape[1]))
