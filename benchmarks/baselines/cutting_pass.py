"""The pass over all examples that gives an iteration of the cutting-plane method its constraints and its primal."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.batch import Batch
from torchssvm.core.gradients import adjoint
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.operators import on_host
from torchssvm.core.potentials import scale
from torchssvm.core.precision import full_precision
from torchssvm.core.probe import TOLERANCE, probe
from torchssvm.core.row_sparse import flat, squared_norm
from torchssvm.dual.checks import check_batch, check_targets, digest_examples
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import dual_exceeds_primal
from torchssvm.solvers.exact_pass import every_example

from .slack import Slack


class Pass(NamedTuple):
    """The results of a pass of the max oracle over all examples.

    Attributes:
        primal: Of the head's weights; with an approximate oracle, an upper bound.
        exact: Whether the oracle was exact for every example.
        relaxed: Whether an output may lie outside of the hull of outputs.
        targets: ``[n]`` int64, digests of the targets.
        features: ``[d]`` float64, ``sum_i c_i Phi_i^T r_i`` for fixed r_i and c_i: detects features that differ from
            those of other passes.
    """

    primal: float
    exact: bool
    relaxed: bool
    targets: Tensor
    features: Tensor


def make_pass(
    head: nn.Module, problem: DualState, batches: Iterable[Batch], slack: Slack, features: Tensor, dual: float
) -> Pass:
    """One pass at the head's weights; the slack collects the corners.

    Args:
        head: The head.
        problem: Holds n, lam, structure, parameters and the targets of earlier passes.
        batches: Every training example once.
        slack: The working set.
        features: ``Pass.features`` of the previous pass; empty before the first.
        dual: The best lower bound so far.

    Raises:
        ValueError: An example is missing or duplicated, or a batch is not valid.
        RuntimeError: Targets or features have changed, or the primal is below the dual by more than rounding.
    """
    hinges, exact, relaxed = 0.0, True, False
    targets = torch.zeros(problem.num_examples, dtype=torch.int64)
    collected = torch.zeros(slack.size, dtype=torch.float64)
    check, device = partial(check_batch, problem), problem.parameters[0].device
    for batch, potentials, index in every_example(head, batches, device, check, problem.num_examples):
        target = problem.structure.check_target(batch.y, potentials)
        targets[on_host(index)] = digest_examples(target, potentials)
        corner = find_corner(problem.structure, potentials, target)
        assert corner.read is not None
        with full_precision(potentials.device):
            parts = scale(probe(potentials, problem.structure), (1.7 * index.double() + 0.3).cos())
            collected += flat(adjoint(potentials, parts, problem.parameters)).cpu()
            slack.collect(index, potentials, corner)
        hinges += float(corner.read[1].sum())
        exact &= corner.exact
        relaxed |= corner.relaxed
    check_targets(problem, targets)
    known = features if len(features) else collected
    if float((collected - known).norm()) > TOLERANCE * float(known.norm()):
        raise RuntimeError(
            "the features have moved since the last pass, and the planes are those of the old features, so that the "
            "lower bound is not valid: make a new CuttingPlane, and take dropout and augmentation out of the "
            "features"
        )
    regulariser = problem.lam / 2 * squared_norm(problem.parameters)
    primal = regulariser + hinges / problem.num_examples
    if dual_exceeds_primal(primal, dual, problem.parameters[0].dtype, 2 * regulariser):
        raise RuntimeError(
            f"the primal, {primal:.6g}, is below the lower bound, {dual:.6g}: did examples, targets, lengths "
            "or the features below the head change between the passes?"
        )
    return Pass(primal, exact, relaxed, targets, collected)
