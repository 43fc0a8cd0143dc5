"""The block gap: the loss that trains the head, and the step that its backward pass proposes.

Comments name the lines of [B13] Algorithm 4; ``BCFW.step`` has the others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.gradients import adjoint, cheap_adjoint, combine, gram_product, per_example_adjoint
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.operators import first_occurrences, full_precision, on_host, pick, upload
from torchssvm.core.potentials import Parts, Potentials, as_potentials, scale
from torchssvm.core.row_sparse import dense, select_examples
from torchssvm.core.structure import OracleResult
from torchssvm.distributed.exchange import refusing_on_all
from torchssvm.dual.checks import check_batch, check_dual, check_repeated, check_targets, digest_examples
from torchssvm.dual.state import DualState, Mailbox
from torchssvm.dual.storage import Stored
from torchssvm.steps.box_qp import BlockSteps, BoxQP, check_block_steps
from torchssvm.steps.directions import Atoms, DirectionRule, FrankWolfe, MaxOracle, OracleRule, check_rules

LARGE = 2**26
"""Bytes of a batch's gradients from which on a device makes their inner products alone, where the head says how."""


@dataclass(slots=True)
class Proposal:
    """The directions and steps of a batch of blocks, computed in the forward pass.

    The gradient of the weights is ``factor * sum_i gamma_i d_i``, with ``d_i = (1/n) Phi_i^T Delta_i`` and the step
    gamma_i of block i.
    """

    version: int  # ``DualState.version`` when the directions were computed
    index: Tensor  # [B] int64, the examples
    rows: Tensor  # [R] int64, the rows of the batch that count: the first of every example
    targets: Tensor | None  # [B] int64, digests of the examples' targets; None where the dual has them already
    stored: Stored  # the blocks
    block_steps: BlockSteps  # chooses the steps, of accumulated batches together
    factor: Tensor = field(init=False)  # the upstream gradient of the loss
    scale: float = 1.0  # the same number, once the step has read it
    corner: OracleResult = field(init=False)  # the outputs s_i
    block_gaps: Tensor = field(init=False)  # [B] float64, g_i at the weights of the forward pass
    change: Tensor | None = None  # [B, A + 1], of the atoms' masses; None: all mass goes to the corner
    loss_changes: Tensor = field(init=False)  # [B] float64, the change of l_i for a step of 1
    values: Tensor = field(init=False)  # [B] float64, the derivative of the dual along each direction
    parts: Parts = field(init=False)  # Delta_i in parts space, from ``Stored.combine``
    gammas: Tensor = field(init=False)  # [B] float64 in [0, 1]; 0 in rows that do not count
    gradients: list[Tensor] | None = None  # n d_i, [B, *shape] each, if available
    reference: list[Tensor] = field(init=False)  # sum_i gamma_i d_i, which the gradient is compared with

    def gap(self) -> Tensor:
        """The sum of the block gaps of the rows that count."""
        whole = self.rows.shape == self.index.shape
        return (self.block_gaps if whole else self.block_gaps[self.rows]).sum()


class BlockGap(nn.Module):
    """The duality gap of a batch's blocks: the loss whose gradient is the BCFW direction ([B13] Alg. 4, [G16] eq. 6).

    The value is ``sum_i g_i``, with ``g_i = <p(s_i) - mu_i, theta_i>/n + L_i(s_i)/n - l_i >= 0`` and s_i from the
    loss-augmented max oracle. The gradient with respect to the weights is ``d = (1/n) sum_i gamma_i Phi_i^T Delta_i``,
    with ``Delta_i = p(s_i) - mu_i`` for Frank-Wolfe directions. The backward pass proposes the step to the dual,
    multiplied by the upstream gradient; ``BCFW.step`` takes it. Calls without a backward pass change nothing.

    ``block_steps`` chooses the gamma_i if per-example gradients are available: from the head's ``adjoint``, or by
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
        # In training, the other processes wait for the step.
        with refusing_on_all(dual.ranks, dual.parameters) if _trains(potentials) else nullcontext():
            return self.propose(potentials, target, index)

    def propose(self, potentials: Potentials, target: Any, index: Tensor) -> Tensor:
        """As calling it, for callers that tell the other processes of errors by themselves."""
        dual, n, training = self.dual, self.dual.num_examples, _trains(potentials)
        with full_precision(potentials.device):
            step, theta, target = self._blocks(potentials, target, index, training)
            with torch.no_grad():
                if self._moves_all_mass:
                    # Line 4: s_i = argmax_y L_i(y) + <p(y) - p(y_i), theta_i>.
                    step.corner = corner = find_corner(dual.structure, theta, target)
                    # The block gap is the derivative of the dual towards s_i: g_i = <Delta_i, theta_i>/n + L_i/n - l_i.
                    step.loss_changes = corner.loss / n - dual.loss[step.index]
                    step.values = step.block_gaps = corner.score / n + step.stored.inner(theta) + step.loss_changes
                else:
                    self._between_atoms(step, potentials, theta, target, training)
                if not training:
                    return step.gap()
                # Line 5: the direction Delta_i = p(s_i) - mu_i, and of storages of weights w_i itself.
                step.parts, direct = step.stored.combine(step.change, step.corner)
            # Line 6, for each block of the batch: gamma_i by the box QP, from the gradients Phi_i^T Delta_i.
            step.gradients = self._gradients(potentials, step.parts, direct)
            with torch.no_grad():
                combined = self._solve(step, potentials)
            # The gradient of the loss is d = sum_i gamma_i d_i; its backward pass proposes the step.
            inputs, outputs = self._outputs(step, potentials, combined, direct)
            return _Propose.apply(dual.mailbox, step, outputs, *inputs)

    def _outputs(
        self, step: Proposal, potentials: Potentials, combined: list[Tensor] | None, direct: list[Tensor] | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Tensors and the gradients that the backward pass gives them; sets ``step.reference``.

        These are the weights, where the potentials depend on nothing else that is trained, and else the potentials.
        """
        parameters, share = self.dual.parameters, step.gammas / self.dual.num_examples
        alone = potentials.weights is not None and all(map(operator.is_, potentials.weights, parameters))
        if combined is not None and alone:
            step.reference = combined
            return list(parameters), combined
        weighted = scale(step.parts, share)
        step.reference = adjoint(potentials, weighted, parameters, sparse=True)
        if alone:
            return list(parameters), step.reference
        inputs, outputs = list(potentials.tensors.values()), [weighted[name] for name in potentials.tensors]
        if direct is not None:
            added = combine(direct, share)
            step.reference = [dense(a) + b for a, b in zip(step.reference, added, strict=True)]
            inputs, outputs = inputs + list(parameters), outputs + added
        return inputs, outputs

    def _blocks(
        self, potentials: Potentials, target: Any, index: Tensor, training: bool
    ) -> tuple[Proposal, Potentials, Any]:
        """The blocks of the batch, the potentials as numbers, and the target as the structure has checked it."""
        dual = self.dual
        potentials.index, index = index, check_batch(dual, index, potentials)
        rows = first_occurrences(index)
        given, target = target, dual.structure.check_target(target, potentials)
        if training:
            dual.structure._check_chosen(given, target, potentials.index)
        digests = digest_examples(target, potentials)
        if len(rows) < len(index):
            check_repeated(dual, digests, index)
        theta = potentials.examining()
        with torch.no_grad():
            stored = dual.storage.gather(index, theta, target)
            new = digests if check_targets(dual, digests, index) else None
            if training:
                dual.storage.check_features(stored, potentials)
        return Proposal(dual.version, index, rows, new, stored, self.block_steps), theta, target

    @property
    def _moves_all_mass(self) -> bool:
        """Whether every block moves all its mass to a decoded corner."""
        plain = type(self.direction) is FrankWolfe and type(self.oracle) is MaxOracle
        return plain and not self.dual.storage.keeps_labelings

    def _between_atoms(
        self, step: Proposal, potentials: Potentials, theta: Potentials, target: Any, training: bool
    ) -> None:
        """The block gaps and, for training, the direction rule's change of the atoms' mass."""
        dual, stored, n = self.dual, step.stored, self.dual.num_examples
        kept = stored.atoms(theta, dual.loss[step.index])
        step.corner = self._corners(step, kept, theta, target)
        atoms = _atoms(stored, kept, step.corner, dual, lambda parts: gram_product(potentials, parts, dual.parameters))
        step.block_gaps = atoms.gaps()
        if training:
            step.change = self.direction(atoms)
            step.loss_changes = (step.change * atoms.losses).sum(1) / n
            step.values = (step.change * atoms.scores).sum(1) / n + step.loss_changes

    def _corners(self, step: Proposal, kept: tuple[Tensor, ...], theta: Potentials, target: Any) -> OracleResult:
        """The corners: cached labelings where the oracle rule accepts them, decoded elsewhere."""
        dual, stored = self.dual, step.stored
        decoded: Tensor | None = None
        if self.oracle.needs_labelings and kept[0].shape[1] > 1:
            mass, scores, losses, valid = kept
            hinges = scores + losses
            best = hinges[:, 1:].masked_fill(~valid[:, 1:], -torch.inf).max(1)
            gaps = (best.values - (mass * hinges).sum(1)) / dual.num_examples
            decoded = self.oracle.misses(gaps, step.index, dual) | torch.isinf(best.values)
        if decoded is None or bool(on_host(decoded).all()):
            corner = find_corner(dual.structure, theta, target)
            corner.column = stored.lookup(corner.labeling)
            return corner
        column = best.indices + 1
        score, loss = (t.gather(1, column.unsqueeze(1)).squeeze(1) for t in (scores, losses))
        corners = OracleResult(stored.cached(column), score, loss, decoded=decoded, column=column)
        if not bool(on_host(decoded).any()):
            return corners
        rows = upload(on_host(decoded).nonzero().flatten(), decoded.device)
        corner = find_corner(dual.structure, theta.select(rows), tree_map(lambda t: pick(t, rows), target))
        pairs = zip(tree_tensors(corners.labeling), tree_tensors(corner.labeling), strict=True)
        labelings = [old.index_copy(0, rows, new.to(old.dtype)) for old, new in pairs]
        corners.labeling, corners.relaxed = tree_replace(corners.labeling, labelings), corner.relaxed
        corners.score, corners.loss = score.index_copy(0, rows, corner.score), loss.index_copy(0, rows, corner.loss)
        corners.column = torch.where(decoded, stored.lookup(corners.labeling), column)
        return corners

    def _gradients(self, potentials: Potentials, parts: Parts, direct: list[Tensor] | None) -> list[Tensor] | None:
        """``Phi_i^T Delta_i``, ``[B, *shape]`` for each parameter, if needed or cheap; else None."""
        dual = self.dual
        if dual.storage.needs_gradients:
            gradients: list[Tensor] | None = per_example_adjoint(potentials, parts, dual.parameters)
        else:
            needed = self.block_steps.needs_gradients
            waiting = [g for step in dual.mailbox.waiting for g in getattr(step, "gradients", None) or []]
            kept = sum(g.numel() * g.element_size() for g in waiting)
            needed = needed and not (direct is None and self._takes_gram(potentials))
            gradients = cheap_adjoint(potentials, parts, dual.parameters, kept) if needed else None
        if gradients is None or direct is None:
            return gradients
        return [dense(g) + d for g, d in zip(gradients, direct, strict=True)]

    def _takes_gram(self, potentials: Potentials) -> bool:
        """Whether a device computes inner products of large gradients without these, and their sum by a backward pass.

        Steps of several batches at once then choose their gammas for each batch alone.
        """
        if type(self.block_steps) is not BoxQP or self.dual.storage.needs_gradients or potentials.gram is None:
            return False
        size = potentials.batch_size * sum(p.numel() * p.element_size() for p in self.dual.parameters)
        return potentials.device.type != "cpu" and size > LARGE

    def _solve(self, step: Proposal, potentials: Potentials) -> list[Tensor] | None:
        """Set the gamma of each block (0 in repeated rows); ``sum_i gamma_i d_i``, if gradients are available."""
        values, rows, gradients, n = step.values, step.rows, step.gradients, self.dual.num_examples
        whole, weight, combined = len(rows) == len(values), 1.0 / (self.dual.lam * n**2), None
        if not whole:
            values = values[rows]
        if gradients is not None:
            chosen = gradients if whole else [select_examples(g, rows) for g in gradients]
            gammas, combined, _ = self.block_steps.solve(chosen, values, weight, 1.0 / n)
        elif potentials.gram is not None and self._takes_gram(potentials):
            assert isinstance(self.block_steps, BoxQP)
            gram = potentials.gram(step.parts)
            gammas = self.block_steps.gammas(gram if whole else gram[rows][:, rows], values, weight)
        else:
            gammas = torch.ones_like(values)
        step.gammas = gammas if whole else torch.zeros_like(step.values).index_copy_(0, rows, gammas)
        return combined


def _trains(potentials: Potentials) -> bool:
    """Whether a backward pass may follow."""
    return torch.is_grad_enabled() and potentials.requires_grad


def _atoms(
    stored: Stored, kept: tuple[Tensor, ...], corners: OracleResult, dual: DualState, respond: Callable[[Parts], Parts]
) -> Atoms:
    """The atoms of the blocks, and a last column for the corner, valid where it is not yet an atom."""
    assert corners.column is not None
    mass, scores, losses, valid = kept
    new = corners.column == 0
    mass = torch.cat([mass, torch.zeros_like(mass[:, :1])], 1)
    scores = torch.cat([scores, torch.where(new, corners.score, 0.0).unsqueeze(1)], 1)
    losses = torch.cat([losses, torch.where(new, corners.loss, 0.0).unsqueeze(1)], 1)
    corner = torch.where(new, valid.shape[1], corners.column)
    weight = 1.0 / (dual.lam * dual.num_examples**2)
    return Atoms(
        mass,
        scores,
        losses,
        torch.cat([valid, new.unsqueeze(1)], 1),
        corner,
        dual.num_examples,
        lambda: weight * stored.curvature(corners, respond),
    )


class _Propose(torch.autograd.Function):
    """Forward returns the gap; backward returns ``gradients`` times the upstream gradient, and proposes the step."""

    @staticmethod
    def forward(ctx: Any, mailbox: Mailbox, step: Proposal, gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.mailbox, ctx.step, ctx.gradients = mailbox, step, gradients
        return step.gap()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        step = copy(ctx.step)  # the graph may be kept, and used again
        step.factor = upstream[0].detach()
        scale = step.factor.to(ctx.gradients[0].dtype)
        # The new tensors become ``.grad``: the optimizer compares these with the reference.
        if any(gradient.is_sparse for gradient in ctx.gradients):
            gradients: Sequence[Tensor] = [gradient * scale for gradient in ctx.gradients]
        else:  # in one kernel
            gradients = torch._foreach_mul(ctx.gradients, scale)
        ctx.mailbox.put(step)
        return (None, None, None, *gradients)
