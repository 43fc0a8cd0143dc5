"""Kernel functions, which replace inner products of token features, and rows of their Gram matrix, cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_number, check_whole
from torchssvm.core.operators import full_precision
from torchssvm.core.threads import available_memory

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
    """``kernel(a, b)``; TypeError or ValueError unless it is ``[M, N]``, of the features' dtype and finite."""
    with full_precision(a.device):
        values: Any = kernel(a, b)
    if not isinstance(values, Tensor) or values.dtype != a.dtype:
        found = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"kernel={name_of(kernel)} must return a tensor of the features' dtype {a.dtype}, got {found}")
    if values.shape != (len(a), len(b)):
        raise ValueError(
            f"kernel={name_of(kernel)} must return [M, N] = {[len(a), len(b)]} for features {list(a.shape)} and "
            f"{list(b.shape)}, got {list(values.shape)}"
        )
    if not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"kernel={name_of(kernel)} returned numbers that are not finite: scale the features, or the kernel"
        )
    return values


def check_kernel(kernel: Kernel, tokens: Tensor, sample: int = 64) -> None:
    """Raise ValueError unless the kernel is symmetric and positive semidefinite on some ``tokens`` ``[N, F]``."""
    step = max(1, len(tokens) // sample)
    chosen = tokens[::step][:sample]
    evaluate(kernel, chosen[:1], chosen)  # a square result would hide a transposition
    values = evaluate(kernel, chosen, chosen).to(torch.float64)
    allowed = 1e3 * torch.finfo(tokens.dtype).eps * float(values.abs().max())
    if float((values - values.t()).abs().max()) > allowed:
        raise ValueError(f"kernel={name_of(kernel)} is not symmetric: kernel(a, b) must be the transpose of (b, a)")
    smallest = float(torch.linalg.eigvalsh(values)[0])
    if smallest < -allowed * len(chosen):
        raise ValueError(
            f"kernel={name_of(kernel)} is not positive semidefinite: the Gram matrix of {len(chosen)} tokens has the "
            f"eigenvalue {smallest:.3g}, so some squared length would be negative"
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
        self._held = 0

    def nbytes(self) -> int:
        """Bytes of the cached rows."""
        return self._held

    def rows(self, index: Tensor) -> Tensor:
        """The rows of the examples' tokens in order, ``[U, N]``; MemoryError if they exceed ``memory_limit``."""
        examples = index.tolist()
        count = sum(self.counts[i] for i in examples)
        needed = count * self._row_bytes
        if needed > self.memory_limit:
            raise MemoryError(
                f"the kernel rows of {len(examples)} examples with {count} tokens, {needed / 2**20:,.1f} MiB, are more "
                f"than memory_limit={self.memory_limit / 2**20:,.1f} MiB on {self.tokens.device}: take smaller "
                "batches, float32 features, or a larger memory_limit"
            )
        while self._cache and self._held + needed > self.memory_limit:
            _, oldest = self._cache.popitem(last=False)
            self._held -= oldest.numel() * oldest.element_size()
        return torch.cat([self._of(i, needed) for i in examples])

    def chunks(self, largest: int = 2**26) -> Iterator[Tensor]:
        """All examples in order, in runs whose rows take at most ``largest`` bytes or the limit, if they can."""
        allowed = min(largest, self.memory_limit // 2) // self._row_bytes
        chunk: list[int] = []
        held = 0
        for example, count in enumerate(self.counts):
            if chunk and held + count > allowed:
                yield torch.tensor(chunk, device=self.tokens.device)
                chunk, held = [], 0
            chunk.append(example)
            held += count
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
        if (held := self._cache.get(example)) is not None:
            self._cache.move_to_end(example)
            return held
        start, count = self.starts[example], self.counts[example]
        found = evaluate(self.kernel, self.tokens[start : start + count], self.tokens)
        self.computed += count
        size = count * self._row_bytes
        if self._held + needed + size <= self.memory_limit:  # the joined rows need room beside the cache
            self._cache[example] = found
            self._held += size
        return found
