"""Gradients of a head's weights: of a whole batch by autograd, and of each example.

Those of each example come from the head's own ``adjoint`` where it gives one, else from ``torch.func``,
``vmap(vjp(head))`` on the inputs that it was called with, else from one backward pass for every example.

What ``torch.func`` finds is compared with autograd's gradient of the batch at every call. So whether it is taken
depends on the head and on this call alone, never on earlier calls, and a resumed run repeats it to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from weakref import WeakSet

import torch
from torch import Tensor, nn

from torchssvm.core.caller import warn
from torchssvm.core.head_call import call_of, of_each, patterns
from torchssvm.core.potentials import Parts, Potentials, conform, scale
from torchssvm.core.precision import full_precision
from torchssvm.core.row_sparse import combine_rows, dense

_MOST = 1 << 28  # bytes of the gradients that are kept for a step, where they are made unasked
_TOLERANCE = 1e-3  # of what torch.func finds, against autograd: other answers than rounding's are wrong in every digit

_told: WeakSet[nn.Module] = WeakSet()
"""Heads whose user has been told that they give no gradients of single examples."""


def per_example_adjoint(
    potentials: Potentials, parts: Parts, parameters: Sequence[Tensor], *, sparse: bool = False
) -> list[Tensor]:
    """``Phi_i^T parts_i`` for every example i and parameter: ``[B, *parameter.shape]`` each, dense unless ``sparse``.

    Raises:
        ValueError: The head's own ``adjoint`` gave other shapes.
    """
    found = _own_adjoint(potentials, parts, parameters)
    if found is None and (made := _by_func(potentials, parts, parameters)):
        found = made[0]
    if found is not None:
        return found if sparse else [dense(gradient) for gradient in found]
    result = [p.new_zeros(potentials.batch_size, *p.shape) for p in parameters]
    for row in range(potentials.batch_size):
        gradients = adjoint(potentials, {name: _only(tensor, row) for name, tensor in parts.items()}, parameters)
        for gradient, target in zip(gradients, result, strict=True):
            target[row] = gradient
    return result


def cheap_adjoint(
    potentials: Potentials, parts: Parts, parameters: Sequence[Tensor], kept: int = 0
) -> list[Tensor] | None:
    """As :func:`per_example_adjoint`, sparse tensors left sparse; None where it takes a backward pass an example.

    And where the head gives no ``adjoint`` and the gradients would be more than 2^28 bytes (256 MiB), with the ``kept``
    bytes of others that wait for the same step.
    """
    found = _own_adjoint(potentials, parts, parameters)
    if found is not None:
        return found
    size = kept + potentials.batch_size * sum(p.numel() * p.element_size() for p in parameters)
    if size <= _MOST:
        made = _by_func(potentials, parts, parameters)
        return made[0] if made else None
    if (call := call_of(potentials, parameters)) is not None:
        _tell(call[0], f"those that wait for the step would take {size >> 20} MiB, more than {_MOST >> 20}")
    return None


def _own_adjoint(potentials: Potentials, parts: Parts, parameters: Sequence[Tensor]) -> list[Tensor] | None:
    if potentials.adjoint is None:
        return None
    with full_precision(potentials.device):
        gradients = list(potentials.adjoint(parts))
    if [g.shape[1:] for g in gradients] != [p.shape for p in parameters]:
        raise ValueError(
            f"the head's adjoint returned shapes {[list(g.shape) for g in gradients]}; expected [B, *shape] for "
            f"each parameter in the order of head.parameters(): {[list(p.shape) for p in parameters]}"
        )
    return gradients


def gram_product(potentials: Potentials, parts: Parts, parameters: Sequence[Tensor]) -> Parts:
    """``Phi_i Phi_i^T parts_i`` for every example: the change of its potentials along its own gradient.

    Uses the head's own ``gram_product`` where it gives one, else ``torch.func`` as :func:`per_example_adjoint` does,
    else two backward passes for every example.

    Raises:
        ValueError: The head's ``gram_product`` gave other shapes.
        RuntimeError: The potentials carry no graph, or one that cannot be differentiated twice.
    """
    with full_precision(potentials.device):
        if potentials.gram_product is not None:
            return conform(potentials.gram_product(parts), potentials, "the head's gram_product")
        if made := _by_func(potentials, parts, parameters, respond=True):
            return made[1]
        return _gram_product_by_autograd(potentials, parts, parameters)


def _gram_product_by_autograd(potentials: Potentials, parts: Parts, parameters: Sequence[Tensor]) -> Parts:
    names = [name for name, tensor in potentials.tensors.items() if tensor.requires_grad]
    result = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in potentials.tensors.items()}
    for row in range(potentials.batch_size):
        with torch.enable_grad():
            inputs = [_only(parts[name], row).requires_grad_() for name in names]
            outputs = [potentials.tensors[name] for name in names]
            found = torch.autograd.grad(
                outputs, list(parameters), inputs, retain_graph=True, create_graph=True, allow_unused=True
            )
            # The backward pass is linear in what goes into it: differentiating it once more is the forward pass.
            used = [g for g in found if g is not None and g.requires_grad]
            changes = torch.autograd.grad(used, inputs, [g.detach() for g in used], allow_unused=True) if used else []
        for name, change in zip(names, changes, strict=False):
            if change is not None:
                result[name][row] = change[row]
    return result


def adjoint(
    potentials: Potentials, parts: Parts, parameters: Sequence[Tensor], *, sparse: bool = False
) -> list[Tensor]:
    """``sum_i Phi_i^T parts_i`` by autograd, for every parameter, dense unless ``sparse``; the graph is kept."""
    names = [name for name, tensor in potentials.tensors.items() if tensor.requires_grad]
    with full_precision(potentials.device):
        gradients = torch.autograd.grad(
            [potentials.tensors[name] for name in names],
            list(parameters),
            [parts[name] for name in names],
            retain_graph=True,
            allow_unused=True,
        )
    found = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return found if sparse else [dense(gradient) for gradient in found]


def combine(gradients: Sequence[Tensor], factors: Tensor) -> list[Tensor]:
    """``sum_i factors_i gradients_i`` for each parameter, from ``[B, *parameter.shape]`` and ``[B]``."""
    return [
        combine_rows(g, factors) if g.is_sparse else (factors.to(g.dtype) @ g.flatten(1)).view(g.shape[1:])
        for g in gradients
    ]


def _only(tensor: Tensor, row: int) -> Tensor:
    result = torch.zeros_like(tensor)
    result[row] = tensor[row]
    return result


def _by_func(
    potentials: Potentials, parts: Parts, parameters: Sequence[Tensor], *, respond: bool = False
) -> tuple[list[Tensor], Parts] | None:
    """What :func:`of_each` finds, where autograd finds the same; else None, and the user is told why, once."""
    if (call := call_of(potentials, parameters)) is None:
        return None
    factors = torch.arange(1.0, potentials.batch_size + 1.0, device=potentials.device).sqrt()  # tell examples apart
    expected: list[Tensor] = []
    reason = ""
    with full_precision(potentials.device):
        for batched in patterns(call[1], potentials.batch_size):
            try:
                found = of_each(*call, batched, parts, respond)
                try:
                    expected = expected or adjoint(potentials, scale(parts, factors), parameters)
                except RuntimeError:  # the graph is used up: no step can follow
                    return found
                if _agree(combine(found[0], factors), expected):
                    return found
                reason = reason or "what torch.func finds for each is not what autograd finds for the batch"
            except Exception as error:  # a head can raise anything
                reason = reason or f"{type(error).__name__}: {error}"
                if "vmap" in reason:  # it cannot do the head, whatever is shared: three attempts a step would be slow
                    break
    _tell(call[0], reason or "none of its inputs is a tensor with an axis of examples")
    return None


def _agree(mine: list[Tensor], true: list[Tensor]) -> bool:
    differences = [
        a - b if a.shape == b.shape else torch.full_like(b, torch.inf) for a, b in zip(mine, true, strict=True)
    ]
    norms = torch.stack([t.norm() for t in (*differences, *true)]).tolist()
    wrong, sizes = norms[: len(true)], norms[len(true) :]
    # Gradients of some weights may be rounding alone.
    return all(a <= _TOLERANCE * (b + 1e-2 * max(sizes)) for a, b in zip(wrong, sizes, strict=True))


def _tell(head: nn.Module, reason: str) -> None:
    """Warn, once for each head."""
    if head not in _told:
        _told.add(head)
        why = shorten(reason, 170, placeholder=" ...")
        warn(
            f"{type(head).__name__} gives no gradients of single examples ({why}): where they are missing, "
            "a batch takes one common step, or a backward pass for every example. "
            "Potentials(..., adjoint=function) gives them by hand"
        )
