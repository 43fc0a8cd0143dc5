"""Gradients with respect to a head's weights: of a whole batch by autograd, and of each example.

Gradients of each example come from the head's own ``adjoint`` if it has one, else from ``torch.func``
(``vmap(vjp(head))`` on the inputs of its call), else from one backward pass for each example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from torchssvm.core.batch import tree_replace, tree_tensors
from torchssvm.core.potentials import Parts, Potentials, as_potentials, conform, scale
from torchssvm.core.precision import full_precision, transformed
from torchssvm.core.row_sparse import combine_rows, dense, distance, squared_norm

_KEY = "torchssvm.head_call"  # in the metadata of an autograd node: the head's call that made the node
_MOST = 1 << 26  # size of all per-example gradients of a batch, up to which `cheap_adjoint` uses torch.func
_TOLERANCE = 1e-3  # of torch.func relative to autograd: rounding errors are smaller, other errors larger

_agrees: WeakKeyDictionary[nn.Module, tuple[bool, ...] | None] = WeakKeyDictionary()
"""For each head that ``torch.func`` was tried on: which inputs had an axis of examples; None if it failed."""


class _HeadCall(NamedTuple):
    """A call of a head, to be repeated for each example.

    Attributes:
        head: The head.
        inputs: Its arguments and keyword arguments.
        versions: Versions of their tensors; writing to a tensor afterwards changes its version.
    """

    head: nn.Module
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    versions: list[int]


def remember_call(head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Record the call of ``head`` in the autograd graph of the potentials that it made.

    Nothing is recorded if the head gives its own ``adjoint``, or within a transform of ``torch.func``.
    """
    if (isinstance(output, Potentials) and output.adjoint is not None) or transformed():
        return
    call = _HeadCall(head, (args, kwargs), _versions((args, kwargs)))
    for tensor in as_potentials(output).tensors.values():
        if tensor.grad_fn is not None:
            _notes(tensor.grad_fn)[_KEY] = call


def per_example_adjoint(
    potentials: Potentials, parts: Parts, parameters: Sequence[Tensor], *, sparse: bool = False
) -> list[Tensor]:
    """``Phi_i^T parts_i`` for every example i and parameter: ``[B, *parameter.shape]`` each.

    Args:
        potentials: The batch.
        parts: Parts of every example.
        parameters: The head's.
        sparse: Whether gradients that are sparse tensors stay sparse.

    Raises:
        ValueError: The head's own ``adjoint`` returned wrong shapes.
    """
    found = _own_adjoint(potentials, parts, parameters) or _by_func(potentials, parts, parameters)
    if found is not None:
        return found if sparse else [dense(gradient) for gradient in found]
    result = [p.new_zeros(potentials.batch_size, *p.shape) for p in parameters]
    for row in range(potentials.batch_size):
        gradients = adjoint(potentials, {name: _only(tensor, row) for name, tensor in parts.items()}, parameters)
        for gradient, target in zip(gradients, result, strict=True):
            target[row] = gradient
    return result


def cheap_adjoint(potentials: Potentials, parts: Parts, parameters: Sequence[Tensor]) -> list[Tensor] | None:
    """As :func:`per_example_adjoint` with ``sparse=True``; None if it would be slow or large.

    Slow is a backward pass for each example; large are more than 2^26 numbers that torch.func would compute.
    """
    found = _own_adjoint(potentials, parts, parameters)
    if found is None and potentials.batch_size * sum(p.numel() for p in parameters) <= _MOST:
        found = _by_func(potentials, parts, parameters)
    return found


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

    Uses the head's own ``gram_product`` if it has one, else ``torch.func`` as :func:`per_example_adjoint` does, else
    two backward passes for each example.

    Raises:
        ValueError: The head's ``gram_product`` returned wrong shapes.
        RuntimeError: The potentials have no graph, or one that cannot be differentiated twice.
    """
    with full_precision(potentials.device):
        if potentials.gram_product is not None:
            return conform(potentials.gram_product(parts), potentials, "the head's gram_product")
        if (call := _call_of(potentials, parameters)) is not None:
            # Potentials are linear in the weights: their change along a gradient is their value at the gradient.
            return _of_each(call, parts, lambda at, gradient: at(gradient))
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
            # The backward pass is linear in its input, and its derivative is the forward pass.
            used = [g for g in found if g is not None and g.requires_grad]
            changes = torch.autograd.grad(used, inputs, [g.detach() for g in used], allow_unused=True) if used else []
        for name, change in zip(names, changes, strict=False):
            if change is not None:
                result[name][row] = change[row]
    return result


def adjoint(
    potentials: Potentials, parts: Parts, parameters: Sequence[Tensor], *, sparse: bool = False
) -> list[Tensor]:
    """``sum_i Phi_i^T parts_i`` by autograd, one tensor for every parameter; the graph is kept.

    ``sparse`` says whether gradients that are sparse tensors stay sparse.
    """
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


def _by_func(potentials: Potentials, parts: Parts, parameters: Sequence[Tensor]) -> list[Tensor] | None:
    with full_precision(potentials.device):
        call = _call_of(potentials, parameters)
        return None if call is None else _gradients_of(call, parts)


def _call_of(potentials: Potentials, parameters: Sequence[Tensor]) -> _HeadCall | None:
    """The call that made these potentials, if torch.func can repeat it for each example; else None."""
    nodes = [tensor.grad_fn for tensor in potentials.tensors.values()]
    calls = [None if node is None else _notes(node).get(_KEY) for node in nodes]
    call = calls[0]
    if call is None or any(other is not call for other in calls) or not potentials.batch_size:
        return None
    own = list(call.head.parameters())
    if len(own) != len(parameters) or any(a is not b for a, b in zip(own, parameters, strict=True)):
        return None
    batched = tuple(t.ndim > 0 and len(t) == potentials.batch_size for t in tree_tensors(call.inputs))
    if call.versions != _versions(call.inputs) or _agrees.get(call.head, batched) is None:
        return None
    if _agrees.get(call.head) != batched:
        _agrees[call.head] = batched if _is_right(call, potentials, parameters) else None
    return call if _agrees[call.head] is not None else None


def _is_right(call: _HeadCall, potentials: Potentials, parameters: Sequence[Tensor]) -> bool:
    """Whether torch.func can differentiate the head and agrees with autograd on a weighted sum of the examples."""
    parts = {name: _numbers(tensor.detach()) for name, tensor in potentials.tensors.items()}
    factors = torch.arange(1.0, potentials.batch_size + 1.0, device=potentials.device).sqrt()
    try:
        gradients = _gradients_of(call, parts)
    except Exception:  # a head may raise anything when it is called within a transform
        return False
    expected = adjoint(potentials, scale(parts, factors), parameters)
    size = squared_norm(expected) ** 0.5
    return all(
        mine.shape == true.shape
        and distance([mine], [true]) <= _TOLERANCE * (squared_norm([true]) ** 0.5 + _TOLERANCE * size)
        for mine, true in zip(combine(gradients, factors), expected, strict=True)
    )


def _numbers(like: Tensor) -> Tensor:
    """Different numbers shaped like ``like``, made without a random generator."""
    return torch.arange(1.0, like.numel() + 1.0, dtype=like.dtype, device=like.device).cos().view(like.shape)


def _gradients_of(call: _HeadCall, parts: Parts) -> list[Tensor]:
    found = _of_each(call, parts, lambda at, gradient: gradient)
    return [found[name] for name, _ in call.head.named_parameters()]


@torch.no_grad()
def _of_each(call: _HeadCall, parts: Parts, finish: Callable[..., dict[str, Tensor]]) -> dict[str, Tensor]:
    """``finish(potentials_of, Phi_i^T parts_i)`` of every example, stacked to ``[B, ...]``.

    Args:
        call: The call.
        parts: ``[B, ...]`` each.
        finish: Takes a function from weights to the example's potentials, and the example's gradient; weights,
            potentials, gradients and results are dicts.
    """
    head, size = call.head, len(next(iter(parts.values())))
    weights = {name: parameter.detach() for name, parameter in head.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in head.named_buffers()}
    tensors = [tensor.detach() for tensor in tree_tensors(call.inputs)]
    batched = [tensor.ndim > 0 and len(tensor) == size for tensor in tensors]

    def one(own: list[Tensor], part: Parts) -> dict[str, Tensor]:
        alone = [t.unsqueeze(0) if its else t for t, its in zip(own, batched, strict=True)]
        args, kwargs = tree_replace(call.inputs, alone)

        def potentials_of(weights: dict[str, Tensor]) -> Parts:
            found = as_potentials(functional_call(head, {**buffers, **weights}, args, kwargs)).tensors
            return {name: found[name].squeeze(0) for name in part}

        pull = vjp(potentials_of, weights)[1]
        return finish(potentials_of, pull(part)[0])

    return torch.vmap(one, in_dims=([0 if its else None for its in batched], 0))(tensors, parts)


def _notes(node: Any) -> dict[str, Any]:
    """The metadata of an autograd node; it lives as long as the node."""
    return node.metadata


def _versions(inputs: Any) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tree_tensors(inputs)]
