"""Is a head linear in its weights?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd

from torchssvm.core.batch import tree_tensors
from torchssvm.core.gradients import remember_call
from torchssvm.core.potentials import Parts, as_potentials
from torchssvm.core.precision import full_precision, is_lowered, lowered_advice


def linearity_error(head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str | None:
    """What is wrong with ``head(*args, **kwargs)`` as a linear function of the head's weights; None if nothing is.

    Compares ``head(2 u - 3 v)`` with ``2 head(u) - 3 head(v)`` for random weights u, v, and ``head(0)`` with 0. Neither
    the weights nor the global random state change. The head runs as it would run now: where the process rounds the
    factors of matrix products, that alone may be what is wrong, and is then said.
    """
    device = _device_of(head)
    error = _examine(head, args, kwargs)
    if error is None or device is None:
        return error
    if is_lowered(device):
        with full_precision(device):
            linear = _examine(head, args, kwargs) is None
        if linear:
            name = type(head).__name__
            return f"{name} is linear in its weights only up to the rounding of its products{lowered_advice(device)}"
    return error + _convolution_advice(head, device)


def _device_of(head: nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in head.parameters()), None)


def generators_of(devices: Iterable[torch.device]) -> tuple[str, list[int]]:
    """The kind and the numbers of the devices, beside the CPU, whose random generators a head on ``devices`` may use.

    ``fork_rng`` would else take every device of the machine, and start those that nobody uses.
    """
    found = {(device.type, device.index or 0) for device in devices if device.type in ("cuda", "xpu")}
    kind = min((kind for kind, _ in found), default="cuda")
    return kind, sorted(number for its, number in found if its == kind)


def _convolution_advice(head: nn.Module, device: torch.device) -> str:
    """Convolutions on CUDA devices are rounded to TF32 unless that is switched off."""
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
        return as_potentials(functional_call(head, {**buffers, **values}, args, kwargs)).tensors

    u, v = random_weights(), random_weights()
    held = [*weights.values(), *head.buffers(), *tree_tensors((args, kwargs or {}))]
    kind, devices = generators_of(tensor.device for tensor in held)
    with torch.no_grad(), torch.random.fork_rng(devices, device_type=kind):
        at_zero = evaluate({name: torch.zeros_like(p) for name, p in weights.items()})
        for name, tensor in at_zero.items():
            if bool((tensor.nan_to_num(0.0) != 0).any()):
                return (
                    f"the potentials {name!r} of {type(head).__name__} are not zero when all its weights are: a "
                    "constant is added that is not trained. Move it into the features, or make it a parameter"
                )
        at_u, at_v = evaluate(u), evaluate(v)
        both = evaluate({name: 2 * u[name] - 3 * v[name] for name in u})
        for name, tensor in both.items():
            expected = 2 * at_u[name] - 3 * at_v[name]
            if not bool(torch.isfinite(expected).all()):
                continue  # features that are not finite get their own error, with the rows
            size = at_u[name].abs().sum() + at_v[name].abs().sum()
            if float((tensor - expected).abs().sum()) > 1e3 * torch.finfo(tensor.dtype).eps * float(size):
                return (
                    f"the potentials {name!r} of {type(head).__name__} are not linear in its weights: "
                    "head(2 u - 3 v) differs from 2 head(u) - 3 head(v). Look for an activation, a normalisation or "
                    "dropout in the head, and move it into the features"
                )
    return None


class _CheckOnce:
    """A forward hook that examines a head at its first call, before any step can be taken.

    Once more where matrix products have been set to a lower precision since. Every call is remembered at the potentials
    that it made, for per-example gradients. What ``torch.compile`` and ``torch.export`` make of a head is left alone.
    """

    def __init__(self) -> None:
        self.done = False
        self.lowered = False  # whether it has been seen in a lower precision of matrix products

    def __call__(self, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        remember_call(head, args, kwargs, output)
        if self.done and self.lowered:
            return
        lowered = is_lowered(as_potentials(output).device)
        if self.done and not lowered:
            return
        if not all(bool(torch.isfinite(tensor).all()) for tensor in as_potentials(output).tensors.values()):
            return  # such features tell nothing, and get an error of their own
        before = self.done, self.lowered
        self.done, self.lowered = True, lowered or self.lowered  # the check calls the head too
        if error := linearity_error(head, args, kwargs):
            self.done, self.lowered = before
            raise ValueError(error)


def is_check(hook: object) -> bool:
    """Whether a forward hook is the one of :func:`check_at_first_call`."""
    return isinstance(hook, _CheckOnce)


def check_at_first_call(head: nn.Module) -> None:
    """Examine ``head`` at its first call with gradients enabled, and raise ValueError if it is not linear.

    A hook stays with the head, without any tensors: a copy or a pickle of the head has one of its own.
    """
    if not any(isinstance(hook, _CheckOnce) for hook in head._forward_hooks.values()):
        head.register_forward_hook(_CheckOnce(), with_kwargs=True)
