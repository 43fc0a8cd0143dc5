"""Step-size search of exponentiated gradient: try a batch, accept steps that do not lower the dual, halve the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.gradients import combine, per_example_adjoint
from torchssvm.core.potentials import Parts, Potentials, conform, inner, scale
from torchssvm.core.row_sparse import flat
from torchssvm.core.structure import Structure, loss_by_name, reject_rows
from torchssvm.dual.mean_parts import MeanParts, StoredParts
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import Stored
from torchssvm.steps.box_qp import gram


class Search:
    """The search over the step sizes of one batch, with the steps accepted so far.

    Args:
        dual: The dual state, with mean parts.
        logs: The log-potentials u_i.
        potentials: theta_i of the batch.
        target: The checked targets.
        index: ``[B]`` int64, the examples.

    Attributes:
        increase: Increase of the dual by the accepted steps.
        change: ``sum_i Phi_i^T (mu_i after - mu_i before)`` of the accepted steps, for every parameter.
    """

    def __init__(self, dual: DualState, logs: MeanParts, potentials: Potentials, target: Any, index: Tensor) -> None:
        self.dual, self.storage, self.index = dual, logs, index
        self.potentials, self.detached = potentials, potentials.detach()
        with torch.no_grad():
            self.delta, self.constant = loss_potentials(dual.structure, target, self.detached)
            self.target = conform(dual.structure.parts(target), self.detached, "parts(target)")
            self.psi = _array(dual.storage.gather(index, self.detached, target))
            self.logs = _array(logs.gather(index, self.detached, target))
            self.ascent = {name: _without_padding(self.detached, name, self.delta[name]) for name in self.delta}
        self.loss = dual.loss[index]
        self.new_psi = {name: tensor.clone() for name, tensor in self.psi.items()}
        self.new_logs = {name: tensor.clone() for name, tensor in self.logs.items()}
        self.new_loss = self.loss.clone()
        self.accepted = torch.zeros_like(index, dtype=torch.bool)
        self.change = [torch.zeros_like(p) for p in dual.parameters]
        self.increase = 0.0

    def attempt(self, rows: Tensor, etas: Tensor) -> Tensor:
        """Try ``rows`` with step sizes ``etas``, accept those that do not lower the dual, and return the others."""
        dual, n = self.dual, self.dual.num_examples
        with torch.no_grad():
            step = scale(self.ascent, etas)
            trial = self.detached.replace({name: tensor + step[name] for name, tensor in self.logs.items()})
            mean = mean_parts(dual.structure, trial.select(rows))
            moved = {name: torch.zeros_like(tensor) for name, tensor in self.psi.items()}  # mu_i after - before
            psi = {}
            for name, tensor in moved.items():
                psi[name] = self.target[name][rows] - mean[name]
                tensor[rows] = self.psi[name][rows] - psi[name]
            loss = (inner(mean, {name: t[rows] for name, t in self.delta.items()}) + self.constant[rows]) / n
            slopes = inner(moved, self.detached.tensors)[rows] / n + loss - self.loss[rows]
        gradients = per_example_adjoint(self.potentials, moved, dual.parameters)
        with torch.no_grad():
            curvature = gram(gradients, rows) / (dual.lam * n**2)
            bent = _products(gradients, self.change)[rows] / (dual.lam * n**2)
            chosen, increase = _accept(slopes - bent, curvature)
            self.increase += increase
            taken = rows[chosen]
            factors = torch.zeros(len(self.index), dtype=torch.float64, device=rows.device)
            factors[taken] = 1.0
            for total, part in zip(self.change, combine(gradients, factors), strict=True):
                total += part
            for name in self.psi:
                self.new_psi[name][taken] = psi[name][chosen]
                self.new_logs[name][taken] = trial[name][taken]
            self.new_loss[taken] = loss[chosen]
            self.accepted[taken] = True
        return rows[~chosen]

    def store(self) -> None:
        """Write the accepted blocks."""
        rows = self.accepted.nonzero().flatten()
        if not len(rows):
            return
        index, potentials = self.index[rows], self.detached.select(rows)
        means = _parts_storage(self.dual)
        for storage, new, old in ((means, self.new_psi, self.psi), (self.storage, self.new_logs, self.logs)):
            storage.add(index, potentials, {name: (new[name] - old[name])[rows] for name in old})
        self.dual.loss[index] = self.new_loss[rows]


def _accept(slopes: Tensor, curvature: Tensor) -> tuple[Tensor, float]:
    """Choose steps one after another, none of which lowers the dual; returns them and the increase of the dual.

    Args:
        slopes: ``[R]``, derivative of the dual along each step.
        curvature: ``[R, R]``; steps S together change the dual by ``sum_S slopes - 1/2 sum_SxS curvature``.
    """
    slope, matrix = slopes.cpu().clone(), curvature.cpu()
    chosen = torch.zeros(len(slope), dtype=torch.bool)
    increase = 0.0
    for row in range(len(slope)):
        change = float(slope[row] - matrix[row, row] / 2)
        if change >= 0.0:
            chosen[row] = True
            increase += change
            slope -= matrix[row]
    return chosen.to(slopes.device), increase


def _products(gradients: list[Tensor], change: list[Tensor]) -> Tensor:
    """``<gradient_i, change>``, ``[B]`` float64."""
    pairs = zip(gradients, change, strict=True)
    return torch.stack([g.flatten(1).to(torch.float64) @ flat([c]) for g, c in pairs]).sum(0)


def loss_potentials(structure: Structure, target: Any, potentials: Potentials) -> tuple[Parts, Tensor]:
    """The loss as potentials of every name, in the dtype of ``potentials``, and its constant, ``[B]`` float64."""
    delta, constant = loss_by_name(structure, target, potentials)
    full = {name: delta.get(name, torch.zeros_like(tensor)) for name, tensor in potentials.tensors.items()}
    return conform(full, potentials, "loss_potentials(target)"), constant.to(torch.float64)


def _without_padding(potentials: Potentials, name: str, delta: Tensor) -> Tensor:
    """``theta + delta``, zero in padding rows.

    Raises:
        ValueError: A potential is not finite.
    """
    augmented = potentials[name] + delta
    if potentials.lengths is not None and name in potentials.ragged:
        rows = potentials.lengths + potentials.ragged[name]
        padding = torch.arange(augmented.shape[1], device=augmented.device) >= rows.unsqueeze(1)
        augmented = augmented.masked_fill(padding.view(*padding.shape, *[1] * (augmented.ndim - 2)), 0.0)
    wrong = ~torch.isfinite(augmented.flatten(1)).all(1)
    reject_rows(wrong, "the potentials of {rows} are not finite: check features and weights")
    return augmented


def mean_parts(structure: Structure, logs: Potentials) -> Parts:
    """The mean parts of the distributions with these log-potentials, in their shapes and dtype."""
    return conform(structure.marginals(logs).parts, logs, "marginals(potentials).parts")


def _parts_storage(dual: DualState) -> MeanParts:
    assert isinstance(dual.storage, MeanParts)
    return dual.storage


def _array(stored: Stored) -> Parts:
    assert isinstance(stored, StoredParts)
    return stored.psi
