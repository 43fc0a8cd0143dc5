"""The stochastic subgradient method, the baseline of [B13] section 6."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchssvm.core.arguments import check_parameters, check_positive
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.problem import check_lam
from torchssvm.core.row_sparse import squared_norm


class Subgradient(Optimizer):
    """Stochastic subgradient with the Pegasos step size ([B13] section 6 and appendix F, "SSG").

    ``w <- (1 - eta lam) w - eta grad`` with ``eta = 1/(lam (k+1))`` in step k = 0, 1, ..., for the loss
    ``StructuredHinge``, whose gradient does not hold the regulariser: this descends ``lam/2 |w|^2 + (1/n) sum_i H_i``
    where batches are drawn uniformly. The first step forgets the initial weights. eta is published as
    ``group["lr"]``. The iterates are noisy: use one of their averages (``WeightedAverage``).

    With ``max_loss`` = L every step ends with a projection onto the ball ``|w| <= sqrt(L/lam)``, which limits the first
    steps. The ball contains the optimum, where primal and dual are equal:
    ``lam |w|^2 = sum_i l_i - (1/n) sum_i H_i <= L`` (Shalev-Shwartz et al. 2010, for L = 1).

    Args:
        params: The head's parameters.
        lam: Regularisation; positive.
        max_loss: An upper bound of the task loss, such as 1 for a share of wrong letters; None does not project.

    Raises:
        ValueError: ``lam`` or ``max_loss`` is not positive, or a group has other options.
        TypeError: ``lam`` or ``max_loss`` is not a number.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> optimizer, hinge = Subgradient(head.parameters(), lam=0.1), StructuredHinge(head.structure)
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     hinge(head(points), classes).backward()
        ...     optimizer.step()
        >>> primal(head, head.structure, in_order(data), lam=0.1).value < 1.0  # from 1, at weights of zero
        True
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lam: float, *, max_loss: float | None = None
    ) -> None:
        lam = check_lam(lam)
        bound = None if max_loss is None else check_positive(max_loss, "max_loss")
        check_parameters(params)
        super().__init__(params, {"lr": 0.0, "lam": lam, "max_loss": bound, "steps": 0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; they share the step size of the others.

        Raises:
            ValueError: The group has options.
        """
        if isinstance(param_group, dict) and (options := set(param_group) - {"params", "param_names"}):
            raise ValueError(
                f"params has a group with options {sorted(options)}: Subgradient has one lam for all weights, and a "
                "step size that follows from it"
            )
        steps = self.param_groups[0]["steps"] if self.param_groups else 0
        super().add_param_group({**param_group, "steps": steps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Optional; computes the loss and its gradient first.

        Returns:
            What ``closure`` returned, or None.

        Raises:
            RuntimeError: There is no gradient, or it is sparse or not finite; nothing changes then.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        with_gradient = [p for p in parameters if p.grad is not None]
        gradients = [p.grad for p in with_gradient if p.grad is not None]
        if not gradients:
            raise RuntimeError("step() has no gradient: call StructuredHinge(...)(head(x), y).backward() before it")
        for gradient in gradients:
            if gradient.is_sparse:
                raise RuntimeError(
                    "a gradient is sparse: Subgradient needs dense ones (SparseLinearChain(..., sparse_gradient=False))"
                )
            if not bool(torch.isfinite(gradient).all()):
                raise RuntimeError("the gradient is not finite: check the features, padding too")
        group = self.param_groups[0]
        k, lam, max_loss = group["steps"], group["lam"], group["max_loss"]
        rate = 1.0 / (lam * (k + 1))
        with undisturbed():
            torch._foreach_mul_(parameters, k / (k + 1))  # 1 - eta lam
            torch._foreach_add_(with_gradient, gradients, alpha=-rate)
            if max_loss is not None:
                length, radius = math.sqrt(squared_norm(parameters)), math.sqrt(max_loss / lam)
                if length > radius:
                    torch._foreach_mul_(parameters, radius / length)
            for group in self.param_groups:
                group["lr"], group["steps"] = rate, k + 1
        return result
