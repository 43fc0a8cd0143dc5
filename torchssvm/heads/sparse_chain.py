"""The linear head of chains on features that are mostly zero: no tokens by features, no work in all the weights."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torchssvm.arguments import check_flags, check_tensor
from torchssvm.heads.linear_chain import LinearChain, add_biases, everywhere, sums_of
from torchssvm.potentials import Potentials, full_precision
from torchssvm.precision import transformed
from torchssvm.row_sparse import per_example_rows, rows_of
from torchssvm.sparse import SparseFeatures
from torchssvm.structures import Chain
from torchssvm.structures.chain import check_range


class SparseLinearChain(LinearChain):
    """:class:`LinearChain` for tokens whose features are lists: ``emission[t] = sum_p values[t, p] W[columns[t, p]]``.

    The weights are those of ``LinearChain(in_features, num_states)``, with the same names. A step reads and writes the
    rows of ``emission`` that its batch names, and no others: the gradient of ``emission`` is a sparse tensor, as that
    of ``nn.Embedding(sparse=True)``. With 74,658 attributes and 22 tags these are the 1,643,026 weights of the papers'
    chunking model ([B13] section 6, [G16] table 1).

    Args:
        in_features: F, the number of columns.
        num_states: K.
        bias: Whether every state has a bias.
        boundary: Whether every state has an extra bias at the first and at the last token.
        structure: How outputs are decoded and what they cost; None is ``Chain(num_states)``.
        sparse_gradient: Whether ``emission`` gets a sparse gradient. BCFW takes either, and is quick with a sparse one;
            most other optimizers (``torch.optim.Adam`` with ``StructuredHinge``) need False.

    Raises:
        ValueError: ``structure`` has another number of states, or transitions that depend on the position.
    """

    def __init__(
        self,
        in_features: int,
        num_states: int,
        *,
        bias: bool = True,
        boundary: bool = True,
        structure: Chain | None = None,
        sparse_gradient: bool = True,
    ) -> None:
        super().__init__(in_features, num_states, bias=bias, boundary=boundary, structure=structure)
        check_flags(sparse_gradient=sparse_gradient)
        self.sparse_gradient = sparse_gradient

    def forward(self, x: SparseFeatures, lengths: Tensor | None = None) -> Potentials:  # type: ignore[override]
        """Features -> potentials ``[B, N, K]`` and ``[B, K, K]``; runs in the weights' dtype, autocast off.

        Args:
            x: The features of all tokens, ``columns`` and ``values`` ``[B, N, P]``.
            lengths: ``[B]`` int64, 1 to N; None means N for all.

        Raises:
            TypeError: ``x`` is not :class:`SparseFeatures`.
            ValueError: A shape, a column or a length does not fit.
        """
        lists = as_lists(x, len(self.emission), self.emission.dtype)
        batch, longest = x.columns.shape[:2]
        if longest < 1:
            raise ValueError(f"x.columns must have at least one position, got {list(x.columns.shape)}")
        if lengths is None:
            lengths, extremes = torch.full((batch,), longest, device=x.columns.device), (longest, longest)
        else:
            extremes = check_range(lengths, batch, longest)
        last = lengths - 1
        with full_precision(self.emission.device):
            if transformed():
                emission = lists.emission(self.emission) + everywhere(longest, last, self.bias, self.first, self.last)
            else:
                emission = SparseEmission.apply(
                    lists.values, self.emission, self.bias, self.first, self.last, lists, last, self.sparse_gradient
                )
        return self._potentials(
            emission,
            last,
            extremes,
            per_example=lambda v: lists.per_example(v, len(self.emission)),
            gram=functools.cache(lambda: lists.token_products(self.emission.dtype)),  # asked for several times a batch
            x=None if lists.values is not None and lists.values.requires_grad else x,
        )


class TokenLists(NamedTuple):
    """The features of a batch's tokens, one after another.

    Attributes:
        columns: ``[M]`` int64.
        values: ``[M]`` of the weights' dtype; None where all are 1.
        token: ``[M]`` int64, whose they are, 0 to B N - 1; not falling.
        starts: ``[B N]`` int64, where each token's begin.
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

    def token_products(self, dtype: torch.dtype) -> Tensor:
        """``x_t . x_u`` of each example's tokens, ``[B, N, N]``, by way of the columns that the example has."""
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
            # A column may come twice in a list: a CUDA device sorts these places, and adds in one order.
            x.index_put_((tokens[b] - b * longest, place), held[b], accumulate=True)
            torch.mm(x, x.t(), out=products[b])
        return products


def as_lists(x: Any, num_features: int, dtype: torch.dtype) -> TokenLists:
    """Check a batch of features, and leave out what pads its lists.

    Raises:
        TypeError: It is not :class:`SparseFeatures` of whole numbers and floats.
        ValueError: A shape or a column does not fit.
    """
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
            f"x.values must be floating-point numbers shaped like x.columns, {list(columns.shape)}, or None where all "
            f"are 1; got {values.dtype} {list(values.shape)}"
        )
    real = columns >= 0
    flat = columns[real].to(torch.int64)
    if columns.numel() and (int(columns.min()) < -1 or int(columns.max()) >= num_features):
        raise ValueError(
            f"x.columns holds {int(columns.min())} to {int(columns.max())}: columns are 0 to {num_features - 1}, and "
            "-1 fills up lists"
        )
    counts = real.sum(2).flatten()
    ends = counts.cumsum(0)
    token = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=len(flat))
    chosen = None if values is None else values[real].to(dtype)
    return TokenLists(flat, chosen, token, ends - counts, (columns.shape[0], columns.shape[1]))


class SparseEmission(torch.autograd.Function):
    """``x W + bias + [t first] first + [t last] last`` for lists of features; the gradient of W is sparse."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        first: Tensor | None,
        end: Tensor | None,
        lists: TokenLists,
        last: Tensor,
        sparse: bool,
    ) -> Tensor:
        """``[B, N, K]``; ``values`` stand beside ``lists`` for their gradient, ``last`` ``[B]`` is the last token."""
        ctx.lists, ctx.sparse, ctx.rows = lists._replace(values=None), sparse, len(weight)
        needs = ctx.needs_input_grad
        ctx.save_for_backward(values, last, weight if needs[0] else None)
        flat = functional.embedding_bag(
            lists.columns, weight.detach(), lists.starts, mode="sum", per_sample_weights=values
        )
        return add_biases(flat.view(*lists.shape, weight.shape[1]), last, bias, first, end)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Gradients of values, weights and biases, where they are needed."""
        (v,) = upstream
        values, last, weight = ctx.saved_tensors
        lists, (values_need, weight_needs, *needs) = ctx.lists, ctx.needs_input_grad
        rows = v.reshape(-1, v.shape[2])
        gradient = None
        if weight_needs:
            entries = rows[lists.token]
            entries = entries if values is None else entries * values.unsqueeze(1)
            gradient = rows_of(lists.columns, entries, (ctx.rows, v.shape[2])).coalesce()
            gradient = gradient if ctx.sparse else gradient.to_dense()
        by_value = (rows[lists.token] * weight[lists.columns]).sum(1) if values_need else None
        sums = zip(sums_of(v, last), needs[:3], strict=True)
        return by_value, gradient, *(found.sum(0) if need else None for found, need in sums), None, None, None
