"""Going on from a trained dual with a dataset that has more examples, fewer, or others."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_int64
from torchssvm.core.batch import pass_over, tree_map
from torchssvm.core.potentials import Potentials
from torchssvm.core.ranks import Ranks
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.states import copied
from torchssvm.core.structure import Structure
from torchssvm.dual.checks import check_dual
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import recompute_weights
from torchssvm.solvers.compiled.draws import BEGIN
from torchssvm.solvers.solver import Solver


class Start(NamedTuple):
    """What a run goes on from."""

    dual: DualState  # an earlier run's
    kept: Tensor  # [n] int64, the place that each example had in the earlier dataset, -1 for a new one
    weights: list[Tensor] | None  # v of that dual; None where others than it have written to its head
    damped: list[Tensor] | None  # w of that dual, where it is damped


def check_start(
    dual: DualState, kept: Tensor | None, n: int, head: nn.Module, structure: Structure, solver: Solver
) -> tuple[Start, Solver]:
    """The start of a run, independent of later changes of the head, and the solver with the storage of ``dual``."""
    old = check_dual(dual).num_examples
    if Ranks.here() or dual.ranks:
        raise ValueError(f"start={dual} cannot go on in several processes: use one")
    if kept is None:
        places = torch.arange(n)
        places[old:] = -1
    else:
        places = check_int64(kept, "kept", (n,), ", the place of each example in the old dataset, -1 for a new one")
        places = places.cpu()
        if not -1 <= int(places.min()) <= int(places.max()) < old:
            raise ValueError(
                f"kept holds {int(places.min())} to {int(places.max())}: give places 0 to {old - 1}, or -1 if new"
            )
    if not structure._extends(dual.structure):
        raise ValueError(f"start={dual} has another structure than {structure}: train without start")
    trained = list(head.parameters())
    shapes, before = ([list(p.shape) for p in several] for several in (trained, dual.parameters))
    fixed = dual.storage.needs_gradients or dual.box.has_bounds
    if trained[0].dtype is not dual.dtype or len(shapes) != len(before) or (fixed and shapes != before):
        raise ValueError(
            f"start={dual} has weights {dual.dtype} {before}, but the head {trained[0].dtype} {shapes}: train without "
            "start"
        )
    storage = dual.storage.unbound()
    if solver.storage is None:
        solver = solver.with_rules(storage=storage)
    elif type(storage) is not type(solver.storage) or vars(storage) != vars(solver.storage):
        raise ValueError(f"storage={type(solver.storage).__name__}(...) is not the storage of start: leave it out")
    changed = dual.norm_changed(squared_norm(dual.parameters) ** 0.5)
    weights = None if changed else copied(dual.origin)
    return Start(dual, places, weights, copied(dual.parameters) if dual.damped and not changed else None), solver


@torch.no_grad()
def go_on(
    head: nn.Module, dual: DualState, start: Start, dataset: Any, potentials: Potentials, *, unread: bool = False
) -> None:
    """Give a new dual of the same storage the blocks of ``start``; new examples start at their targets.

    A block keeps its mean parts; its loss, (1/n) times their mean loss, is multiplied by the old n
    over the new one. Its gap is unknown, unless nothing has changed. The weights, ``w = (1/(lam n)) sum_i Phi_i^T
    (p(y_i) - mu_i)``, are multiplied by the old ``lam n`` over the new one if no example has gone and the kept ones are
    ``unread``; else one pass without decoding makes them, as features may be others.
    ``potentials`` belong to some examples.

    Raises RuntimeError for an example whose target is another, or whose features are where the storage keeps weights,
    and ValueError for one of another length.
    """
    old, kept = start.dual, start.kept
    if not old.steps:
        return
    n, share = old.num_examples, old.num_examples / dual.num_examples
    empty = DualState(1, 1.0, old.structure, old.parameters, storage=old.storage.unbound())
    states = [tree_map(lambda tensor: tensor.cpu(), each.own_state()) for each in (old, empty)]
    for state in states:
        del state["seal"]  # nobody edits what does not leave the process
    state = old.merged_state(states, [range(n), range(n, n + 1)])
    state = old.part_of_state(state, torch.where(kept < 0, n, kept))
    state["loss"] *= share
    all_stay = torch.equal(kept[kept >= 0].sort().values, torch.arange(n))
    if not all_stay or share != 1.0 or dual.lam != old.lam:  # other weights: every block is visited once
        for name in ("gap_estimates", "oracle_gaps"):
            state[name].fill_(math.inf)
    state |= {
        "num_examples": dual.num_examples,
        "lam": dual.lam,
        "structure": repr(dual.structure),
        "weights": [p.detach().clone() for p in dual.parameters],
        "recomputed": None,
        "damped": False,
        "certified_gap": math.inf,
        "oracle_calls": 0,
        "cache_hits": 0,
        "visits": 0,
        "moved": max(old.moved, round(BEGIN * dual.num_examples)),  # the first epochs of a dual are over
    }
    dual.box = copy.deepcopy(old.box)
    dual.box.to(dual.parameters[0].device)
    dual.unclipped = dual.box.separate([torch.zeros_like(p) for p in dual.parameters], dual.parameters)
    dual.restore(state)
    storage = dual.storage
    storage.lam = old.lam
    storage.change_lam(dual.lam)
    storage.lam = dual.lam
    storage.change_number(share)
    storage.widen(potentials.detach())
    gaps = dual.gap_estimates.clone(), dual.oracle_gaps.clone()
    if all_stay and start.weights is not None and unread:
        known = [_widened(w, p) for w, p in zip(start.weights, dual.parameters, strict=True)]
        dual.set_weights([w * (share * old.lam / dual.lam) for w in known])
    else:
        recompute_weights(head, dual, pass_over(dataset), moved=False)
    lam, inner = dual.lam, dual.lam * squared_norm(dual.parameters)
    if 0.0 < dual.total_loss < inner and not dual.box.has_bounds:  # blocks that have gone balanced others
        dual.rescale(dual.total_loss / inner)  # where the dual is largest along the way to the targets
        dual.change_lam(lam)
    if start.damped is not None:
        dual.damp()
        for parameter, weight in zip(dual.parameters, start.damped, strict=True):
            parameter.copy_(_widened(weight, parameter))
        dual.remember_weights()
    dual.gap_estimates, dual.oracle_gaps = gaps


def _widened(weights: Tensor, like: Tensor) -> Tensor:
    """The weights with zeros behind them."""
    wide = torch.zeros_like(like)
    wide[tuple(map(slice, weights.shape))] = weights
    return wide
