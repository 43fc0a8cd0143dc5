"""Going on from a trained dual with a dataset that has more examples, fewer, or others."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_int64
from torchssvm.core.batch import pass_over, tree_map
from torchssvm.core.potentials import Potentials
from torchssvm.core.ranks import Ranks
from torchssvm.core.schema import with_seal
from torchssvm.core.structure import Structure
from torchssvm.dual.checks import check_dual
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import recompute_weights
from torchssvm.solvers.solver import Solver


def check_start(
    start: DualState, kept: Tensor | None, n: int, head: nn.Module, structure: Structure, solver: Solver
) -> tuple[Tensor, Solver]:
    """The old place of each of the n examples, -1 for a new one, and the solver with the storage of ``start``.

    Raises:
        TypeError: ``start`` is not a DualState.
        ValueError: ``kept`` is not such a tensor, or ``start`` is of another problem, or of another storage than that
            of the solver.
    """
    old = check_dual(start).num_examples
    if Ranks.here() or start.ranks:
        raise ValueError("start is given, and several processes train together: go on with new examples in one process")
    if kept is None:
        places = torch.arange(n)
        places[old:] = -1
    else:
        places = check_int64(kept, "kept", (n,), ", the place of each example in the old dataset, -1 for a new one").cpu()
        if len(places) and not -1 <= int(places.min()) <= int(places.max()) < old:
            raise ValueError(
                f"kept has places from {int(places.min())} to {int(places.max())}: start has the examples 0 to "
                f"{old - 1}, and -1 stands for a new one"
            )
    if not structure.extends(start.structure):
        raise ValueError(
            f"start was trained with the structure {start.structure}, and {structure} is another one, whose outputs or "
            "losses differ: train anew, without start"
        )
    shapes, before = ([p.shape for p in several] for several in (head.parameters(), start.parameters))
    if shapes != before and (start.storage.needs_gradients or start.box.has_bounds):
        raise ValueError(
            f"start has weights of the shapes {[list(s) for s in before]}, and the head {[list(s) for s in shapes]}: "
            "bounds, and storage=Weights(), go on with weights of the same shapes alone"
        )
    storage = start.storage.unbound()
    if solver.storage is None:
        solver = solver.with_rules(storage=storage)
    elif repr(vars(storage)) != repr(vars(solver.storage)) or type(storage) is not type(solver.storage):
        raise ValueError(
            f"start keeps its blocks as {type(storage).__name__}(), and storage={type(solver.storage).__name__}() of "
            "the solver is another: leave storage out"
        )
    return places, solver


def go_on(
    head: nn.Module, dual: DualState, start: DualState, kept: Tensor, dataset: Any, potentials: Potentials
) -> None:
    """Give a new dual the blocks of ``start``; new examples start at their targets, and the weights are recomputed.

    The mean parts of a block are those of before; its loss, (1/n) times their mean loss, and its gap are multiplied by
    the old n over the new one, and ``w = (1/(lam n)) sum_i Phi_i^T (p(y_i) - mu_i)`` by one pass without decoding.

    Args:
        head: The head of the new dual.
        dual: A dual without steps, of the same storage as ``start``.
        start: The dual to go on from; it does not change, but its parameters may be those of the head.
        kept: ``[n]``, the place of each example in ``start``, -1 for a new one.
        dataset: All examples, old and new.
        potentials: Of some of them.

    Raises:
        RuntimeError: An example has another target than its block was trained on. Or its features have changed, and the
            storage keeps weights.
        ValueError: An example has another length than its block.
    """
    if not start.steps:
        return
    n = start.num_examples
    empty = DualState(1, 1.0, start.structure, start.parameters, storage=start.storage.unbound())
    states = [tree_map(lambda tensor: tensor.cpu(), each.own_state()) for each in (start, empty)]
    state = start.merged_state(states, [range(n), range(n, n + 1)])
    state = start.part_of_state(state, torch.where(kept < 0, n, kept))
    share = n / dual.num_examples
    for name in ("loss", "gap_estimates", "oracle_gaps"):
        state[name] *= share
    state |= {
        "num_examples": dual.num_examples,
        "lam": dual.lam,
        "structure": repr(dual.structure),
        "weights": [p.detach().clone() for p in dual.parameters],
        "recomputed": None,
        "certified_gap": torch.inf,
        "oracle_calls": 0,
        "cache_hits": 0,
        "visits": 0,
    }
    dual.box = copy.deepcopy(start.box)
    dual.box.to(dual.parameters[0].device)
    dual.unclipped = dual.box.separate([torch.zeros_like(p) for p in dual.parameters], dual.parameters)
    dual.load_state_dict(with_seal(state))
    storage = dual.storage
    storage.lam = start.lam
    storage.change_lam(dual.lam)
    storage.lam = dual.lam
    storage.change_number(share)
    storage.widen(potentials.detach())
    gaps = dual.gap_estimates, dual.oracle_gaps
    recompute_weights(head, dual, pass_over(dataset), moved=False)
    dual.gap_estimates, dual.oracle_gaps = gaps
