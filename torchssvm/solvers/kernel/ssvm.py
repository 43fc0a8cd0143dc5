"""Block-coordinate Frank-Wolfe in kernel form."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_limit, check_number, check_whole
from torchssvm.core.caller import warn
from torchssvm.core.digest import digest_targets
from torchssvm.core.linearity import check_at_first_call
from torchssvm.core.potentials import full_precision, inner
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.schema import check_seal, require, with_seal
from torchssvm.core.structure import Labeling, as_decoding, digest
from torchssvm.solvers.certificate import Certificate, crosses
from torchssvm.solvers.kernel.blocks import KernelBlocks, psi_of
from torchssvm.solvers.kernel.data import TrainingSet
from torchssvm.solvers.kernel.directions import FrankWolfe, KernelDirection
from torchssvm.solvers.kernel.dual import KernelDual, TokenParts
from torchssvm.solvers.kernel.functions import name_of
from torchssvm.solvers.kernel.gram import GramRows
from torchssvm.solvers.kernel.head import KernelHead
from torchssvm.solvers.kernel.support import SupportCounts, SupportLabelings

_FORMAT = 1


class KernelSSVM:
    """Trains a :class:`KernelHead` by [B13] Algorithm B.1, in batches, with exact step sizes.

    The implicit weights are ``w_k = (1/(lam n)) sum_u phi(x_u) psi_u``: the dual blocks themselves are the coefficients
    of the expansion, and ``<phi(x_t), phi(x_u)> = K(x_t, x_u)``. That is why this is no head for ``BCFW``, which would
    hold the blocks a second time, as weights, and measure them by the wrong inner product. Potentials of a batch are
    computed from its kernel rows when they are needed, so they never drift; the other weights of the head are explicit.
    A batch takes a step for each of its blocks from the box QP, and the exact line search over all of them, as
    ``BlockGap`` and ``BCFW`` do.

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
        sweeps, capacity = check_whole(sweeps, "sweeps", 0), check_whole(capacity, "capacity", 2)
        memory_limit = check_limit(memory_limit)
        if not isinstance(head, KernelHead):
            raise TypeError(f"head is a {type(head).__name__}, and must be a KernelHead, such as KernelChain(...)")
        if direction is not None and (
            isinstance(direction, type) or not callable(direction) or hasattr(direction, "needs_labelings")
        ):
            raise TypeError(f"direction={direction!r} must be an object such as torchssvm.solvers.kernel.Pairwise()")
        self.head = head
        self.direction = direction if direction is not None else FrankWolfe()
        self.sweeps = sweeps
        self.data = TrainingSet(head, x, y, lengths)
        self.dual = KernelDual(
            len(x), lam, head.structure, head.linear.parameters(), storage=TokenParts(), memory_limit=memory_limit
        )
        check_at_first_call(head.linear)
        self.dual.to(x.device)
        self.dual.targets = digest_targets(self.data.target, lengths)
        self.gram = GramRows(head.kernel, self.data.tokens, self.data.counts, memory_limit)
        self.support = SupportLabelings(self.data.labels, head.num_states, capacity, memory_limit)
        self._blocks = KernelBlocks(head, self.data, self.dual, self.gram, self.support)
        with torch.no_grad():
            for parameter in self.dual.parameters:
                parameter.zero_()
        head.support, head.coefficients = head.support[:0], head.coefficients[:0]
        self._head_version = self.dual.version

    def step(self, index: Sequence[int] | Tensor) -> float:
        """One step on the blocks of a batch; an example named twice counts once.

        Args:
            index: ``[B]`` int64, the examples.

        Returns:
            The sum of the batch's block gaps before the step.

        Raises:
            ValueError: ``index`` is not valid, or the oracle is not. Nothing has changed then.
            RuntimeError: The explicit weights were changed by others.
            MemoryError: The kernel rows of the batch do not fit; nothing has changed.
        """
        self._blocks.check_weights()
        with full_precision(self.data.device):
            batch = self._blocks.read(self.data.check_index(index), self._blocks.table())
            self._blocks.take(batch, self._blocks.choose(batch, self.direction, self.sweeps))
        self.dual.mailbox.notify()
        return float(batch.gaps.sum())

    @torch.no_grad()
    def certify(self) -> Certificate:
        """One exact pass: primal, dual and gap of the weights held; brings every gap estimate up to date.

        The explicit weights are first recomputed from the dual blocks, which takes their rounding back (``drift`` says
        how much it was); the implicit ones always follow from the blocks.

        Raises:
            ValueError: The kernel returned what is no matrix of finite numbers. Nothing has changed then.
            RuntimeError: The gap is negative by more than rounding; nothing has changed.
        """
        start = time.perf_counter()
        dual, n = self.dual, self.dual.num_examples
        gaps = torch.zeros_like(dual.gap_estimates)
        hinges = norm = 0.0
        exact = True
        with self._blocks.recomputed() as drift:
            table = self._blocks.table()
            for index in self.gram.chunks():
                with full_precision(index.device):
                    batch = self._blocks.read(index, table)
                psi = psi_of(batch)[self.head.unary]
                norm += float(inner({"": psi}, {"": batch.kernel}).sum()) / (dual.lam * n)  # |w_k|^2
                hinges += float(batch.corner.bound.sum())
                exact &= batch.corner.exact
                gaps[index] = batch.gaps
            implicit, explicit = max(norm, 0.0), squared_norm(dual.parameters)
            norm = implicit + explicit
            primal = dual.lam / 2 * norm + hinges / n
            value = float(dual.loss.sum()) - dual.lam / 2 * explicit - dual.lam / 2 * implicit
            if crosses(primal, value, self.head.dtype, dual.lam * norm):
                raise RuntimeError(f"the gap is negative, {primal - value:.6g}: does the kernel change between calls?")
        dual.kernel_squared_norm = implicit
        if drift > 1e5 * torch.finfo(self.head.dtype).eps:
            warn(
                f"the explicit weights differed from those of the dual by {drift:.2g} of their length, more than "
                "rounding: they were changed by others, and are now recomputed",
            )
        value = min(value, primal)  # beyond it is rounding
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
            sampler: Batches of one epoch for each iteration, such as ``GapBatchSampler(svm.dual, batch_size=16)``.
            tolerance: Positive.
            max_passes: Effective passes after which to stop in any case.
            epochs: Epochs between exact passes.

        Returns:
            The last certificate.

        Raises:
            ValueError: An argument is not positive, or the sampler gives no batch.
        """
        tolerance = check_number(tolerance, "tolerance", above=0.0)
        max_passes = check_number(max_passes, "max_passes", above=0.0, finite=False)
        epochs = check_whole(epochs, "epochs")
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
            table = self._blocks.table()
            chosen = self._blocks.is_support(table)
            self.head.support = self.data.tokens[chosen].clone()
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
        return self.support.counts(int(self._blocks.is_support(self._blocks.table()).sum()), len(self.data.tokens))

    def nbytes(self) -> dict[str, int]:
        """Bytes held now: dual blocks, support labelings, cached kernel rows."""
        return {
            "blocks": self.dual.storage.nbytes(),
            "support": self.support.nbytes(),
            "kernel rows": self.gram.nbytes(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything but the training data and the sampler: tensors, numbers and strings only."""
        return with_seal(
            {
                "format": _FORMAT,
                "kernel": name_of(self.head.kernel),
                "tokens": digest(self.data.tokens),
                "dual": self.dual.state_dict(),
                "support": self.support.state_dict(),
            }
        )

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ValueError if ``state`` is of another kernel, of other data, or damaged; changes nothing."""
        expected = {"format": _FORMAT, "kernel": name_of(self.head.kernel), "tokens": digest(self.data.tokens)}
        for name, here in expected.items():
            if require(state, name, type(here), "state") != here:
                raise ValueError(f"the checkpoint is of another problem: {name} is {state[name]} there and {here} here")
        self.support.check_state(require(state, "support", dict, "state"))
        dual = require(state, "dual", dict, "state")
        self.dual.check_state(dual)
        if not torch.equal(dual["targets"].to(self.dual.targets.device), self.dual.targets):
            raise ValueError("the checkpoint was trained on other targets: duals belong to the data of their training")
        check_seal(state, "state")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue to the same bits; nothing changes if the state does not fit.

        Raises:
            ValueError: The state is of another kernel, of other data, or damaged.
        """
        self.check_state(state)
        self.dual.restore(state["dual"])
        self.support.load_state_dict(state["support"])

    def __repr__(self) -> str:
        return f"KernelSSVM({self.head.kernel}, direction={self.direction}, {self.dual})"
