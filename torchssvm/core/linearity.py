"""Whether a head is linear in its weights, checked at its first call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchssvm.core.batch import device_of, tree_tensors
from torchssvm.core.gradients import remember_call
from torchssvm.core.modules import generators_of, state_kept
from torchssvm.core.potentials import Parts, Potentials, as_potentials
from torchssvm.core.precision import full_precision, is_lowered, lowered_advice

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


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
