"""A loop over the first axis of tensors: one operator of a traced graph, or at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Step = Callable[[Any, tuple[Tensor, ...]], tuple[Any, Tensor]]
"""``(carry, slices) -> (carry, result)``: tensors whose shapes and dtypes do not change."""


def scan(step: Step, carry: Any, over: tuple[Tensor, ...], *, reverse: bool = False) -> tuple[Any, Tensor]:
    """Call ``step`` with the slices ``[...]`` of tensors ``[N, ...]``, N at least 1, one after another; it returns new
    tensors.

    Returns the last carry, and the results ``[N, ...]`` in the order of the slices.
    """
    if torch.compiler.is_compiling():
        from torch._higher_order_ops.scan import scan as operator

        return operator(step, carry, over, reverse=reverse)
    places = range(over[0].shape[0])
    results: list[Tensor] = []
    for t in reversed(places) if reverse else places:
        carry, result = step(carry, tuple(tensor[t] for tensor in over))
        results.append(result)
    return carry, torch.stack(results[::-1] if reverse else results)


def repeat(step: Callable[..., tuple[Tensor, ...]], carry: tuple[Tensor, ...], most: int) -> tuple[Tensor, ...]:
    """Call ``carry = step(*carry)`` while any of the bool ``carry[0]`` is True, ``most`` times at most.

    It returns new tensors of the same shapes and dtypes.
    """
    count = torch.zeros((), dtype=torch.int64)
    if torch.compiler.is_compiling():
        from torch._higher_order_ops.while_loop import while_loop

        return while_loop(
            lambda count, *carry: carry[0].any() & (count < most),
            lambda count, *carry: (count + 1, *step(*carry)),
            (count, *carry),
        )[1:]
    for _ in range(most):
        if not bool(carry[0].any()):
            break
        carry = step(*carry)
    return carry
