"""The linear head of decisions: predicted costs are linear in features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_flags, check_type, check_whole
from torchssvm.core.potentials import Parts, own_weights
from torchssvm.core.precision import full_precision, product
from torchssvm.structures.common import LinearHead, check_no_lengths, check_shape, weight
from torchssvm.structures.decisions.data import DecisionPotentials, Situations
from torchssvm.structures.decisions.structure import Decisions


class LinearDecisions(LinearHead):
    """Predicted costs, linear in features, with all weights zero at the start.

    By default each variable has a weight vector: ``c_hat = W x + b``, ``weight`` ``[D, F]`` as in ``nn.Linear``. With
    ``shared=True`` each variable has features, and all share one weight vector: ``c_hat_d = w'x_d + b``, ``weight``
    ``[1, F]``. The weights, and their regularisation, belong to the predicted costs.

    Args:
        in_features: F, the number of features.
        structure: The decisions, which know D.
        bias: Whether there is a ``b``; it is regularised like the other weights.

    Raises:
        ValueError: ``in_features`` is less than 1.
        TypeError: ``structure`` is not a :class:`Decisions`.

    Example:
        >>> from torchssvm.structures.decisions import ShortestPath
        >>> head = LinearDecisions(in_features=3, structure=Decisions(ShortestPath.grid(2, 2)))
        >>> head(torch.rand(5, 3)).single.shape
        torch.Size([5, 4])
        >>> head = LinearDecisions(in_features=3, structure=Decisions(ShortestPath.grid(2, 2)), shared=True)
        >>> head(torch.rand(5, 4, 3)).single.shape
        torch.Size([5, 4])
    """

    def __init__(self, in_features: int, *, structure: Decisions, shared: bool = False, bias: bool = True) -> None:
        super().__init__()
        check_flags(shared=shared, bias=bias)
        self.in_features = check_whole(in_features, "in_features")
        self.structure: Decisions = check_type(structure, Decisions, "structure", "Decisions(oracle)")
        self.shared = shared
        outputs = 1 if shared else structure.num_costs
        self.weight = weight(torch.zeros(outputs, self.in_features))
        self.bias = weight(torch.zeros(outputs)) if bias else None

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None for integer programs, functions and user-defined oracles."""
        from torchssvm.structures.decisions.kind import ORACLES, DecisionAdapter

        quick = type(self.structure.oracle) in ORACLES
        return DecisionAdapter(self) if quick and type(self.structure) is Decisions else None

    def forward(self, x: Tensor | Situations, lengths: None = None) -> DecisionPotentials:
        """Features -> predicted costs ``[B, D]``; runs in the weights' dtype, autocast off.

        Args:
            x: ``[B, F]``, or ``[B, D, F]`` with shared weights; or :class:`Situations`.

        Raises:
            ValueError: ``x`` has the wrong shape, or the batch has lengths.
        """
        check_no_lengths(lengths)
        features, fixed, given = x if isinstance(x, Situations) else (x, None, None)
        expected = (self.structure.num_costs, self.in_features) if self.shared else (self.in_features,)
        check_shape(features, "x", "B", *expected)
        with full_precision(features.device):
            features = features.to(self.weight.dtype)
            costs = product(features, self.weight[0]) if self.shared else product(features, self.weight)
            if self.bias is not None:
                costs = costs + self.bias
        known, one = features.detach(), float(self.bias is not None)

        def adjoint(parts: Parts) -> list[Tensor]:
            (v,) = parts.values()
            if self.shared:
                gradients = [v.unsqueeze(1) @ known, v.sum(1, keepdim=True)]
            else:
                gradients = [v.unsqueeze(2) * known.unsqueeze(1), v]
            return gradients if self.bias is not None else gradients[:1]

        def gram_product(parts: Parts) -> Parts:
            ((name, v),) = parts.items()
            if self.shared:
                return {name: (known @ (v.unsqueeze(1) @ known).mT).squeeze(2) + one * v.sum(1, keepdim=True)}
            return {name: v * (known.square().sum(1, keepdim=True) + one)}

        trained = features.requires_grad
        return DecisionPotentials(
            costs,
            fixed=fixed,
            given=given,
            adjoint=adjoint,
            gram_product=gram_product,
            weights=None if trained else own_weights(self),
        )
