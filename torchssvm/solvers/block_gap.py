"""The two losses: the block gap, which trains the head, and the structured hinge, which trains the features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_flags, check_whole
from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.digest import digest_targets
from torchssvm.core.gradients import adjoint, cheap_adjoint, combine, gram_product, per_example_adjoint
from torchssvm.core.potentials import Parts, Potentials, as_potentials, scale
from torchssvm.core.precision import full_precision
from torchssvm.core.row_sparse import dense, select_examples, squared_length
from torchssvm.core.structure import Structure, find_corner
from torchssvm.dual.mean_parts import MeanParts, StoredParts
from torchssvm.dual.proposal import Proposal
from torchssvm.dual.state import DualState, check_dual
from torchssvm.dual.storage import Found, Storage, Stored
from torchssvm.steps.box_qp import solve_batch
from torchssvm.steps.cache import MaxOracle, OracleRule
from torchssvm.steps.direction import Blocks, DirectionRule
from torchssvm.steps.frank_wolfe import FrankWolfe


class BlockGap(nn.Module):
    """The duality gap of a batch's blocks: the loss whose gradient is the BCFW direction ([B13] Alg. 4, [G16] eq. 6).

    Its value is ``sum_i g_i``, with ``g_i = <p(s_i) - mu_i, theta_i>/n + L_i(s_i)/n - l_i >= 0`` and s_i from the
    loss-augmented max oracle; its gradient with respect to the weights is that of ``sum_i gamma_i value(Delta_i)``. The
    gamma_i solve the box QP over the batch where there are per-example gradients: from the head's own ``adjoint``, or
    from ``torch.func`` where it can ``vmap`` the head, which ``DualState.for_head`` prepares. They are 1 elsewhere: in
    heads with operations in place, custom autograd functions without rules for ``vmap`` or control flow that depends on
    numbers, in compiled heads, and where the gradients of a batch would be more than 2^26 numbers. The
    backward pass proposes the step to the dual, with the upstream gradient it was given; ``BCFW.step`` takes it. Calls
    without a backward pass leave nothing behind.

    Of an approximate oracle (``Decoding.exact`` is False), or of a cached labeling, s_i is not the best output: the
    value is then at most the true gap of the blocks and can be negative, and the step, which never lowers the dual, may
    be 0 ([B13] appendix C). It bounds nothing; ``certify`` takes the oracle's upper bounds and says ``exact=False``.

    Args:
        dual: The dual state.
        direction: Which direction to take; None is ``FrankWolfe()``.
        oracle: When to decode, and when to go to a cached labeling; None is ``MaxOracle()``, always decode.
        sweeps: Sweeps of coordinate ascent over the batch's box QP; 0 takes one common step for all blocks.
        in_turn: Take exact steps on the blocks of a batch one after another instead, each decoded at the weights that
            the ones before it leave: single-example BCFW, which needs fewer passes than any batch, in compiled code.
            For ``LinearChain`` and ``LinearMulticlass`` on the CPU, ``MeanParts()``, ``FrankWolfe()`` and
            ``MaxOracle()``; a batch that holds an example twice is solved by the box QP. In training, the value is then
            the sum of the gaps as the visits found them. ``sweeps`` is not used, and the line search should be exact
            (``ExactSearch()``, the default): the steps have been taken already.

    Raises:
        ValueError: ``sweeps`` is negative, ``direction`` or ``oracle`` needs the dual to keep labelings, or
            ``in_turn`` is not for these rules.
        TypeError: ``dual``, ``direction`` or ``oracle`` is not such an object, or ``sweeps`` no number.
    """

    def __init__(
        self,
        dual: DualState,
        direction: DirectionRule | None = None,
        *,
        oracle: OracleRule | None = None,
        sweeps: int = 5,
        in_turn: bool = False,
    ) -> None:
        super().__init__()
        self.dual = check_dual(dual)
        self.direction = direction if direction is not None else FrankWolfe()
        self.oracle = oracle if oracle is not None else MaxOracle()
        self.sweeps = check_whole(sweeps, "sweeps", 0)
        check_rules(self.direction, self.oracle, dual.storage)
        check_flags(in_turn=in_turn)
        self.in_turn = in_turn
        if in_turn and not (self._simple and type(dual.storage) is MeanParts):
            raise ValueError(
                "in_turn=True is for FrankWolfe(), MaxOracle() and MeanParts(), not for "
                f"{self.direction}, {self.oracle} and {type(dual.storage).__name__}()"
            )
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
        if training and self.in_turn and len(rows) == len(index):
            return self._visit_in_turn(stored, potentials, target, digests, index, rows)
        with torch.no_grad():
            if self._simple:
                gaps, chosen = self._to_corner(stored, detached, target, index)
            else:
                gaps, chosen = self._between_atoms(stored, potentials, target, index, training)
            total = (gaps if len(rows) == len(gaps) else gaps[rows]).sum()
        if not training or chosen is None:
            return total
        with torch.no_grad():
            parts, direct = stored.combine(chosen.change, chosen.found)
        gradients = self._gradients(potentials, parts, direct)
        with torch.no_grad():
            gammas, reference, squared = self._steps(gradients, chosen.slopes + chosen.loss_changes, rows)
        inputs: list[Tensor]
        if reference is not None and _same(potentials.weights or (), dual.parameters):
            inputs, outputs = list(dual.parameters), reference
        else:
            share = gammas / dual.num_examples
            weighted = scale(parts, share)
            if gradients is None and (dual.is_large or some_are_zero(dual.parameters)):
                reference = adjoint(potentials, weighted, dual.parameters, sparse=True)
            names = list(potentials.tensors)
            inputs, outputs = [potentials.tensors[name] for name in names], [weighted[name] for name in names]
            if direct is not None:
                inputs, outputs = inputs + list(dual.parameters), outputs + combine(direct, share)

        steps = _Steps(gammas, gaps, parts, gradients, reference, squared)
        return self._promise(total, outputs, inputs, steps, chosen, stored, digests, detached, index, rows)

    def _visit_in_turn(
        self, stored: Stored, potentials: Potentials, target: Any, digests: Tensor, index: Tensor, rows: Tensor
    ) -> Tensor:
        """The sum of the gaps as found by exact steps on the blocks, one after another."""
        dual, n, detached = self.dual, self.dual.num_examples, potentials.detach()
        if potentials.in_turn is None:
            raise ValueError(
                "in_turn=True needs a LinearChain or LinearMulticlass head on fixed features: the potentials have no "
                "in_turn"
            )
        assert isinstance(stored, StoredParts)
        with torch.no_grad():
            found = potentials.in_turn(dual.structure, target, stored.psi, dual.loss[index], dual.lam, n)
            gammas, gaps, combined = found.gammas, found.gaps, found.combined
            score, loss, made = dual.structure.examine(found.labeling, target, detached)
            if not bool(torch.isfinite(score).all()):
                find_corner(dual.structure, detached, target)  # it says which potentials are not finite
            held, towards, changes = stored.inner(detached), score / n, loss / n - dual.loss[index]
            corner = Found(found.labeling, made, score, loss, None, None)
            chosen = _Chosen(corner, None, towards + held, (towards, held), changes)
            parts, _ = stored.combine(None, corner)
            squared = squared_length(combined)
            steps = _Steps(gammas, gaps, parts, None, combined, squared)
        inputs: list[Tensor] = list(dual.parameters)
        return self._promise(gaps.sum(), combined, inputs, steps, chosen, stored, digests, detached, index, rows)

    def _promise(
        self,
        value: Tensor,
        outputs: list[Tensor],
        inputs: list[Tensor],
        steps: _Steps,
        chosen: _Chosen,
        stored: Stored,
        digests: Tensor,
        potentials: Potentials,
        index: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """``value``, whose backward pass gives ``outputs`` to ``inputs`` and proposes the steps."""
        dual, version = self.dual, self.dual.version

        def propose(upstream: float) -> None:
            dual.propose(
                Proposal(
                    version=version,
                    index=index,
                    rows=rows,
                    gammas=steps.gammas,
                    scale=upstream,
                    slopes=chosen.slopes,
                    slope_terms=chosen.slope_terms,
                    loss_changes=chosen.loss_changes,
                    block_gaps=steps.gaps,
                    decoded=chosen.found.decoded,
                    change=chosen.change,
                    parts=steps.parts,
                    gradients=steps.gradients,
                    reference=steps.reference,
                    potentials=potentials,
                    squared_norm=steps.squared_norm,
                    stored=stored,
                    targets=digests,
                    relaxed=chosen.found.relaxed,
                    sweeps=self.sweeps,
                )
            )

        return _ProposeInBackward.apply(value, propose, outputs, *inputs)

    @property
    def _simple(self) -> bool:
        """Whether every block has one way to go: with all its mass to a corner that is decoded."""
        known = type(self.direction) is FrankWolfe and type(self.oracle) is MaxOracle
        return known and not self.dual.storage.keeps_labelings

    def _to_corner(
        self, stored: Stored, potentials: Potentials, target: Any, index: Tensor
    ) -> tuple[Tensor, _Chosen | None]:
        """What ``_between_atoms`` finds where a block has one atom and moves all of it to the corner."""
        dual, n = self.dual, self.dual.num_examples
        corner = find_corner(dual.structure, potentials, target)
        held = stored.inner(potentials)
        towards = corner.score / n
        slopes, changes = towards + held, corner.loss / n - dual.loss[index]
        found = Found(corner.labeling, corner.made, corner.score, corner.loss, None, None, corner.relaxed)
        return slopes + changes, _Chosen(found, None, slopes, (towards, held), changes)

    def _between_atoms(
        self, stored: Stored, potentials: Potentials, target: Any, index: Tensor, training: bool
    ) -> tuple[Tensor, _Chosen | None]:
        """The block gaps, and, for training, the direction that the rule chooses between the blocks' atoms."""
        dual, detached = self.dual, potentials.detach()
        atoms = stored.atoms(detached, dual.loss[index])
        found = self._find(stored, atoms, detached, target, index)
        blocks = _blocks(stored, atoms, found, dual, lambda parts: gram_product(potentials, parts, dual.parameters))
        gaps = blocks.gaps()
        if not training:
            return gaps, None
        change = self.direction(blocks)
        terms = change * blocks.scores / dual.num_examples
        changes = (change * blocks.losses).sum(1) / dual.num_examples
        return gaps, _Chosen(found, change, terms.sum(1), tuple(terms.unbind(1)), changes)

    def _find(
        self, stored: Stored, atoms: tuple[Tensor, ...], potentials: Potentials, target: Any, index: Tensor
    ) -> Found:
        """The outputs to move to: from the cache where the oracle rule says so, from the max oracle elsewhere."""
        dual = self.dual
        decoded: Tensor | None = None
        if self.oracle.needs_labelings and atoms[0].shape[1] > 1:
            mass, scores, losses, valid = atoms
            hinges = scores + losses
            best = hinges[:, 1:].masked_fill(~valid[:, 1:], -torch.inf).max(1)
            gaps = (best.values - (mass * hinges).sum(1)) / dual.num_examples
            decoded = self.oracle.misses(gaps, index, dual) | torch.isinf(best.values)
        if decoded is None or bool(decoded.all()):
            corner = find_corner(dual.structure, potentials, target)
            column = stored.lookup(corner.labeling)
            return Found(corner.labeling, corner.made, corner.score, corner.loss, None, column, corner.relaxed)
        column = best.indices + 1
        labeling = stored.cached(column)
        score, loss = (t.gather(1, column.unsqueeze(1)).squeeze(1) for t in (scores, losses))
        if not bool(decoded.any()):
            return Found(labeling, None, score, loss, decoded, column)
        rows = decoded.nonzero().flatten()
        corner = find_corner(dual.structure, potentials.select(rows), tree_map(lambda t: t[rows], target))
        pairs = zip(tree_tensors(labeling), tree_tensors(corner.labeling), strict=True)
        labeling = tree_replace(labeling, [held.index_copy(0, rows, new.to(held.dtype)) for held, new in pairs])
        score, loss = score.index_copy(0, rows, corner.score), loss.index_copy(0, rows, corner.loss)
        column = torch.where(decoded, stored.lookup(labeling), column)
        return Found(labeling, None, score, loss, decoded, column, corner.relaxed)

    def _gradients(self, potentials: Potentials, parts: Parts, direct: list[Tensor] | None) -> list[Tensor] | None:
        """``Phi_i^T Delta_i`` for each parameter, ``[B, *shape]``, where they are needed or cheap."""
        dual = self.dual
        if dual.storage.needs_gradients:
            found: list[Tensor] | None = per_example_adjoint(potentials, parts, dual.parameters)
        else:
            found = cheap_adjoint(potentials, parts, dual.parameters) if self.sweeps else None
        if found is None:
            return None
        with torch.no_grad():
            return found if direct is None else [dense(g) + d for g, d in zip(found, direct, strict=True)]

    def _steps(
        self, gradients: list[Tensor] | None, values: Tensor, rows: Tensor
    ) -> tuple[Tensor, list[Tensor] | None, float | None]:
        """The gamma of each block, 0 in rows that do not count, and ``sum_i gamma_i d_i`` with its squared length."""
        whole = len(rows) == len(values)
        if gradients is None:
            ones = torch.ones_like(values) if whole else torch.zeros_like(values).index_fill_(0, rows, 1.0)
            return ones, None, None
        n = self.dual.num_examples
        if not whole:
            gradients = [select_examples(g, rows) for g in gradients]
        weight = 1.0 / (self.dual.lam * n**2)
        gammas, combined, squared = solve_batch(
            gradients, values if whole else values[rows], weight, self.sweeps, factor=1.0 / n
        )
        return (gammas if whole else torch.zeros_like(values).index_copy_(0, rows, gammas)), combined, squared


class _Steps(NamedTuple):
    """How far the blocks of a batch go; see :class:`Proposal`."""

    gammas: Tensor
    gaps: Tensor
    parts: Parts
    gradients: list[Tensor] | None
    reference: list[Tensor] | None
    squared_norm: float | None


class _Chosen(NamedTuple):
    """The directions of a batch's blocks; see :class:`Proposal`."""

    found: Found
    change: Tensor | None
    slopes: Tensor
    slope_terms: tuple[Tensor, ...]
    loss_changes: Tensor


def _blocks(
    stored: Stored,
    atoms: tuple[Tensor, ...],
    found: Found,
    dual: DualState,
    respond: Callable[[Parts], Parts],
) -> Blocks:
    """The atoms of the blocks, and the corner as their last column unless it is one of them."""
    assert found.column is not None
    mass, scores, losses, valid = atoms
    new = found.column == 0
    mass = torch.cat([mass, torch.zeros_like(mass[:, :1])], 1)
    scores = torch.cat([scores, torch.where(new, found.score, 0.0).unsqueeze(1)], 1)
    losses = torch.cat([losses, torch.where(new, found.loss, 0.0).unsqueeze(1)], 1)
    corner = torch.where(new, valid.shape[1], found.column)
    weight = 1.0 / (dual.lam * dual.num_examples**2)
    return Blocks(
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


class _ProposeInBackward(torch.autograd.Function):
    """Returns ``value`` in forward; in backward hands out fixed gradients and proposes the step."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, propose: Callable[[float], None], gradients: list[Tensor], *inputs: Tensor
    ) -> Tensor:
        ctx.propose = propose
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (factor,) = upstream
        scale = float(factor)
        ctx.propose(scale)
        gradients = ctx.gradients if scale == 1.0 else [gradient * scale for gradient in ctx.gradients]
        return (None, None, None, *gradients)


def some_are_zero(tensors: list[nn.Parameter]) -> bool:
    """Whether some weight is zero: Euler's identity does not see its gradient."""
    return not all(bool(t.detach().all()) for t in tensors)


def _same(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(tensors) == len(others) and all(a is b for a, b in zip(tensors, others, strict=True))
