"""The interface of a cutting-plane formulation: its constraints, and the restricted dual over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_whole
from torchssvm.core.decoding import OracleResult
from torchssvm.core.potentials import Potentials


class Restricted(NamedTuple):
    """The solution of a restricted problem.

    Attributes:
        weights: All parameters in one ``[d]`` float64 vector on the CPU.
        dual: The dual objective, a lower bound of the whole problem.
    """

    weights: Tensor
    dual: float


class Slack(ABC):
    """The working set of constraints of a cutting-plane method; ``CuttingPlane`` binds it to a problem.

    The results of a pass are collected batch by batch and added by ``solve``, so a failed pass changes nothing.
    """

    num_examples: int
    lam: float
    parameters: list[nn.Parameter]
    size: int
    """Number of weights, d."""

    def bind(self, num_examples: int, lam: float, parameters: Sequence[nn.Parameter]) -> None:
        """Set the problem of the slack.

        Raises:
            ValueError: The slack already belongs to another CuttingPlane.
        """
        if hasattr(self, "num_examples"):
            raise ValueError(f"slack={type(self).__name__}() already belongs to another CuttingPlane; make a new one")
        self.num_examples = num_examples
        self.lam = lam
        self.parameters = list(parameters)
        self.size = sum(p.numel() for p in self.parameters)

    @property
    @abstractmethod
    def num_constraints(self) -> int:
        """Number of constraints in the working set."""

    @abstractmethod
    def collect(self, index: Tensor, potentials: Potentials, corner: OracleResult) -> None:
        """Collect the max oracle's results for a batch of the current pass, at the weights of the last solution."""

    @abstractmethod
    def discard(self) -> None:
        """Forget the current pass."""

    @abstractmethod
    def solve(self, gap: float) -> Restricted:
        """Add the pass to the working set, solve the restricted problem, and drop constraints that stay inactive.

        Args:
            gap: The current duality gap; the restricted problem need not be solved much more accurately.
        """


def check_keep(keep: int) -> int:
    """The number of iterations that an inactive constraint is kept.

    Raises:
        ValueError: ``keep`` is less than 1.
    """
    return check_whole(keep, "keep", advice=": a number of iterations")


def flat_rows(gradients: Sequence[Tensor]) -> Tensor:
    """Per-example gradients ``[B, *shape]`` of all parameters as ``[B, d]``."""
    return torch.cat([gradient.flatten(1) for gradient in gradients], 1)
