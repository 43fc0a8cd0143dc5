"""Structures whose targets have a hidden part: the concave-convex procedure around certified problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_dataset, check_number, check_object, check_whole, or_default
from torchssvm.core.batch import Batch, apply_head, fetcher, lengths_of, pass_over, tree_replace, tree_tensors
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.potentials import Potentials, inner
from torchssvm.core.problem import find_structure
from torchssvm.core.ranks import Ranks
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.states import Numbers, Stateful, check_entries, copied
from torchssvm.core.structure import Structure, fit
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.state import UNKNOWN
from torchssvm.solvers.certificate import Certificate, certify, recompute_weights, write
from torchssvm.solvers.exact_pass import primal
from torchssvm.solvers.solver import Relative, Solver, Tolerance
from torchssvm.solvers.training import make_trainer
from torchssvm.structures.hidden_states import HiddenStates

Rows = list[list[Tensor]]
"""The tensors of each example's completed target, without padding."""


@dataclass(frozen=True)
class LatentReport:
    """What :func:`torchssvm.latent` has done.

    Attributes:
        objectives: The objective at the start and after each round that lowered it; not convex, and never rising.
        certificate: Of the last round's problem, whose hidden parts are fixed; it says nothing of the whole.
        settled: Whether another round would have the same hidden parts, or could not lower the objective.

    Example:
        >>> structure = HiddenStates(Multiclass(4), shows=[0, 0, 1, 2])
        >>> report = latent(LinearMulticlass(4, 4), data, 1.0, structure=structure, rounds=2, tolerance=Relative(0.1))
        >>> list(report.objectives) == sorted(report.objectives, reverse=True)
        True
    """

    objectives: tuple[float, ...]
    certificate: Certificate
    settled: bool

    def __str__(self) -> str:
        ended = "settled" if self.settled else "not settled"
        return (
            f"objective {self.objectives[0]:.4g} to {self.objectives[-1]:.4g} in {len(self.objectives) - 1} rounds, "
            f"{ended}, with no known gap; of the last round's convex problem: {self.certificate}"
        )


def latent(
    head: nn.Module,
    dataset: Any,
    lam: float,
    *,
    structure: Structure | None = None,
    rounds: int = 50,
    tolerance: Tolerance | None = None,
    max_passes: float = 1000.0,
    solver: Solver | None = None,
) -> LatentReport:
    """Train a head where targets have a hidden part (Yu and Joachims, 2009).

    The hidden parts of the first round have the highest score at the head's weights, or are drawn at random if these
    are zero. Results depend on them: where something is known, such as that the brightest place is a
    good guess, put it into the weights.

    It runs :class:`torchssvm.solvers.LatentTrainer`, whose objective is not convex: each round is certified, the whole
    is not.

    Args:
        head: Features -> potentials, linear in all its weights; afterwards it holds the trained weights.
        dataset: Map-style, n examples with ``collate``.
        structure: A structure with ``complete``, such as ``HiddenStates``; None is ``head.structure``. One of states,
            such as ``Chain``, is taken as ``HiddenStates(structure)``, for labels of -100 or sets of labels.
        tolerance: The certified gap of each round; None is ``Relative(0.01)``.
        solver: As in :func:`torchssvm.solve`, for mean parts in the torch loop; its seed also draws random
            hidden parts.

    Example:
        >>> structure = HiddenStates(Multiclass(6), shows=[0, 0, 1, 1, 2, 2])  # two templates for each class
        >>> report = latent(LinearMulticlass(4, 6), data, lam=1.0, structure=structure, rounds=3)
        >>> report.objectives[-1] < report.objectives[0]
        True
    """
    trainer = LatentTrainer(
        head, dataset, lam, structure=structure, tolerance=tolerance, max_passes=max_passes, solver=solver
    )
    return trainer.solve(rounds)


class LatentTrainer(Stateful):
    r"""The concave-convex procedure, in rounds; arguments and errors as in :func:`torchssvm.latent`.

    Outputs are ``y`` with a hidden part h, and data have y_i alone. The objective

        ``P(w) = lam/2 |w|^2 + (1/n) sum_i [max_{y,h} L_i(y) + <p(y,h), theta_i> - max_h <p(y_i,h), theta_i>]``

    is a difference of convex functions. A round fixes ``h_i = argmax_h <p(y_i,h), theta_i>`` at the weights w_t. The
    problem P_t that this leaves is convex, is solved to a certified gap, and lies above P, with ``P_t(w_t) = P(w_t)``.
    So ``P(w_{t+1}) <= P_t(w_{t+1}) <= P_t(w_t) = P(w_t)``. The second inequality is checked: weights that do not meet
    it, because the round could gain less than its gap, are dropped, and the run has settled. The objective thus never
    rises.

    Mean parts stay feasible when h_i changes, as the set of outputs does not: a round begins from the duals of the one
    before, with ``psi_i`` moved by the change of ``p(y_i, h_i)`` and the same losses. If the dual is worse for it than
    one of new blocks, all blocks are drawn towards their targets, by an exact line search.

    The structure has ``complete(potentials, target)``: the target, as ``check_target`` returns it, with the hidden part
    of the highest score, in tensors of the same sizes. Its loss does not depend on the hidden part of the target.

    ``tolerance`` is the certified gap of each round; None is ``Relative(0.01)``.

    Example:
        >>> structure = HiddenStates(Multiclass(4), shows=[0, 0, 1, 2])
        >>> trainer = LatentTrainer(LinearMulticlass(4, 4), data, lam=1.0, structure=structure)
        >>> trainer.step().exact
        True
        >>> trainer.objectives[1] <= trainer.objectives[0]
        True
    """

    state_name = "latent run"

    def __init__(
        self,
        head: nn.Module,
        dataset: Any,
        lam: float,
        *,
        structure: Structure | None = None,
        tolerance: Tolerance | None = None,
        max_passes: float = 1000.0,
        solver: Solver | None = None,
    ) -> None:
        check_dataset(dataset)
        if not len(dataset):
            raise ValueError("dataset is empty: give at least one example")
        if Ranks.here():
            raise ValueError("latent trains in one process: call it outside a process group")
        self.structure: Any = find_structure(head, structure)
        if hasattr(self.structure, "num_states") and not hasattr(self.structure, "complete"):
            self.structure = HiddenStates(self.structure)
        check_object(self.structure, "structure", "complete", "HiddenStates(Chain(3), shows=[0, 1, 1])")
        self.head = head
        self.tolerance = tolerance if tolerance is not None else Relative(0.01)
        self.max_passes = check_number(max_passes, "max_passes", above=0.0, finite=False)
        given = or_default(solver, Solver, "solver")
        if given.compiled or not (given.storage is None or type(given.storage) is MeanParts):
            raise ValueError(f"solver={given} must use the torch loop with storage=MeanParts()")
        solver = replace(given, storage=given.storage or MeanParts(), compiled=False)
        random = torch.Generator().manual_seed(solver.seed)
        initial = [p.detach().clone() for p in head.parameters()]
        self.data = _Completed(dataset)
        first, _ = self._complete(None if any(bool(p.any()) for p in initial) else random)
        self.loop: Any = make_trainer(head, self.data, lam, solver=solver, structure=self.structure, progress=False)
        self.data.rows = self.next = first
        try:
            self.objectives = [primal(head, self.structure, pass_over(self.data), self.loop.dual.lam).bound]
        except BaseException:
            write(initial, head.parameters())
            raise
        self.settled = False
        self._before: list[Tensor] | None = None  # the weights before the round under way

    def step(self) -> Certificate:
        """A round: fix the hidden parts, and solve to the tolerance, from the duals of the round before.

        Returns:
            The certificate of the round's problem, for the weights that are kept: those that do not lower the objective
            are dropped.

        Raises:
            RuntimeError: ``complete`` has returned a hidden part that scores less than the one before.
        """
        self._move_duals()
        most = self.loop.dual.passes + self.max_passes
        certificate = self.loop.solve(self.tolerance, max_passes=most, progress=False)
        if certificate.primal > self.objectives[-1]:
            assert self._before is not None
            with undisturbed():
                write(self._before, self.head.parameters())
                self._before, self.settled = None, True
            return certify(self.head, self.loop.dual, pass_over(self.data), refresh=False)
        completed, gain = self._complete()
        with undisturbed():
            self.next, self._before = completed, None
            self.objectives.append(certificate.primal - gain)
            self.settled = _same(self.next, self.data.rows)
        return certificate

    def solve(self, rounds: int = 50) -> LatentReport:
        """Rounds until the run has settled, ``rounds`` at most."""
        for _ in range(check_whole(rounds, "rounds")):
            certificate = self.step()
            if self.settled:
                break
        return LatentReport(tuple(self.objectives), certificate, self.settled)

    @torch.no_grad()
    def _complete(self, random: torch.Generator | None = None) -> tuple[Rows, float]:
        """The completed targets at the weights of the head, or at random, and the mean gain of their scores."""
        rows, total = [[] for _ in range(len(self.data))], 0.0  # type: Rows, float
        for batch, potentials in self._batches():
            target = self.structure.check_target(batch.y, potentials)
            asked = potentials
            if random is not None:
                noise = {name: torch.randn(t.shape, generator=random).to(t) for name, t in potentials.tensors.items()}
                asked = potentials.replace(noise)
            completed = self.structure.complete(asked, target)
            self.data.template = completed
            for row, number in enumerate(batch.index.tolist()):
                rows[number] = _row(completed, row, batch, potentials)
            if self.data.rows:
                before = self.structure.check_target(self.data.targets(batch), potentials)
                gain = inner(self.structure._difference(completed, before, potentials), potentials.tensors)
                size = sum(t.abs().flatten(1).sum(1, dtype=torch.float64) for t in potentials.tensors.values())
                if bool((gain < -1e3 * torch.finfo(potentials.dtype).eps * size).any()):
                    raise RuntimeError(f"complete() of {self.structure} must return the best hidden part")
                total += float(gain.clamp(min=0.0).sum())
        return rows, total / len(self.data)

    @undisturbed()
    @torch.no_grad()
    def _move_duals(self) -> None:
        """Take the next hidden parts: blocks keep their mean parts, and psi moves with the target's parts.

        Then all blocks go towards their targets as far as the dual gains, so that it is at least 0.
        """
        if self._before is None:  # else this round was interrupted
            self._before = [p.detach().clone() for p in self.head.parameters()]
        before, self.data.rows = self.data.rows, self.next
        if before is self.next:
            if self.settled:  # the last round was dropped, and its duals were kept
                recompute_weights(self.head, self.loop.dual, pass_over(self.data))
            return
        dual, storage = self.loop.dual, self.loop.dual.storage
        assert isinstance(storage, MeanParts)
        for batch, potentials in self._batches():
            new, old = (
                self.structure.check_target(self.data.targets(batch, rows), potentials) for rows in (self.next, before)
            )
            storage.add(batch.index, potentials.detach(), self.structure._difference(new, old, potentials))
        dual.targets.fill_(UNKNOWN)
        recompute_weights(self.head, dual, pass_over(self.data))
        square = dual.lam * squared_norm(dual.parameters)
        if dual.total_loss < square:  # of rho l - rho^2 lam/2 |w|^2
            share = dual.total_loss / square
            storage.rescale(share)
            dual.loss = share * dual.loss
            recompute_weights(self.head, dual, pass_over(self.data))

    def _batches(self) -> Iterable[tuple[Batch, Potentials]]:
        for batch in pass_over(self.data.dataset):
            batch = batch.to(next(self.head.parameters()).device)
            yield batch, apply_head(self.head, batch)

    def _nested(self) -> dict[str, Stateful]:
        return {"loop": self.loop}

    def _entries(self) -> dict[str, Any]:
        return {
            "rows": self.data.rows,  # whether it is the next one counts
            "next": self.next,
            "objectives": list(self.objectives),
            "weights": copied(self.loop.dual.parameters),
            "settled": self.settled,
        }

    def _check_own(self, state: dict[str, Any]) -> None:
        rows: Any = [[Numbers(t.dtype, (None,) * t.ndim) for t in row] for row in self.data.rows]
        wanted = {
            "loop": dict,
            "rows": rows,
            "next": rows,
            "objectives": [float] * len(state["objectives"]),
            "weights": [Numbers(p.dtype, tuple(p.shape)) for p in self.head.parameters()],
            "settled": bool,
        }
        check_entries(state, wanted, "latent run")
        self.loop.check_state(state["loop"])

    def _restore_own(self, state: dict[str, Any]) -> None:
        self._before = None
        self.loop.restore(state["loop"])
        self.data.rows, self.next = state["rows"], state["next"]
        self.objectives, self.settled = list(state["objectives"]), state["settled"]
        write(state["weights"], self.loop.dual.parameters)


class _Completed:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._fetch = fetcher(dataset)
        self.rows: Rows = []
        self.template: Any = None
        self.lengths = lengths_of(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, index: Sequence[int]) -> Batch:
        batch = self._fetch(index)
        return batch.replace(y=self.targets(batch)) if self.rows else batch

    @staticmethod
    def collate(batch: Any) -> Batch:
        return batch

    def targets(self, batch: Batch, rows: Rows | None = None) -> Any:
        """The completed targets of a batch's examples, padded by -1, as long as the data's targets."""
        padded = max((tensor.shape[1] for tensor in tree_tensors(batch.y) if tensor.ndim > 1), default=0)
        longest = -1 if batch.lengths is None else int(batch.lengths.max())
        several = [(self.rows if rows is None else rows)[number] for number in batch.index.tolist()]
        leaves = []
        for same in zip(*several, strict=True):
            sizes = [max(each) for each in zip(*(tensor.shape for tensor in same), strict=True)]
            if sizes and sizes[0] == longest:
                sizes[0] = max(padded, longest)
            leaves.append(torch.stack([fit(tensor, sizes, -1) for tensor in same]))
        return tree_replace(self.template, leaves)


def _row(target: Any, row: int, batch: Batch, potentials: Potentials) -> list[Tensor]:
    """The tensors of an example, cropped to its length where they are padded like the potentials."""
    longest = max((potentials[name].shape[1] for name, more in potentials.ragged.items() if more == 0), default=-1)
    crop = None if batch.lengths is None else int(batch.lengths[row])
    return [
        (t[row, :crop] if crop is not None and t.ndim > 1 and t.shape[1] == longest else t[row]).clone()
        for t in tree_tensors(target)
    ]


def _same(a: Rows, b: Rows) -> bool:
    pairs = zip([t for row in a for t in row], [t for row in b for t in row], strict=True)
    return all(torch.equal(one, other) for one, other in pairs)
