"""The linear head of multilabel problems: label scores are linear in the features, each pair has one weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_tensor, check_whole
from torchssvm.core.operators import plain, transformed
from torchssvm.core.potentials import Parts, Potentials, own_weights
from torchssvm.core.precision import full_precision, product
from torchssvm.core.sparse_features import SparseFeatures, as_lists, padded_product
from torchssvm.structures.chain.head import sparse_emission
from torchssvm.structures.common import LinearHead, check_no_lengths, check_shape, fitting, weight
from torchssvm.structures.multilabel.oracle import symmetric
from torchssvm.structures.multilabel.structure import BranchAndBound, MessagePassing, Multilabel


class LinearMultilabel(LinearHead):
    """Potentials ``unary = U x + b`` and ``pairwise = v``, the same for all examples; zero weights at the start.

    The model of [Yen et al. 2016, section 5] for multilabel data: ``unary`` ``[K, F]`` as in ``nn.Linear``,
    ``bias`` ``[K]`` and ``pairwise`` ``[P]``, one weight for each of the P = K (K - 1) / 2 pairs of labels, or of those
    that ``Multilabel(num_labels, pairs=...)`` lists. If pair weights are bounded below by 0, decoding is exact::

        BCFW([{"params": [head.unary, head.bias]}, {"params": [head.pairwise], "lower": 0.0}], dual)

    Args:
        in_features: F, the number of features.
        num_labels: K, the number of labels.
        bias: Whether every label has a bias; it is regularised like the other weights.
        structure: How outputs are decoded and what they cost; None is ``Multilabel(num_labels, pairwise=pairwise)``.

    Raises:
        ValueError: ``in_features`` is less than 1, or ``structure`` has a different ``num_labels`` or ``pairwise``.

    Example:
        >>> head = LinearMultilabel(in_features=4, num_labels=3)
        >>> labels = (points[:, :3] > 0).long()
        >>> solve(head, PaddedDataset(points, labels), lam=0.1, tolerance=Relative(0.1)).relative_gap <= 0.1
        True
    """

    def __init__(
        self,
        in_features: int,
        num_labels: int,
        *,
        bias: bool = True,
        pairwise: bool = True,
        structure: Multilabel | None = None,
    ) -> None:
        super().__init__()
        check_flags(bias=bias, pairwise=pairwise)
        in_features, num_labels = check_whole(in_features, "in_features"), check_whole(num_labels, "num_labels")
        settings: dict[str, Any] = {"num_labels": num_labels, "pairwise": pairwise}
        self.structure = fitting(structure, lambda: Multilabel(**settings), "Multilabel(num_labels)", **settings)
        self.in_features = in_features
        self.unary = weight(self.by_feature(torch.zeros(in_features, num_labels)).contiguous())
        self.bias = weight(torch.zeros(num_labels)) if bias else None
        self.pairwise = weight(torch.zeros(self.structure.num_pairs)) if pairwise else None

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.multilabel.kind import LabelSetAdapter

        decoder: Any = self.structure.decoder
        if type(self.structure) is not Multilabel or type(decoder) not in (BranchAndBound, MessagePassing):
            return None
        return LabelSetAdapter(self, decoder.max_rounds, getattr(decoder, "effort", 0))

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        features, labels = self.in_features, self.structure.num_labels
        bias, pairwise = self.bias is not None, self.pairwise is not None
        return f"in_features={features}, num_labels={labels}, bias={bias}, pairwise={pairwise}"

    def interactions(self) -> Tensor:
        """The pair weights as a symmetric matrix ``[K, K]`` with zero diagonal; differentiable.

        Raises:
            ValueError: The head has no pairs.
        """
        if self.pairwise is None:
            raise ValueError("pairwise=False: the head has no interactions")
        return symmetric(self.structure.all_pairs(self.pairwise), self.structure.num_labels)

    def forward(self, x: Tensor, lengths: None = None) -> Potentials:
        """Features ``[B, F]`` -> ``unary`` ``[B, K]``, ``pairwise`` ``[B, P]``; in the weights' dtype, autocast off.

        Raises:
            TypeError: ``x`` is not a tensor.
            ValueError: ``x`` has the wrong shape, or the batch has lengths.
        """
        check_no_lengths(lengths)
        check_shape(x, "x", "B", self.in_features)
        with full_precision(x.device):
            x = x.to(self.unary.dtype)
            scores = product(x, self.unary)
            if self.bias is not None:
                scores = scores + self.bias
        known = x.detach()
        return self._potentials(
            scores,
            per_example=lambda v: v.unsqueeze(2) * known.unsqueeze(1),
            squared=lambda: known.square().sum(1, keepdim=True),
            trained=x.requires_grad,
        )

    def _potentials(
        self,
        scores: Tensor,
        *,
        per_example: Callable[[Tensor], Tensor],
        squared: Callable[[], Tensor],
        trained: bool,
    ) -> Potentials:
        """Potentials from the labels' scores, the gradients of ``unary`` and the features' squared lengths."""
        tensors = {"unary": scores}
        if self.pairwise is not None:
            tensors["pairwise"] = self.pairwise.expand(scores.shape[0], -1)

        def adjoint(parts: Parts) -> list[Tensor]:
            v = parts["unary"]
            gradients = [per_example(v)] + ([] if self.bias is None else [v])
            return gradients if self.pairwise is None else [*gradients, parts["pairwise"]]

        def gram_product(parts: Parts) -> Parts:
            change = {"unary": parts["unary"] * (squared() + (0.0 if self.bias is None else 1.0))}
            # A pair's potential is its weight, so its Gram matrix is the identity.
            return change if self.pairwise is None else {**change, "pairwise": parts["pairwise"]}

        weights = None if trained else own_weights(self)
        return Potentials(tensors, adjoint=adjoint, gram_product=gram_product, weights=weights)


class SparseLinearMultilabel(LinearMultilabel):
    """:class:`LinearMultilabel` for sparse features: ``unary = sum_p values[p] U[columns[p]] + b``.

    The weights have the names and shapes of ``LinearMultilabel(in_features, num_labels)``, but ``unary`` is transposed:
    ``[F, K]`` as in ``nn.EmbeddingBag``. Its gradient is a sparse tensor, so a step touches only the batch's columns.

    Args:
        in_features: F, the number of columns.
        num_labels, bias, pairwise, structure: As in :class:`LinearMultilabel`.
        sparse_gradient: Whether ``unary`` gets a sparse gradient; most optimizers except BCFW need False.

    Raises:
        ValueError: As in :class:`LinearMultilabel`.

    Example:
        >>> head = SparseLinearMultilabel(in_features=1000, num_labels=3)
        >>> head(SparseFeatures(torch.tensor([[5, 17], [999, -1]])))["unary"].shape
        torch.Size([2, 3])
    """

    _version = 1  # see LinearHead

    def __init__(
        self,
        in_features: int,
        num_labels: int,
        *,
        bias: bool = True,
        pairwise: bool = True,
        structure: Multilabel | None = None,
        sparse_gradient: bool = True,
    ) -> None:
        super().__init__(in_features, num_labels, bias=bias, pairwise=pairwise, structure=structure)
        check_flags(sparse_gradient=sparse_gradient)
        self.sparse_gradient = sparse_gradient

    @staticmethod
    def by_feature(weight: Any) -> Any:
        """``unary`` unchanged: it is stored as ``[F, K]``, one row for each feature."""
        return weight

    @override
    def compiled_form(self) -> Any:  # beside forward, as find_adapter asks
        return super().compiled_form()

    def forward(self, x: SparseFeatures, lengths: None = None) -> Potentials:  # type: ignore[override]
        """Features -> ``unary`` ``[B, K]`` and ``pairwise`` ``[B, P]``; in the weights' dtype, autocast off.

        Args:
            x: The features of all examples, ``columns`` and ``values`` ``[B, L]``; -1 in ``columns`` is padding.

        Raises:
            TypeError: ``x`` is not :class:`~torchssvm.SparseFeatures`.
            ValueError: A shape or a column does not fit, or the batch has lengths.
        """
        check_no_lengths(lengths)
        if isinstance(x, SparseFeatures):  # the lists are by token: an example has one token here
            columns = check_shape(x.columns, "x.columns", "B", "L").unsqueeze(1)
            x = SparseFeatures(columns, None if x.values is None else check_tensor(x.values, "x.values").unsqueeze(1))
        if plain():
            scores = padded_product(x, self.unary).squeeze(1)
            scores = scores if self.bias is None else scores + self.bias
            pairs = {} if self.pairwise is None else {"pairwise": self.pairwise.expand(scores.shape[0], -1)}
            return Potentials({"unary": scores, **pairs})
        lists = as_lists(x, self.in_features, self.unary.dtype)
        with full_precision(self.unary.device):
            if transformed():
                scores = lists.emission(self.unary).squeeze(1)
                scores = scores if self.bias is None else scores + self.bias
            else:
                one = torch.ones(len(lists.starts), dtype=torch.int64, device=self.unary.device)
                scores = sparse_emission(
                    lists.values, self.unary, self.bias, None, None, lists, one, self.sparse_gradient
                ).squeeze(1)
        return self._potentials(
            scores,
            per_example=lambda v: lists.per_example(v.unsqueeze(1), self.in_features),
            squared=lambda: lists.token_products(self.unary.dtype).squeeze(2),
            trained=lists.values is not None and lists.values.requires_grad,
        )
