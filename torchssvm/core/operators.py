"""Operators of this package, plain operators for tracing, numbers known to the host, and full precision.

``torch.set_float32_matmul_precision("high")`` rounds the factors of float32 products to TF32 on CUDA devices, "medium"
to bfloat16 on CPUs; newer releases also have ``torch.backends.cuda.matmul.fp32_precision``. Certificates need full
precision: the gap of a good solution is smaller than the error of such potentials.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

# `torch.library.custom_op` needs less code, but 9 microseconds for each call instead of 2 (measured on one CPU core);
# decoding a short chain takes less than that.
_library = torch.library.Library("torchssvm", "DEF")

ON_CUDA: dict[str, Callable[..., Any]] = {}
"""The implementation for CUDA tensors by the name of the operator, for tests without a device."""


def define(
    schema: str,
    *,
    fake: Callable[..., Any],
    cpu: Callable[..., Any],
    cuda: Callable[..., Any],
    default: Callable[..., Any],
) -> Any:
    """Define an operator without gradient: its results are detached for any arguments.

    ``schema`` has name and arguments, as ``torch.library.Library.define`` takes them; ``fake`` makes empty results, for
    tracing; ``default`` is for devices other than CPU and CUDA.
    """
    name = schema[: schema.index("(")]
    _library.define(schema)
    _library.impl(name, default, "CompositeExplicitAutograd")
    _library.impl(name, cpu, "CPU")
    _library.impl(name, cuda, "CUDA")
    ON_CUDA[name] = cuda
    # Decoding is piecewise constant, and losses treat its result as a constant. The fallthrough is free; without it
    # torch would attach a node to the results that fails in backward.
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"torchssvm::{name}", fake, lib=_library)
    return getattr(torch.ops.torchssvm, name).default


_here = threading.local()


def plain() -> bool:
    """Whether torch traces what runs now (``torch.compile``, ``torch.export``), or plain operators were asked for."""
    return torch.compiler.is_compiling() or getattr(_here, "asked", False)


@contextmanager
def plain_operators() -> Iterator[None]:
    """Use plain operators in this thread, as when tracing."""
    before = getattr(_here, "asked", False)
    _here.asked = True
    try:
        yield
    finally:
        _here.asked = before


_sources = WeakIdKeyDictionary()  # of device tensors: the CPU tensor with their numbers, and the versions of both


def upload(tensor: Tensor, device: torch.device | str) -> Tensor:
    """``tensor`` on ``device``; a copy of a CPU tensor remembers it, as :func:`known` says."""
    if torch.device(device).type == "cpu":
        return tensor.to(device)
    moved = tensor.to(device, non_blocking=True)
    return known(moved, tensor) if tensor.is_cpu else moved


def known(tensor: Tensor, source: Tensor) -> Tensor:
    """``tensor``, which remembers that the CPU tensor ``source`` holds its numbers, until one of them is written to.

    Torch's version counters miss writes through ``.data`` or numpy; inference tensors have none and remember nothing.
    """
    if not (tensor.is_cpu or plain() or tensor.is_inference() or source.is_inference()):
        _sources[tensor] = source, source._version, tensor._version
    return tensor


_copies = WeakIdKeyDictionary()


def constant(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; the copy is kept for the next call, until ``tensor`` is written to or goes."""
    if tensor.device == device or plain() or tensor.is_inference():  # nothing counts writes to the last
        return tensor.to(device)
    now = tensor._version, device
    if (kept := _copies.get(tensor)) is None or kept[0] != now:
        with torch.inference_mode(False):  # autograd may save the copy in a later call
            # The copy remembers no source, which would keep ``tensor`` alive.
            kept = now, tensor.to(device, non_blocking=device.type != "cpu")
        _copies[tensor] = kept
    return kept[1]


def pick(tensor: Tensor, rows: Tensor) -> Tensor:
    """``tensor[rows]``, which remembers its numbers where ``tensor`` and the int64 ``rows`` both do."""
    chosen = tensor[rows]
    if tensor.is_cpu or (numbers := source(tensor)) is None or (places := source(rows)) is None:
        return chosen
    return known(chosen, numbers[places])


def apart(tensor: Any) -> Any:
    """A copy of a CPU tensor, so that no other thread changes it after a check; anything else as it is."""
    return tensor.clone() if isinstance(tensor, Tensor) and tensor.is_cpu and not plain() else tensor


def read_together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The numbers of tensors of one device on the CPU, after one wait; tensors of the CPU are given as they are."""
    if tensors[0].is_cpu:
        return tensors
    flat = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    parts = torch.cat(flat).cpu().split([len(part) for part in flat])
    return tuple(part.clone().view(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True))


def scalars(*numbers: Tensor) -> list[float]:
    """The values of tensors of one number each, all of one device, after one wait."""
    if numbers[0].is_cpu:
        return [float(number) for number in numbers]
    return torch.stack([number.to(torch.float64) for number in numbers]).tolist()


def on_host(tensor: Tensor) -> Tensor:
    """The numbers of ``tensor`` on the CPU; those of a device tensor that remembers no source are read, which waits."""
    if tensor.is_cpu:
        return tensor
    if (numbers := source(tensor)) is None:
        known(tensor, numbers := tensor.cpu())
    return numbers


def source(tensor: Tensor) -> Tensor | None:
    """The CPU tensor that ``tensor`` remembers; None where it remembers none, or one of them was written to."""
    numbers, *versions = _sources.get(tensor, (None,))
    return None if numbers is None or [numbers._version, tensor._version] != versions else numbers


def first_occurrences(index: Tensor) -> Tensor:
    """Rows with the first occurrence of each number of ``index``, ``[B]`` int64, in ascending order: ``[R]`` int64."""
    size = index.shape[0]
    if len(set(on_host(index).tolist())) == size:
        return _everyone(size, index.device)
    ordered, rows = on_host(index).sort(stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return upload(rows[first].sort().values, index.device)


@lru_cache(maxsize=64)
def _everyone(size: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(size, device="cpu").to(device)  # it is there when this returns, for every stream


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
        'torch.set_float32_matmul_precision("highest"), or use torchssvm.core.operators.product(x, weight) in the head'
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
    if context is _NOTHING:  # and so it will be in the backward pass
        return nn.functional.linear(x, weight)
    differentiable = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if differentiable and not transformed() and not torch.compiler.is_compiling():
        return _Product.apply(x, weight)
    with context:
        return nn.functional.linear(x, weight)


def transformed() -> bool:
    """Whether a transform of ``torch.func``, or forward-mode differentiation, is under way.

    These do not take custom functions without rules of their own.
    """
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return (active is not None and active()) or getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0


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
