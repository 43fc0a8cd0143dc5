"""Margins of single states by an exact max oracle alone: it decodes once more for each state."""

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
    """For each single state, the best score of an output with it less that of the best without it.

    The state's score is lowered where the best output has the state, and raised where not, until the best output is
    another one in this. That one is best among those, whatever was added; its score is that of the potentials.
    ``argmax`` is the structure's max oracle, and returns a ``Decoding``.
    """
    scores = {name: (t[:1] if t.stride(0) == 0 else t).double().expand_as(t) for name, t in potentials.tensors.items()}
    wide, (name, tensor) = potentials.replace(scores), next(iter(scores.items()))
    absent, there = structure.state_parts
    margins, padding = torch.zeros_like(tensor), padding_of(wide, name)
    if not len(tensor):
        return margins
    real = torch.ones_like(tensor, dtype=torch.bool) if padding is None else ~padding
    real = structure.places(wide).get(name, real).expand_as(tensor)

    def best_parts(given: Potentials) -> tuple[Parts, Tensor | None]:
        found = argmax(given)
        if not found.exact:
            raise ValueError(
                f"max-marginals need exact decoding, and that of {structure} left a gap: let its decoder or oracle "
                "search longer"
            )
        parts = conform(structure.parts(found.labeling), wide, "parts(labeling)")
        wrong = real & (parts[name] != absent) & (parts[name] != there)
        if bool(wrong.any()):
            rows = row_names(wrong.nonzero()[:1, 0].tolist())
            raise ValueError(f"parts of {rows} are neither {absent:g} nor {there:g}: max-marginals are for these two")
        return parts, found.value

    (best, value), known = best_parts(potentials), structure.known_scores(wide) or {}
    scores = {**scores, **{key: scores[key] + held.double() for key, held in known.items()}}
    bounded = {**scores, name: scores[name].masked_fill(~real, 0.0)}
    sizes, used = (
        torch.cat([held.abs().reshape(len(held), -1) for held in each], 1)
        for each in ([held.nan_to_num(0.0, 0.0, 0.0) for held in bounded.values()], [best[key] for key in bounded])
    )
    usual = 1.0 + (sizes * used).sum(1, keepdim=True)
    small = 1.0 + 2.0 * sizes.masked_fill(sizes > _MASK * usual, 0.0).sum(1)
    large = (1.0 + 2.0 * sizes.sum(1)) * tensor[0].numel()  # states that are next to each other count as often
    for place in real.any(0).nonzero().tolist():
        at, size = (slice(None), *place), small
        own = best[name][at] == there
        change = torch.where(own, -1.0, 1.0).double() * math.copysign(1.0, there)
        while True:
            changed = tensor.clone()
            changed[at] += change * size
            found, _ = best_parts(wide.replace({**wide.tensors, name: changed}))
            same = real[at] & ((found[name][at] == there) == own)
            if bool((~same | (size == large)).all()):
                break
            size = torch.where(same, large, size)
        lost = {key: best[key] - parts for key, parts in found.items()}  # what both have cancels, infinite scores too
        gain = _score(lost, scores)
        gain = torch.where(same, math.inf, gain.nan_to_num(nan=0.0, posinf=math.inf).clamp(min=0.0))
        margins[at] = torch.where(own, gain, 0.0 - gain).masked_fill(~real[at], 0.0)
    never = (_score(best, scores) if value is None else value.double()) == -math.inf
    margins[never] = margins[never].masked_fill(real[never], math.nan)
    return margins


def _score(parts: Parts, scores: Parts) -> Tensor:
    """``[B]`` float64, without the scores, infinite ones too, of parts that are 0."""
    return inner(parts, {key: held.masked_fill(parts[key] == 0.0, 0.0) for key, held in scores.items()})
