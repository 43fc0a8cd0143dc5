"""Exact line search along a direction of the dual."""

from __future__ import annotations


def exact_step(value: float, squared_norm: float, lam: float, largest: float = 1.0) -> float:
    """The step that maximises the dual: ``clip(lam value / |d|^2, 0, largest)`` ([B13] section 4, eq. for gamma_opt).

    Args:
        value: Derivative of the dual along the direction.
        squared_norm: ``|d|^2``; d is the gradient of ``value`` with respect to the weights.
        lam: Regularisation.
        largest: Largest feasible step.
    """
    if value <= 0.0:
        return 0.0
    if squared_norm == 0.0:  # only the loss moves, and it grows
        return largest
    return min(lam * value / squared_norm, largest)
