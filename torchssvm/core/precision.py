"""Full precision: heads and oracles run in the dtype of the weights.

``torch.set_float32_matmul_precision("high")`` rounds the factors of float32 products to TF32 on CUDA devices, "medium"
to bfloat16 on CPUs; newer releases also have ``torch.backends.cuda.matmul.fp32_precision``. Certificates need full
precision: the gap of a good solution is smaller than the error of such potentials.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.operators import transformed
from torchssvm.core.threads import torch_threads

_LOWERED = ("tf32", "bf16")
_get: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)  # torch >= 2.9
_set: Any = getattr(torch._C, "_set_fp32_precision_setter", None)

# From the general to the special.
_SETTINGS = (("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("mkldnn", "all"), ("mkldnn", "matmul"))

_lock = threading.Lock()
_users = 0  # open contexts of all threads
_changes = 0  # how often the setting was restored
_undo: list[Callable[[], None]] = []  # these calls restore it
_before: dict[str, str] = {}  # the earlier setting, by the kind of device
_NOTHING = nullcontext()


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context in which heads and oracles run in the dtype of the weights: no autocast, no TF32, no bfloat16.

    The precision of matrix products is a setting of the whole process. It is changed only where it is not full
    already, as long as some thread is in such a context, and is then put back; backward passes that other threads run
    meanwhile are in full precision too.
    """
    kind = device.type
    autocast = torch.is_autocast_enabled(kind)
    if not torch.compiler.is_compiling():  # else the setting is what it was when the compiler was called
        seen = _changes  # another thread may put the setting back at any moment: see _full
        if _precision(kind) in _LOWERED or _users or seen != _changes:
            return _full(kind, autocast)
    return torch.autocast(kind, enabled=False) if autocast else _NOTHING


def is_lowered(device: torch.device) -> bool:
    """Whether float32 matrix products on ``device`` may round their factors to fewer digits."""
    return _precision(device.type) in _LOWERED


def lowered_advice(device: torch.device) -> str:
    """The end of an error if the process rounds the factors of products, outside of open contexts; else ""."""
    with _lock:
        precision = (_before if _users else _all_precisions())["cuda" if device.type == "cuda" else "cpu"]
    if precision not in _LOWERED:
        return ""
    return (
        f". Factors of float32 matrix products are rounded to {precision}: call "
        'torch.set_float32_matmul_precision("highest"), or use torchssvm.core.precision.product(x, weight) in the head'
    )


def _all_precisions() -> dict[str, str]:
    return {kind: _precision(kind) for kind in ("cpu", "cuda")}


def _precision(kind: str) -> str:
    """The precision of float32 matrix products on devices of a kind; the CPU and Intel's devices use oneDNN."""
    if _get is not None:
        return _get("cuda" if kind == "cuda" else "mkldnn", "matmul")
    return {"highest": "ieee", "medium": "bf16"}.get(torch.get_float32_matmul_precision(), "tf32")


@contextmanager
def _full(kind: str, autocast: bool) -> Iterator[None]:
    global _users, _changes
    # full_precision reads the setting, _users and _changes in this order without the lock: _users counts before the
    # setting is raised and until it is restored, and _changes counts the contexts that ended in between.
    with _lock:
        _users += 1
        if _users == 1:
            _before.update(_all_precisions())
            _undo[:] = _raise()
    try:
        with torch.autocast(kind, enabled=False) if autocast else _NOTHING:
            yield
    finally:
        with _lock:
            if _users == 1:
                for put_back in _undo:
                    put_back()
                _changes += 1
            _users -= 1


def _raise() -> list[Callable[[], None]]:
    """Set all matrix products to full precision; returns calls that restore every setting, in this order."""
    try:
        named = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to answer if newer settings differ
        named = "highest"
    if named != "highest":
        # Set by its name, or by allow_tf32: torch raises if the name and the newer settings differ.
        products = [] if _get is None else [(backend, _get(backend, "matmul")) for backend in ("cuda", "mkldnn")]
        torch.set_float32_matmul_precision("highest")
        return [
            partial(torch.set_float32_matmul_precision, named),
            *(partial(_restore, backend, precision) for backend, precision in products),
        ]
    undo: list[Callable[[], None]] = []
    # A setting that inherits from one before it is full by then, and is left as it is.
    for backend, kind in _SETTINGS:
        assert _get is not None
        if (precision := _get(backend, kind)) in _LOWERED:
            _set(backend, kind, "ieee")
            undo.append(partial(_set, backend, kind, precision))
    return undo


def _restore(backend: str, precision: str) -> None:
    if _get is not None and _get(backend, "matmul") != precision:
        _set(backend, "matmul", precision)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T``, as ``nn.Linear``, and its gradients in full precision, also outside of the context.

    ``[..., F]`` and ``[K, F]`` give ``[..., K]``; a weight ``[F]`` gives ``[...]``.
    """
    context = full_precision(x.device)
    if torch.compiler.is_compiling():  # torch 2.6 cannot trace the comparison
        with context:
            return nn.functional.linear(x, weight)
    if context is _NOTHING:  # and so it will be in the backward pass
        with torch_threads(x.numel() * (len(weight) if weight.ndim == 2 else 1)):
            return nn.functional.linear(x, weight)
    differentiable = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if differentiable and not transformed():
        return _Product.apply(x, weight)
    with context:
        return nn.functional.linear(x, weight)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        # Steps write to the weight: it is kept only where the features need it.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None)
        with full_precision(x.device):
            return nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        # In differentiable operations: `gram_product` may differentiate this again.
        (v,) = upstream
        x, weight = ctx.saved_tensors
        by_x = None
        if weight is not None:
            by_x = product(v, weight.t()) if weight.ndim == 2 else v.unsqueeze(-1) * weight
        return by_x, None if x is None else gradient_of_weight(x, v, x.ndim - v.ndim)


def gradient_of_weight(x: Tensor, v: Tensor, less: int = 0) -> Tensor:
    """The gradient of ``weight`` in ``product(x, weight)``, ``sum v x^T``; v has ``less`` axes less than x."""
    x = x.flatten(0, -2).t()
    return product(x, v.flatten()) if less else product(v.flatten(0, -2).t(), x)
