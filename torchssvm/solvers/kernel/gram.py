"""Rows of the Gram matrix of all training tokens, computed on demand and cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import Tensor

from torchssvm.core.memory import available_memory
from torchssvm.solvers.kernel.functions import Kernel, check_kernel, evaluate


class GramRows:
    """``K(x_t, x_u)`` for the tokens t of some examples and all N training tokens u.

    The rows of an example are always computed together, and apart from other examples. So cached and recomputed rows
    have the same bits, and a resumed run continues bit for bit.

    Args:
        kernel: The kernel function.
        tokens: ``[N, F]``, float32 or float64, example after example.
        counts: ``[n]`` int64, tokens of each example, each at least 1.
        memory_limit: Bytes for the rows, the current batch included; None is half of the available memory.

    Attributes:
        computed: Rows computed so far.

    Raises:
        TypeError: The kernel does not return tensors of the tokens' dtype.
        ValueError: The function is not a kernel on a sample of the tokens.
    """

    def __init__(self, kernel: Kernel, tokens: Tensor, counts: Tensor, memory_limit: int | None = None) -> None:
        check_kernel(kernel, tokens)
        self.kernel = kernel
        self.tokens = tokens
        self.counts: list[int] = counts.tolist()
        self.starts: list[int] = (counts.cumsum(0) - counts).tolist()
        self.memory_limit = available_memory(tokens.device) // 2 if memory_limit is None else memory_limit
        self.computed = 0
        self._cache: OrderedDict[int, Tensor] = OrderedDict()  # least recently used first
        self._held = 0

    def nbytes(self) -> int:
        """Bytes of the cached rows."""
        return self._held

    def rows(self, index: Tensor) -> Tensor:
        """The rows of the examples' tokens, example after example: ``[U, N]``.

        Raises:
            MemoryError: The rows would not fit in ``memory_limit``.
        """
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
