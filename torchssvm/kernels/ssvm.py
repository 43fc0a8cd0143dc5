"""Block-coordinate Frank-Wolfe in kernel form."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchssvm.batch import first_occurrences, tree_map
from torchssvm.certificate import Certificate
from torchssvm.dual.state import squared_norm
from torchssvm.dual.storage import Stored, require
from torchssvm.kernels.directions import Blocks, FrankWolfe, KernelDirection
from torchssvm.kernels.dual import KernelDual, TokenParts
from torchssvm.kernels.functions import name_of
from torchssvm.kernels.gram import GramRows
from torchssvm.kernels.head import KernelHead, check_features
from torchssvm.kernels.support import SupportLabelings
from torchssvm.optim.box_qp import gram, solve_box_qp
from torchssvm.optim.line_search import exact_step
from torchssvm.potentials import Parts, Potentials, combine, full_precision, inner, per_example_adjoint
from torchssvm.structures import WeightedLabels, find_corner
from torchssvm.structures.base import Labeling, as_decoding, digest

_FORMAT = 1


@dataclass(frozen=True)
class SupportCounts:
    """How large the support is.

    Attributes:
        examples: Examples whose block is not at its target.
        labelings: Labelings other than targets with positive mass: the support vectors of [B13].
        merged: Examples with mass that is kept as mean parts only, because their labelings were more than the capacity.
        tokens: Tokens with coefficients that are not zero: what prediction evaluates the kernel at.
        num_examples: n.
        num_tokens: N.
    """

    examples: int
    labelings: int
    merged: int
    tokens: int
    num_examples: int
    num_tokens: int

    def __str__(self) -> str:
        merged = f", {self.merged} examples with merged mass" if self.merged else ""
        return (
            f"{self.labelings} support labelings of {self.examples}/{self.num_examples} examples{merged}, "
            f"{self.tokens}/{self.num_tokens} support tokens"
        )


class KernelSSVM:
    """Trains a :class:`KernelHead` by [B13] Algorithm B.1, in batches, with exact step sizes.

    The implicit weights are ``w_k = (1/(lam n)) sum_u phi(x_u) psi_u``: the dual blocks themselves are the coefficients
    of the expansion, and ``<phi(x_t), phi(x_u)> = K(x_t, x_u)``. Potentials of a batch are computed from its kernel rows
    when they are needed, so they never drift; the other weights of the head are explicit. A batch takes the directions
    of its blocks with a step for each from the box QP, and the exact line search over all of them, as ``BlockGap`` and
    ``BCFW`` do.

    Args:
        head: The head to train; its weights are set to zero.
        x: Features of all examples, ``[n, N, F]`` or ``[n, F]``; cast to the head's dtype.
        y: Targets of all examples, as the head's structure takes them.
        lengths: ``[n]`` int64, or None where nothing is padded.
        lam: Regularisation, positive.
        direction: ``FrankWolfe()`` (the default) or ``Pairwise()`` of this package.
        sweeps: Sweeps of coordinate ascent over a batch's box QP; 0 takes one common step for all blocks.
        capacity: Most support labelings that are listed for an example; see :class:`SupportLabelings`.
        memory_limit: Bytes for kernel rows, cached ones included, and again for the dual blocks and for the support
            labelings; None is half of what is free for the rows, and what is free for the others.

    Attributes:
        dual: A ``DualState``: losses, gap estimates, counters. ``GapBatchSampler(svm.dual, batch_size=...)`` draws
            batches; ``svm.dual.value()`` is the dual objective.
        support: The support labelings with their masses.
        gram: The kernel rows.

    Raises:
        ValueError: There are no examples, or an argument does not fit the others.
        TypeError: The kernel or the targets are not of a kind that is known here.
        MemoryError: Something would not fit in ``memory_limit``.
    """

    def __init__(
        self,
        head: KernelHead,
        x: Tensor,
        y: Any,
        lengths: Tensor | None = None,
        *,
        lam: float,
        direction: KernelDirection | None = None,
        sweeps: int = 5,
        capacity: int = 64,
        memory_limit: int | None = None,
    ) -> None:
        if sweeps < 0:
            raise ValueError(f"sweeps={sweeps} must be at least 0")
        check_features(x, head.in_features)
        n = len(x)
        if not n:
            raise ValueError("x holds no example: is the dataset empty?")
        counts, real = _count_tokens(x, lengths)
        tokens = x.detach()[real].to(head.dtype) if x.ndim == 3 else x.detach().to(head.dtype)
        if bool((wrong := ~torch.isfinite(tokens).all(1)).any()):
            raise ValueError(f"x is not finite at {int(wrong.sum())} tokens, {wrong.nonzero().flatten()[:5].tolist()}")
        self.head = head
        self.direction = direction if direction is not None else FrankWolfe()
        self.sweeps = sweeps
        self.dual = KernelDual(
            n, lam, head.structure, head.linear.parameters(), storage=TokenParts(), memory_limit=memory_limit
        )
        self.gram = GramRows(head.kernel, tokens, counts, memory_limit)
        self._counts = counts
        self._lengths = lengths
        self._shape = x.shape
        self._target = self._check_targets(y)
        labels = self._target.labels if isinstance(self._target, WeightedLabels) else self._target
        self.support = SupportLabelings(labels, capacity, memory_limit)
        with torch.no_grad():
            for parameter in self.dual.parameters:
                parameter.zero_()
            head.support = tokens[:0].clone()
            head.coefficients = head.coefficients[:0].to(tokens.device)
        self._head_version = self.dual.version

    def step(self, index: Sequence[int] | Tensor) -> float:
        """One step on the blocks of a batch; an example named twice counts once.

        Args:
            index: ``[B]`` int64, the examples.

        Returns:
            The sum of the batch's block gaps before the step.

        Raises:
            ValueError: ``index`` is not valid, or the oracle is not. Nothing has changed then.
            MemoryError: The kernel rows of the batch do not fit; nothing has changed.
        """
        dual, n, lam = self.dual, self.dual.num_examples, self.dual.lam
        index = self._check_index(index)
        with full_precision(index.device):
            rows, places = self.gram.rows(index), self.gram.places(index)
            explicit, potentials, kernel = self._potentials(index, rows, self._table())
            target = self._targets_of(index)
            corner = find_corner(dual.structure, potentials, target)
            with torch.no_grad():
                stored = dual.storage.gather(index, potentials)
                losses, held, psi = dual.loss[index], stored.inner(potentials), _parts_of(stored, potentials)
                gaps = corner.hinge / n + held - losses
                blocks = Blocks(index, target, potentials, psi, losses, dual.structure, self.support, n)
                move = self.direction(corner, blocks)
                decay = torch.ones_like(gaps) if move.direction.decay is None else move.direction.decay
                parts, _ = stored.combine(move.direction.parts, decay)
                slopes = move.direction.slopes + decay * held
                changes = move.direction.loss - decay * losses
            gradients = per_example_adjoint(explicit, parts, dual.parameters)
            with torch.no_grad():
                # G_ij = <D_i, D_j> / lam, the implicit and the explicit part
                flat = self._tokens(parts[self.head.unary], index)
                owner = torch.repeat_interleave(self._counts[index])
                implicit = _sum_blocks(rows[:, places] * (flat @ flat.t()), owner, len(index))
                curvature = (implicit + gram(gradients, torch.arange(len(index)))) / (lam * n**2)
                values = slopes + changes
                gammas = torch.ones_like(values)
                if self.sweeps and len(index) > 1:
                    gammas = solve_box_qp(curvature, values, self.sweeps)
                squared = lam * float(gammas @ curvature @ gammas)
                gamma = exact_step(float(gammas @ values), squared, lam)
                step = gamma * gammas
                # from here on the state changes
                along = float(step @ inner({"": kernel}, {"": parts[self.head.unary]})) / n  # <w_k, d_k>
                length = float(step @ implicit @ step) / n**2  # |d_k|^2
                norm = dual.kernel_squared_norm - 2 / lam * along + length / lam**2
                dual.kernel_squared_norm = max(norm, 0.0)
                for parameter, change in zip(dual.parameters, combine(gradients, step / (lam * n)), strict=True):
                    parameter.sub_(change)
                everything = torch.arange(len(index), device=index.device)
                stored.subtract(step, everything, parts, None)
                dual.loss.index_add_(0, index, step * changes)
                dual.gap_estimates[index] = gaps.clamp(min=0.0)
                moved = step > 0.0
                self.support.move(
                    index[moved],
                    corner.labeling[moved],
                    corner.loss[moved],
                    1.0 - step[moved] * move.decay[moved],
                    None if move.away is None else move.away[moved],
                    step[moved] * move.mass[moved],
                )
        dual.oracle_calls += len(index)
        dual.steps += 1
        dual.visits += 1
        dual.remember_weights()
        dual.notify()
        return float(gaps.sum())

    @torch.no_grad()
    def certify(self) -> Certificate:
        """One exact pass: primal, dual and gap of the weights held; brings every gap estimate up to date.

        The explicit weights are first recomputed from the dual blocks, which takes their rounding back (``drift`` says
        how much it was); the implicit ones always follow from the blocks.

        Raises:
            RuntimeError: The gap is negative by more than rounding.
        """
        start = time.perf_counter()
        dual, n = self.dual, self.dual.num_examples
        drift = self._recompute()
        table = self._table()
        gaps = torch.zeros_like(dual.gap_estimates)
        hinges = kernel_norm = 0.0
        exact = True
        for index in self.gram.chunks():
            with full_precision(index.device):
                _, potentials, kernel = self._potentials(index, self.gram.rows(index), table)
                corner = find_corner(dual.structure, potentials, self._targets_of(index))
                stored = dual.storage.gather(index, potentials)
                psi = _parts_of(stored, potentials)[self.head.unary]
                kernel_norm += float(inner({"": psi}, {"": kernel}).sum()) / (dual.lam * n)
                hinges += float(corner.bound.sum())
                exact &= corner.exact
                gaps[index] = corner.hinge / n + stored.inner(potentials) - dual.loss[index]
        dual.kernel_squared_norm = max(kernel_norm, 0.0)
        norm = dual.kernel_squared_norm + squared_norm(dual.parameters)
        primal = dual.lam / 2 * norm + hinges / n
        value = dual.value()
        rounding = 1e3 * torch.finfo(self.head.dtype).eps
        if primal - value < -rounding * (1.0 + abs(primal) + dual.lam * norm):
            raise RuntimeError(f"the gap is negative, {primal - value:.6g}: does the kernel change between calls?")
        if drift > 100 * rounding:
            warnings.warn(
                f"the explicit weights differed from those of the dual by {drift:.2g} of their length, more than "
                "rounding: they were changed by others, and are now recomputed",
                stacklevel=2,
            )
        dual.gap_estimates = gaps.clamp(min=0.0)
        dual.oracle_calls += n
        return Certificate(
            primal=primal,
            dual=value,
            gap=primal - value,
            exact=exact,
            drift=drift,
            oracle_calls=dual.oracle_calls,
            passes=dual.passes,
            seconds=time.perf_counter() - start,
            num_examples=n,
            lam=dual.lam,
        )

    def fit(
        self, sampler: Iterable[Sequence[int]], *, tolerance: float, max_passes: float, epochs: int = 10
    ) -> Certificate:
        """Step through ``sampler`` until the certified gap is at most ``tolerance``.

        Args:
            sampler: Batches of one epoch each time it is iterated, such as ``GapBatchSampler(svm.dual, batch_size=16)``.
            tolerance: Positive.
            max_passes: Effective passes after which to stop in any case.
            epochs: Epochs between exact passes.

        Returns:
            The last certificate.

        Raises:
            ValueError: An argument is not positive, or the sampler gives no batch.
        """
        for name, value in (("tolerance", tolerance), ("max_passes", max_passes), ("epochs", epochs)):
            if not value > 0:
                raise ValueError(f"{name}={value} must be positive")
        while True:
            before = self.dual.steps
            for _ in range(epochs):
                for index in sampler:
                    self.step(index)
                if self.dual.passes >= max_passes:
                    break
            if self.dual.steps == before:
                raise ValueError("sampler gives no batch")
            certificate = self.certify()
            if certificate.gap <= tolerance or certificate.passes >= max_passes:
                return certificate

    @torch.no_grad()
    def update_head(self) -> KernelHead:
        """Write the support tokens and their coefficients into the head, which then predicts on its own."""
        if self._head_version != self.dual.version:
            table = self._table()
            chosen = self._is_support(table)
            self.head.support = self.gram.tokens[chosen].clone()
            self.head.coefficients = table[chosen] / (self.dual.lam * self.dual.num_examples)
            self._head_version = self.dual.version
        return self.head

    @torch.no_grad()
    def decode(self, x: Tensor, lengths: Tensor | None = None) -> Labeling:
        """The best outputs for new features, from the support tokens only.

        Args:
            x: ``[B, N, F]`` or ``[B, F]``.
            lengths: ``[B]`` int64, or None.

        Raises:
            ValueError: ``x`` has another width, or a length does not fit.
        """
        return as_decoding(self.head.structure.argmax(self.update_head()(x, lengths).detach())).labeling

    def support_counts(self) -> SupportCounts:
        """How many examples, labelings and tokens the model consists of."""
        others, merged = self.support.mass[:, 1:] > 0.0, self.support.merged > 0.0
        return SupportCounts(
            examples=int((others.any(1) | merged).sum()),
            labelings=int(others.sum()),
            merged=int(merged.sum()),
            tokens=int(self._is_support(self._table()).sum()),
            num_examples=self.dual.num_examples,
            num_tokens=len(self.gram.tokens),
        )

    def nbytes(self) -> dict[str, int]:
        """Bytes held now: dual blocks, support labelings, cached kernel rows."""
        return {
            "blocks": self.dual.storage.nbytes(),
            "support": self.support.nbytes(),
            "kernel rows": self.gram.nbytes(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything but the training data and the sampler: tensors, numbers and strings only."""
        return {
            "format": _FORMAT,
            "kernel": name_of(self.head.kernel),
            "tokens": digest(self.gram.tokens),
            "dual": self.dual.state_dict(),
            "support": self.support.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue to the same bits; nothing changes if the state does not fit.

        Raises:
            ValueError: The state is of another kernel, of other data, or damaged.
        """
        expected = {"format": _FORMAT, "kernel": name_of(self.head.kernel), "tokens": digest(self.gram.tokens)}
        for name, here in expected.items():
            if require(state, name, type(here), "state") != here:
                raise ValueError(f"the checkpoint is of another problem: {name} is {state[name]} there and {here} here")
        self.support.check_state(require(state, "support", dict, "state"))
        self.dual.load_state_dict(require(state, "dual", dict, "state"))
        self.support.load_state_dict(state["support"])

    def __repr__(self) -> str:
        return f"KernelSSVM({self.head.kernel}, direction={self.direction}, {self.dual})"

    def _potentials(self, index: Tensor, rows: Tensor, table: Tensor) -> tuple[Potentials, Potentials, Tensor]:
        """Of the explicit weights (with their graph), of all weights, and the implicit part of the unary ones."""
        lengths = None if self._lengths is None else self._lengths[index]
        shape = torch.Size([len(index), *self._shape[1:]])
        if lengths is not None:
            shape = torch.Size([len(index), int(lengths.max()), *self._shape[2:]])
        with torch.enable_grad():
            explicit = self.head.explicit(shape, lengths)
        scores = rows @ table / (self.dual.lam * self.dual.num_examples)
        kernel = torch.zeros_like(explicit[self.head.unary], requires_grad=False)
        kernel[self._mask(kernel, index)] = scores
        detached = explicit.detach()
        unary = detached[self.head.unary] + kernel
        return explicit, detached.replace({**detached.tensors, self.head.unary: unary}), kernel

    def _mask(self, unary: Tensor, index: Tensor) -> Tensor:
        """Which rows of ``[B, N, K]`` (or ``[B, K]``) are tokens."""
        if unary.ndim == 2:
            return torch.ones(len(unary), dtype=torch.bool, device=unary.device)
        return torch.arange(unary.shape[1], device=unary.device) < self._counts[index].unsqueeze(1)

    def _tokens(self, unary: Tensor, index: Tensor) -> Tensor:
        """``[B, N, K]`` or ``[B, K]`` as ``[U, K]``, example after example."""
        return unary[self._mask(unary, index)]

    def _table(self) -> Tensor:
        """psi of every training token, ``[N, K]``."""
        storage = self.dual.storage
        assert isinstance(storage, TokenParts)
        return storage.table(self.head.unary, self._counts, self.head.coefficients)

    def _is_support(self, table: Tensor) -> Tensor:
        """Tokens whose coefficients are not zero; what rounding leaves of masses that went is."""
        return table.abs().amax(1) > 4 * torch.finfo(table.dtype).eps

    def _recompute(self) -> float:
        """Set the explicit weights to those of the blocks; the relative change."""
        dual = self.dual
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
        for index in torch.arange(dual.num_examples, device=self._counts.device).split(1024):
            lengths = None if self._lengths is None else self._lengths[index]
            shape = [len(index), *self._shape[1:]]
            if lengths is not None:
                shape[1] = int(lengths.max())
            with torch.enable_grad(), full_precision(index.device):
                explicit = self.head.explicit(torch.Size(shape), lengths)
            stored = dual.storage.gather(index, explicit)
            for total, part in zip(totals, dual.storage.contribution(stored, explicit), strict=True):
                total += part
        size = squared_norm(totals)
        change = squared_norm(p - t for p, t in zip(dual.parameters, totals, strict=True))
        for parameter, total in zip(dual.parameters, totals, strict=True):
            parameter.copy_(total)
        dual.remember_weights()
        return (change / size) ** 0.5 if size > 0.0 else change**0.5

    def _targets_of(self, index: Tensor) -> Any:
        """The checked targets of a batch, cut to its longest example."""
        longest = None if self._lengths is None else int(self._lengths[index].max())
        return tree_map(lambda t: t[index] if longest is None else t[index, :longest], self._target)

    def _check_targets(self, y: Any) -> Any:
        """All targets in the structure's form."""
        if not isinstance(y, Tensor | WeightedLabels):
            raise TypeError(f"y must be an int64 tensor or WeightedLabels, not {type(y).__name__}")
        with torch.no_grad(), full_precision(self._counts.device):
            explicit = self.head.explicit(self._shape, self._lengths)
            return self.dual.structure.check_target(y, explicit)

    def _check_index(self, index: Sequence[int] | Tensor) -> Tensor:
        """The distinct examples of a batch."""
        found = index if isinstance(index, Tensor) else torch.tensor(list(index))
        if found.ndim != 1 or not len(found) or found.dtype != torch.int64:
            raise ValueError(f"index must hold the numbers of at least one example, got {index}")
        if int(found.min()) < 0 or int(found.max()) >= self.dual.num_examples:
            raise ValueError(
                f"index holds {int(found.min())} to {int(found.max())}; there are {self.dual.num_examples} examples"
            )
        found = found.to(self._counts.device)
        self.dual.to(self._counts.device)
        return found[first_occurrences(found)]


def _count_tokens(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens of each example ``[n]``, and which places of ``[n, N]`` they are."""
    if x.ndim == 2:
        if lengths is not None:
            raise ValueError("lengths are for sequences, and x is [n, F]")
        return torch.ones(len(x), dtype=torch.int64, device=x.device), torch.ones(len(x), dtype=torch.bool)
    n, longest, _ = x.shape
    if not longest:
        raise ValueError(f"x has shape {list(x.shape)}: every example needs a token")
    if lengths is None:
        lengths = torch.full((n,), longest, device=x.device)
    if lengths.shape != (n,) or lengths.dtype != torch.int64 or bool(((lengths < 1) | (lengths > longest)).any()):
        raise ValueError(f"lengths must be int64 [{n}] of numbers from 1 to {longest}")
    return lengths, torch.arange(longest, device=x.device) < lengths.unsqueeze(1)


def _parts_of(stored: Stored, potentials: Potentials) -> Parts:
    """psi_i of a batch."""
    zero = {name: torch.zeros_like(tensor) for name, tensor in potentials.tensors.items()}
    return stored.combine(zero, None)[0]


def _sum_blocks(matrix: Tensor, owner: Tensor, size: int) -> Tensor:
    """``[U, U]`` summed over the tokens of each pair of examples: ``[B, B]`` float64."""
    rows = matrix.new_zeros(size, len(owner)).index_add_(0, owner, matrix)
    return rows.new_zeros(size, size).index_add_(1, owner, rows).to(torch.float64)
