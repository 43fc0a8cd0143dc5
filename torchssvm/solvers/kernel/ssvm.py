"""Block-coordinate Frank-Wolfe in kernel form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_limit, check_whole
from torchssvm.core.caller import warn
from torchssvm.core.digest import digest_targets
from torchssvm.core.jit import clock
from torchssvm.core.linearity import check_at_first_call
from torchssvm.core.potentials import inner
from torchssvm.core.precision import full_precision
from torchssvm.core.ranks import Ranks
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.schema import Same, Schema, Stateful, version
from torchssvm.core.structure import Labeling, as_decoding, digest
from torchssvm.core.undisturbed import undisturbed
from torchssvm.dual.checks import check_structure
from torchssvm.solvers.certificate import Certificate, dual_exceeds_primal, make_certificate
from torchssvm.solvers.kernel.blocks import KernelBlocks, KernelDual, TokenParts
from torchssvm.solvers.kernel.data import TrainingSet
from torchssvm.solvers.kernel.directions import MOVES, KernelDirection
from torchssvm.solvers.kernel.functions import GramRows, name_of
from torchssvm.solvers.kernel.head import KernelHead
from torchssvm.solvers.kernel.support import SupportCounts, SupportLabelings
from torchssvm.solvers.trainer import DualTrainer
from torchssvm.steps.directions import FrankWolfe, Pairwise
from torchssvm.steps.orders import Order
from torchssvm.steps.sampler import GapBatchSampler

_FORMAT = 2


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
        lam: Regularisation, positive.
        direction: ``FrankWolfe()`` (the default) or ``Pairwise()``, or a :class:`KernelDirection`.
        batch_size: Examples of a step.
        order: In which order examples are visited; None is ``Proportional()``, gap sampling.
        seed: Seed of the draws.
        sweeps: Sweeps of coordinate ascent over a batch's box QP; 0 takes one common step for all blocks.
        capacity: Most support labelings listed for an example; see :class:`SupportLabelings`.
        memory_limit: Bytes for kernel rows, cached ones included; the same again for the dual blocks, and for the
            support labelings. None is half of the available memory for the rows, all of it for each of the others.

    Attributes:
        dual: A ``DualState``: losses, gap estimates, counters; ``svm.dual.value()`` is the dual objective.
        sampler: Draws the batches.
        support: The support labelings with their masses.
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
        direction: FrankWolfe | Pairwise | KernelDirection | None = None,
        batch_size: int = 16,
        order: Order | None = None,
        seed: int = 0,
        sweeps: int = 5,
        capacity: int = 64,
        memory_limit: int | None = None,
    ) -> None:
        Ranks.here().refuse_several("KernelSSVM", "Train by solve(...), CompiledBCFW or BCFW instead")
        sweeps, capacity = check_whole(sweeps, "sweeps", 0), check_whole(capacity, "capacity", 2)
        memory_limit = check_limit(memory_limit)
        if not isinstance(head, KernelHead):
            raise TypeError(f"head is a {type(head).__name__}, and must be a KernelHead, such as KernelChain(...)")
        other = isinstance(direction, type) or not callable(direction) or hasattr(direction, "needs_labelings")
        if direction is not None and other and type(direction) not in MOVES:
            raise TypeError(f"direction={direction!r} must be an object such as torchssvm.solvers.kernel.Pairwise()")
        self.head = head
        rule: Any = direction if direction is not None else FrankWolfe()
        self.direction, self._move = rule, MOVES.get(type(rule), rule)
        self.sweeps = sweeps
        self.data = TrainingSet(head, x, y, lengths)
        self.dual: KernelDual = KernelDual(
            len(x), lam, head.structure, head.linear.parameters(), storage=TokenParts(), memory_limit=memory_limit
        )
        check_at_first_call(head.linear)
        self.dual.to(x.device)
        self.dual.targets = digest_targets(self.data.target, lengths)
        self.sampler = GapBatchSampler(self.dual, batch_size=batch_size, order=order, seed=seed)
        self._epoch: Iterator[list[int]] = iter(())  # the remaining batches of the current epoch
        self._next: list[int] | None = None  # a batch that was drawn, but whose step failed
        self.gram = GramRows(head.kernel, self.data.tokens, self.data.counts, memory_limit)
        self.support = SupportLabelings(self.data.labels, head.num_states, capacity, memory_limit)
        self._blocks = KernelBlocks(head, self.data, self.dual, self.gram, self.support)
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
        while self._next is None:  # the epoch may be used up
            self._next = next(self._epoch, None)
            if self._next is None:
                self._epoch = iter(self.sampler)
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
            step = self._blocks.choose(batch, self._move, self.sweeps)
            with undisturbed():
                self._blocks.take(batch, step)
                self.dual.mailbox.notify()
        return float(batch.gaps.sum())

    @torch.no_grad()
    def certify(self) -> Certificate:
        """One exact pass: primal, dual and gap of the held weights; updates every gap estimate.

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
                raise RuntimeError(f"the gap is negative, {primal - value:.6g}: does the kernel change between calls?")
        if drift > 1e5 * torch.finfo(self.head.dtype).eps:
            warn(
                f"the explicit weights differed from those of the dual by {drift:.2g} of their length, more than "
                "rounding: they were changed by others, and are now recomputed"
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
        """Write the support tokens and their coefficients into the head, which then predicts on its own."""
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
        """Numbers of support examples, labelings and tokens."""
        return self.support.counts(int(self._blocks.is_support(self._blocks.table()).sum()), len(self.data.tokens))

    def nbytes(self) -> dict[str, int]:
        """Bytes held now: dual blocks, support labelings, cached kernel rows."""
        return {
            "blocks": self.dual.storage.nbytes(),
            "support": self.support.nbytes(),
            "kernel rows": self.gram.nbytes(),
        }

    def __getstate__(self) -> dict[str, Any]:
        """Copies start a new epoch."""
        return {**vars(self), "_epoch": iter(())}

    def _schema(self) -> Schema:
        return {
            "format": version(_FORMAT),
            "kernel": Same(name_of(self.head.kernel)),
            "tokens": Same(digest(self.data.tokens)),
            "dual": self.dual,
            "support": self.support,
            "sampler": self.sampler,
            "seal": int,
        }

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        if not torch.equal(state["dual"]["targets"].to(self.dual.targets.device), self.dual.targets):
            raise ValueError("the checkpoint was trained on other targets: duals belong to the data of their training")

    def restore(self, state: dict[str, Any]) -> None:
        """Continue bit for bit from a state that :meth:`check_state` accepted."""
        super().restore(state)
        self._epoch, self._next = iter(()), None

    def __repr__(self) -> str:
        return f"KernelSSVM({self.head.kernel}, direction={self.direction}, {self.dual})"
