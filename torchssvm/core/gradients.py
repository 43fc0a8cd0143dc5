"""What training asks of a head: that it is linear in its weights, and the gradients of each example.

Those of each example come from the head's own ``adjoint`` where it gives one, else from ``torch.func``,
``vmap(vjp(head))`` on the inputs that it was called with, else from one backward pass for every example.

What ``torch.func`` finds is compared with autograd's gradient of the batch at every call. So whether it is taken
depends on the head and on this call alone, never on earlier calls, and a resumed run repeats it to the bit.
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
from torch.nn.modules.conv import _ConvNd

from torchssvm.core.batch import device_of, tree_replace, tree_tensors
from torchssvm.core.operators import full_precision, is_lowered, lowered_advice, on_host, transformed
from torchssvm.core.packages import warn
from torchssvm.core.potentials import Parts, Potentials, as_potentials, conform, scale
from torchssvm.core.row_sparse import combine_rows, dense


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

    Of an output with ``last_hidden_state``, as encoders of ``transformers`` return it, that is taken. ``lengths`` are
    ``[B]`` int64.
    """
    how = None if lengths is None else knows_padding(features)
    if how == "lengths":
        found = features(x, lengths=lengths)
    elif how is not None and lengths is not None:
        found = features(x, attention_mask=(torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)).long())
    else:
        found = features(x)
    return getattr(found, "last_hidden_state", found)


@torch.no_grad()
def check_padded_ids(features: nn.Module, x: Any, lengths: Tensor | None) -> bool:
    """Raise ValueError if the shortest example of a batch of ids has other features without its padding.

    ``features`` are called in evaluation mode, on their device. Returns whether no other batch needs to be looked at:
    this one had padding, or ``features`` knows it, or does not give features to each id.
    """
    if not isinstance(x, Tensor) or x.is_floating_point() or knows_padding(features) is not None:
        return True
    sizes = None if lengths is None else on_host(lengths)
    if sizes is None or int(sizes.min()) >= x.shape[1]:
        return False
    row, length, device = int(sizes.argmin()), int(sizes.min()), device_of(features)
    row_x = x[row : row + 1].to(device)
    kind, devices = generators_of([device])
    buffers = [(own, own.clone()) for own in features.buffers()]
    with evaluating(features), state_kept(features), torch.random.fork_rng(devices, device_type=kind):
        padded, alone = apply_features(features, row_x), None
        if isinstance(padded, Tensor) and padded.shape[:2] == row_x.shape[:2]:
            padded = padded[:, :length].clone()
            with suppress(RuntimeError):  # it takes one length only
                alone = apply_features(features, row_x[:, :length])
        for there, before in buffers:
            there.copy_(before)
    if alone is None:
        return True
    if float((alone - padded).abs().amax()) > 1e-3 * float(alone.abs().amax()):
        raise ValueError(
            f"{type(features).__name__} gives ids other features where they are padded: its forward must take lengths, "
            "[B], or attention_mask, [B, N], and leave the padding out"
        )
    return True


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Evaluation mode inside the ``with`` block; afterwards every submodule has its former mode.

    Modes are set without ``eval()`` and ``train()``, in which modules of others may change their weights.
    """
    modes = [(part, part.training) for part in module.modules()] if isinstance(module, nn.Module) else []
    try:
        for part, _ in modes:
            part.training = False
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

    Nothing is left within a transform of ``torch.func``. A head that knows its own adjoint needs no call.
    """
    if transformed():
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
        for there, before in held:
            if isinstance(there, list):
                there[:] = before
            else:
                there.clear()
                there.update(before)


def _versions(inputs: Any) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tree_tensors(inputs)]


def linearity_error(head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str | None:
    """Say why ``head(*args, **kwargs)`` is not linear in the head's weights; None if it is linear.

    Compares ``head(2 u - 3 v)`` with ``2 head(u) - 3 head(v)`` for random weights u, v, and ``head(0)`` with 0. Neither
    the weights nor the head's attributes nor the global random state change. The head runs with the current precision
    settings; if rounding of matrix products is the only cause, the message says so.
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
    """The type and indices of the accelerators among ``devices``, for ``fork_rng``, which else takes all."""
    found = {(device.type, device.index or 0) for device in devices if device.type in ("cuda", "xpu")}
    kind = min((kind for kind, _ in found), default="cuda")
    return kind, sorted(number for its, number in found if its == kind)


def _convolution_advice(head: nn.Module, device: torch.device) -> str:
    """Advice if the head has convolutions that CUDA rounds to TF32, which is torch's default; else an empty string."""
    convolves = any(isinstance(part, _ConvNd) for part in head.modules())
    if device.type != "cuda" or not convolves or not torch.backends.cudnn.allow_tf32:
        return ""
    return (
        ". It has convolutions, and torch rounds their factors to tf32 on CUDA devices: set "
        "torch.backends.cudnn.allow_tf32 = False first"
    )


def _examine(head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str | None:
    weights = dict(head.named_parameters())
    generator = torch.Generator().manual_seed(0)

    def random_weights() -> dict[str, Tensor]:
        return {
            name: torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for name, p in weights.items()
        }

    def evaluate(values: dict[str, Tensor]) -> Parts:
        buffers = {name: buffer.clone() for name, buffer in head.named_buffers()}
        found = as_potentials(functional_call(head, {**buffers, **values}, args, kwargs)).tensors
        return {name: _once(tensor) for name, tensor in found.items()}

    u, v = random_weights(), random_weights()
    held = [*weights.values(), *head.buffers(), *tree_tensors((args, kwargs or {}))]
    kind, devices = generators_of(tensor.device for tensor in held)
    with torch.no_grad(), state_kept(head), torch.random.fork_rng(devices, device_type=kind):
        at_zero = evaluate({name: torch.zeros_like(p) for name, p in weights.items()})
        for name, tensor in at_zero.items():
            if bool((tensor.nan_to_num(0.0) != 0).any()):
                return (
                    f"the potentials {name!r} of {type(head).__name__} are not zero when all its weights are: the "
                    "head adds a constant that is not trained. Move it into the features, or make it a parameter"
                )
        at_u, at_v = evaluate(u), evaluate(v)
        both = evaluate({name: 2 * u[name] - 3 * v[name] for name in u})
        for name, tensor in both.items():
            expected = 2 * at_u[name] - 3 * at_v[name]
            if not bool(torch.isfinite(expected).all()):
                continue  # features that are not finite raise another error, which names the rows
            size = at_u[name].abs().sum() + at_v[name].abs().sum()
            if float((tensor - expected).abs().sum()) > 1e3 * torch.finfo(tensor.dtype).eps * float(size):
                return (
                    f"the potentials {name!r} of {type(head).__name__} are not linear in its weights: "
                    "head(2 u - 3 v) differs from 2 head(u) - 3 head(v). Look for an activation, a normalisation or "
                    "dropout in the head, and move it into the features"
                )
    return None


def _once(tensor: Tensor) -> Tensor:
    """One copy along each axis that is expanded: tables that all examples share are large."""
    for axis, step in enumerate(tensor.stride()):
        tensor = tensor.narrow(axis, 0, 1) if step == 0 and tensor.shape[axis] else tensor
    return tensor


class _CheckOnce:
    """A forward hook that checks a head's linearity at its first call, and again if products are made less precise
    later.

    It records each call with its potentials, for per-example gradients. It does nothing under ``torch.compile`` and
    ``torch.export``.
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
_TOLERANCE = 1e-3  # of what torch.func finds, against autograd: other answers than rounding's are wrong in every digit

_told: WeakSet[nn.Module] = WeakSet()
"""Heads whose user has been told that they give no gradients of single examples."""


def per_example_adjoint(
    potentials: Potentials, parts: Parts, parameters: Sequence[Tensor], *, sparse: bool = False
) -> list[Tensor]:
    """``Phi_i^T parts_i`` for every example i and parameter, ``[B, *parameter.shape]``, dense unless ``sparse``."""
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
