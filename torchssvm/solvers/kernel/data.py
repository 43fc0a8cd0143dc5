"""The training set of a kernel model: one table of tokens, and the batches cut from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_tensor, describe
from torchssvm.core.batch import first_occurrences, tree_map
from torchssvm.core.potentials import Potentials
from torchssvm.core.precision import full_precision
from torchssvm.solvers.kernel.head import KernelHead, check_features
from torchssvm.structures.common import WeightedLabels


class TrainingSet:
    """All training examples: ``x`` ``[n, N, F]`` or ``[n, F]``, with targets and ``lengths`` ``[n]`` int64 or None.

    Refuses features that are not finite, and shapes, lengths or targets that do not fit.

    Attributes:
        tokens: ``[M, F]``, the features of all tokens, example after example, in the head's dtype.
        counts: ``[n]`` int64, tokens of each example.
        target: All targets in the structure's form.
    """

    def __init__(self, head: KernelHead, x: Tensor, y: Any, lengths: Tensor | None) -> None:
        check_features(x, head.in_features)
        if x.device != head.coefficients.device:
            raise ValueError(
                f"x is on {x.device} and the head on {head.coefficients.device}, where the kernels are computed: call "
                "head.to(x.device), and give y and lengths there too"
            )
        if not x.numel():
            raise ValueError(f"x has shape {list(x.shape)}, so it holds no token: is the dataset empty?")
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
                f"unary={head.unary!r} must name potentials {[*x.shape[:-1], head.num_states]} of the linear head, "
                f"ragged with offset 0 where examples have tokens; it gave {explicit}, ragged={explicit.ragged}"
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
        try:
            found = check_tensor(index, "index") if isinstance(index, Tensor) else torch.tensor(list(index))
        except (TypeError, ValueError, RuntimeError):  # not numbers, or not a list
            found = torch.empty(0)
        if found.ndim != 1 or not len(found) or found.dtype != torch.int64:
            raise ValueError(f"index must hold the numbers of at least one example, got {index}")
        if int(found.min()) < 0 or int(found.max()) >= len(self):
            raise ValueError(f"index holds {int(found.min())} to {int(found.max())}; there are {len(self)} examples")
        found = found.to(self.device)
        return found[first_occurrences(found)]

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
