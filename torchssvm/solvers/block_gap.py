"""The two losses: the block gap, which trains the head, and the structured hinge, which trains the features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.digest import digest_targets
from torchssvm.core.gradients import adjoint, cheap_adjoint, combine, gram_product, per_example_adjoint
from torchssvm.core.mailbox import Mailbox
from torchssvm.core.potentials import Parts, Potentials, as_potentials, scale
from torchssvm.core.precision import full_precision
from torchssvm.core.row_sparse import dense, select_examples, squared_norm
from torchssvm.core.structure import OracleResult, Structure, find_corner
from torchssvm.dual.state import DualState, check_dual
from torchssvm.dual.storage import Storage, Stored
from torchssvm.steps.block_steps import BlockSteps, check_block_steps
from torchssvm.steps.box_qp import BoxQP
from torchssvm.steps.cache import MaxOracle, OracleRule
from torchssvm.steps.direction import Atoms, DirectionRule
from torchssvm.steps.frank_wolfe import FrankWolfe
from torchssvm.steps.proposal import Proposal


class BlockGap(nn.Module):
    """The duality gap of a batch's blocks: the loss whose gradient is the BCFW direction ([B13] Alg. 4, [G16] eq. 6).

    Its value is ``sum_i g_i``, with ``g_i = <p(s_i) - mu_i, theta_i>/n + L_i(s_i)/n - l_i >= 0`` and s_i from the
    loss-augmented max oracle; its gradient with respect to the weights is that of ``sum_i gamma_i value(Delta_i)``. The
    gamma_i are those of ``block_steps`` where there are per-example gradients: from the head's own ``adjoint``, or from
    ``torch.func`` where it can ``vmap`` the head, which ``DualState.for_head`` prepares. They are 1 elsewhere: in heads
    with operations in place, custom autograd functions without rules for ``vmap`` or control flow that depends on
    numbers, in compiled heads, and where the gradients of a batch, with those of accumulated batches that wait for the
    step, would be more than 256 MiB (the step of accumulated batches copies them); a warning says so once for each
    head. The backward pass proposes the step to the dual, with the upstream gradient it was given; ``BCFW.step`` takes
    it. Calls without a backward pass leave nothing behind.

    Of an approximate oracle (``Decoding.exact`` is False), or of a cached labeling, s_i is not the best output: the
    value is then at most the true gap of the blocks and can be negative, and the step, which never lowers the dual, may
    be 0 ([B13] appendix C). It bounds nothing; ``certify`` takes the oracle's upper bounds and says ``exact=False``.

    Args:
        dual: The dual state.
        direction: Which direction to take; None is ``FrankWolfe()``.
        oracle: When to decode, and when to go to a cached labeling; None is ``MaxOracle()``, always decode.
        block_steps: How far each block goes: ``BoxQP(sweeps=5)`` (None), ``CommonStep()`` or ``Sequential()``.

    Raises:
        ValueError: ``direction`` or ``oracle`` needs the dual to keep labelings, or ``block_steps`` is not for these
            rules.
        TypeError: ``dual`` or a rule is not such an object.
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
        self.block_steps.check(self.direction, self.oracle, dual.storage)
        if self.direction.needs_curvature:
            dual.storage.keep_curvature()

    def forward(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any, index: Tensor) -> Tensor:
        """The sum of the batch's block gaps, a float64 scalar.

        Args:
            potentials: What the head returned, of the weights' dtype.
            target: Targets of the batch, as the structure takes them.
            index: ``[B]`` int64, the examples' places in the dataset. An example drawn twice counts once.

        Raises:
            ValueError: Index, target or potentials are not valid, or the oracle is not.
            TypeError: The potentials are of another dtype than the weights.
            RuntimeError: A target is not the one that the example had at its first visit; or its features are not, and
                the storage cannot follow them.
            MemoryError: The dual blocks of all examples would not fit.
        """
        potentials = as_potentials(potentials)
        with full_precision(potentials.device):
            return self._value(potentials, target, index)

    def _value(self, potentials: Potentials, target: Any, index: Tensor) -> Tensor:
        dual = self.dual
        index, rows = dual.check_rows(index, potentials)
        target = dual.structure.check_target(target, potentials)
        detached = potentials.detach()
        training = torch.is_grad_enabled() and potentials.requires_grad
        digests = digest_targets(target, potentials.lengths)
        with torch.no_grad():
            stored = dual.storage.gather(index, detached, target)
            dual.check_targets(digests, index)
            if training:
                dual.storage.check_features(stored, potentials)
        step = Proposal(dual.version, index, rows, digests, detached, stored, self.block_steps)
        whole = len(rows) == len(index)
        if training and whole and self.block_steps.visits:
            return self._visit(step, potentials, target)
        with torch.no_grad():
            if self._simple:
                self._to_corner(step, target)
            else:
                self._between_atoms(step, potentials, target, training)
            total = (step.block_gaps if whole else step.block_gaps[rows]).sum()
        return self._choose_steps(step, potentials, total) if training else total

    def _visit(self, step: Proposal, potentials: Potentials, target: Any) -> Tensor:
        """The sum of the gaps as found by exact steps on the blocks, one after another."""
        dual, n = self.dual, self.dual.num_examples
        with torch.no_grad():
            losses = dual.loss[step.index]
            found, step.gammas, step.block_gaps, step.reference = self.block_steps.visit(
                potentials, dual.structure, target, step.stored, losses, dual.lam, n
            )
            if not bool(torch.isfinite(found.score).all()):
                find_corner(dual.structure, step.potentials, target)  # it says which potentials are not finite
            _towards(step, found, losses, n)
            step.parts, _ = step.stored.combine(None, found)
            step.squared_norm = squared_norm(step.reference)
        return _Propose.apply(step.block_gaps.sum(), dual.mailbox, step, step.reference, *dual.parameters)

    def _choose_steps(self, step: Proposal, potentials: Potentials, total: Tensor) -> Tensor:
        """``total``, whose backward pass proposes ``step`` with the steps that the rule chooses for its blocks."""
        dual, n = self.dual, self.dual.num_examples
        with torch.no_grad():
            step.parts, direct = step.stored.combine(step.change, step.found)
        step.gradients = self._gradients(potentials, step.parts, direct)
        with torch.no_grad():
            self._solve(step)
        inputs: list[Tensor]
        if step.reference is not None and _same(potentials.weights or (), dual.parameters):
            inputs, outputs = list(dual.parameters), step.reference
        else:
            share = step.gammas / n
            weighted = scale(step.parts, share)
            if step.gradients is None and (dual.is_large or some_are_zero(dual.parameters)):
                step.reference = adjoint(potentials, weighted, dual.parameters, sparse=True)
            names = list(potentials.tensors)
            inputs, outputs = [potentials.tensors[name] for name in names], [weighted[name] for name in names]
            if direct is not None:
                inputs, outputs = inputs + list(dual.parameters), outputs + combine(direct, share)
        return _Propose.apply(total, dual.mailbox, step, outputs, *inputs)

    @property
    def _simple(self) -> bool:
        """Whether every block has one way to go: with all its mass to a corner that is decoded."""
        known = type(self.direction) is FrankWolfe and type(self.oracle) is MaxOracle
        return known and not self.dual.storage.keeps_labelings

    def _to_corner(self, step: Proposal, target: Any) -> None:
        """What ``_between_atoms`` finds where a block has one atom and moves all of it to the corner."""
        found = find_corner(self.dual.structure, step.potentials, target)
        _towards(step, found, self.dual.loss[step.index], self.dual.num_examples)
        step.block_gaps = step.values

    def _between_atoms(self, step: Proposal, potentials: Potentials, target: Any, training: bool) -> None:
        """The block gaps, and, for training, the direction that the rule chooses between the blocks' atoms."""
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
        """The outputs to move to: from the cache where the oracle rule says so, from the max oracle elsewhere."""
        dual, stored, potentials = self.dual, step.stored, step.potentials
        decoded: Tensor | None = None
        if self.oracle.needs_labelings and kept[0].shape[1] > 1:
            mass, scores, losses, valid = kept
            hinges = scores + losses
            best = hinges[:, 1:].masked_fill(~valid[:, 1:], -torch.inf).max(1)
            gaps = (best.values - (mass * hinges).sum(1)) / dual.num_examples
            decoded = self.oracle.misses(gaps, step.index, dual) | torch.isinf(best.values)
        if decoded is None or bool(decoded.all()):
            corner = find_corner(dual.structure, potentials, target)
            corner.column = stored.lookup(corner.labeling)
            return corner
        column = best.indices + 1
        score, loss = (t.gather(1, column.unsqueeze(1)).squeeze(1) for t in (scores, losses))
        found = OracleResult(stored.cached(column), score, loss, decoded=decoded, column=column)
        if not bool(decoded.any()):
            return found
        rows = decoded.nonzero().flatten()
        corner = find_corner(dual.structure, potentials.select(rows), tree_map(lambda t: t[rows], target))
        pairs = zip(tree_tensors(found.labeling), tree_tensors(corner.labeling), strict=True)
        held = [old.index_copy(0, rows, new.to(old.dtype)) for old, new in pairs]
        found.labeling, found.relaxed = tree_replace(found.labeling, held), corner.relaxed
        found.score, found.loss = score.index_copy(0, rows, corner.score), loss.index_copy(0, rows, corner.loss)
        found.column = torch.where(decoded, stored.lookup(found.labeling), column)
        return found

    def _gradients(self, potentials: Potentials, parts: Parts, direct: list[Tensor] | None) -> list[Tensor] | None:
        """``Phi_i^T Delta_i`` for each parameter, ``[B, *shape]``, where they are needed or cheap."""
        dual = self.dual
        if dual.storage.needs_gradients:
            found: list[Tensor] | None = per_example_adjoint(potentials, parts, dual.parameters)
        else:
            needed = self.block_steps.needs_gradients
            waiting = [g for step in dual.mailbox.waiting for g in getattr(step, "gradients", None) or []]
            kept = sum(g.numel() * g.element_size() for g in waiting)
            found = cheap_adjoint(potentials, parts, dual.parameters, kept) if needed else None
        if found is None:
            return None
        with torch.no_grad():
            return found if direct is None else [dense(g) + d for g, d in zip(found, direct, strict=True)]

    def _solve(self, step: Proposal) -> None:
        """The gamma of each block, 0 in rows that do not count, and ``sum_i gamma_i d_i`` with its squared length."""
        values, rows, gradients, n = step.values, step.rows, step.gradients, self.dual.num_examples
        whole = len(rows) == len(values)
        if gradients is None:
            ones = torch.ones_like(values)
            step.gammas = ones if whole else torch.zeros_like(values).index_fill_(0, rows, 1.0)
            return
        if not whole:
            gradients, values = [select_examples(g, rows) for g in gradients], values[rows]
        weight = 1.0 / (self.dual.lam * n**2)
        found, step.reference, step.squared_norm = self.block_steps.solve(gradients, values, weight, 1.0 / n)
        step.gammas = found if whole else torch.zeros_like(step.slopes).index_copy_(0, rows, found)


def _towards(step: Proposal, found: OracleResult, losses: Tensor, n: int) -> None:
    """The direction that moves all mass of every block to ``found``."""
    towards, held = found.score / n, step.stored.inner(step.potentials)
    step.found, step.slopes, step.slope_terms = found, towards + held, (towards, held)
    step.loss_changes = found.loss / n - losses
    step.values = step.slopes + step.loss_changes


def _atoms(
    stored: Stored,
    kept: tuple[Tensor, ...],
    found: OracleResult,
    dual: DualState,
    respond: Callable[[Parts], Parts],
) -> Atoms:
    """The atoms of the blocks, and the corner as their last column unless it is one of them."""
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


class StructuredHinge(nn.Module):
    """The mean structured hinge of a batch, ``(1/B) sum_i H_i`` with ``H_i = max_y L_i(y) + <p(y) - p(y_i), theta_i>``.

    An ordinary loss for an ordinary optimizer: it trains the features below the head (or, with weight decay ``lam``,
    the head itself by subgradients). Its gradient is not for BCFW.

    Of an approximate oracle (``Decoding.exact`` is False) the value is that of the output that was found, a lower bound
    of the hinge in the primal objective; its gradient is a subgradient of that bound only. For an upper bound of the
    primal use :func:`torchssvm.primal` or ``certify``, which take ``Decoding.bound`` and say ``exact=False``.

    Args:
        structure: What an output is.
    """

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        if not isinstance(structure, Structure):
            raise TypeError(f"structure={structure!r} must be a torchssvm.Structure, such as head.structure")
        self.structure = structure

    def forward(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any) -> Tensor:
        """The mean over the batch, a scalar of the potentials' dtype.

        Raises:
            ValueError: Target or potentials are not valid, or the oracle is not.
        """
        potentials = as_potentials(potentials)
        target = self.structure.check_target(target, potentials)
        corner = find_corner(self.structure, potentials, target)
        size = potentials.batch_size
        value = corner.loss.mean()
        for name, tensor in potentials.tensors.items():
            value = value + (corner.parts[name] * tensor).sum() / size
        return value.to(potentials.dtype)


def check_rules(direction: DirectionRule, oracle: OracleRule, storage: Storage) -> None:
    """Whether direction and oracle rule go with the storage.

    Raises:
        TypeError: One of the rules is a class, or no rule at all.
        ValueError: One of them needs labelings, and the storage keeps none.
    """
    for name, rule, method, such in (
        ("direction", direction, "__call__", "Pairwise()"),
        ("oracle", oracle, "misses", "CacheOracle()"),
    ):
        if isinstance(rule, type) or not hasattr(rule, "needs_labelings") or not hasattr(rule, method):
            raise TypeError(f"{name}={rule!r} must be an object such as {such}")
        if rule.needs_labelings and not storage.keeps_labelings:
            raise ValueError(
                f"{name}={rule} moves between single labelings, and storage={type(storage).__name__}() does not keep "
                "them: use storage=Labelings()"
            )


class _Propose(torch.autograd.Function):
    """Returns ``value`` in forward; in backward hands out fixed gradients and proposes the step."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, mailbox: Mailbox, step: Proposal, gradients: list[Tensor], *inputs: Tensor
    ) -> Tensor:
        ctx.mailbox, ctx.step, ctx.gradients = mailbox, step, gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (factor,) = upstream
        step = copy(ctx.step)  # a graph that is kept may be gone through again
        step.scale = scale = float(factor)
        ctx.mailbox.put(step)
        gradients = ctx.gradients if scale == 1.0 else [gradient * scale for gradient in ctx.gradients]
        return (None, None, None, None, *gradients)


def some_are_zero(tensors: list[nn.Parameter]) -> bool:
    """Whether some weight is zero: Euler's identity does not see its gradient."""
    return not all(bool(t.detach().all()) for t in tensors)


def _same(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(tensors) == len(others) and all(a is b for a, b in zip(tensors, others, strict=True))
