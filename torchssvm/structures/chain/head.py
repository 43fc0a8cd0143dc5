"""The linear head of chains: emissions from features, transitions as free weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_whole
from torchssvm.core.launch import arrays, fits_numba
from torchssvm.core.operators import plain, transformed
from torchssvm.core.potentials import Parts, Potentials, own_weights
from torchssvm.core.precision import full_precision, gradient_of_weight, product
from torchssvm.core.row_sparse import rows_of
from torchssvm.core.sparse_features import (
    STORED,
    SparseFeatures,
    TokenLists,
    as_lists,
    padded_product,
    respond,
)
from torchssvm.core.threads import torch_threads
from torchssvm.core.triton_support import fits_triton
from torchssvm.structures.chain import oracle as kernels
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.common import LinearHead, check_shape, fitting, padded, read_span, weight


class LinearChain(LinearHead):
    """Potentials of a linear chain; all weights are zero at the start.

    ``emission[t] = W x[t] + bias + [t first] start_transitions + [t last] end_transitions`` and ``transition = T`` or
    ``T[t]``. The parameter ``emission`` is W, ``[K, F]`` as in ``nn.Linear``. With 128 features and 26 states these are
    the 128*26 + 26*26 + 3*26 = 4082 weights of the OCR model ([G16] table 1).

    Args:
        in_features: F, numbers per token.
        num_states: K, the number of states.
        boundary: Whether every state has an extra bias at the first and at the last token.
        positions: None for one transition matrix ``[K, K]`` at all positions; otherwise the largest sequence length N
            for which position-dependent transitions ``[N-1, K, K]`` are learned.
        structure: How outputs are decoded and what they cost; None is ``Chain(num_states)``, Hamming loss divided by
            the length.

    Raises:
        ValueError: A size is out of range, or ``structure`` has another number of states, or disagrees about shared
            transitions.
        TypeError: A size is not a number, or ``structure`` is not a structure of chains.

    Example:
        >>> head = LinearChain(in_features=4, num_states=3)
        >>> potentials = head(tokens[:2], torch.tensor([5, 4]))
        >>> potentials["emission"].shape, potentials["transition"].shape
        (torch.Size([2, 5, 3]), torch.Size([2, 3, 3]))
        >>> head.structure.argmax(potentials).labeling.shape
        torch.Size([2, 5])
    """

    _normalize = True  # what the structure does that is made where none is given

    def __init__(
        self,
        in_features: int,
        num_states: int,
        *,
        bias: bool = True,
        boundary: bool = True,
        positions: int | None = None,
        structure: Chain | None = None,
    ) -> None:
        super().__init__()
        check_flags(bias=bias, boundary=boundary)
        in_features, num_states = check_whole(in_features, "in_features", 0), check_whole(num_states, "num_states")
        if positions is not None:
            positions = check_whole(positions, "positions", 2, advice=", or None for shared transitions")
        shared = positions is None
        self.structure = fitting(
            structure,
            lambda: Chain(num_states, shared=shared, normalize=self._normalize),
            "Chain(num_states)",
            num_states=num_states,
            shared=shared,
        )
        self.in_features, self.boundary, self.positions = in_features, boundary, positions
        self.emission = weight(self.by_feature(torch.zeros(in_features, num_states)).contiguous())
        pairs = (num_states, num_states) if positions is None else (positions - 1, num_states, num_states)
        self.transition = weight(torch.zeros(pairs))
        self.bias = weight(torch.zeros(num_states)) if bias else None
        self.start_transitions = weight(torch.zeros(num_states)) if boundary else None
        self.end_transitions = weight(torch.zeros(num_states)) if boundary else None

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        states, bias = self.structure.num_states, self.bias is not None
        options = {"in_features": self.in_features, "num_states": states, "bias": bias}
        options |= {"boundary": self.start_transitions is not None}
        options |= {} if self.positions is None else {"positions": self.positions}
        return ", ".join(f"{name}={value}" for name, value in options.items())

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.chain.kind import ChainAdapter

        return ChainAdapter(self) if self.positions is None and type(self.structure) is Chain else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Potentials:
        """Features ``[B, N, F]`` -> potentials; runs in the weights' dtype, autocast off.

        Args:
            x: Features, finite; values beyond a length have no effect.
            lengths: ``[B]`` int64, 1 to N; None means N for all.

        Raises:
            TypeError: ``x`` is not a tensor.
            ValueError: A shape or a length does not fit.
        """
        batch, longest, _ = check_shape(x, "x", "B", "N", self.in_features).shape
        if self.positions is not None and longest > self.positions:
            raise ValueError(f"x has {longest} positions, and the head was made for positions={self.positions}")
        lengths, span = read_span(lengths, batch, longest, x.device)
        extra = [self.bias, self.start_transitions, self.end_transitions]
        with full_precision(x.device):
            x = x.to(self.emission.dtype)
            if self.bias is None and self.start_transitions is None:
                emission = product(x, self.emission)
            elif transformed() or plain():
                emission = product(x, self.emission) + everywhere(longest, lengths, *extra)
            else:
                emission = _emission(x, lengths, self.emission, *extra)
            features = x.detach() if x.requires_grad else x
        return self._potentials(
            emission,
            lengths,
            span,
            per_example=lambda v: v.transpose(1, 2).bmm(features),
            respond=lambda v: respond(features, v),
            x=None if x.requires_grad else x,
        )

    def _potentials(
        self,
        emission: Tensor,
        lengths: Tensor,
        span: tuple[int, int],
        *,
        per_example: Callable[[Tensor], Tensor],
        respond: Callable[[Tensor], Tensor],
        x: Any,
    ) -> Potentials:
        """The potentials with their adjoint and Gram product; features enter the emissions ``[B, N, K]`` only.

        ``span`` is the smallest and the largest length; ``per_example`` is ``v [B, N, K] -> sum_t v_t x_t^T``, ``[B,
        *emission.shape]``, and ``respond`` ``v -> x x^T v`` of each example. ``x`` is None if it needs a gradient.
        """
        batch, longest, _ = emission.shape
        transition = self.transition if self.positions is None else self.transition[: longest - 1]
        transition = transition.expand(batch, *transition.shape)

        def adjoint(parts: Parts) -> list[Tensor]:
            v, biases = parts["emission"], (self.bias, self.start_transitions, self.end_transitions)
            return [
                per_example(v),
                padded(parts["transition"], self.transition),
                *(total for bias, total in zip(biases, sums_of(v, lengths), strict=True) if bias is not None),
            ]

        def gram_product(parts: Parts) -> Parts:
            v = parts["emission"]
            change = respond(v)
            if self.bias is not None:
                change += v.sum(1, keepdim=True)
            if self.start_transitions is not None:
                rows, last = torch.arange(batch, device=v.device), lengths - 1
                change[:, 0] += v[:, 0]
                change[rows, last] += v[rows, last]
            return {"emission": change, "transition": parts["transition"]}

        return Potentials(
            {"emission": emission, "transition": transition},
            lengths,
            ragged={"emission": 0} | ({} if self.positions is None else {"transition": -1}),
            adjoint=adjoint,
            gram_product=gram_product,
            weights=None if x is None else own_weights(self),
            min_length=span[0],
            max_length=span[1],
        )


def everywhere(
    longest: int, lengths: Tensor, bias: Tensor | None, first: Tensor | None, end: Tensor | None
) -> Tensor | float:
    """The sum of the biases at every token, which broadcasts to ``[B, N, K]``, in plain torch operations."""
    position = torch.arange(longest, device=lengths.device).view(1, -1, 1)
    total: Tensor | float = 0.0 if bias is None else bias
    if first is not None and end is not None:
        total = total + (position == 0) * first + (position == (lengths - 1).view(-1, 1, 1)) * end
    return total


def _emission(x: Tensor, lengths: Tensor, weight: Tensor, *extra: Tensor | None) -> Tensor:
    """``W x[t] + bias + [t first] first + [t last] end``; each of the last three may be None."""
    if torch.is_grad_enabled():  # a node takes as long to make as a short chain to decode
        return _Emission.apply(x, lengths, weight, *extra)
    with torch_threads(x.numel() * len(weight)):
        return add_biases(x @ weight.t(), lengths, *extra)  # in the precision that the head has set


class _Emission(torch.autograd.Function):
    """:func:`_emission` in one autograd node; ``forward`` runs without gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: Tensor, weight: Tensor, *extra: Tensor | None) -> Tensor:
        # The weight is saved only if needed: steps change it in place.
        ctx.save_for_backward(x, lengths, weight if ctx.needs_input_grad[0] else None)
        return _emission(x, lengths, weight, *extra)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        # All operations are differentiable: `gram_product` by autograd differentiates this backward pass.
        (v,) = upstream
        x, lengths, weight = ctx.saved_tensors
        x_needs, _, _, *needs = ctx.needs_input_grad
        if (device_sums := _sums_on_device(v, lengths)) is not None:
            sums = device_sums.sum(1).unbind(0)
        else:
            at_last = v.gather(1, _place(lengths, v)).squeeze(1)
            sums = (v.sum((0, 1)), v[:, 0].sum(0), at_last.sum(0))
        return (
            product(v, weight.t()) if x_needs else None,
            None,
            gradient_of_weight(x, v),
            *(total if needed else None for total, needed in zip(sums, needs, strict=True)),
        )


def add_biases(
    emission: Tensor, lengths: Tensor, bias: Tensor | None, first: Tensor | None, end: Tensor | None
) -> Tensor:
    """Add the biases of all tokens, of the first and of the last token to ``emission`` in place; each may be None."""
    extra = [emission.new_zeros(emission.shape[2]) if t is None else t.detach() for t in (bias, first, end)]
    if fits_numba(emission, lengths, *extra):
        kernels.add_everywhere(*arrays(emission, lengths, *extra))
        return emission
    if fits_triton(emission, lengths, *extra):
        from torchssvm.structures.chain.biases_triton import add_everywhere_triton

        add_everywhere_triton(emission, lengths, *extra)
        return emission
    at_last = _place(lengths, emission)
    emission.scatter_add_(1, at_last, extra[2].expand_as(at_last))
    emission.add_(extra[0])
    emission[:, 0].add_(extra[1])
    return emission


def sums_of(v: Tensor, lengths: Tensor) -> Sequence[Tensor]:
    """Each example's sum of ``v`` over all tokens, and ``v`` at its first and at its last token: ``[B, K]`` each."""
    if v.shape[1] <= STORED and fits_numba(v, lengths) and not v.requires_grad:  # the kernel adds one by one
        sums = v.new_empty(3, v.shape[0], v.shape[2])
        kernels.sum_everywhere(v.numpy(), lengths.numpy(), sums.numpy())
        return sums.unbind(0)
    if (device_sums := _sums_on_device(v, lengths)) is not None:
        return device_sums.unbind(0)
    return v.sum(1), v[:, 0], v.gather(1, _place(lengths, v)).squeeze(1)


def _place(lengths: Tensor, like: Tensor) -> Tensor:
    """The last position of each example, ``[B, 1, K]``, for ``like`` ``[B, N, K]``."""
    return (lengths - 1).view(-1, 1, 1).expand(-1, 1, like.shape[2])


def _sums_on_device(v: Tensor, lengths: Tensor) -> Tensor | None:
    """What :func:`sums_of` returns, ``[3, B, K]``, where Triton takes it."""
    if v.requires_grad or not fits_triton(v, lengths):
        return None
    from torchssvm.structures.chain.biases_triton import sum_everywhere_triton

    return sum_everywhere_triton(v, lengths)


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

    @override
    def compiled_form(self) -> Any:  # beside forward, as find_adapter asks
        return super().compiled_form()

    def forward(self, x: SparseFeatures, lengths: Tensor | None = None) -> Potentials:  # type: ignore[override]
        """Features -> potentials ``[B, N, K]`` and ``[B, K, K]``; runs in the weights' dtype, autocast off.

        Args:
            x: The features of all tokens, ``columns`` and ``values`` ``[B, N, P]``.
            lengths: ``[B]`` int64, 1 to N; None means N for all.

        Raises:
            TypeError: ``x`` is not :class:`SparseFeatures`.
            ValueError: A shape, a column or a length does not fit.
        """
        extra = (self.bias, self.start_transitions, self.end_transitions)
        if plain():  # the number of features differs from batch to batch, which a graph does not take
            products = padded_product(x, self.emission)
            batch, longest, _ = products.shape
            lengths, _ = read_span(lengths, batch, longest, products.device)
            pairs = self.transition.expand(batch, *self.transition.shape)
            return Potentials(
                {"emission": products + everywhere(longest, lengths, *extra), "transition": pairs}, lengths
            )
        lists = as_lists(x, self.in_features, self.emission.dtype)
        lengths, span = read_span(lengths, *lists.shape, lists.columns.device)
        with full_precision(self.emission.device):
            if transformed():
                emission = lists.emission(self.emission) + everywhere(longest, lengths, *extra)
            else:
                emission = sparse_emission(lists.values, self.emission, *extra, lists, lengths, self.sparse_gradient)
        return self._potentials(
            emission,
            lengths,
            span,
            per_example=lambda v: lists.per_example(v, self.in_features),
            respond=lists.respond(),
            x=None if lists.values is not None and lists.values.requires_grad else x,
        )


def sparse_emission(
    values: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    first: Tensor | None,
    end: Tensor | None,
    lists: TokenLists,
    lengths: Tensor,
    sparse: bool,
) -> Tensor:
    """``x W + bias + [t first] first + [t last] end``, ``[B, N, K]``; the gradient of W is ``sparse`` if asked for."""
    if torch.is_grad_enabled():
        return _SparseEmission.apply(values, weight, bias, first, end, lists, lengths, sparse)
    with torch_threads(lists.columns.numel() * weight.shape[1]):  # else torch shares even one sentence
        flat = functional.embedding_bag(
            lists.columns, weight.detach(), lists.starts, mode="sum", per_sample_weights=values
        )
    return add_biases(flat.view(*lists.shape, weight.shape[1]), lengths, bias, first, end)


class _SparseEmission(torch.autograd.Function):
    """:func:`sparse_emission` in one autograd node; ``forward`` runs without gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor | None, weight: Tensor, *rest: Any) -> Tensor:
        """``values`` is a separate argument to get a gradient."""
        *_, lists, lengths, sparse = rest
        ctx.lists, ctx.sparse, ctx.rows = replace(lists, values=None), sparse, len(weight)
        needs = ctx.needs_input_grad
        ctx.save_for_backward(values, lengths, weight if needs[0] else None)
        return sparse_emission(values, weight, *rest)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Gradients of values, weights and biases; None where not needed."""
        (v,) = upstream
        values, lengths, weight = ctx.saved_tensors
        lists, (values_need, weight_needs, *needs) = ctx.lists, ctx.needs_input_grad
        rows = v.reshape(-1, v.shape[2])
        gradient = None
        if weight_needs:
            entries = rows[lists.token]
            entries = entries if values is None else entries * values.unsqueeze(1)
            gradient = rows_of(lists.columns, entries, (ctx.rows, v.shape[2])).coalesce()
            gradient = gradient if ctx.sparse else gradient.to_dense()
        by_value = (rows[lists.token] * weight[lists.columns]).sum(1) if values_need else None
        sums = zip(sums_of(v, lengths), needs[:3], strict=True)
        return by_value, gradient, *(total.sum(0) if need else None for total, need in sums), None, None, None
