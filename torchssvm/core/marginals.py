"""Marginals of a structure, and marginals at a temperature."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from torchssvm.core.potentials import Parts, Potentials


class Marginals(NamedTuple):
    """The mean parts of the distribution ``P(y) = exp(score(y)) / Z``, for every example of a batch.

    Attributes:
        parts: ``sum_y P(y) p(y)``, shaped like the potentials; zero where an example is padded, and else NaN where
            scores of ``-inf`` forbid every output.
        log_partition: ``log Z``, ``[B]`` float64; ``-inf`` if every output is forbidden.

    Example:
        >>> marginals = Multiclass(2).marginals(Potentials(torch.tensor([[0.0, 0.0]])))
        >>> marginals.log_partition
        tensor([0.6931], dtype=torch.float64)
        >>> marginals.parts
        {'potentials': tensor([[0.5000, 0.5000]])}
    """

    parts: Parts
    log_partition: Tensor


def marginals_at(structure: Any, potentials: Potentials, temperature: float) -> Marginals:
    """Marginals of the scores divided by the temperature, in float64."""
    warm = {name: tensor.double() / temperature for name, tensor in potentials.tensors.items()}
    return structure.marginals(potentials.replace(warm))
