"""Gradients of single examples.

They come from the head's ``adjoint`` if it has one, else from ``torch.func``, ``vmap(vjp(head))`` on the inputs of its
last call, else from one backward pass for every example.

Gradients of ``torch.func`` are compared with autograd's gradient of the batch at every call. The choice depends on the
head and on this call alone, so that a resumed run repeats it to the bit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from textwrap import shorten
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.utils.weak import WeakIdKeyDictionary

from torchssvm.core.batch import tree_replace, tree_tensors
from torchssvm.core.modules import state_kept
from torchssvm.core.operators import transformed
from torchssvm.core.packages import warn
from torchssvm.core.potentials import Parts, Potentials, as_potentials, conform, scale
from torchssvm.core.precision import full_precision
from torchssvm.core.row_sparse import combine_rows, dense

_HOOKS = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")  # not called; forward pre-hooks may make weights


class HeadCall:
    """The arguments of a head's call, to call it again for each example.

    Torch's version counters tell whether a tensor was written to afterwards.
    """

    def __init__(self, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]) -> None:
        self.head = ref(head)
        self.inputs = args, kwargs
        self.input_versions = _versions(self.inputs)
        self.output_versions = {id(tensor): tensor._version for tensor in outputs}


_calls = WeakIdKeyDictionary()  # of potentials: the HeadCall that made them


def remember_call(head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Note the call of ``head`` that made the potentials; within a transform of ``torch.func``, do nothing."""
    if transformed():
        return
    outputs = [tensor for tensor in as_potentials(output).tensors.values() if tensor.grad_fn is not None]
    given = {id(tensor) for tensor in tree_tensors((args, kwargs))}
    if any(id(tensor) in given for tensor in outputs):
        return  # the inputs would keep their own potentials alive
    call = HeadCall(head, args, kwargs, outputs)
    for tensor in outputs:
        _calls[tensor] = call


def call_of(potentials: Potentials, parameters: Sequence[Tensor]) -> tuple[nn.Module, Any] | None:
    """The head that made the potentials of these parameters, and its inputs; None if unknown or written to."""
    outputs = list(potentials.tensors.values())
    call = _calls.get(outputs[0])
    if call is None or any(_calls.get(tensor) is not call for tensor in outputs):
        return None
    head = call.head()
    if head is None or not potentials.batch_size or call.input_versions != _versions(call.inputs):
        return None
    weights = list(head.parameters())
    same = len(weights) == len(parameters) and all(a is b for a, b in zip(weights, parameters, strict=True))
    untouched = all(call.output_versions.get(id(tensor)) == tensor._version for tensor in outputs)
    return (head, call.inputs) if same and untouched else None


def patterns(inputs: Any, size: int) -> Iterator[tuple[bool, ...]]:
    """At most 8 guesses which tensors have an axis of examples: all as long as the batch, then fewer.

    A tensor that all examples share may be as long as the batch by chance.
    """
    fit = [t.ndim > 0 and len(t) == size for t in tree_tensors(inputs)]
    if size == 1:
        return iter([tuple(fit)])
    where = [i for i, its in enumerate(fit) if its]
    some = (chosen for many in range(len(where), 0, -1) for chosen in combinations(where, many))
    return (tuple(i in chosen for i in range(len(fit))) for chosen in islice(some, 8))


@torch.no_grad()
def of_each(
    head: nn.Module, inputs: Any, batched: tuple[bool, ...], parts: Parts, respond: bool
) -> tuple[list[Tensor], Parts]:
    """``Phi_i^T parts_i`` for each parameter ``[B, *shape]``, and, to ``respond``, ``Phi_i Phi_i^T parts_i``.

    ``batched`` says which tensors of the inputs have an axis of examples. The head may raise any error.
    """
    weights = {name: parameter.detach() for name, parameter in head.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in head.named_buffers()}
    tensors = [tensor.detach() for tensor in tree_tensors(inputs)]

    def one(example: list[Tensor], part: Parts) -> tuple[list[Tensor], Parts]:
        alone = [t.unsqueeze(0) if its else t for t, its in zip(example, batched, strict=True)]
        args, kwargs = tree_replace(inputs, alone)

        def potentials_of(weights: dict[str, Tensor]) -> Parts:
            output = as_potentials(functional_call(head, {**buffers, **weights}, args, kwargs)).tensors
            return {name: output[name].squeeze(0) for name in part}

        gradient = vjp(potentials_of, weights)[1](part)[0]
        # Potentials are linear in the weights: along a gradient they change by their value at it.
        return list(gradient.values()), potentials_of(gradient) if respond else {}

    with state_kept(head):
        for module in head.modules():
            vars(module).update({name: OrderedDict() for name in _HOOKS})
        return torch.vmap(one, in_dims=([0 if its else None for its in batched], 0))(tensors, parts)


def _versions(inputs: Any) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tree_tensors(inputs)]


_MOST = 1 << 28  # bytes of the gradients that are kept for a step, where they are made unasked
_TOLERANCE = 1e-3  # of gradients of torch.func against autograd: wrong ones differ by far more than rounding

_told: WeakSet[nn.Module] = WeakSet()
"""Heads whose user has been told that they give no gradients of single examples."""


def per_example_adjoint(
    potentials: Potentials, parts: Parts, parameters: Sequence[Tensor], *, sparse: bool = False
) -> list[Tensor]:
    """``Phi_i^T parts_i`` for every example i and parameter, ``[B, *parameter.shape]``, dense unless ``sparse``."""
    each = _given_adjoint(potentials, parts, parameters)
    if each is None and (made := _by_func(potentials, parts, parameters)):
        each = made[0]
    if each is not None:
        return each if sparse else [dense(gradient) for gradient in each]
    result = [p.new_zeros(potentials.batch_size, *p.shape) for p in parameters]
    for row in range(potentials.batch_size):
        gradients = adjoint(potentials, {name: _only(tensor, row) for name, tensor in parts.items()}, parameters)
        for gradient, target in zip(gradients, result, strict=True):
            target[row] = gradient
    return result


def cheap_adjoint(
    potentials: Potentials, parts: Parts, parameters: Sequence[Tensor], kept: int = 0
) -> list[Tensor] | None:
    """As :func:`per_example_adjoint`, possibly sparse; None if it would take a backward pass an example.

    Also None if the head has no ``adjoint`` and the gradients, with the ``kept`` bytes of others that wait for the same
    step, would take more than 2^28 bytes (256 MiB).
    """
    given = _given_adjoint(potentials, parts, parameters)
    if given is not None:
        return given
    size = kept + potentials.batch_size * sum(p.numel() * p.element_size() for p in parameters)
    if size <= _MOST:
        made = _by_func(potentials, parts, parameters)
        return made[0] if made else None
    if (call := call_of(potentials, parameters)) is not None:
        _tell(call[0], f"those that wait for the step would take {size >> 20} MiB, more than {_MOST >> 20}")
    return None


def _given_adjoint(potentials: Potentials, parts: Parts, parameters: Sequence[Tensor]) -> list[Tensor] | None:
    if potentials.adjoint is None:
        return None
    with full_precision(potentials.device):
        gradients = list(potentials.adjoint(parts))
    if [g.shape[1:] for g in gradients] != [p.shape for p in parameters]:
        raise ValueError(
            f"the head's adjoint returned shapes {[list(g.shape) for g in gradients]}: they must be [B, *shape] for "
            f"each of head.parameters(), {[list(p.shape) for p in parameters]}"
        )
    return gradients


def gram_product(potentials: Potentials, parts: Parts, parameters: Sequence[Tensor]) -> Parts:
    """``Phi_i Phi_i^T parts_i`` for every example: the change of its potentials along its gradient.

    Uses the head's ``gram_product`` if it has one, else ``torch.func`` as :func:`per_example_adjoint` does, else two
    backward passes for every example.

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
            gradients = torch.autograd.grad(
                outputs, list(parameters), inputs, retain_graph=True, create_graph=True, allow_unused=True
            )
            # The backward pass is linear in its input: differentiating it is the forward pass.
            used = [g for g in gradients if g is not None and g.requires_grad]
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
    if all(gradient is None for gradient in gradients):
        raise ValueError("potentials do not depend on the dual's weights: call the head that the dual was made for")
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return filled if sparse else [dense(gradient) for gradient in filled]


def combine(gradients: Sequence[Tensor], factors: Tensor) -> list[Tensor]:
    """``sum_i factors_i gradients_i`` for each parameter, from ``[B, *parameter.shape]`` and ``[B]``."""
    if factors.shape[0] == 1 and not any(g.is_sparse for g in gradients):  # products of matrices take longer
        return list(torch._foreach_mul([g[0] for g in gradients], factors.to(gradients[0].dtype)[0]))
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
    """The result of :func:`of_each` if autograd agrees; else None, with one warning."""
    if (call := call_of(potentials, parameters)) is None:
        return None
    factors = torch.arange(1.0, potentials.batch_size + 1.0, device=potentials.device).sqrt()  # tell examples apart
    expected: list[Tensor] = []
    reason = ""
    with full_precision(potentials.device):
        for batched in patterns(call[1], potentials.batch_size):
            try:
                each = of_each(*call, batched, parts, respond)
                try:
                    expected = expected or adjoint(potentials, scale(parts, factors), parameters)
                except RuntimeError:  # the graph is used up: no step can follow
                    return each
                if _agree(combine(each[0], factors), expected):
                    return each
                reason = reason or "gradients of torch.func and of autograd differ"
            except Exception as error:  # a head can raise anything
                reason = reason or f"{type(error).__name__}: {error}"
                if "vmap" in reason:  # vmap does not support the head, whatever is shared
                    break
    _tell(call[0], reason or "no input has an axis of examples")
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
            f"{type(head).__name__} gives no gradients of single examples ({why}): a batch takes one common step, or a "
            "backward pass for every example. Give Potentials(..., adjoint=function)"
        )
