"""The linear head of chains with sparse features: a step touches the weights of the batch's columns only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchssvm.core.arguments import check_flags
from torchssvm.core.operators import full_precision, plain, transformed
from torchssvm.core.potentials import Potentials
from torchssvm.core.row_sparse import rows_of
from torchssvm.core.sparse_features import SparseFeatures, TokenLists, as_lists, check_lists, padded_product
from torchssvm.structures.chain.head import LinearChain, add_biases, everywhere, read_span, sums_of
from torchssvm.structures.chain.structure import Chain


class SparseLinearChain(LinearChain):
    """:class:`LinearChain` for sparse features: ``emission[t] = sum_p values[t, p] W[columns[t, p]]``.

    The weights have the names and shapes of ``LinearChain(in_features, num_states)``, but ``emission`` is transposed:
    ``[F, K]`` as in ``nn.EmbeddingBag``. Its gradient is a sparse tensor, as with ``nn.EmbeddingBag(sparse=True)``, so
    a step touches only the batch's columns. 74,658 attributes and 22 tags give the 1,643,026 weights of the papers'
    chunking model ([B13] section 6, [G16] table 1).

    Args:
        in_features: F, the number of columns.
        num_states, bias, boundary: As in :class:`LinearChain`.
        structure: As there; None is ``Chain(num_states, normalize=False)``, whose loss counts wrong labels: lists of
            features are of text, whose labels are tags.
        sparse_gradient: Whether ``emission`` gets a sparse gradient. BCFW takes both and is faster with a sparse one;
            most other optimizers (``torch.optim.Adam`` with ``StructuredHinge``) need False.

    Raises:
        ValueError: ``structure`` has a different number of states, or transitions that depend on the position.

    Example:
        >>> head = SparseLinearChain(in_features=1_000_000, num_states=3)
        >>> columns = torch.tensor([[[5, 17], [999_999, -1]]])  # one sentence of two tokens
        >>> head(SparseFeatures(columns))["emission"].shape
        torch.Size([1, 2, 3])
    """

    _version = 1  # see LinearHead
    _normalize = False

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

    @staticmethod
    def by_feature(weight: Any) -> Any:
        """``emission`` unchanged: it is stored as ``[F, K]``, one row for each feature."""
        return weight

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.chain.kind import SparseChainAdapter

        return SparseChainAdapter(self) if type(self.structure) is Chain else None

    def forward(self, x: SparseFeatures, lengths: Tensor | None = None) -> Potentials:  # type: ignore[override]
        """Features -> potentials ``[B, N, K]`` and ``[B, K, K]``; runs in the weights' dtype, autocast off.

        Args:
            x: The features of all tokens, ``columns`` and ``values`` ``[B, N, P]``.
            lengths: ``[B]`` int64, 1 to N; None means N for all.

        Raises:
            TypeError: ``x`` is not :class:`SparseFeatures`.
            ValueError: A shape, a column or a length does not fit.
        """
        lists = None if plain() else as_lists(x, self.in_features, self.emission.dtype)
        batch, longest = check_lists(x).columns.shape[:2]
        if longest < 1:
            raise ValueError(f"x.columns must have at least one position, got {list(x.columns.shape)}")
        lengths, span = read_span(lengths, batch, longest, x.columns.device)
        last, extra = lengths - 1, (self.bias, self.start_transitions, self.end_transitions)
        if lists is None:  # their number differs from batch to batch, which a graph does not take
            emission = padded_product(x, self.emission) + everywhere(longest, last, *extra)
            pairs = self.transition.expand(batch, *self.transition.shape)
            return Potentials({"emission": emission, "transition": pairs}, lengths)
        with full_precision(self.emission.device):
            if transformed():
                emission = lists.emission(self.emission) + everywhere(longest, last, *extra)
            else:
                emission = SparseEmission.apply(lists.values, self.emission, *extra, lists, last, self.sparse_gradient)
        return self._potentials(
            emission,
            lengths,
            last,
            span,
            per_example=lambda v: lists.per_example(v, self.in_features),
            respond=lists.respond(),
            x=None if lists.values is not None and lists.values.requires_grad else x,
        )


class SparseEmission(torch.autograd.Function):
    """``x W + bias + [t first] first + [t last] end`` for sparse features; the gradient of W is sparse if asked for."""

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
        """``[B, N, K]``; ``values`` is a separate argument to get a gradient; ``last`` ``[B]`` is the last token."""
        ctx.lists, ctx.sparse, ctx.rows = lists._replace(values=None), sparse, len(weight)
        needs = ctx.needs_input_grad
        ctx.save_for_backward(values, last, weight if needs[0] else None)
        flat = functional.embedding_bag(
            lists.columns, weight.detach(), lists.starts, mode="sum", per_sample_weights=values
        )
        return add_biases(flat.view(*lists.shape, weight.shape[1]), last, bias, first, end)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Gradients of values, weights and biases; None where not needed."""
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
