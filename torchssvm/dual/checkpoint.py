"""The dual state in a checkpoint: what it holds, whether it fits, and how it is restored."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchssvm.core.schema import require

if TYPE_CHECKING:
    from torchssvm.dual.state import DualState

FORMAT = 4
_OLD = (
    ": since format 4 heads hold their weights as nn.Linear does, [out, in], and boundary weights have other names. Go "
    "on with the release that wrote it, or train anew"
)
_ROUNDING = 1e-9  # of losses, which are never below 0 otherwise


def state_of(dual: DualState) -> dict[str, Any]:
    """Everything, exactly: tensors, numbers and strings only, so that ``weights_only=True`` can load it; not sealed."""
    return {
        "format": FORMAT,
        "num_examples": dual.num_examples,
        "lam": dual.lam,
        "structure": repr(dual.structure),
        "weights": [parameter.detach().clone() for parameter in dual.parameters],
        "box": dual.box.state_dict(dual.unclipped) if dual.box else None,
        "recomputed": None if dual.recomputed is None else [tensor.clone() for tensor in dual.recomputed],
        "loss": dual.loss.clone(),
        "gap_estimates": dual.gap_estimates.clone(),
        "oracle_gaps": dual.oracle_gaps.clone(),
        "certified_gap": dual.certified_gap,
        "cache_hits": dual.cache_hits,
        "steps": dual.steps,
        "oracle_calls": dual.oracle_calls,
        "visits": dual.visits,
        "moved": dual.moved,
        "targets": dual.targets.clone(),
        "relaxed": dual.relaxed,
        "storage": dual.storage.state_dict(),
    }


def check(dual: DualState, state: dict[str, Any]) -> None:
    """Raise ValueError if ``state`` is another problem's or damaged, its seal apart; changes nothing."""
    if require(state, "format", int, "dual") != FORMAT:
        raise ValueError(
            f"the checkpoint has format {state['format']}, this version reads format {FORMAT}"
            + (_OLD if state["format"] < FORMAT else "")
        )
    weights = require(state, "weights", list, "dual")
    expected = {
        "num_examples": (dual.num_examples, require(state, "num_examples", int, "dual")),
        "lam": (dual.lam, require(state, "lam", float, "dual")),
        "structure": (repr(dual.structure), require(state, "structure", str, "dual")),
        "weights": (
            [(list(p.shape), p.dtype) for p in dual.parameters],
            [(list(w.shape), w.dtype) for w in weights if isinstance(w, Tensor)],
        ),
    }
    for name, (here, there) in expected.items():
        if here != there:
            raise ValueError(f"the checkpoint is of another problem: {name} is {there} there and {here} here")
    for name, allowed in (
        ("loss", math.nextafter(math.inf, 0.0)),
        ("gap_estimates", math.inf),
        ("oracle_gaps", math.inf),
    ):
        values = require(state, name, Tensor, "dual")
        if (
            values.shape != (dual.num_examples,)
            or values.dtype != torch.float64
            or not bool((values.abs() <= allowed).all())
            or bool((values < (-_ROUNDING * values.abs().amax().clamp(min=1.0) if name == "loss" else 0.0)).any())
        ):
            raise ValueError(
                f"the checkpoint is damaged: dual[{name!r}] does not hold {dual.num_examples} valid float64 numbers"
            )
    if not require(state, "certified_gap", float, "dual") >= 0.0:
        raise ValueError(f"the checkpoint is damaged: dual['certified_gap'] is {state['certified_gap']}")
    for name in ("steps", "oracle_calls", "cache_hits", "visits", "moved"):
        if require(state, name, int, "dual") < 0:
            raise ValueError(f"the checkpoint is damaged: dual[{name!r}] is {state[name]}")
    require(state, "relaxed", bool, "dual")
    targets = require(state, "targets", Tensor, "dual")
    if targets.shape != (dual.num_examples,) or targets.dtype != torch.int64:
        raise ValueError(f"the checkpoint is damaged: dual['targets'] does not hold {dual.num_examples} int64 numbers")
    for name in ("weights", "recomputed"):
        if name not in state:
            raise ValueError(f"the checkpoint is damaged: dual[{name!r}] is missing")
        if state[name] is not None and not _fit(dual, require(state, name, list, "dual")):
            raise ValueError(f"the checkpoint is damaged: dual[{name!r}] does not hold finite numbers for each weight")
    dual.box.parse(state, dual.parameters)
    dual.storage.check_state(require(state, "storage", dict, "dual"))
    storage = state["storage"]
    if state["steps"] and not (
        storage.get("buffers") or storage.get("blocks") or storage.get("sets", {}).get("labelings")
    ):
        raise ValueError(f"the checkpoint is damaged: dual['storage'] is empty after {state['steps']} steps")


def restore(dual: DualState, state: dict[str, Any]) -> None:
    """Blocks, counters and weights to the bit, from a state that ``check`` has let pass."""
    device = dual.parameters[0].device
    for parameter, weights in zip(dual.parameters, state["weights"], strict=True):
        parameter.copy_(weights)
    dual.box.to(device)
    dual.unclipped = dual.box.parse(state, dual.parameters)
    recomputed = state["recomputed"]
    dual.recomputed = None if recomputed is None else [tensor.to(device, copy=True) for tensor in recomputed]
    dual.loss = state["loss"].to(device, copy=True)
    dual.gap_estimates = state["gap_estimates"].to(device, copy=True)
    dual.oracle_gaps = state["oracle_gaps"].to(device, copy=True)
    dual.certified_gap = state["certified_gap"]
    dual.steps, dual.oracle_calls, dual.visits = state["steps"], state["oracle_calls"], state["visits"]
    dual.cache_hits, dual.moved = state["cache_hits"], state["moved"]
    dual.targets, dual.relaxed = state["targets"].to(device, copy=True), state["relaxed"]
    dual.storage.load_state_dict(state["storage"])


def _fit(dual: DualState, tensors: list[Any]) -> bool:
    return len(tensors) == len(dual.parameters) and all(
        isinstance(t, Tensor) and t.shape == p.shape and t.dtype == p.dtype and bool(torch.isfinite(t).all())
        for t, p in zip(tensors, dual.parameters, strict=True)
    )
