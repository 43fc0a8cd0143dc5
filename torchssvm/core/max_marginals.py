"""Margins of single states by an exact max oracle, which decodes once more for each state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import row_names
from torchssvm.core.potentials import Parts, Potentials, conform, inner, padding_of

_MASK = 1e6  # times the best output's scores: larger ones forbid, and others would be rounded away beside them


@torch.no_grad()
def margins_by_decoding(structure: Any, argmax: Callable[[Potentials], Any], potentials: Potentials) -> Tensor:
    """For each single state, the best score of an output with it, minus the best score without it.

    The state's score is lowered if the best output has the state, and raised otherwise, until the best output changes
    in this state. The new output is the best one with the change, whatever was added; it is scored by the potentials.
    ``argmax`` is the structure's max oracle, and returns a ``Decoding``.
    """
    scores = {name: (t[:1] if t.stride(0) == 0 else t).double().expand_as(t) for name, t in potentials.tensors.items()}
    wide, (name, tensor) = potentials.replace(scores), next(iter(scores.items()))
    absent, present = structure._state_parts
    margins, padding = torch.zeros_like(tensor), padding_of(wide, name)
    if not len(tensor):
        return margins
    real = torch.ones_like(tensor, dtype=torch.bool) if padding is None else ~padding
    real = structure.places(wide).get(name, real).expand_as(tensor)

    def best_parts(given: Potentials) -> tuple[Parts, Tensor | None]:
        decoding = argmax(given)
        if not decoding.exact:
            raise ValueError(f"max-marginals need exact decoding: let the decoder of {structure} search longer")
        parts = conform(structure.parts(decoding.labeling), wide, "parts(labeling)")
        wrong = real & (parts[name] != absent) & (parts[name] != present)
        if bool(wrong.any()):
            rows = row_names(wrong.nonzero()[:1, 0].tolist())
            raise ValueError(f"parts of {rows} must be {absent:g} or {present:g} for max-marginals")
        return parts, decoding.value

    (best, value), known = best_parts(potentials), structure.known_scores(wide) or {}
    scores = {**scores, **{key: scores[key] + fixed.double() for key, fixed in known.items()}}
    bounded = {**scores, name: scores[name].masked_fill(~real, 0.0)}
    sizes, used = (
        torch.cat([t.abs().reshape(len(t), -1) for t in each], 1)
        for each in ([t.nan_to_num(0.0, 0.0, 0.0) for t in bounded.values()], [best[key] for key in bounded])
    )
    usual = 1.0 + (sizes * used).sum(1, keepdim=True)
    small = 1.0 + 2.0 * sizes.masked_fill(sizes > _MASK * usual, 0.0).sum(1)
    large = (1.0 + 2.0 * sizes.sum(1)) * tensor[0].numel()  # states that are next to each other count as often
    for place in real.any(0).nonzero().tolist():
        at, size = (slice(None), *place), small
        has_state = best[name][at] == present
        change = torch.where(has_state, -1.0, 1.0).double() * math.copysign(1.0, present)
        while True:
            changed = tensor.clone()
            changed[at] += change * size
            other, _ = best_parts(wide.replace({**wide.tensors, name: changed}))
            same = real[at] & ((other[name][at] == present) == has_state)
            if bool((~same | (size == large)).all()):
                break
            size = torch.where(same, large, size)
        lost = {key: best[key] - parts for key, parts in other.items()}  # shared parts cancel, infinite scores too
        gain = _score(lost, scores)
        gain = torch.where(same, math.inf, gain.nan_to_num(nan=0.0, posinf=math.inf).clamp(min=0.0))
        margins[at] = torch.where(has_state, gain, 0.0 - gain).masked_fill(~real[at], 0.0)
    never = (_score(best, scores) if value is None else value.double()) == -math.inf
    margins[never] = margins[never].masked_fill(real[never], math.nan)
    return margins


def _score(parts: Parts, scores: Parts) -> Tensor:
    """``[B]`` float64; infinite scores of parts that are 0 do not count."""
    return inner(parts, {key: score.masked_fill(parts[key] == 0.0, 0.0) for key, score in scores.items()})
