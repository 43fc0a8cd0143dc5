"""Loss-augmented decoding and its checks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from torchssvm.core.arguments import naming
from torchssvm.core.decoding import Labeling, OracleResult, as_decoding
from torchssvm.core.operators import on_host, read_together
from torchssvm.core.packages import is_ours
from torchssvm.core.potentials import Potentials, conform, inner, padding_of
from torchssvm.core.precision import full_precision
from torchssvm.core.structure import Structure, loss_by_name, per_example, reject_rows


@torch.no_grad()
def find_corner(structure: Structure, potentials: Potentials, target: Labeling) -> OracleResult:
    """Loss-augmented decoding with its checks. ``target`` comes from ``check_target``.

    Raises:
        ValueError: Potentials are not finite; a loss is negative; the oracle returned an output that scores worse than
            the target, or better than its bound.
    """
    if not potentials.examined:
        potentials = potentials.examining()  # outputs of NaN have scores of NaN
    with naming(potentials.index), full_precision(potentials.device):
        decoding = as_decoding(structure.augmented_argmax(potentials, target))
        corner = structure._examine(decoding.labeling, target, potentials)
        corner.loss = per_example(corner.loss, potentials, "loss(labeling, target)")
        bound = None
        if decoding.bound is not None:
            target_parts = conform(structure.parts(target), potentials, "parts(target)")
            bound = decoding.bound.to(torch.float64) - inner(target_parts, potentials.tensors)
        elif not decoding.exact:
            raise ValueError("bound=None with exact=False: the oracle must return an upper bound of its maximum")
        score, losses, *most = read_together(corner.score, corner.loss, *([] if bound is None else [bound]))
        hinge = corner.hinge if score is corner.score else score + losses
        low, high = torch.stack(torch.cat([hinge, losses]).aminmax()).tolist()
        if not (low >= 0.0 and high < torch.inf):
            _check_hinges(structure, potentials, corner)
            corner.hinge = corner.hinge.clamp(min=0.0)
            hinge = on_host(corner.hinge)
        corner.read = hinge, hinge
        if bound is not None:
            if bool((most[0] < hinge).any()):
                wrong = bound < corner.hinge - _rounding(structure, potentials, corner.loss)
                reject_rows(wrong, "the oracle's bound is below the score of its output in {rows}")
            corner.upper = torch.maximum(bound, corner.hinge)
            corner.read = hinge, torch.maximum(most[0], hinge)
    corner.exact, corner.relaxed = decoding.exact and not decoding.relaxed, decoding.relaxed
    corner.make = partial(structure._difference, decoding.labeling, target, potentials)
    return corner


def _check_hinges(structure: Structure, potentials: Potentials, corner: OracleResult) -> None:
    """Raise ValueError for hinges that are not finite, negative losses, and hinges that are negative beyond rounding.

    An oracle that misses the target would make the dual decrease.
    """
    where = " (in the padding)" if _finite_within(structure, potentials) else ""
    reject_rows(
        ~torch.isfinite(corner.hinge),
        "the potentials of {rows} are not finite" + where + ": check features and weights",
    )
    if structure.known_scores(potentials) is None:
        reject_rows(corner.loss < 0, "loss(labeling, target) is negative in {rows}: a loss must be at least 0")
    default = type(structure).augmented_argmax is Structure.augmented_argmax
    reject_rows(
        corner.hinge < -_rounding(structure, potentials, corner.loss),
        "the oracle returned outputs that score worse than the target in {rows}: "
        + (
            "argmax is wrong, or loss and loss_potentials disagree: run torchssvm.check(head, structure, batch)"
            if default
            else "augmented_argmax must return at least the target's score"
        ),
    )


@torch.no_grad()
def unreachable(structure: Structure, potentials: Potentials, target: Labeling) -> Tensor | None:
    """Whether the max oracle cannot return the target of an example, ``[B]`` bool; None if unknown.

    Outputs are scored by minus their loss, or, without ``loss_potentials``, by the parts that they share with the
    target. The target then has the highest score; an oracle whose best output scores less cannot return the target.

    Args:
        structure: A structure without known scores.
        potentials: Scores of -inf remain forbidden.
        target: From ``check_target``.
    """
    target_parts = conform(structure.parts(target), potentials, "parts(target)")
    try:
        scores = {name: -delta for name, delta in loss_by_name(structure, target, potentials)[0].items()}
    except NotImplementedError:
        scores = target_parts
    raised = {n: scores[n].to(t.dtype) if n in scores else torch.zeros_like(t) for n, t in potentials.tensors.items()}
    forbidding = {n: raised[n].masked_fill(t == -torch.inf, -torch.inf) for n, t in potentials.tensors.items()}
    decoding = as_decoding(structure.argmax(potentials.replace(forbidding)))
    if decoding.bound is None and not decoding.exact:
        return None
    best = decoding.bound
    if best is None:
        best = inner(conform(structure.parts(decoding.labeling), potentials, "parts(labeling)"), raised)
    score = inner(target_parts, raised)
    return score > best.to(torch.float64) + _rounding(structure, potentials.replace(raised), score)


def has_target_check(structure: Structure) -> bool:
    """Whether the class with ``argmax`` is of this package, or defines ``check_target``; wrappers are unwrapped."""
    while isinstance(wrapped := getattr(structure, "structure", None), Structure):
        structure = wrapped
    for base in type(structure).__mro__:
        if "check_target" in vars(base):
            return base is not Structure
        if "argmax" in vars(base):
            return is_ours(base)
    return False


def _finite_within(structure: Structure, potentials: Potentials) -> bool:
    """Whether all numbers outside the padding are finite."""
    places = structure.places(potentials)
    for name, tensor in potentials.tensors.items():
        wrong = ~torch.isfinite(tensor)
        if name in places:
            wrong = wrong & places[name]
        elif (padding := padding_of(potentials, name)) is not None:
            wrong = wrong & ~padding
        if bool(wrong.any()):
            return False
    return True


def _rounding(structure: Structure, potentials: Potentials, loss: Tensor) -> Tensor:
    """A bound of the rounding of hinges, ``[B]`` float64, relative to the largest scores and losses."""
    scores = [*potentials.tensors.values(), *(structure.known_scores(potentials) or {}).values()]
    filled = [t for t in scores if t.numel()]  # graphs may have no edges
    largest = sum((t.abs().flatten(1).amax(1).to(torch.float64) for t in filled), loss.abs())
    return 1e3 * torch.finfo(potentials.dtype).eps * largest
