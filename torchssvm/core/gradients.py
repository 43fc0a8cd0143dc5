"""The linearity check of a head, and the gradients of single examples.

Gradients of single examples come from the head's ``adjoint`` if it has one, else from ``torch.func``,
``vmap(vjp(head))`` on the inputs of its last call, else from one backward pass for every example.

Gradients of ``torch.func`` are compared with autograd's gradient of the batch at every call. The choice depends on the
head and on this call alone, so that a resumed run repeats it to the bit.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations, islice
from textwrap import shorten
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.utils.weak import WeakIdKeyDictionary

from torchssvm.core.batch import device_of, tree_replace, tree_tensors
from torchssvm.core.operators import full_precision, is_lowered, lowered_advice, on_host, transformed
from torchssvm.core.packages import warn
from torchssvm.core.potentials import Parts, Potentials, as_potentials, conform, scale
from torchssvm.core.row_sparse import combine_rows, dense


def largest_feature(dtype: torch.dtype) -> float:
    """The largest size of a feature: sums of a million squares do not overflow."""
    return 1e-3 * torch.finfo(dtype).max ** 0.5


def knows_padding(features: nn.Module) -> str | None:
    """``"lengths"`` or ``"attention_mask"``, if ``forward`` has such a parameter; wrappers are unwrapped."""
    inside = getattr(features, "_orig_mod", features)
    if isinstance(inside, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return knows_padding(inside.module)
    names = inspect.signature(inside.forward).parameters
    return next((name for name in ("lengths", "attention_mask") if name in names), None)


def apply_features(features: nn.Module, x: Any, lengths: Tensor | None = None) -> Any:
    """``features(x)``, with ``lengths=`` or ``attention_mask=`` if ``forward`` takes it; ``lengths`` is ``[B]`` int64.

    Of the output of an encoder of ``transformers``, ``last_hidden_state`` is returned.
    """
    how = None if lengths is None else knows_padding(features)
    if how == "lengths":
        output = features(x, lengths=lengths)
    elif how is not None and lengths is not None:
        output = features(x, attention_mask=(torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)).long())
    else:
        output = features(x)
    return getattr(output, "last_hidden_state", output)


@torch.no_grad()
def check_padded_ids(features: nn.Module, x: Any, lengths: Tensor | None) -> bool:
    """Raise ValueError if the shortest example of a batch of ids has other features without its padding.

    ``features`` are called in evaluation mode, on their device. Returns whether the check is done: the batch had
    padding, or ``features`` takes lengths, or does not return features for each id.
    """
    if not isinstance(x, Tensor) or x.is_floating_point() or knows_padding(features) is not None:
        return True
    sizes = None if lengths is None else on_host(lengths)
    if sizes is None or int(sizes.min()) >= x.shape[1]:
        return False
    row, length, device = int(sizes.argmin()), int(sizes.min()), device_of(features)
    row_x = x[row : row + 1].to(device)
    kind, devices = generators_of([device])
    buffers = [(buffer, buffer.clone()) for buffer in features.buffers()]
    with evaluating(features), state_kept(features), torch.random.fork_rng(devices, device_type=kind):
        padded, alone = apply_features(features, row_x), None
        if isinstance(padded, Tensor) and padded.shape[:2] == row_x.shape[:2]:
            padded = padded[:, :length].clone()
            with suppress(RuntimeError):  # it takes one length only
                alone = apply_features(features, row_x[:, :length])
        for buffer, before in buffers:
            buffer.copy_(before)
    if alone is None:
        return True
    if float((alone - padded).abs().amax()) > 1e-3 * float(alone.abs().amax()):
        raise ValueError(
            f"features={type(features).__name__} depend on the padding: forward must take lengths, [B], or "
            "attention_mask, [B, N], and ignore the padding"
        )
    return True


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Evaluation mode inside the ``with`` block; afterwards every submodule has its former mode.

    Modes are set without ``eval()`` and ``train()``, which may change the weights of users' modules.
    """
    modes = [(part, part.training) for part in module.modules()] if isinstance(module, nn.Module) else []
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, training in modes:
            part.training = training


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_HOOKS = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")  # not called; forward pre-hooks may make weights
_LONG = 1000  # entries of a list or a dict that is not copied in every step


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


@contextmanager
def state_kept(head: nn.Module) -> Iterator[None]:
    """Restore the attributes of ``head`` afterwards, and the contents of short lists, dicts and sets among them."""
    attributes = [vars(module) for module in head.modules()]
    values = [value for each in attributes for value in each.values()]
    short = [value for value in values if isinstance(value, list | dict | set) and len(value) < _LONG]
    copies: list[tuple[Any, Any]] = [(value, value.copy()) for value in [*short, *attributes]]
    try:
        yield
    finally:
        for value, before in copies:
            if isinstance(value, list):
                value[:] = before
            else:
                value.clear()
                value.update(before)


def _versions(inputs: Any) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tree_tensors(inputs)]


def linearity_error(head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str | None:
    """An error message if ``head(*args, **kwargs)`` is not linear in the head's weights; None if it is linear.

    Compares ``head(2 u - 3 v)`` with ``2 head(u) - 3 head(v)`` for random weights u, v, and ``head(0)`` with 0, at the
    current precision of matrix products. Weights, attributes and the global random state do not change.
    """
    device = device_of(head)
    error = _examine(head, args, kwargs)
    if error is None:
        return error
    if is_lowered(device):
        with full_precision(device):
            linear = _examine(head, args, kwargs) is None
        if linear:
            name = type(head).__name__
            return f"{name} is linear in its weights only up to the rounding of its products{lowered_advice(device)}"
    return error + _convolution_advice(head, device)


def generators_of(devices: Iterable[torch.device]) -> tuple[str, list[int]]:
    """The type and the indices of the accelerators among ``devices``, for ``fork_rng``."""
    accelerators = {(device.type, device.index or 0) for device in devices if device.type in ("cuda", "xpu")}
    kind = min((kind for kind, _ in accelerators), default="cuda")
    return kind, sorted(number for its, number in accelerators if its == kind)


def _convolution_advice(head: nn.Module, device: torch.device) -> str:
    """Advice if CUDA rounds the head's convolutions to TF32; else an empty string."""
    convolves = any(isinstance(part, _CONVOLUTIONS) for part in head.modules())
    if device.type != "cuda" or not convolves or not torch.backends.cudnn.allow_tf32:
        return ""
    return ". CUDA rounds its convolutions to tf32: set torch.backends.cudnn.allow_tf32 = False"


def _examine(head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str | None:
    weights = dict(head.named_parameters())
    generator = torch.Generator().manual_seed(0)

    def random_weights() -> dict[str, Tensor]:
        return {
            name: torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for name, p in weights.items()
        }

    def evaluate(values: dict[str, Tensor]) -> Parts:
        buffers = {name: buffer.clone() for name, buffer in head.named_buffers()}
        output = as_potentials(functional_call(head, {**buffers, **values}, args, kwargs)).tensors
        return {name: _once(tensor) for name, tensor in output.items()}

    u, v = random_weights(), random_weights()
    tensors = [*weights.values(), *head.buffers(), *tree_tensors((args, kwargs or {}))]
    kind, devices = generators_of(tensor.device for tensor in tensors)
    with torch.no_grad(), state_kept(head), torch.random.fork_rng(devices, device_type=kind):
        at_zero = evaluate({name: torch.zeros_like(p) for name, p in weights.items()})
        for name, tensor in at_zero.items():
            if bool((tensor.nan_to_num(0.0) != 0).any()):
                return (
                    f"the potentials {name!r} of {type(head).__name__} are not zero when its weights are: move the "
                    "constant into the features, or make it a parameter"
                )
        at_u, at_v = evaluate(u), evaluate(v)
        both = evaluate({name: 2 * u[name] - 3 * v[name] for name in u})
        for name, tensor in both.items():
            expected = 2 * at_u[name] - 3 * at_v[name]
            if not bool(torch.isfinite(expected).all()):
                continue  # features that are not finite raise another error
            size = at_u[name].abs().sum() + at_v[name].abs().sum()
            if float((tensor - expected).abs().sum()) > 1e3 * torch.finfo(tensor.dtype).eps * float(size):
                return (
                    f"the potentials {name!r} of {type(head).__name__} are not linear in its weights: "
                    "move activations, normalisation and dropout into the features"
                )
    return None


def _once(tensor: Tensor) -> Tensor:
    """One entry along each expanded axis: tables that all examples share are large."""
    for axis, step in enumerate(tensor.stride()):
        tensor = tensor.narrow(axis, 0, 1) if step == 0 and tensor.shape[axis] else tensor
    return tensor


class _CheckOnce:
    """A forward hook that checks linearity at the first call, and again if matrix products become less precise.

    It records each call for per-example gradients. It does nothing under ``torch.compile`` and ``torch.export``.
    """

    def __init__(self) -> None:
        self.done = False
        self.lowered = False  # whether it has been checked with a lower precision of matrix products

    def __call__(self, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if not isinstance(output, Potentials) or output.adjoint is None:
            remember_call(head, args, kwargs, output)
        if self.done and self.lowered:
            return
        lowered = is_lowered(as_potentials(output).device)
        if self.done and not lowered:
            return
        if not all(bool(torch.isfinite(_once(tensor)).all()) for tensor in as_potentials(output).tensors.values()):
            return  # features that are not finite raise another error
        before = self.done, self.lowered
        self.done, self.lowered = True, lowered or self.lowered  # the check calls the head too
        error: str | None = "interrupted"
        try:
            error = linearity_error(head, args, kwargs)
        finally:
            if error:
                self.done, self.lowered = before
        if error:
            raise ValueError(error)


def is_check(hook: object) -> bool:
    """Whether a forward hook was registered by :func:`check_at_first_call`."""
    return isinstance(hook, _CheckOnce)


def check_at_first_call(head: nn.Module) -> None:
    """Check ``head`` at its first call with gradients enabled, and raise ValueError if it is not linear.

    The check is a forward hook without tensors; copies and pickles of the head get their own.
    """
    if not any(isinstance(hook, _CheckOnce) for hook in head._forward_hooks.values()):
        head.register_forward_hook(_CheckOnce(), with_kwargs=True)


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
