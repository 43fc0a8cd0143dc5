"""Is a head linear in its weights?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd

from torchssvm.core.batch import device_of, tree_tensors
from torchssvm.core.head_call import remember_call, state_kept
from torchssvm.core.potentials import Parts, as_potentials
from torchssvm.core.precision import full_precision, is_lowered, lowered_advice


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
