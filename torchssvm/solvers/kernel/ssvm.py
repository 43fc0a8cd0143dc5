"""Block-coordinate Frank-Wolfe in kernel form: the blocks of a kernel model, and the trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import clock
from torchssvm.core.arguments import check_limit, check_whole
from torchssvm.core.decoding import Labeling, OracleResult, as_decoding
from torchssvm.core.gradients import combine, per_example_adjoint
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.linearity import check_at_first_call
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.packages import warn
from torchssvm.core.potentials import Parts, Potentials, inner
from torchssvm.core.precision import full_precision
from torchssvm.core.ranks import Ranks
from torchssvm.core.row_sparse import add_rows, squared_norm
from torchssvm.core.states import Numbers, Stateful, check_entries, check_seal
from torchssvm.core.structure import digest
from torchssvm.dual.checks import check_structure, digest_targets
from torchssvm.dual.mean_parts import MeanParts, StoredParts
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import Certificate, dual_exceeds_primal, make_certificate, write
from torchssvm.solvers.kernel.head import GramRows, KernelHead, TrainingSet, name_of
from torchssvm.solvers.trainer import DualTrainer
from torchssvm.steps.box_qp import gram, solve_box_qp
from torchssvm.steps.directions import Order
from torchssvm.steps.line_search import exact_step
from torchssvm.steps.sampler import GapBatchSampler


class TokenParts(MeanParts):
    """Mean parts whose unary rows, the coefficients of the kernel expansion, can be read token by token."""

    @override
    def check_memory(self, potentials: Potentials, target: Labeling, advice: str) -> None:
        super().check_memory(potentials, target, "take a larger memory_limit, float32 features, or fewer examples")

    def table(self, name: str, counts: Tensor, like: Tensor) -> Tensor:
        """The psi of every training token, example after example: ``[N, K]``.

        ``counts`` ``[n]`` int64 are tokens of each example; ``like`` ``[..., K]`` gives dtype and K while nothing is
        stored.
        """
        buffer = self.buffers.get(name)
        if buffer is None:
            return like.new_zeros(int(counts.sum()), like.shape[-1])
        longest = int(counts.max())
        real = torch.arange(longest, device=counts.device) < counts.unsqueeze(1)
        places = buffer.locate(torch.arange(len(counts), device=counts.device), longest)[real]
        return buffer.values[places]


class KernelDual(DualState):
    """``D = sum_i l_i - lam/2 (|w_k|^2 + |w|^2)``: w_k is the kernel expansion, w are the explicit weights.

    Attributes:
        kernel_squared_norm: ``|w_k|^2``, updated by every step and recomputed by exact passes.
    """

    kernel_squared_norm = 0.0

    @override
    def value(self) -> float:
        return super().value() - self.lam / 2 * self.kernel_squared_norm

    def _entries(self) -> dict[str, Any]:
        return {**super()._entries(), "kernel_squared_norm": self.kernel_squared_norm}

    def _wanted(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**super()._wanted(state), "kernel_squared_norm": Numbers(float, low=0.0)}

    def _restore_own(self, state: dict[str, Any]) -> None:
        super()._restore_own(state)
        self.kernel_squared_norm = state["kernel_squared_norm"]


class KernelBatch(NamedTuple):
    """A batch of distinct examples at the current weights."""

    index: Tensor  # type: ignore[assignment]  # it hides tuple.index; [B] int64
    potentials: Potentials  # of all weights, detached
    corner: OracleResult
    stored: StoredParts  # the blocks: its psi is p(y_i) - mu_i
    loss: Tensor  # [B] float64, l_i
    gaps: Tensor  # [B] float64
    rows: Tensor  # [U, M]: the kernel rows of their tokens
    explicit: Potentials  # potentials of the explicit weights, with the autograd graph
    kernel: Tensor  # [B, N, K] or [B, K]: what the kernel adds to the unary potentials


class BlockStep(NamedTuple):
    """The directions of a batch, towards the corners, and the step size of each."""

    parts: Parts
    gradients: list[Tensor]  # of the explicit weights
    implicit: Tensor  # [B, B] float64: inner products of the directions in the kernel's space, times n^2
    losses: Tensor  # [B] float64: change of l_i at step 1
    sizes: Tensor  # [B] float64


@dataclass(eq=False)
class KernelBlocks:
    """Everything that a step reads and changes."""

    head: KernelHead  # a step moves its explicit weights, but not its support tokens
    data: TrainingSet
    dual: KernelDual
    gram: GramRows  # kernel rows of the training tokens

    def check_weights(self) -> None:
        """Raise RuntimeError if the explicit weights are not as the last step left them."""
        norm = math.sqrt(squared_norm(self.dual.parameters))
        if self.dual.norm_changed(norm):
            old = self.dual.held_norm
            raise RuntimeError(f"head has changed explicit weights (norm {norm:.6g}, was {old:.6g}): call certify()")

    def read(self, index: Tensor, table: Tensor) -> KernelBatch:
        """Potentials, corners and block gaps of distinct examples ``[B]``; ``table`` holds the blocks of all tokens."""
        dual, n, unary = self.dual, self.dual.num_examples, self.head.unary
        rows, explicit, target = self.gram.rows(index), self.data.explicit(index), self.data.targets(index)
        tensors = explicit.detach().tensors
        with torch.no_grad():
            kernel = self.data.scatter(rows @ table / (dual.lam * n), tensors[unary], index)
            potentials = explicit.replace({**tensors, unary: tensors[unary] + kernel})
            corner = find_corner(dual.structure, potentials, target)
            stored = dual.storage.gather(index, potentials, target)
            assert isinstance(stored, StoredParts)
            gaps = corner.hinge / n + stored.inner(potentials) - dual.loss[index]
        return KernelBatch(index, potentials, corner, stored, dual.loss[index], gaps, rows, explicit, kernel)

    def choose(self, batch: KernelBatch, sweeps: int) -> BlockStep:
        """Choose the directions and their step sizes; changes nothing."""
        dual, n = self.dual, self.dual.num_examples
        with torch.no_grad():
            corner, stored = batch.corner, batch.stored
            parts = {name: tensor + stored.psi[name] for name, tensor in corner.parts.items()}
            changes = corner.loss / n - batch.loss
            values = corner.score / n + stored.inner(batch.potentials) + changes
        gradients = per_example_adjoint(batch.explicit, parts, dual.parameters)
        with torch.no_grad():
            implicit = self._inner_products(batch, parts[self.head.unary])
            # G_ij = <D_i, D_j> / lam
            curvature = (implicit + gram(gradients, torch.arange(len(values)))) / (dual.lam * n**2)
            gammas = torch.ones_like(values)
            if sweeps and len(values) > 1:
                gammas = solve_box_qp(curvature, values, sweeps)
            squared = dual.lam * float(gammas @ curvature @ gammas)
            if squared < -1e3 * torch.finfo(self.head.dtype).eps * dual.lam * float(curvature.abs().sum()):
                raise ValueError(f"kernel={name_of(self.head.kernel)} is not positive semidefinite: use another one")
            sizes = gammas * exact_step(float(gammas @ values), max(squared, 0.0), dual.lam)
        return BlockStep(parts, gradients, implicit, changes, sizes)

    def _inner_products(self, batch: KernelBatch, unary: Tensor) -> Tensor:
        """``sum_tu K(x_t, x_u) <Delta_it, Delta_ju>`` for all pairs of blocks, ``[B, B]`` float64."""
        index, size = batch.index, len(batch.index)
        tokens = self.data.gather(unary, index)
        matrix = batch.rows[:, self.gram.places(index)] * (tokens @ tokens.t())
        owner = torch.repeat_interleave(self.data.counts[index])
        summed = add_rows(matrix.new_zeros(size, len(owner)), owner, matrix)
        return add_rows(matrix.new_zeros(size, size), owner, summed.t()).t().to(torch.float64)

    @torch.no_grad()
    def take(self, batch: KernelBatch, step: BlockStep) -> None:
        """Move blocks, weights and losses."""
        dual, index, sizes = self.dual, batch.index, step.sizes
        scaled = sizes / (dual.lam * dual.num_examples)
        # |w_k - d_k/lam|^2, from <w_k, d_k> and |d_k|^2
        along = float(scaled @ inner({"": batch.kernel}, {"": step.parts[self.head.unary]}))
        norm = dual.kernel_squared_norm - 2.0 * along + float(scaled @ step.implicit @ scaled)
        dual.kernel_squared_norm = max(norm, 0.0)
        for parameter, change in zip(dual.parameters, combine(step.gradients, scaled), strict=True):
            parameter.sub_(change)
        everyone = torch.arange(len(index), device=index.device)
        batch.stored.move(sizes, everyone, torch.empty(0), step.parts, None)
        dual.loss.index_add_(0, index, sizes * step.losses)  # of distinct examples
        dual.gap_estimates[index] = batch.gaps.clamp(min=0.0)
        dual.relaxed |= batch.corner.relaxed
        dual.oracle_calls += len(index)
        dual.steps += 1
        dual.visits += 1
        dual.remember_weights()

    def table(self) -> Tensor:
        """The psi of every training token, ``[N, K]``."""
        storage = self.dual.storage
        assert isinstance(storage, TokenParts)
        return storage.table(self.head.unary, self.data.counts, self.head.coefficients)

    def is_support(self, table: Tensor) -> Tensor:
        """Tokens with nonzero coefficients; what rounding leaves of removed masses counts as zero."""
        return table.abs().amax(1) > 4 * torch.finfo(table.dtype).eps

    @contextmanager
    def recomputed(self) -> Iterator[float]:
        """Recompute the explicit weights from the blocks; undone if the ``with`` block raises.

        Yields:
            The relative change of the weights.
        """
        dual = self.dual
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
        for index in torch.arange(dual.num_examples, device=self.data.device).split(1024):
            explicit = self.data.explicit(index)
            stored = dual.storage.gather(index, explicit, self.data.targets(index))
            for total, part in zip(totals, dual.storage.contribution(stored, explicit), strict=True):
                total += part
        size = squared_norm(totals)
        change = squared_norm(p - t for p, t in zip(dual.parameters, totals, strict=True))
        old, norm = [p.clone() for p in dual.parameters], dual.held_norm
        try:
            with undisturbed():
                write(totals, dual.parameters)
                dual.remember_weights()
            yield (change / size) ** 0.5 if size > 0.0 else change**0.5
        except BaseException:
            with undisturbed():
                write(old, dual.parameters)
                dual.held_norm = norm
            raise


@dataclass(frozen=True)
class SupportCounts:
    """Numbers of support examples and tokens."""

    examples: int  # whose block is not at its target
    tokens: int  # with nonzero coefficients, at which prediction evaluates the kernel
    num_examples: int
    num_tokens: int

    def __str__(self) -> str:
        return f"{self.examples}/{self.num_examples} support examples, {self.tokens}/{self.num_tokens} support tokens"


_FORMAT = 3


class KernelSSVM(DualTrainer, Stateful):
    """Trains a :class:`KernelHead` by [B13] Algorithm B.1, in batches, with exact step sizes.

    The implicit weights are ``w_k = (1/(lam n)) sum_u phi(x_u) psi_u`` with ``<phi(x_t), phi(x_u)> = K(x_t, x_u)``: the
    dual blocks are the coefficients of the expansion. ``BCFW`` cannot train this head: it would store the blocks again
    as weights, and use the wrong inner product. The potentials of a batch are computed from its kernel rows, so they
    never drift; the other weights of the head are explicit. As in ``BlockGap`` and ``BCFW``, the box QP chooses a step
    for each block of a batch, and an exact line search follows.

    Args:
        head: The head to train; its weights are set to zero.
        x: Features of all examples, ``[n, N, F]`` or ``[n, F]``; cast to the head's dtype.
        y: Targets of all examples, as the head's structure takes them.
        lengths: ``[n]`` int64, or None where nothing is padded.
        order: In which order examples are visited; None is ``Proportional()``, gap sampling.
        sweeps: Sweeps of coordinate ascent over a batch's box QP; 0 takes one common step for all blocks.
        memory_limit: Bytes for kernel rows, cached ones included; the same again for the dual blocks. None is half of
            the available memory for the rows, all of it for the blocks.

    Attributes:
        dual: A ``DualState``: losses, gap estimates, counters; ``svm.dual.value()`` is the dual objective.
        sampler: Draws the batches.
        gram: The kernel rows.

    Raises:
        ValueError: There are no examples, or an argument does not fit the others.
        TypeError: The kernel or the targets are of an unknown kind.
        MemoryError: Something would not fit in ``memory_limit``.

    Example:
        >>> trainer = KernelSSVM(KernelMulticlass(RBF(), in_features=4, num_classes=3), points, classes, lam=0.1)
        >>> trainer.solve(tolerance=0.05).gap <= 0.05
        True
    """

    state_name = "state"

    def __init__(
        self,
        head: KernelHead,
        x: Tensor,
        y: Any,
        lengths: Tensor | None = None,
        *,
        lam: float,
        batch_size: int = 16,
        order: Order | None = None,
        seed: int = 0,
        sweeps: int = 5,
        memory_limit: int | None = None,
    ) -> None:
        Ranks.here().refuse_several("KernelSSVM", "Train by solve(...), CompiledBCFW or BCFW instead")
        sweeps = check_whole(sweeps, "sweeps", 0)
        memory_limit = check_limit(memory_limit)
        if not isinstance(head, KernelHead):
            raise TypeError(f"head={type(head).__name__} must be a KernelHead, such as KernelChain(...)")
        self.head = head
        self.sweeps = sweeps
        self.data = TrainingSet(head, x, y, lengths)
        self.dual: KernelDual = KernelDual(
            len(x), lam, head.structure, head.linear.parameters(), storage=TokenParts(), memory_limit=memory_limit
        )
        check_at_first_call(head.linear)
        self.dual.to(x.device)
        self.dual.targets = digest_targets(self.data.target, lengths)
        self.sampler = GapBatchSampler(self.dual, batch_size=batch_size, order=order, seed=seed)
        self._draws: Iterator[list[int]] | None = None  # the batches that follow
        self._next: list[int] | None = None  # a batch that was drawn, but whose step failed
        self.gram = GramRows(head.kernel, self.data.tokens, self.data.counts, memory_limit)
        self._blocks = KernelBlocks(head, self.data, self.dual, self.gram)
        with torch.no_grad():
            for parameter in self.dual.parameters:
                parameter.zero_()
        head.support, head.coefficients = head.support[:0], head.coefficients[:0]
        self._head_version = self.dual.version

    def step(self) -> float:
        """One step on the next drawn batch.

        Returns:
            The sum of the batch's block gaps before the step.

        Raises:
            RuntimeError: The explicit weights were changed by others; see also :meth:`visit`.
        """
        if self._draws is None:
            self._draws = chain.from_iterable(repeat(self.sampler))  # epoch after epoch
        if self._next is None:
            self._next = next(self._draws)
        gaps = self.visit(self._next)
        self._next = None
        return gaps

    def visit(self, index: Sequence[int] | Tensor) -> float:
        """One step on the blocks of a batch; an example named twice counts once.

        Args:
            index: ``[B]`` int64, the examples.

        Returns:
            The sum of the batch's block gaps before the step.

        Raises:
            ValueError: ``index`` or a result of the oracle is not valid. Nothing changes then.
            RuntimeError: The explicit weights were changed by others.
            MemoryError: The kernel rows of the batch do not fit. Nothing changes then.
        """
        self._blocks.check_weights()
        with full_precision(self.data.device):
            batch = self._blocks.read(self.data.check_index(index), self._blocks.table())
            step = self._blocks.choose(batch, self.sweeps)
            with undisturbed():
                self._blocks.take(batch, step)
                self.dual.mailbox.notify()
        return float(batch.gaps.sum())

    @torch.no_grad()
    def certify(self) -> Certificate:
        """One exact pass: primal, dual and gap of the current weights; updates every gap estimate.

        First recomputes the explicit weights from the dual blocks, which removes their rounding (``drift``). The
        implicit weights are always computed from the blocks.

        Raises:
            ValueError: The kernel did not return a matrix of finite numbers. Nothing changes then.
            RuntimeError: The gap is negative by more than rounding, or the structure has changed. Nothing changes then.
        """
        start = clock()
        check_structure(self.dual)
        dual, n = self.dual, self.dual.num_examples
        gaps = torch.zeros_like(dual.gap_estimates)
        hinges = norm = 0.0
        exact, relaxed = True, dual.relaxed
        with self._blocks.recomputed() as drift:
            table = self._blocks.table()
            for index in self.gram.chunks():
                with full_precision(index.device):
                    batch = self._blocks.read(index, table)
                psi = batch.stored.psi[self.head.unary]
                norm += float(inner({"": psi}, {"": batch.kernel}).sum()) / (dual.lam * n)  # |w_k|^2
                hinges += float(batch.corner.bound.sum())
                exact &= batch.corner.exact
                relaxed |= batch.corner.relaxed
                gaps[index] = batch.gaps
            implicit, explicit = max(norm, 0.0), squared_norm(dual.parameters)
            norm = implicit + explicit
            primal = dual.lam / 2 * norm + hinges / n
            value = float(dual.loss.sum()) - dual.lam / 2 * explicit - dual.lam / 2 * implicit
            if dual_exceeds_primal(primal, value, self.head.dtype, dual.lam * norm):
                raise RuntimeError(f"the gap is negative, {primal - value:.6g}: kernel must not change between calls")
        if drift > 1e5 * torch.finfo(self.head.dtype).eps:
            warn(
                f"the explicit weights differed from the dual by {drift:.2g} of their length, more than rounding: they "
                "were changed by others, and are now recomputed"
            )
        value = min(value, primal)  # a dual above the primal is rounding
        with undisturbed():
            dual.kernel_squared_norm, dual.relaxed = implicit, relaxed
            dual.gap_estimates = gaps.clamp(min=0.0)
            dual.oracle_calls += n
        return make_certificate(dual, primal, value, drift, start, exact=exact, relaxed=relaxed)

    @undisturbed()
    @torch.no_grad()
    def update_head(self) -> KernelHead:
        """Write the support tokens and their coefficients into the head, which then predicts alone."""
        if self._head_version != self.dual.version:
            table = self._blocks.table()
            chosen = self._blocks.is_support(table)
            self.head.support = self.data.tokens[chosen].clone()
            self.head.coefficients = table[chosen] / (self.dual.lam * self.dual.num_examples)
            self._head_version = self.dual.version
        return self.head

    @torch.no_grad()
    def decode(self, x: Tensor, lengths: Tensor | None = None) -> Labeling:
        """Decode new features, using the support tokens only.

        Args:
            x: ``[B, N, F]`` or ``[B, F]``.
            lengths: ``[B]`` int64, or None.

        Raises:
            ValueError: ``x`` has another width, or a length does not fit.
        """
        return as_decoding(self.head.structure.argmax(self.update_head()(x, lengths).detach())).labeling

    def support_counts(self) -> SupportCounts:
        """Numbers of support examples and tokens."""
        chosen, counts = self._blocks.is_support(self._blocks.table()), self.data.counts
        examples = torch.repeat_interleave(counts)[chosen].unique().numel()
        return SupportCounts(examples, int(chosen.sum()), len(counts), len(chosen))

    def nbytes(self) -> dict[str, int]:
        """Bytes in use: dual blocks, cached kernel rows."""
        return {"blocks": self.dual.storage.nbytes(), "kernel rows": self.gram.nbytes()}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_draws": None}  # a copy starts a new epoch

    def _nested(self) -> dict[str, Stateful]:
        return {"dual": self.dual, "sampler": self.sampler}

    def _entries(self) -> dict[str, Any]:
        return {"format": _FORMAT, "kernel": name_of(self.head.kernel), "tokens": digest(self.data.tokens)}

    def _check_own(self, state: dict[str, Any]) -> None:
        check_seal(state, _FORMAT, "state")
        check_entries(state, {**self._entries(), "dual": dict, "sampler": dict, "seal": int}, "state")
        for name, each in self._nested().items():
            each.check_state(state[name])
        if not torch.equal(state["dual"]["targets"].to(self.dual.targets.device), self.dual.targets):
            raise ValueError("the checkpoint was trained on other targets: load it with its training set")

    def _restore_own(self, state: dict[str, Any]) -> None:
        for name, each in self._nested().items():
            each.restore(state[name])
        self._draws = self._next = None

    def __repr__(self) -> str:
        return f"KernelSSVM({self.head.kernel}, {self.dual})"
