"""A head's call, remembered at its potentials, and made again for each example by ``torch.func``."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, islice
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from torchssvm.core.batch import tree_replace, tree_tensors
from torchssvm.core.potentials import Parts, Potentials, as_potentials
from torchssvm.core.precision import transformed
from torchssvm.core.undisturbed import undisturbed


def largest_feature(dtype: torch.dtype) -> float:
    """The largest size of a feature: sums of a million squares do not overflow."""
    return 1e-3 * torch.finfo(dtype).max ** 0.5


def knows_padding(features: nn.Module) -> str | None:
    """``"lengths"`` or ``"attention_mask"``, if ``forward`` has such a parameter; of a wrapped module, that inside."""
    inside = getattr(features, "_orig_mod", features)
    if isinstance(inside, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return knows_padding(inside.module)
    names = inspect.signature(inside.forward).parameters
    return next((name for name in ("lengths", "attention_mask") if name in names), None)


def apply_features(features: nn.Module, x: Any, lengths: Tensor | None = None) -> Any:
    """``features(x)``, and ``lengths=`` or ``attention_mask=`` where there are lengths and ``forward`` takes it.

    Of an output with ``last_hidden_state``, as encoders of ``transformers`` return it, that is taken.

    Args:
        features: The module below the head.
        x: Its input.
        lengths: ``[B]`` int64, where examples differ in length.
    """
    how = None if lengths is None else knows_padding(features)
    if how == "lengths":
        found = features(x, lengths=lengths)
    elif how is not None and lengths is not None:
        found = features(x, attention_mask=(torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)).long())
    else:
        found = features(x)
    return getattr(found, "last_hidden_state", found)


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Evaluation mode inside the ``with`` block; afterwards every submodule has its former mode."""
    modes = []
    if isinstance(module, nn.Module):
        modes = [(part, part.training) for part in module.modules()]
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


_CALL = "_torchssvm_call"  # the attribute of a head's output that says how it was made
_HOOKS = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")  # not called; forward pre-hooks may make weights
_LONG = 1000  # entries of a list or a dict that is not copied in every step


class HeadCall:
    """How a head was called, to call it again for each example.

    It is an attribute of the potentials, where Python's garbage collector sees it: a head may keep its potentials, and
    so may its inputs. A note at the graph, or in a table of this module, would keep all of them for ever. Versions are
    those of torch, by the id of each of the potentials: whoever writes to a tensor afterwards makes it another one.
    """

    def __init__(self, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]) -> None:
        self.head = ref(head)
        self.inputs = args, kwargs
        self.input_versions = _versions(self.inputs)
        self.output_versions = {id(tensor): tensor._version for tensor in outputs}

    def __reduce__(self) -> Any:
        return OrderedDict, ()  # nothing goes to copies and files, which load with weights_only=True


def remember_call(head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Leave at the potentials which call of ``head`` made them, for as long as they live.

    Nothing is left where the head knows its own adjoint, or within a transform of ``torch.func``.
    """
    if (isinstance(output, Potentials) and output.adjoint is not None) or transformed():
        return
    outputs = [tensor for tensor in as_potentials(output).tensors.values() if tensor.grad_fn is not None]
    call = HeadCall(head, args, kwargs, outputs)
    for tensor in outputs:
        setattr(tensor, _CALL, call)


def call_of(potentials: Potentials, parameters: Sequence[Tensor]) -> tuple[nn.Module, Any] | None:
    """The head that made the potentials of these parameters, and its inputs, where all are known and as they were."""
    outputs = list(potentials.tensors.values())
    call = getattr(outputs[0], _CALL, None)
    if not isinstance(call, HeadCall) or any(getattr(tensor, _CALL, None) is not call for tensor in outputs):
        return None
    head = call.head()
    if head is None or not potentials.batch_size or call.input_versions != _versions(call.inputs):
        return None
    own = list(head.parameters())
    same = len(own) == len(parameters) and all(a is b for a, b in zip(own, parameters, strict=True))
    untouched = all(call.output_versions.get(id(tensor)) == tensor._version for tensor in outputs)
    return (head, call.inputs) if same and untouched else None


def patterns(inputs: Any, size: int) -> Iterator[tuple[bool, ...]]:
    """Which of the tensors may have an axis of examples: those as long as the batch; then fewer, at most 8 choices.

    A tensor that all examples share may be as long as the batch by chance. A batch of one example is the call itself.
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

    ``batched`` says which tensors of the inputs, arguments and keyword arguments, have an axis of examples. Raises
    whatever the head raises when its inputs are those of a transform.
    """
    weights = {name: parameter.detach() for name, parameter in head.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in head.named_buffers()}
    tensors = [tensor.detach() for tensor in tree_tensors(inputs)]

    def one(own: list[Tensor], part: Parts) -> tuple[list[Tensor], Parts]:
        alone = [t.unsqueeze(0) if its else t for t, its in zip(own, batched, strict=True)]
        args, kwargs = tree_replace(inputs, alone)

        def potentials_of(weights: dict[str, Tensor]) -> Parts:
            found = as_potentials(functional_call(head, {**buffers, **weights}, args, kwargs)).tensors
            return {name: found[name].squeeze(0) for name in part}

        gradient = vjp(potentials_of, weights)[1](part)[0]
        # Potentials are linear in the weights: along a gradient they change by their value at it.
        return list(gradient.values()), potentials_of(gradient) if respond else {}

    with state_kept(head):
        for module in head.modules():
            vars(module).update({name: OrderedDict() for name in _HOOKS})
        return torch.vmap(one, in_dims=([0 if its else None for its in batched], 0))(tensors, parts)


@contextmanager
def state_kept(head: nn.Module) -> Iterator[None]:
    """Put back what calls change in the attributes of ``head``, and in short lists and dicts; hooks see no call."""
    attributes = [vars(module) for module in head.modules()]
    inside = [value for own in attributes for value in own.values()]
    short = [value for value in inside if isinstance(value, list | dict | set) and len(value) < _LONG]
    held: list[tuple[Any, Any]] = [(value, value.copy()) for value in [*short, *attributes]]
    try:
        yield
    finally:
        with undisturbed():
            for there, before in held:
                if isinstance(there, list):
                    there[:] = before
                else:
                    there.clear()
                    there.update(before)


def _versions(inputs: Any) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tree_tensors(inputs)]
