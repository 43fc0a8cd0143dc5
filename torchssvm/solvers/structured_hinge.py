"""The structured hinge: the loss that trains the features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import Potentials, as_potentials
from torchssvm.core.problem import as_structure
from torchssvm.core.structure import Structure


class StructuredHinge(nn.Module):
    """The mean structured hinge of a batch, ``(1/B) sum_i H_i`` with ``H_i = max_y L_i(y) + <p(y) - p(y_i), theta_i>``.

    For ordinary optimizers: it trains the features below the head or, with weight decay ``lam``, the head itself by
    subgradients. BCFW refuses its gradient.

    With an approximate oracle (``Decoding.exact`` is False) the value is a lower bound of the hinge, and the gradient a
    subgradient of that bound. For an upper bound of the primal use :func:`torchssvm.solvers.primal` or ``certify``,
    which take ``Decoding.bound`` and say ``exact=False``.

    Args:
        structure: What an output is.

    Example:
        >>> hinge = StructuredHinge(Multiclass(2))
        >>> scores = torch.tensor([[0.0, 0.25]])
        >>> hinge(scores, torch.tensor([1]))  # 1 + 0 - 0.25
        tensor(0.7500)
    """

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        as_structure(structure)
        self.structure = structure

    def forward(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any) -> Tensor:
        """The mean over the batch, a scalar of the potentials' dtype.

        Raises:
            ValueError: Target or potentials are not valid, or the oracle returned invalid outputs.
        """
        potentials = as_potentials(potentials)
        target = self.structure.check_target(target, potentials)
        corner = find_corner(self.structure, potentials, target)
        size = potentials.batch_size
        value = corner.loss.mean()
        for name, tensor in potentials.tensors.items():
            value = value + (corner.parts[name] * tensor).sum() / size
        return value.to(potentials.dtype)
