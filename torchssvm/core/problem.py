"""Checks of a training problem, before anything is stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_positive, check_tensor, check_whole
from torchssvm.core.structure import Structure


def check_problem(
    num_examples: int, lam: float, structure: Structure, parameters: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    """Check the arguments of :class:`torchssvm.DualState`, with its errors; returns the parameters as a list."""
    check_whole(num_examples, "num_examples", advice=": is the dataset empty?")
    check_lam(lam)
    as_structure(structure)
    if not isinstance(parameters, Iterable) or isinstance(parameters, Tensor):
        raise TypeError(f"parameters is a {type(parameters).__name__}: pass head.parameters()")
    held = list(parameters)
    if not held:
        raise ValueError("the head has no parameters to train")
    for parameter in held:
        check_tensor(parameter, "a weight of the head")
        if parameter.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"the head's weights are {parameter.dtype}; keep the head in float32 or float64")
    if len({parameter.dtype for parameter in held}) > 1:
        raise TypeError("the head's weights have several dtypes; use one")
    check_range(lam, num_examples, held[0].dtype)
    return held


def check_lam(lam: Any) -> float:
    """``lam`` as a positive float."""
    return check_positive(lam, "lam")


def check_range(lam: float, num_examples: int, dtype: torch.dtype) -> None:
    """Raise ValueError unless ``lam``, ``lam n``, ``lam n^2`` and their inverses are in the range of ``dtype``."""
    limits, n = torch.finfo(dtype), num_examples
    scales = (lam, lam * n, lam * n * n)
    if not all(limits.tiny <= scale <= limits.max and 1.0 / scale <= limits.max for scale in scales):
        raise ValueError(
            f"lam={lam:g} with num_examples={n} is out of range in {dtype}: usual values are 1e-6 to 1e3"
            + (", and float64 weights have a larger range" if dtype != torch.float64 else "")
        )


def find_structure(head: nn.Module, structure: Structure | None) -> Structure:
    """``structure``, or the head's own if it is None; ValueError if there is none, TypeError for another kind."""
    structure = structure if structure is not None else getattr(head, "structure", None)
    if structure is None:
        raise ValueError(f"structure=None, and {type(head).__name__} has no attribute `structure`: pass a structure")
    return as_structure(structure)


def as_structure(structure: Any) -> Structure:
    """``structure``, or TypeError if it is something else, such as a class."""
    if not isinstance(structure, Structure):
        raise TypeError(f"structure={structure!r} must be a torchssvm.Structure, such as head.structure")
    return structure
