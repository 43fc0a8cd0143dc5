"""The linear head of multiclass problems."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_flags, check_whole
from torchssvm.core.potentials import Parts, Potentials, own_weights
from torchssvm.core.precision import full_precision, product
from torchssvm.core.sparse_features import SparseFeatures, one_token, padded_product
from torchssvm.structures.common import LinearHead, check_no_lengths, check_shape, fitting, weight
from torchssvm.structures.multiclass.structure import Multiclass


class LinearMulticlass(LinearHead):
    """Class scores ``W x + b``, ``weight`` ``[K, F]`` as in ``nn.Linear``, with all weights zero at the start.

    Args:
        in_features: F, the number of features.
        num_classes: K, the number of classes.
        bias: Whether there is a ``b``; it is regularised like the other weights.
        structure: How outputs are decoded and what they cost; None is ``Multiclass(num_classes)``, zero-one loss.

    Raises:
        ValueError: A size is out of range, or ``structure`` has a different number of classes.
        TypeError: A size is not a number, or ``structure`` is not a multiclass structure.

    Example:
        >>> head = LinearMulticlass(in_features=4, num_classes=3)
        >>> head(points[:2]).single
        tensor([[0., 0., 0.],
                [0., 0., 0.]], grad_fn=<AddBackward0>)
    """

    def __init__(
        self, in_features: int, num_classes: int, *, bias: bool = True, structure: Multiclass | None = None
    ) -> None:
        super().__init__()
        check_flags(bias=bias)
        in_features = check_whole(in_features, "in_features", 0)
        num_classes = check_whole(num_classes, "num_classes")
        self.structure = fitting(
            structure, lambda: Multiclass(num_classes), "Multiclass(num_classes)", num_classes=num_classes
        )
        self.in_features = in_features
        self.weight = weight(torch.zeros(num_classes, in_features))
        self.bias = weight(torch.zeros(num_classes)) if bias else None

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.multiclass.kind import MulticlassAdapter

        return MulticlassAdapter(self) if type(self.structure) is Multiclass else None

    def forward(self, x: Tensor | SparseFeatures, lengths: None = None) -> Potentials:
        """Features ``[B, F]`` -> potentials ``[B, K]``; runs in the weights' dtype, autocast off.

        Args:
            x: Features; or :class:`SparseFeatures`, columns and values ``[B, P]``, which the compiled loop is made for.

        Raises:
            ValueError: ``x`` has the wrong shape or a wrong column, or the batch has lengths.
        """
        check_no_lengths(lengths)
        if isinstance(x, SparseFeatures):
            with full_precision(self.weight.device):
                scores = padded_product(one_token(x), self.weight.t()).squeeze(1)
                return Potentials(scores if self.bias is None else scores + self.bias)
        check_shape(x, "x", "B", self.in_features)
        with full_precision(x.device):
            x = x.to(self.weight.dtype)
            scores = product(x, self.weight)
            if self.bias is not None:
                scores = scores + self.bias

        def adjoint(parts: Parts) -> list[Tensor]:
            (v,) = parts.values()
            gradients = [v.unsqueeze(2) * x.detach().unsqueeze(1)]
            return gradients if self.bias is None else [*gradients, v]

        def gram_product(parts: Parts) -> Parts:
            squared = x.detach().square().sum(1, keepdim=True)
            return {name: v * (squared if self.bias is None else squared + 1.0) for name, v in parts.items()}

        def gram(parts: Parts) -> Tensor:
            (v,), features = parts.values(), x.detach()
            inner = features @ features.t()
            return (v @ v.t()) * (inner if self.bias is None else inner + 1.0)

        weights = None if x.requires_grad else own_weights(self)
        return Potentials(scores, adjoint=adjoint, gram_product=gram_product, gram=gram, weights=weights)
