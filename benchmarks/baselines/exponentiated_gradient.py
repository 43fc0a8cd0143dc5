"""Online exponentiated gradient on the dual: a baseline whose blocks stay inside the simplex."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_number, check_whole
from torchssvm.core.batch import Batch, apply_head, check_batches, to_device
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.operators import first_occurrences, on_host
from torchssvm.core.potentials import conform, inner, subtract
from torchssvm.core.precision import full_precision
from torchssvm.core.ranks import Ranks
from torchssvm.core.structure import Structure
from torchssvm.dual.checks import check_batch, check_targets, digest_examples
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import Certificate, certify
from torchssvm.solvers.exact_pass import every_example
from torchssvm.solvers.trainer import DualTrainer

from .exponentiated_search import Search, loss_potentials, mean_parts

_RANGE = (1e-12, 1e6)
"""Range of step sizes: a block that is solved to rounding would halve or grow its step size at every visit."""


class ExponentiatedGradient(DualTrainer):
    """Online exponentiated gradient (Collins, Globerson, Koo, Carreras, Bartlett 2008; online-EG in [B13] section 6).

    The dual distribution of an example is log-linear in its parts, ``alpha_i(y) ~ exp <p(y), u_i>``, with one array of
    log-potentials u_i shaped like the potentials. A step is ``u_i += eta_i (theta_i + delta_i)``: each output's
    logarithm grows by eta_i times its score plus loss. The structure's ``marginals`` (sum-product) turn u_i into the
    mean parts mu_i, from which weights and dual follow. The distributions start uniform, as in [B13] appendix F, so
    the first weights are not zero.

    Step sizes are those of [B13] appendix F: one eta_i for each example, halved until the dual does not decrease, at
    most ``first_halvings`` times at the example's first visit and ``halvings`` times later, then multiplied by
    ``growth``. If the last trial still decreases the dual, the block stays unchanged (the paper leaves this case open),
    so the dual never decreases. Each trial calls the expectation oracle and counts as an oracle call. In a batch all
    blocks are tried at the same weights, and accepted one after another by the dual's exact change; with batches of one
    example this is the algorithm of the papers.

    The constructor makes a pass of the expectation oracle. Weights and blocks are in :attr:`dual`. As the optimum lies
    on the boundary of the simplex, the gap closes slowly.

    Args:
        head: An ``nn.Module`` linear in all its weights; its weights are set, never read.
        batches: Every training example exactly once, in any order: a list, a DataLoader, or ``in_order(dataset)``.
            :meth:`step` takes the batches in turn.
        num_examples: n, the size of the training set.
        lam: Regularisation; positive.
        structure: What an output is, with ``marginals``; None is ``head.structure``.
        step_size: The first eta_i; positive.
        growth: Factor after each search, at least 1.
        halvings: Most halvings of a search.
        first_halvings: Most halvings at an example's first visit.
        memory_limit: Bytes for the mean parts, and again for the log-potentials; None is the available memory.

    Attributes:
        dual: The dual state: mean parts, losses and counters.
        step_sizes: ``[n]`` float64, eta_i.

    Raises:
        ValueError: A number is out of its range, an example is missing or duplicated, a batch is not valid, or
            as ``DualState.for_head``.
        TypeError: ``batches`` can be read only once.

    Example:
        >>> trainer = ExponentiatedGradient(LinearMulticlass(4, 3), in_order(data), num_examples=30, lam=0.1)
        >>> trainer.solve(tolerance=0.05).gap <= 0.05
        True
    """

    def __init__(
        self,
        head: nn.Module,
        batches: Iterable[Batch],
        *,
        num_examples: int,
        lam: float,
        structure: Structure | None = None,
        step_size: float = 0.5,
        growth: float = 1.05,
        halvings: int = 5,
        first_halvings: int = 2,
        memory_limit: int | None = None,
    ) -> None:
        Ranks.here().refuse_several("ExponentiatedGradient", "Train by solve(...), CompiledBCFW or BCFW instead")
        step_size, growth = check_number(step_size, "step_size", above=0.0), check_number(growth, "growth", 1.0)
        halvings = check_whole(halvings, "halvings", 0)
        first_halvings = check_whole(first_halvings, "first_halvings", 0)
        self.head, self.batches = head, check_batches(batches, reread=True)
        self.dual = DualState.for_head(head, num_examples, lam, structure=structure, memory_limit=memory_limit)
        if type(self.dual.structure).marginals is Structure.marginals:
            raise ValueError(
                f"structure={self.dual.structure} has no marginals(potentials), the expectation oracle that "
                "exponentiated gradient is made of: use BCFW or CuttingPlane"
            )
        self.growth, self.halvings, self.first_halvings = growth, halvings, first_halvings
        self.step_sizes = torch.full((self.dual.num_examples,), step_size, dtype=torch.float64)
        self._visited = torch.zeros(self.dual.num_examples, dtype=torch.bool)
        self._logs = self._empty()  # u_i, in the shapes of the potentials
        self._left: Iterator[Batch] = iter(())  # the rest of the current pass
        self._start()

    def _empty(self) -> MeanParts:
        storage = MeanParts()
        dual = self.dual
        storage.bind(dual.num_examples, dual.lam, dual.structure, dual.parameters, dual.storage.memory_limit)
        return storage

    def _start(self) -> None:
        """Set every distribution to uniform, and the weights accordingly, by one pass of the expectation oracle."""
        dual = self.dual
        dual.to(dual.parameters[0].device)
        storage, losses, targets = self._empty(), torch.zeros_like(dual.loss), dual.targets.clone()
        weights = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
        for batch, potentials, index in every_example(
            self.head,
            self.batches,
            dual.parameters[0].device,
            partial(check_batch, dual),
            dual.num_examples,
        ):
            target = dual.structure.check_target(batch.y, potentials)
            targets[on_host(index)] = digest_examples(target, potentials)
            with torch.no_grad(), full_precision(potentials.device):
                delta, constant = loss_potentials(dual.structure, target, potentials)
                uniform = potentials.replace({n: torch.zeros_like(t) for n, t in potentials.tensors.items()})
                mean = mean_parts(dual.structure, uniform)
                storage.gather(index, potentials, target)  # checks the memory before anything is allocated
                psi = subtract(conform(dual.structure.parts(target), potentials, "parts(target)"), mean)
                storage.add(index, potentials, psi)
                losses[index] = (inner(mean, delta) + constant) / dual.num_examples
                parts = storage.contribution(storage.gather(index, potentials, target), potentials)
            for total, part in zip(weights, parts, strict=True):
                total += part
        with torch.no_grad():
            for parameter, total in zip(dual.parameters, weights, strict=True):
                parameter.copy_(total)
        dual.storage, dual.loss, dual.targets = storage, losses, targets
        dual.oracle_calls += dual.num_examples
        dual.remember_weights()

    def step(self) -> float:
        """One step of every block of the next batch; see :meth:`visit`."""
        batch = next(self._left, None)
        if batch is None:
            self._left = iter(self.batches)
            batch = next(self._left)
        return self.visit(batch)

    def visit(self, batch: Batch) -> float:
        """One step of every block of ``batch``; a repeated example counts once.

        Returns:
            The increase of the dual objective, at least 0.

        Raises:
            RuntimeError: A target has changed since the start.
            ValueError: The batch is not valid; nothing changes then.
        """
        dual = self.dual
        batch = to_device(batch, dual.parameters[0].device)
        with torch.enable_grad():
            potentials = apply_head(self.head, batch)
        index = check_batch(dual, batch.index, potentials)
        target = dual.structure.check_target(batch.y, potentials)
        check_targets(dual, digest_examples(target, potentials), index)
        with full_precision(potentials.device):
            search = Search(dual, self._logs, potentials, target, index)  # raises if the potentials are not valid
        if dual.recomputed is not None:  # an exact pass recomputed the weights without drift
            dual.set_weights(dual.recomputed)
            with torch.enable_grad():
                potentials = apply_head(self.head, batch)
            with full_precision(potentials.device):
                search = Search(dual, self._logs, potentials, target, index)
        with full_precision(potentials.device):
            return self._search(search, index)

    def certify(self) -> Certificate:
        """Exact primal, dual and gap of the weights that the head holds: one pass of the max oracle.

        Raises:
            RuntimeError: The examples have changed.
        """
        return certify(self.head, self.dual, self.batches)

    @undisturbed()
    def _search(self, search: Search, index: Tensor) -> float:
        """Try, halve and accept steps; then store the accepted ones."""
        dual = self.dual
        open_rows = first_occurrences(index)
        first = ~self._visited[index.cpu()].to(index.device)
        etas = self.step_sizes[index.cpu()].to(index.device)
        calls = 0
        for trial in range(max(self.halvings, self.first_halvings) + 1):
            allowed = torch.where(first[open_rows], self.first_halvings, self.halvings)
            open_rows = open_rows[allowed >= trial]
            if not len(open_rows):
                break
            if trial:
                etas[open_rows] /= 2.0
            calls += len(open_rows)
            open_rows = search.attempt(open_rows, etas)
        search.store()
        with torch.no_grad():
            for parameter, change in zip(dual.parameters, search.change, strict=True):
                parameter.sub_(change / (dual.lam * dual.num_examples))
        rows = first_occurrences(index)
        self.step_sizes[index[rows].cpu()] = (etas[rows] * self.growth).clamp(*_RANGE).cpu()
        self._visited[index.cpu()] = True
        dual.oracle_calls += calls
        dual.visits += 1
        dual.steps += 1
        dual.remember_weights()
        return search.increase

    def __repr__(self) -> str:
        return f"ExponentiatedGradient({self.dual})"
