"""The head of kernel models: a kernel expansion over support tokens, plus explicit linear weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_number, check_tensor, check_whole, describe
from torchssvm.core.batch import Batch, apply_head, tree_map
from torchssvm.core.memory import available_memory
from torchssvm.core.operators import first_occurrences
from torchssvm.core.potentials import Potentials
from torchssvm.core.precision import full_precision
from torchssvm.core.structure import Structure
from torchssvm.dual.checks import check_visits
from torchssvm.structures.chain.head import LinearChain
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.common import WeightedLabels
from torchssvm.structures.multiclass.head import LinearMulticlass
from torchssvm.structures.multiclass.structure import Multiclass

Kernel = Callable[[Tensor, Tensor], Tensor]
"""``(a [M, F], b [N, F]) -> [M, N]``, symmetric and positive semidefinite, in the dtype of its arguments."""


@dataclass(frozen=True)
class Linear:
    """``<a, b>``: the same model as the linear heads."""

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """``[M, F]`` and ``[N, F]`` -> ``[M, N]``."""
        return a @ b.t()


@dataclass(frozen=True)
class Polynomial:
    """``(scale <a, b> + constant)^degree``.

    Args:
        degree: A positive whole number.
        constant: Non-negative; if positive, all lower degrees are included.
        scale: Positive; ``1 / F``, or one over the mean squared length of the features, keeps values near 1.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> a = torch.tensor([[1.0, 2.0]])
        >>> Polynomial(degree=2)(a, a)  # (5 + 1) ** 2
        tensor([[36.]])
    """

    degree: int = 2
    constant: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", check_whole(self.degree, "degree"))
        object.__setattr__(self, "constant", check_number(self.constant, "constant", 0.0))
        object.__setattr__(self, "scale", check_number(self.scale, "scale", above=0.0))

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """``[M, F]`` and ``[N, F]`` -> ``[M, N]``."""
        return (self.scale * (a @ b.t()) + self.constant) ** self.degree


@dataclass(frozen=True)
class RBF:
    """``exp(-gamma |a - b|^2)``.

    Args:
        gamma: Positive; one over the mean squared distance of the features is a usual start.

    Raises:
        ValueError: ``gamma`` is not positive and finite.

    Example:
        >>> a, b = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]])
        >>> RBF(gamma=1.0)(a, b)  # exp(-1)
        tensor([[0.3679]])
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check_number(self.gamma, "gamma", above=0.0))

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """``[M, F]`` and ``[N, F]`` -> ``[M, N]``."""
        distances = torch.addmm(b.square().sum(1), a, b.t(), alpha=-2.0)
        distances += a.square().sum(1, keepdim=True)
        return distances.clamp_(min=0.0).mul_(-self.gamma).exp_()


def evaluate(kernel: Kernel, a: Tensor, b: Tensor) -> Tensor:
    """``kernel(a, b)``; ValueError unless it is ``[M, N]``, of the features' dtype and finite."""
    with full_precision(a.device):
        values: Any = kernel(a, b)
    if not isinstance(values, Tensor) or values.dtype != a.dtype or values.shape != (len(a), len(b)):
        wanted = f"{a.dtype} {[len(a), len(b)]}"
        raise ValueError(f"kernel={name_of(kernel)} must return [M, N], here {wanted}, not {describe(values)}")
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"kernel={name_of(kernel)} returned numbers that are not finite: scale the features")
    return values


def check_kernel(kernel: Kernel, tokens: Tensor, sample: int = 64) -> None:
    """Raise ValueError unless the kernel is symmetric and positive semidefinite on some ``tokens`` ``[N, F]``."""
    step = max(1, len(tokens) // sample)
    chosen = tokens[::step][:sample]
    evaluate(kernel, chosen[:1], chosen)  # a square result would hide a transposition
    values = evaluate(kernel, chosen, chosen).to(torch.float64)
    allowed = 1e3 * torch.finfo(tokens.dtype).eps * float(values.abs().max())
    smallest, skew = float(torch.linalg.eigvalsh(values)[0]), float((values - values.t()).abs().max())
    if skew > allowed or smallest < -allowed * len(chosen):
        raise ValueError(
            f"kernel={name_of(kernel)} must be symmetric and positive semidefinite: its Gram matrix has asymmetry "
            f"{skew:.3g} and eigenvalue {smallest:.3g}"
        )


def name_of(kernel: Any) -> str:
    """The name of a kernel in checkpoints and messages, without the address that a default ``repr`` shows."""
    shown = repr(kernel)
    if " at 0x" not in shown:
        return shown
    return str(getattr(kernel, "__qualname__", type(kernel).__qualname__))


class GramRows:
    """``K(x_t, x_u)`` for the tokens t of some examples and all N training tokens u, ``[N, F]``, example after example.

    The rows of an example are always computed together, and apart from other examples. So cached and recomputed rows
    have the same bits, and a resumed run continues bit for bit. ``counts`` ``[n]`` int64 are the tokens of each
    example; ``memory_limit`` is in bytes, the current batch included, and None half of the available memory.
    """

    def __init__(self, kernel: Kernel, tokens: Tensor, counts: Tensor, memory_limit: int | None = None) -> None:
        check_kernel(kernel, tokens)
        self.kernel = kernel
        self.tokens = tokens
        self.counts: list[int] = counts.tolist()
        self.starts: list[int] = (counts.cumsum(0) - counts).tolist()
        self.memory_limit = available_memory(tokens.device) // 2 if memory_limit is None else memory_limit
        self.computed = 0  # rows so far
        self._cache: OrderedDict[int, Tensor] = OrderedDict()  # least recently used first
        self._cached = 0  # bytes

    def nbytes(self) -> int:
        """Bytes of the cached rows."""
        return self._cached

    def rows(self, index: Tensor) -> Tensor:
        """The rows of the examples' tokens in order, ``[U, N]``; MemoryError if they exceed ``memory_limit``."""
        examples = index.tolist()
        count = sum(self.counts[i] for i in examples)
        needed = count * self._row_bytes
        if needed > self.memory_limit:
            raise MemoryError(
                f"memory_limit={self.memory_limit / 2**20:,.1f} MiB is less than {needed / 2**20:,.1f} MiB of kernel "
                f"rows for {count} tokens: take smaller batches"
            )
        while self._cache and self._cached + needed > self.memory_limit:
            _, oldest = self._cache.popitem(last=False)
            self._cached -= oldest.numel() * oldest.element_size()
        return torch.cat([self._of(i, needed) for i in examples])

    def chunks(self, largest: int = 2**26) -> Iterator[Tensor]:
        """All examples in order, in runs whose rows take at most ``largest`` bytes or the limit, if they can."""
        allowed = min(largest, self.memory_limit // 2) // self._row_bytes
        chunk: list[int] = []
        tokens = 0
        for example, count in enumerate(self.counts):
            if chunk and tokens + count > allowed:
                yield torch.tensor(chunk, device=self.tokens.device)
                chunk, tokens = [], 0
            chunk.append(example)
            tokens += count
        yield torch.tensor(chunk, device=self.tokens.device)

    def places(self, index: Tensor) -> Tensor:
        """The positions of the examples' tokens among all tokens, example after example: ``[U]`` int64."""
        runs = [torch.arange(self.starts[i], self.starts[i] + self.counts[i]) for i in index.tolist()]
        return torch.cat(runs).to(self.tokens.device)

    @property
    def _row_bytes(self) -> int:
        return len(self.tokens) * self.tokens.element_size()

    @torch.no_grad()
    def _of(self, example: int, needed: int) -> Tensor:
        if (cached := self._cache.get(example)) is not None:
            self._cache.move_to_end(example)
            return cached
        start, count = self.starts[example], self.counts[example]
        rows = evaluate(self.kernel, self.tokens[start : start + count], self.tokens)
        self.computed += count
        size = count * self._row_bytes
        if self._cached + needed + size <= self.memory_limit:  # the joined rows need room beside the cache
            self._cache[example] = rows
            self._cached += size
        return rows


_CHUNK = 2**26  # bytes of kernel values computed at a time


class KernelHead(nn.Module):
    """Unary potentials ``sum_u K(x_t, x_u) coefficients_u``, plus the potentials of a linear head without features.

    ``KernelSSVM`` trains the head. The trained head predicts alone: its ``state_dict`` holds the support tokens,
    their coefficients and the explicit weights, and loads into a new head of the same kind.

    Args:
        kernel: Kernel function ``(a [M, F], b [N, F]) -> [M, N]``.
        in_features: F, numbers per token.
        linear: A linear head for features of width 0: transitions, biases and the like.
        unary: Name of the potentials that the kernel adds to: ``[B, N, K]``, ragged with one row a token, or
            ``[B, K]``.
        num_states: K, the number of states.
        structure: How outputs are decoded and what they cost.
    """

    support: Tensor  # [S, F], the support tokens
    coefficients: Tensor  # [S, K], psi / (lam n) of each

    def __init__(
        self, kernel: Kernel, in_features: int, linear: nn.Module, *, unary: str, num_states: int, structure: Structure
    ) -> None:
        super().__init__()
        in_features, num_states = check_whole(in_features, "in_features"), check_whole(num_states, "num_states")
        if isinstance(kernel, type) or not callable(kernel):
            raise TypeError(f"kernel={kernel!r} must be a function (a [M, F], b [N, F]) -> [M, N], such as RBF()")
        self.kernel = kernel
        self.in_features = in_features
        self.linear = linear
        self.unary = unary
        self.num_states = num_states
        self.structure = structure
        self.register_buffer("support", torch.zeros(0, in_features))
        self.register_buffer("coefficients", torch.zeros(0, num_states))

    @property
    def dtype(self) -> torch.dtype:
        """Floating dtype of weights, features and kernel values."""
        return self.coefficients.dtype

    def explicit(self, shape: Sequence[int], lengths: Tensor | None) -> Potentials:
        """Potentials of the explicit weights for features of ``shape`` ``[B, ..., F]``."""
        empty = self.coefficients.new_zeros(*shape[:-1], 0)
        return apply_head(self.linear, Batch(empty, None, empty, lengths))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Potentials:
        """Features ``[B, N, F]`` or ``[B, F]`` -> potentials; the padding of ``x`` is not read.

        Raises:
            ValueError: ``x`` has another width, or a length does not fit.
        """
        check_features(x, self.in_features)
        with full_precision(x.device):
            potentials = self.explicit(x.shape, lengths)
            real = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
            if lengths is not None:
                real = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)
            tokens = x[real].to(self.dtype)
            size = max(1, _CHUNK // max(1, len(self.support) * self.support.element_size()))
            scores = torch.cat([self._expand(piece) for piece in tokens.split(size)])
            unary = potentials[self.unary].masked_scatter(real.unsqueeze(-1), potentials[self.unary][real] + scores)
        return Potentials({**potentials.tensors, self.unary: unary}, potentials.lengths, ragged=potentials.ragged)

    def _expand(self, tokens: Tensor) -> Tensor:
        if not len(self.support) or not len(tokens):
            return self.coefficients.new_zeros(len(tokens), self.num_states)
        return evaluate(self.kernel, tokens, self.support) @ self.coefficients

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The number of support tokens is known only from the state.
        support, coefficients = (state_dict.get(f"{prefix}{name}") for name in ("support", "coefficients"))
        if isinstance(support, Tensor) and isinstance(coefficients, Tensor):
            fits = support.shape[1:] == self.support.shape[1:] and coefficients.shape[1:] == self.coefficients.shape[1:]
            if fits and len(support) == len(coefficients):
                self.support = self.support.new_zeros(support.shape)
                self.coefficients = self.coefficients.new_zeros(coefficients.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Kernel, width and support."""
        return f"kernel={name_of(self.kernel)}, in_features={self.in_features}, support={len(self.support)}"


class KernelChain(KernelHead):
    """A chain whose emissions are kernel expansions; transitions, biases and boundary weights stay explicit.

    Args:
        in_features: F, numbers per token.
        num_states, bias, boundary, structure: As in :class:`~torchssvm.LinearChain`.

    Raises:
        ValueError: ``structure`` does not fit.

    Example:
        >>> head = KernelChain(Polynomial(degree=2), in_features=4, num_states=3)
        >>> KernelSSVM(head, tokens, tags, lam=0.1).solve(tolerance=0.1).gap <= 0.1
        True
    """

    def __init__(
        self,
        kernel: Kernel,
        in_features: int,
        num_states: int,
        *,
        bias: bool = True,
        boundary: bool = True,
        structure: Chain | None = None,
    ) -> None:
        linear = LinearChain(0, num_states, bias=bias, boundary=boundary, structure=structure)
        super().__init__(
            kernel, in_features, linear, unary="emission", num_states=num_states, structure=linear.structure
        )


class KernelMulticlass(KernelHead):
    """Class scores that are kernel expansions, plus an explicit bias.

    Args:
        in_features: F, the number of features.
        num_classes: K, the number of classes.
        bias: Whether every class has a bias; it is regularised.
        structure: How outputs are decoded and what they cost; None is ``Multiclass(num_classes)``, zero-one loss.

    Raises:
        ValueError: ``structure`` does not fit.

    Example:
        >>> head = KernelMulticlass(RBF(gamma=0.5), in_features=4, num_classes=3)
        >>> KernelSSVM(head, points, classes, lam=0.1).solve(tolerance=0.05).gap <= 0.05
        True
        >>> head(points[:2]).single.shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        kernel: Kernel,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = True,
        structure: Multiclass | None = None,
    ) -> None:
        linear = LinearMulticlass(0, num_classes, bias=bias, structure=structure)
        super().__init__(
            kernel, in_features, linear, unary="potentials", num_states=num_classes, structure=linear.structure
        )


def check_features(x: Tensor, in_features: int) -> None:
    """Raise TypeError or ValueError unless ``x`` is a tensor ``[B, N, F]`` or ``[B, F]`` with the right F."""
    if check_tensor(x, "x").ndim not in (2, 3) or x.shape[-1] != in_features:
        raise ValueError(f"x must be [B, N, {in_features}] or [B, {in_features}], got {list(x.shape)}")


class TrainingSet:
    """All training examples: ``x`` ``[n, N, F]`` or ``[n, F]``, with targets and ``lengths`` ``[n]`` int64 or None.

    Attributes:
        tokens: ``[M, F]``, the features of all tokens, example after example, in the head's dtype.
        counts: ``[n]`` int64, tokens of each example.
        target: All targets in the structure's form.
    """

    def __init__(self, head: KernelHead, x: Tensor, y: Any, lengths: Tensor | None) -> None:
        check_features(x, head.in_features)
        if x.device != head.coefficients.device:
            raise ValueError(f"x is on {x.device} and the head on {head.coefficients.device}: call head.to(x.device)")
        if not x.numel():
            raise ValueError(f"x={list(x.shape)} holds no token: give at least one example")
        if not isinstance(y, Tensor | WeightedLabels):
            raise TypeError(f"y must be an int64 tensor or WeightedLabels, not {describe(y)}")
        self._head = head
        self._shape = x.shape
        self._lengths = lengths
        with torch.no_grad():
            explicit = self._explicit(x.shape, lengths)  # checks the lengths
            self.target = head.structure.check_target(y, explicit)
        unary = explicit.tensors.get(head.unary)
        ragged = x.ndim == 2 or explicit.ragged.get(head.unary) == 0
        if unary is None or unary.shape != (*x.shape[:-1], head.num_states) or not ragged:
            raise ValueError(
                f"unary={head.unary!r} must name ragged potentials {[*x.shape[:-1], head.num_states]} of linear, which "
                f"gave {explicit}"
            )
        longest = 1 if x.ndim == 2 else x.shape[1]
        self.counts = torch.full((len(x),), longest, device=x.device) if lengths is None else lengths.clone()
        real = torch.arange(longest, device=x.device) < self.counts.unsqueeze(1)
        self.tokens = x.detach().reshape(len(x), longest, -1)[real].to(head.dtype)
        finite = torch.isfinite(self.tokens).all(1)
        if not bool(finite.all()):
            rows = torch.repeat_interleave(self.counts)[~finite].unique().tolist()
            raise ValueError(f"x is not finite in {len(rows)} examples, {rows[:5]} among them")

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.tokens.device

    def check_index(self, index: Sequence[int] | Tensor) -> Tensor:
        """The distinct examples of a batch, in order; ValueError unless ``index`` holds numbers of examples."""
        index = index if isinstance(index, Tensor) else torch.tensor(list(index))
        index = check_visits(index, len(self)).to(self.device)
        return index[first_occurrences(index)]

    def targets(self, index: Tensor) -> Any:
        """The targets of a batch, cut to its longest example."""
        if self._lengths is None:
            return tree_map(lambda tensor: tensor[index], self.target)
        longest = int(self._lengths[index].max())
        return tree_map(lambda tensor: tensor[index, :longest], self.target)

    def explicit(self, index: Tensor) -> Potentials:
        """Potentials of the explicit weights for a batch, with their graph."""
        if self._lengths is None:
            return self._explicit((len(index), *self._shape[1:]), None)
        lengths = self._lengths[index]
        return self._explicit((len(index), int(lengths.max()), *self._shape[2:]), lengths)

    def scatter(self, values: Tensor, like: Tensor, index: Tensor) -> Tensor:
        """Values of a batch's tokens, ``[U, K]``, in the padded shape of ``like``, ``[B, N, K]`` or ``[B, K]``."""
        result = torch.zeros_like(like, requires_grad=False)
        result[self._real(like, index)] = values
        return result

    def gather(self, padded: Tensor, index: Tensor) -> Tensor:
        """The inverse of ``scatter``: ``[U, K]``, example after example."""
        return padded[self._real(padded, index)]

    def _real(self, padded: Tensor, index: Tensor) -> Tensor:
        if padded.ndim == 2:
            return torch.ones(len(padded), dtype=torch.bool, device=padded.device)
        return torch.arange(padded.shape[1], device=padded.device) < self.counts[index].unsqueeze(1)

    def _explicit(self, shape: Sequence[int], lengths: Tensor | None) -> Potentials:
        with torch.enable_grad(), full_precision(self._head.coefficients.device):
            return self._head.explicit(shape, lengths)
