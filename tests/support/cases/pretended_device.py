"""A pretended CUDA device: tensors that say they are on ``cuda:0`` while their numbers lie in CPU memory.

``with pretended_device():`` makes ``torch.cuda.is_available()`` true, and ``"cuda"`` a device like a real one in this:
operations on tensors of both devices are refused, kernels are counted where they are launched and the host where it
waits for the device, ``torch.ops.torchssvm`` runs what it has for CUDA, Triton's kernels run in Triton's interpreter
(``TRITON_INTERPRET=1`` must be set before Triton is imported), float32 products are rounded to TF32 where the settings
of torch say so, and random numbers come from a generator of its own. It knows no streams, races, time or speed, and an
operation counts as one launch however many kernels CUDA needs for it.

To torch's C++ code the tensors are on ``meta``, which needs neither a device nor a compiler; in Python they say
``cuda:0``. Meta tensors themselves are therefore not to be used inside.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import torchssvm
from torchssvm.core.operators import ON_CUDA

DEVICE = torch.device("cuda", 0)
_HIDDEN = torch.device("meta")  # what C++ sees
_PACKAGE = str(Path(torchssvm.__file__).parent) + "/"

_NO_KERNEL = {
    *("_coalesced_", "_indices", "_local_scalar_dense", "_nnz", "_reshape_alias", "_sparse_coo_tensor_unsafe"),
    *("_sparse_coo_tensor_with_dims_and_tensors", "_unsafe_view", "_values", "alias", "dense_dim", "detach", "empty"),
    *("empty_like", "empty_strided", "indices", "is_coalesced", "is_same_size", "lift_fresh", "new_empty"),
    *("new_empty_strided", "sparse_dim", "values"),
}
# The size of the result, or the result, depends on numbers on the device: the host waits for them.
_WAITS = {
    *("_coalesce", "_linalg_check_errors", "_local_scalar_dense", "_unique2", "bincount", "equal", "histc"),
    *("masked_select", "nonzero", "unique_consecutive", "unique_dim"),
}
_INDEXES = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
_PRODUCTS = {"addbmm", "addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "mv"}
_CONVOLUTIONS = {"convolution", "convolution_backward"}


class Counts:
    """What the device and the host did: ``launches`` of kernels, ``syncs`` of the host, and their ``places``.

    ``places`` counts ``(what, "file:line")``, with ``wait`` in front of an operation that the host waited for; the
    file is that of the package's which is nearest.
    """

    def __init__(self) -> None:
        self.launches = self.syncs = 0
        self.places: Counter[tuple[str, str]] = Counter()

    def launch(self, name: str) -> None:
        self.launches += 1
        self.places[name, _place()] += 1

    def wait(self, name: str) -> None:
        self.syncs += 1
        self.places["wait " + name, _place()] += 1

    def __str__(self) -> str:
        rows = [f"{number:5} {what:32} {where}" for (what, where), number in self.places.most_common()]
        return "\n".join([f"{self.launches} launches, {self.syncs} synchronisations", *rows])

    __repr__ = __str__


_open: list[Counts] = []  # those that count now


@contextmanager
def counted() -> Iterator[Counts]:
    """Count what happens on the pretended device inside."""
    _open.append(counts := Counts())
    try:
        yield counts
    finally:
        _open.remove(counts)


_twins: dict[str, Callable[..., None]] = {}


@contextmanager
def computed_by(twins: dict[str, Callable[..., None]]) -> Iterator[None]:
    """Inside, call the function of a Triton kernel's name on CPU tensors, in place of the interpreter."""
    with patch.dict(_twins, twins):
        yield


def _launched(name: str) -> None:
    for counts in _open:
        counts.launch(name)


def _waited(name: str) -> None:
    for counts in _open:
        counts.wait(name)


def _place() -> str:
    frame = sys._getframe(3)
    while frame is not None:
        if (name := frame.f_code.co_filename).startswith(_PACKAGE):
            return f"{name[len(_PACKAGE) :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside"


class DeviceTensor(torch.Tensor):
    """A tensor on the pretended device; ``numbers`` is the CPU tensor that holds its numbers."""

    numbers: torch.Tensor
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> DeviceTensor:
        numbers = numbers.detach()
        if numbers.layout == torch.strided:
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                numbers.shape,
                strides=numbers.stride(),
                storage_offset=numbers.storage_offset(),
                dtype=numbers.dtype,
                device=_HIDDEN,
            )
        else:
            with _disable_current_modes():
                made = torch.Tensor._make_subclass(cls, torch.empty_like(numbers, device=_HIDDEN))
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.numbers})"

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceTensor:
        memo[id(self)] = made = _rebuild(self.numbers.clone(), self.requires_grad, hasattr(self, "_is_param"))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self.numbers, self.requires_grad, hasattr(self, "_is_param"))


def _rebuild(numbers: torch.Tensor, requires_grad: bool, parameter: bool) -> DeviceTensor:
    made = DeviceTensor(numbers).requires_grad_(requires_grad)
    return torch.nn.Parameter(made, requires_grad) if parameter else made


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, DeviceTensor) else value


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """Change the leaves of nested arguments; torch's ``tree_map`` takes a third of all time."""
    if isinstance(value, (tuple, list)):
        return type(value)([_map(change, one) for one in value])
    if isinstance(value, dict):
        return {key: _map(change, one) for key, one in value.items()}
    return change(value)


def _leaves(*values: Any) -> list[Any]:
    results: list[Any] = []
    _map(results.append, values)
    return results


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on tensors of the pretended device, or one that makes them."""
    name = func.overloadpacket.__name__
    leaves = _leaves(args, kwargs)
    there = [leaf for leaf in leaves if isinstance(leaf, DeviceTensor)]
    here = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DeviceTensor)]
    target = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
    if not there and target != _HIDDEN:
        return func(*args, **kwargs)
    if func._can_decompose():  # below autograd, torch leaves that to us
        with _Operations():
            return func.decompose(*args, **kwargs)
    if func.namespace == "torchssvm":
        _check_devices(func, here)
        with _modes():
            return ON_CUDA[name](*args, **kwargs)
    if name == "_to_copy" or name == "copy_":
        leaving = isinstance(args[1 if name == "copy_" else 0], DeviceTensor)
        arriving = isinstance(args[0], DeviceTensor) if name == "copy_" else (target == _HIDDEN if target else leaving)
        asynchronous = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
        if leaving and not arriving and asynchronous:
            raise RuntimeError("a copy to the host with non_blocking=True: its numbers may be read before they arrive")
        if leaving != arriving and not asynchronous:
            _waited("copy to the host" if leaving else "copy to the device")
        elif leaving or arriving:
            _launched(name)
    else:
        arriving = target in (None, _HIDDEN)
        _check_operands(func, name, args, there, here)
        if name in _WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            _waited(name)
        if not (getattr(func, "is_view", False) or name in _NO_KERNEL):
            _launched(name)
    change = _rounded(name)
    inner = _map(lambda leaf: change(_numbers(leaf)), (args, kwargs))
    if target is not None:
        inner[1]["device"] = torch.device("cpu")
    inner[1].pop("pin_memory", None)
    with _own_generator if torch.Tag.nondeterministic_seeded in func.tags else nullcontext():
        result = func(*inner[0], **inner[1])
    if torch.Tag.inplace_view in func.tags:  # the shape that C++ sees changes too
        with no_dispatch():
            func(*args, **kwargs)
    known = {id(leaf.numbers): leaf for leaf in there} | {id(leaf): leaf for leaf in here}

    def outside(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if (same := known.get(id(value))) is not None:
            return same
        return DeviceTensor(value) if arriving else value

    return _map(outside, result)


def _check_operands(func: Any, name: str, args: Any, there: list[DeviceTensor], here: list[torch.Tensor]) -> None:
    if name in _INDEXES and isinstance(args[0], DeviceTensor):
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                _waited(f"{name} by a mask")
            elif index is not None and not isinstance(index, DeviceTensor):
                _waited(f"{name} by an index on the host")
        here = [value for value in args[2:3] if isinstance(value, torch.Tensor) and not isinstance(value, DeviceTensor)]
    if there:
        only_scalars = name not in ("cat", "stack", "gather", "scatter", "scatter_add", "index_select", "index_copy_")
        _check_devices(func, [tensor for tensor in here if tensor.ndim or not only_scalars])


def _check_devices(func: Any, here: list[torch.Tensor]) -> None:
    if here:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! "
            f"(in {func}, of the shapes {[list(tensor.shape) for tensor in here]})"
        )


def _rounded(name: str) -> Callable[[Any], Any]:
    """What the device does to the factors of float32 products: rounds them to TF32 where the settings say so."""
    if name in _PRODUCTS:
        lowered = torch.backends.cuda.matmul.allow_tf32
    else:
        lowered = name in _CONVOLUTIONS and torch.backends.cudnn.allow_tf32
    if not lowered:
        return lambda value: value

    def to_tf32(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        return ((value.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    return to_tf32


class _Generator:
    """The device's random numbers: the CPU's generator in another state."""

    def __init__(self) -> None:
        self.state = torch.Generator().get_state()

    def __enter__(self) -> None:
        self.host = torch.get_rng_state()
        torch.set_rng_state(self.state)

    def __exit__(self, *_: object) -> None:
        self.state = torch.get_rng_state()
        torch.set_rng_state(self.host)

    def seed(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(int(seed)).get_state()

    def set(self, state: torch.Tensor, device: Any = None) -> None:
        self.state = state.clone()


_own_generator = _Generator()


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _is_cuda(value: Any) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.split(":")[0] == "cuda"
    )


def _hidden(value: Any) -> Any:
    return _HIDDEN if _is_cuda(value) else value


class _Functions(TorchFunctionMode):
    """Say ``meta`` to C++ where Python says ``cuda``; do what C++ would do with numbers of its own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if isinstance(first, DeviceTensor) and name in ("numpy", "__array__"):
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy it first")
        if isinstance(first, DeviceTensor) and name == "tolist":
            _waited("tolist")
            return first.numbers.tolist()
        if name == "cuda" and isinstance(first, torch.Tensor):
            return first.to(_HIDDEN, **kwargs)
        if name in ("tensor", "as_tensor", "asarray", "new_tensor"):
            like = first if name == "new_tensor" else None
            target = kwargs.pop("device", None if like is None else like.device)
            if like is not None:
                func, args = torch.tensor, args[1:]
                kwargs.setdefault("dtype", like.dtype)
            made = args[0] if isinstance(args[0], DeviceTensor) else func(*args, **kwargs)
            return made if target is None else made.to(_hidden(target), kwargs.get("dtype"))
        if name == "to" and isinstance(first, DeviceTensor) and not kwargs.get("copy"):
            values = [*args[1:], *kwargs.values()]
            kinds = [value for value in values if isinstance(value, torch.dtype)]
            others = [value for value in values if isinstance(value, (str, torch.device)) and not _is_cuda(value)]
            if not others and kinds in ([], [first.dtype]) and not any(isinstance(v, torch.Tensor) for v in values):
                return first
        if func is torch.device or name == "_parse_to":
            return func(*args, **kwargs)
        return func(*map(_hidden, args), **{key: _hidden(value) for key, value in kwargs.items()})


@contextmanager
def _modes() -> Iterator[None]:
    with _Functions(), _Operations():
        yield


def _launch_interpreted(kernel: Any, grid: Any) -> Callable[..., None]:
    def launch(*args: Any, **kwargs: Any) -> None:
        _check_devices(kernel.__name__, [a for a in args if isinstance(a, torch.Tensor) and not hasattr(a, "numbers")])
        _launched(f"{kernel.__name__} (Triton)")
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            if (twin := _twins.get(kernel.__name__)) is not None:
                twin(*map(_numbers, args), **kwargs)
            else:
                kernel.run(*map(_numbers, args), grid=grid, warmup=False, **kwargs)

    return launch


_PATCHES: dict[str, Any] = {
    "device": nullcontext,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "empty_cache": lambda: None,
    "get_device_capability": lambda device=None: (9, 0),
    "get_device_name": lambda device=None: "a pretended device",
    "get_rng_state": lambda device=None: _own_generator.state.clone(),
    "get_rng_state_all": lambda: [_own_generator.state.clone()],
    "initial_seed": lambda: torch.initial_seed(),
    "is_available": lambda: True,
    "is_current_stream_capturing": lambda: False,
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_initialized": lambda: True,
    "manual_seed": _own_generator.seed,
    "manual_seed_all": _own_generator.seed,
    "mem_get_info": lambda device=None: (70 << 30, 80 << 30),
    "set_device": lambda device: None,
    "set_rng_state": _own_generator.set,
    "set_rng_state_all": lambda states: _own_generator.set(states[0]),
    "synchronize": lambda device=None: _waited("synchronize"),
    "_lazy_init": lambda: None,
}


def _swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """As torch's method, which refuses a parameter that a graph or a view refers to; moves to real devices do not."""
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Pretend inside that there is one CUDA device, and give it."""
    with ExitStack() as stack:
        for name, replacement in _PATCHES.items():
            stack.enter_context(patch.object(torch.cuda, name, replacement))
        stack.enter_context(torch.serialization.safe_globals([_rebuild]))
        stack.enter_context(patch.object(torch.utils, "swap_tensors", _swap))
        before = torch.__future__.get_swap_module_params_on_conversion()
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, before)
        torch.__future__.set_swap_module_params_on_conversion(True)  # a moved parameter remains the same object
        if (interpreter := _interpreter()) is not None:
            stack.enter_context(patch.object(interpreter, "__getitem__", _launch_interpreted))
        stack.enter_context(_modes())
        yield DEVICE


def _interpreter() -> Any:
    try:
        from triton.runtime.interpreter import InterpretedFunction
    except ImportError:
        return None
    return InterpretedFunction
