"""The block gap: the loss that trains the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.batch import first_occurrences, tree_map, tree_replace, tree_tensors
from torchssvm.core.gradients import adjoint, cheap_adjoint, combine, gram_product, per_example_adjoint
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.operators import full_precision, known, on_host, pick, read_together, upload
from torchssvm.core.potentials import Parts, Potentials, as_potentials, scale
from torchssvm.core.problem import digest_examples
from torchssvm.core.row_sparse import dense, select_examples
from torchssvm.core.structure import OracleResult
from torchssvm.distributed.exchange import refusing_on_all
from torchssvm.dual.checks import check_batch, check_dual, check_repeated, check_targets
from torchssvm.dual.state import DualState, Mailbox
from torchssvm.dual.storage import Stored
from torchssvm.solvers.proposal import Proposal
from torchssvm.steps.box_qp import BlockSteps, BoxQP, check_block_steps
from torchssvm.steps.directions import Atoms, DirectionRule, FrankWolfe, MaxOracle, OracleRule, check_rules
from torchssvm.structures.hidden_states.structure import HiddenStates

LARGE = 2**26
"""Bytes of a batch's gradients from which on a device makes their inner products alone, where the head says how."""


class BlockGap(nn.Module):
    """The duality gap of a batch's blocks: the loss whose gradient is the BCFW direction ([B13] Alg. 4, [G16] eq. 6).

    The value is ``sum_i g_i``, with ``g_i = <p(s_i) - mu_i, theta_i>/n + L_i(s_i)/n - l_i >= 0`` and s_i from the
    loss-augmented max oracle. The gradient with respect to the weights is ``d = (1/n) sum_i gamma_i Phi_i^T Delta_i``,
    with ``Delta_i = p(s_i) - mu_i`` for Frank-Wolfe directions. The backward pass proposes the step to the dual,
    multiplied by the upstream gradient; ``BCFW.step`` takes it. Calls without a backward pass change nothing.

    ``block_steps`` chooses the gamma_i if per-example gradients are available: from the head's own ``adjoint``, or by
    ``torch.func.vmap``, which ``DualState.for_head`` prepares. Otherwise every gamma_i is 1: for heads with in-place
    operations, custom autograd functions without ``vmap`` rules or control flow that depends on values, for compiled
    heads, and if the gradients of all batches that wait for the step take more than 256 MiB. A warning says so once for
    each head.

    With an approximate oracle (``Decoding.exact`` is False) or a cached labeling, s_i need not be the best output. The
    value is then a lower bound of the blocks' gap and can be negative; the step never lowers the dual and may be 0
    ([B13] appendix C). ``certify`` uses the oracle's upper bounds instead, and says ``exact=False``.

    Args:
        direction: The direction of each block; None is ``FrankWolfe()``.
        oracle: Whether to decode or to take a cached labeling; None is ``MaxOracle()``, which always decodes.
        block_steps: The step of each block: ``BoxQP(sweeps=5)`` (None) or ``CommonStep()``.

    Raises:
        ValueError: ``direction`` or ``oracle`` needs a dual that keeps labelings, or ``block_steps`` does not support
            these rules.
        TypeError: ``dual`` is not a DualState, or a rule is not of its kind.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> loss = BlockGap(DualState.for_head(head, num_examples=30, lam=0.1))
        >>> loss(head(points[:5]), classes[:5], torch.arange(5))  # weights of zero: each block has the gap 1 / n
        tensor(0.1667, dtype=torch.float64, grad_fn=<_ProposeBackward>)
    """

    def __init__(
        self,
        dual: DualState,
        direction: DirectionRule | None = None,
        *,
        oracle: OracleRule | None = None,
        block_steps: BlockSteps | None = None,
    ) -> None:
        super().__init__()
        self.dual = check_dual(dual)
        self.direction = direction if direction is not None else FrankWolfe()
        self.oracle = oracle if oracle is not None else MaxOracle()
        self.block_steps = check_block_steps(block_steps if block_steps is not None else BoxQP())
        check_rules(self.direction, self.oracle, dual.storage)
        if self.direction.needs_curvature:
            dual.storage.keep_curvature()

    def forward(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any, index: Tensor) -> Tensor:
        """The sum of the batch's block gaps, a float64 scalar.

        Args:
            potentials: The head's output, in the weights' dtype.
            target: Targets of the batch, as the structure takes them.
            index: ``[B]`` int64, positions of the examples in the dataset. A repeated example counts once.

        Raises:
            ValueError: Index, target or potentials are not valid, several states of HiddenStates show a label of the
                target, or the oracle returned invalid outputs.
            TypeError: The potentials have another dtype than the weights.
            RuntimeError: An example's target has changed since its first visit; or its features have, and the storage
                cannot follow them. Of several processes, the others raise RankError in their next ``BCFW.step``.
            MemoryError: The dual blocks of all examples would not fit.
        """
        potentials, dual = as_potentials(potentials), self.dual
        step = torch.is_grad_enabled() and potentials.requires_grad  # for which the other processes wait
        with refusing_on_all(dual.ranks, dual.parameters) if step else nullcontext():
            return self.propose(potentials, target, index)

    def propose(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any, index: Tensor) -> Tensor:
        """As calling it, for callers that tell the other processes of errors by themselves."""
        potentials = as_potentials(potentials)
        with full_precision(potentials.device):
            return self._value(potentials, target, index)

    def _value(self, potentials: Potentials, target: Any, index: Tensor) -> Tensor:
        dual = self.dual
        potentials.index, blocks = index, check_batch(dual, index, potentials)
        index = known(blocks.clone(), on_host(blocks)) if blocks is index else blocks
        rows = first_occurrences(index)
        training = torch.is_grad_enabled() and potentials.requires_grad
        given, target = target, dual.structure.check_target(target, potentials)
        if training and isinstance(dual.structure, HiddenStates):
            dual.structure.check_chosen(given, target, potentials.index)
        detached = potentials.detach()
        digests = digest_examples(target, potentials)
        if len(rows) < len(index):
            check_repeated(dual, digests, index)
        with torch.no_grad():
            stored = dual.storage.gather(index, detached, target)
            new = digests if check_targets(dual, digests, index) else None
            if training:
                dual.storage.check_features(stored, potentials)
            step = Proposal(dual.version, index, rows, new, detached, stored, self.block_steps)
            if self._simple:
                found = find_corner(dual.structure, detached, target)
                _towards(step, found, dual.loss[index], dual.num_examples)
                step.block_gaps = step.values
            else:
                self._between_atoms(step, potentials, target, training)
            if not training:
                return step.gap()
            step.parts, direct = stored.combine(step.change, step.found)
        return self._choose_steps(step, potentials, direct)

    def _choose_steps(self, step: Proposal, potentials: Potentials, direct: list[Tensor] | None) -> Tensor:
        """The gap of ``step``, whose backward pass proposes it; solves for the gammas."""
        dual, n = self.dual, self.dual.num_examples
        step.gradients = self._gradients(potentials, step.parts, direct)
        with torch.no_grad():
            self._solve(step, potentials)
        inputs: list[Tensor]
        if step.reference is not None and _same(potentials.weights or (), dual.parameters):
            inputs, outputs = list(dual.parameters), step.reference
        else:
            share = step.gammas / n
            weighted = scale(step.parts, share)
            # Euler's identity does not check the gradient of weights that are zero.
            if step.gradients is None and (
                dual.is_large or not all(map(bool, read_together(*(p.detach().all() for p in dual.parameters))))
            ):
                step.reference = adjoint(potentials, weighted, dual.parameters, sparse=True)
            names = list(potentials.tensors)
            inputs, outputs = [potentials.tensors[name] for name in names], [weighted[name] for name in names]
            if direct is not None:
                inputs, outputs = inputs + list(dual.parameters), outputs + combine(direct, share)
        return _Propose.apply(dual.mailbox, step, outputs, *inputs)

    @property
    def _simple(self) -> bool:
        """Whether every block moves all its mass to a decoded corner."""
        known = type(self.direction) is FrankWolfe and type(self.oracle) is MaxOracle
        return known and not self.dual.storage.keeps_labelings

    def _between_atoms(self, step: Proposal, potentials: Potentials, target: Any, training: bool) -> None:
        """The block gaps and, for training, the direction rule's change of the atoms' mass."""
        dual, stored, n = self.dual, step.stored, self.dual.num_examples
        kept = stored.atoms(step.potentials, dual.loss[step.index])
        step.found = self._find(step, kept, target)
        atoms = _atoms(stored, kept, step.found, dual, lambda parts: gram_product(potentials, parts, dual.parameters))
        step.block_gaps = atoms.gaps()
        if not training:
            return
        step.change = self.direction(atoms)
        terms = step.change * atoms.scores / n
        step.slopes, step.slope_terms = terms.sum(1), tuple(terms.unbind(1))
        step.loss_changes = (step.change * atoms.losses).sum(1) / n
        step.values = step.slopes + step.loss_changes

    def _find(self, step: Proposal, kept: tuple[Tensor, ...], target: Any) -> OracleResult:
        """The corners: cached labelings where the oracle rule accepts them, decoded elsewhere."""
        dual, stored, potentials = self.dual, step.stored, step.potentials
        decoded: Tensor | None = None
        if self.oracle.needs_labelings and kept[0].shape[1] > 1:
            mass, scores, losses, valid = kept
            hinges = scores + losses
            best = hinges[:, 1:].masked_fill(~valid[:, 1:], -torch.inf).max(1)
            gaps = (best.values - (mass * hinges).sum(1)) / dual.num_examples
            decoded = self.oracle.misses(gaps, step.index, dual) | torch.isinf(best.values)
        if decoded is None or bool(on_host(decoded).all()):
            corner = find_corner(dual.structure, potentials, target)
            corner.column = stored.lookup(corner.labeling)
            return corner
        column = best.indices + 1
        score, loss = (t.gather(1, column.unsqueeze(1)).squeeze(1) for t in (scores, losses))
        found = OracleResult(stored.cached(column), score, loss, decoded=decoded, column=column)
        if not bool(on_host(decoded).any()):
            return found
        rows = upload(on_host(decoded).nonzero().flatten(), decoded.device)
        corner = find_corner(dual.structure, potentials.select(rows), tree_map(lambda t: pick(t, rows), target))
        pairs = zip(tree_tensors(found.labeling), tree_tensors(corner.labeling), strict=True)
        held = [old.index_copy(0, rows, new.to(old.dtype)) for old, new in pairs]
        found.labeling, found.relaxed = tree_replace(found.labeling, held), corner.relaxed
        found.score, found.loss = score.index_copy(0, rows, corner.score), loss.index_copy(0, rows, corner.loss)
        found.column = torch.where(decoded, stored.lookup(found.labeling), column)
        return found

    def _gradients(self, potentials: Potentials, parts: Parts, direct: list[Tensor] | None) -> list[Tensor] | None:
        """``Phi_i^T Delta_i``, ``[B, *shape]`` for each parameter, if needed or cheap; else None."""
        dual = self.dual
        if dual.storage.needs_gradients:
            found: list[Tensor] | None = per_example_adjoint(potentials, parts, dual.parameters)
        else:
            needed = self.block_steps.needs_gradients
            waiting = [g for step in dual.mailbox.waiting for g in getattr(step, "gradients", None) or []]
            kept = sum(g.numel() * g.element_size() for g in waiting)
            needed = needed and not (direct is None and self._takes_gram(potentials))
            found = cheap_adjoint(potentials, parts, dual.parameters, kept) if needed else None
        if found is None:
            return None
        if direct is None:
            return found
        with torch.no_grad():
            return [dense(g) + d for g, d in zip(found, direct, strict=True)]

    def _takes_gram(self, potentials: Potentials) -> bool:
        """Whether a device computes inner products of large gradients without these, and their sum by a backward pass.

        Steps of several batches at once then choose their gammas for each batch alone.
        """
        if type(self.block_steps) is not BoxQP or self.dual.storage.needs_gradients or potentials.gram is None:
            return False
        size = potentials.batch_size * sum(p.numel() * p.element_size() for p in self.dual.parameters)
        return potentials.device.type != "cpu" and size > LARGE

    def _solve(self, step: Proposal, potentials: Potentials) -> None:
        """Set the gamma of each block (0 in repeated rows), and ``sum_i gamma_i d_i`` with its squared norm."""
        values, rows, gradients, n = step.values, step.rows, step.gradients, self.dual.num_examples
        whole, weight = len(rows) == len(values), 1.0 / (self.dual.lam * n**2)
        if gradients is None and potentials.gram is not None and self._takes_gram(potentials):
            assert isinstance(self.block_steps, BoxQP)
            gram, values = potentials.gram(step.parts), values if whole else values[rows]
            found = self.block_steps.gammas(gram if whole else gram[rows][:, rows], values, weight)
            step.gammas = found if whole else torch.zeros_like(step.slopes).index_copy_(0, rows, found)
            step.reference = adjoint(potentials, scale(step.parts, step.gammas / n), self.dual.parameters)
            return
        if gradients is None:
            ones = torch.ones_like(values)
            step.gammas = ones if whole else torch.zeros_like(values).index_fill_(0, rows, 1.0)
            return
        if not whole:
            gradients, values = [select_examples(g, rows) for g in gradients], values[rows]
        found, step.reference, step.squared_norm = self.block_steps.solve(gradients, values, weight, 1.0 / n)
        step.gammas = found if whole else torch.zeros_like(step.slopes).index_copy_(0, rows, found)


def _towards(step: Proposal, found: OracleResult, losses: Tensor, n: int) -> None:
    """Set the direction that moves all mass of every block to ``found``."""
    towards, held = found.score / n, step.stored.inner(step.potentials)
    step.found, step.slopes, step.slope_terms = found, towards + held, (towards, held)
    step.loss_changes = found.loss / n - losses
    step.values = step.slopes + step.loss_changes


def _atoms(
    stored: Stored, kept: tuple[Tensor, ...], found: OracleResult, dual: DualState, respond: Callable[[Parts], Parts]
) -> Atoms:
    """The atoms of the blocks, and a last column for the corner, valid where it is not yet an atom."""
    assert found.column is not None
    mass, scores, losses, valid = kept
    new = found.column == 0
    mass = torch.cat([mass, torch.zeros_like(mass[:, :1])], 1)
    scores = torch.cat([scores, torch.where(new, found.score, 0.0).unsqueeze(1)], 1)
    losses = torch.cat([losses, torch.where(new, found.loss, 0.0).unsqueeze(1)], 1)
    corner = torch.where(new, valid.shape[1], found.column)
    weight = 1.0 / (dual.lam * dual.num_examples**2)
    return Atoms(
        mass,
        scores,
        losses,
        torch.cat([valid, new.unsqueeze(1)], 1),
        corner,
        dual.num_examples,
        lambda: weight * stored.curvature(found, respond),
    )


class _Propose(torch.autograd.Function):
    """Forward returns the gap; backward returns ``gradients`` times the upstream gradient, and proposes the step."""

    @staticmethod
    def forward(ctx: Any, mailbox: Mailbox, step: Proposal, gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.mailbox, ctx.step, ctx.gradients = mailbox, step, gradients
        return step.gap()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (factor,) = upstream
        step = copy(ctx.step)  # the graph may be kept, and used again
        if factor.is_cpu:
            step.scale = float(factor)
        else:
            step.factor = factor.detach()
        scale = step.scale if step.factor is None else step.factor.to(ctx.gradients[0].dtype)
        # The new tensors become those of ``.grad``: the optimizer compares these with the old ones.
        if any(gradient.is_sparse for gradient in ctx.gradients):
            gradients: Sequence[Tensor] = [gradient * scale for gradient in ctx.gradients]
        else:  # in one kernel
            gradients = torch._foreach_mul(ctx.gradients, scale)
        ctx.mailbox.put(step)
        return (None, None, None, *gradients)


def _same(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(tensors) == len(others) and all(a is b for a, b in zip(tensors, others, strict=True))
