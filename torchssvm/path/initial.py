"""The start of the regularisation path: [G16] Algorithm 6."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.batch import Batch, apply_head, fetcher, in_order, restrict, to_device
from torchssvm.core.precision import full_precision
from torchssvm.core.ranks import sum_in_order
from torchssvm.core.row_sparse import squared_norm
from torchssvm.dual.checks import check_batch, check_dual
from torchssvm.dual.state import DualState
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.solver import Relative, Tolerance, check_tolerance
from torchssvm.steps.box_qp import CommonStep

_BATCH = 256  # examples of a step, at most
_MARGIN = 1e9  # lam exceeds what a full step needs by this factor while the blocks move to their corners


def start_at_largest_lam(
    head: nn.Module, dual: DualState, dataset: Any, *, tolerance: Tolerance, optimizer: BCFW | None = None
) -> float:
    """Move every block of a new dual to the output with the largest loss, and choose ``lam`` to reach ``tolerance``.

    With ``y~_i = argmax_y L_i(y)`` and ``psi~ = (1/n) sum_i psi_i(y~_i)`` the weights are ``psi~ / lam``. Their gap is
    at most ``(|psi~|^2 + (1/n) sum_i theta_i) / lam`` with ``theta_i = max_y -<psi~, psi_i(y)>``, a decoding without
    loss at the weights psi~ ([G16] eq. 11). ``lam`` times the gap does not grow with ``lam``, so ``psi~ / lam`` has a
    smaller gap at every larger ``lam``. Takes two passes of oracle calls.

    Under bounds that are 0 or infinite, ``clip(psi~)`` replaces psi~: clipping commutes with the division by ``lam``,
    and ``<psi~, clip(psi~)> = |clip(psi~)|^2``.

    A share of the primal is taken of the dual ``(1/n) sum_i L_i(y~_i) - |psi~|^2 / (2 lam)``, which is below it. As
    ``lam`` grows the dual grows and the gap does not, so the share holds at every larger ``lam`` too.

    Args:
        head: The head of the dual.
        dual: A dual without steps; its ``lam`` is replaced.
        dataset: The training set.
        tolerance: kappa epsilon; positive, or ``Relative(share)``.
        optimizer: That of the dual, with bounds; None is one without.

    Returns:
        An upper bound of the gap at ``dual.lam``, which is now lambda^infinity: ``tolerance``, up to rounding, where
        it is a number.

    Raises:
        ValueError: The dual has steps, a bound is neither 0 nor infinite, or no weights change any score.
    """
    tolerance = check_tolerance(tolerance, above=0.0)
    check_dual(dual)
    if dual.steps:
        raise ValueError(f"the dual has taken {dual.steps} steps: the path starts from a new one")
    optimizer = optimizer if optimizer is not None else BCFW(dual.parameters, dual)
    check_cone(dual)
    for parameter in dual.parameters:
        nn.init.zeros_(parameter)
    dual.remember_weights()
    _to_largest_losses(head, dual, dataset, optimizer)
    n = dual.num_examples
    dual.change_lam(1.0)  # the weights are psi~ now
    thetas = torch.zeros_like(dual.loss)
    products = torch.zeros_like(dual.loss)

    @torch.no_grad()
    def decode() -> None:
        for batch in restrict(in_order(dataset), dual.own):
            batch = to_device(batch, dual.parameters[0].device)
            with full_precision(dual.loss.device):
                potentials = apply_head(head, batch)
                index = check_batch(dual, batch.index, potentials)
                target = dual.structure.check_target(batch.y, potentials)
                thetas[index] = dual.structure.largest_gain(potentials, target)
                products[index] = dual.storage.gather(index, potentials, target).inner(potentials)

    dual.ranks.run_on_all(decode)
    dual.oracle_calls += n
    square = squared_norm(dual.parameters)
    scale = square + float(sum_in_order(dual.ranks.gather(thetas.sum()))) / n
    if isinstance(tolerance, Relative):
        loss = dual.total_loss
        lam = (scale / tolerance.share + square / 2) / loss if loss > 0.0 else 0.0
    else:
        lam = scale / tolerance
    if not lam > 0.0:
        raise ValueError("no weights change any score of the training set (are all features zero?): there is no path")
    dual.change_lam(lam)
    # Line 14. lam <w_i, w> equals <psi_i, theta_i>/n at the weights psi~, divided by lam.
    dual.gap_estimates = ((thetas / n + products) / lam).clamp(min=0.0)
    dual.sum_over_ranks()
    return scale / lam


def check_cone(dual: DualState) -> None:
    """Raise ValueError if a bound of the weights is neither 0 nor infinite."""
    if not dual.box.is_cone:
        raise ValueError("bounds limit weights by a number other than 0: a path needs (0.0, None) or (None, 0.0)")


def _to_largest_losses(head: nn.Module, dual: DualState, dataset: Any, optimizer: BCFW) -> None:
    """Take full Frank-Wolfe steps with every corner taken at w = 0; they work with any storage.

    ``lam`` is raised until the exact line search takes a full step. The dual's weights are kept in
    ``dual.recomputed``, where the next step starts, while the head holds zeros.
    """
    loss, fetch = BlockGap(dual, block_steps=CommonStep()), fetcher(dataset)
    ranks, own = dual.ranks, dual.own
    steps = math.ceil(math.ceil(dual.num_examples / ranks.size) / _BATCH)  # as many in each process

    def batch_of(step: int) -> Batch:
        rows = own[step * len(own) // steps : (step + 1) * len(own) // steps]
        return to_device(fetch(rows), dual.parameters[0].device)

    def propose(batch: Batch) -> Tensor:
        """The value of this process's direction, its squared norm, and examples decoded."""
        optimizer.zero_grad()
        value = loss.propose(apply_head(head, batch), batch.y, batch.index)
        value.backward()
        squared = squared_norm(p.grad for p in dual.parameters if p.grad is not None)
        return torch.tensor([float(value.detach()), squared, len(batch.index)], dtype=torch.float64)

    for step in range(steps):
        batch = ranks.run_on_all(partial(batch_of, step))
        values, squared, decoded = ranks.gather(ranks.run_on_all(partial(propose, batch))).unbind(1)
        if not bool((values > 0.0).any()):  # no output of these examples has a loss: they stay at their targets
            optimizer.zero_grad()
            dual.oracle_calls += int(decoded.sum())
            continue
        # No direction disturbs another one so much that it would not take a full step.
        needed = _MARGIN * ranks.size * float(squared.sum()) / float(values[values > 0.0].min())
        if needed > dual.lam:
            optimizer.zero_grad()
            dual.change_lam(needed)
            ranks.run_on_all(partial(propose, batch))
        optimizer.step()
        dual.recomputed = [v.detach().clone() for v in dual.unclipped]
        for parameter in dual.parameters:
            nn.init.zeros_(parameter)
    optimizer.zero_grad()
    dual.set_weights(dual.recomputed or dual.unclipped)
