"""What training requires of a head and a structure; ``torchssvm.check`` examines it on a batch.

A function returns None if the requirement holds, else says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.batch import tree_replace, tree_tensors
from torchssvm.core.decoding import as_decoding
from torchssvm.core.gradients import adjoint, gram_product, per_example_adjoint
from torchssvm.core.max_oracle import find_corner, unreachable
from torchssvm.core.potentials import Parts, Potentials, conform, inner, padding_of
from torchssvm.core.structure import Structure, loss_by_name

ROUNDS = 8
"""How often a requirement is examined with other random numbers."""

_MOST_LABELINGS = 2_000


class Skipped(Exception):
    """The requirement cannot be examined; the message says why."""


@dataclass(frozen=True)
class Trial:
    """A batch on which requirements are examined.

    ``potentials`` are the head's for random weights, ``target`` is from ``check_target``, ``samples`` are outputs: the
    target, and the oracle's outputs for other potentials; ``generator`` is the source of further random numbers;
    ``learned`` are potentials that come to favour the target, as in training.
    """

    structure: Structure
    potentials: Potentials
    target: Any
    samples: list[Any]
    weights: list[nn.Parameter]
    generator: torch.Generator
    learned: Iterable[Potentials]

    def parts(self, labeling: Any) -> Parts:
        """The labeling's parts; raises ValueError if they are not shaped like the potentials."""
        return conform(self.structure.parts(labeling), self.potentials, "parts(labeling)")

    def cached(self) -> Any:
        """The samples without the target, ``[B, C, ...]``, as a storage holds them."""
        columns = [torch.stack(list(same), 1) for same in zip(*map(tree_tensors, self.samples[1:]), strict=True)]
        return tree_replace(self.samples[1], columns)

    def noise(self, like: Tensor) -> Tensor:
        """Random numbers shaped like a tensor."""
        return torch.randn(like.shape, generator=self.generator, dtype=like.dtype).to(like.device)

    def padding(self, name: str) -> Tensor | None:
        """The mask of the padding, ``[B, N]``; None if these potentials have no padding."""
        padding = padding_of(self.potentials, name)
        return None if padding is None else padding.flatten(1)


def adjoint_error(trial: Trial) -> str | None:
    """Does the head's per-example adjoint equal autograd's?"""
    potentials = trial.potentials
    if potentials.adjoint is None:
        raise Skipped("the head has none: torch.func computes it if it can")
    corner = find_corner(trial.structure, potentials, trial.target)
    ours = per_example_adjoint(potentials, corner.parts, trial.weights)
    rounding = 100 * torch.finfo(potentials.dtype).eps * max(float(mine.abs().max()) for mine in ours)
    for row in range(potentials.batch_size):
        only = {}
        for part, tensor in corner.parts.items():
            only[part] = torch.zeros_like(tensor)
            only[part][row] = tensor[row]
        truth = adjoint(potentials, only, trial.weights)
        for place, (mine, true) in enumerate(zip(ours, truth, strict=True)):
            if not torch.allclose(mine[row], true, rtol=1e-3, atol=1e-4 * float(mine.abs().max()) + rounding):
                return f"parameter {place}, row {row}: differs by {float((mine[row] - true).abs().max()):.3g}"
    return None


def gram_product_error(trial: Trial) -> str | None:
    """Does the head's gram_product equal autograd's?"""
    potentials = trial.potentials
    if potentials.gram_product is None:
        raise Skipped("the head has none: torch.func computes it if it can")
    parts = find_corner(trial.structure, potentials, trial.target).parts
    plain = Potentials(potentials.tensors, potentials.lengths, ragged=potentials.ragged)
    truth = gram_product(plain, parts, trial.weights)
    return _difference(trial, gram_product(potentials, parts, trial.weights), truth)


def _difference(trial: Trial, ours: Parts, truth: Parts) -> str | None:
    """The first difference between two sets of parts outside the padding, or None."""
    rounding = 100 * torch.finfo(trial.potentials.dtype).eps * max(float(t.abs().max()) for t in truth.values())
    for name, tensor in ours.items():
        wrong = (tensor - truth[name]).abs()
        if (padding := trial.padding(name)) is not None:
            wrong[padding] = 0.0
        worst = wrong.flatten(1).amax(1) if wrong[0].numel() else wrong.new_zeros(len(wrong))
        if bool((bad := ~(worst <= 1e-4 * float(truth[name].abs().sum()) + rounding)).any()):
            row = int(bad.nonzero()[0])
            return f"{name!r}, row {row}: differs by {float(worst[row]):.3g}"
    return None


def _size(structure: Structure, potentials: Potentials) -> Tensor:
    """The largest absolute value of each tensor that is finite, added up; known scores too. ``[B]`` float64."""
    scores = [*potentials.tensors.values(), *(structure.known_scores(potentials) or {}).values()]
    finite = [torch.nan_to_num(t.detach(), nan=0.0, posinf=0.0, neginf=0.0) for t in scores]
    sizes = [t.abs().flatten(1).amax(1).to(torch.float64) for t in finite if t[0].numel()]
    return sum(sizes, torch.zeros(potentials.batch_size, dtype=torch.float64, device=potentials.device))


def parts_error(trial: Trial) -> None:
    """Are parts shaped like the potentials?"""
    for labeling in trial.samples:
        trial.parts(labeling)


def loss_error(trial: Trial) -> str | None:
    """Is the loss 0 at the target, and finite and non-negative elsewhere?"""
    zero = trial.structure.loss(trial.target, trial.target)
    if bool((zero != 0).any()):
        return f"loss(target, target) is {zero.tolist()}"
    for labeling in trial.samples:
        loss = trial.structure.loss(labeling, trial.target)
        negative = bool((loss < 0).any()) and trial.structure.known_scores(trial.potentials) is None
        if negative or not bool(torch.isfinite(loss).all()):
            return f"loss is {loss.tolist()}"
    return None


def loss_potentials_error(trial: Trial) -> str | None:
    """Does the loss equal ``<parts, delta> + constant``?"""
    structure = trial.structure
    try:
        delta, constant = loss_by_name(structure, trial.target, trial.potentials)
    except NotImplementedError:
        if type(structure).augmented_argmax is Structure.augmented_argmax:
            raise
        raise Skipped("the structure has no loss_potentials, and its oracle needs none") from None
    for labeling in trial.samples:
        parts = trial.parts(labeling)
        shared = {name: parts[name] for name in delta}
        claimed = inner(shared, delta) + constant
        one, other = ({name: t.abs() for name, t in some.items()} for some in (shared, delta))
        summed = inner(one, other) + constant.abs()
        loss = structure.loss(labeling, trial.target).to(torch.float64)
        if bool(((claimed - loss).abs() > 1e-4 * loss.abs() + 1e-5 * summed).any()):
            return f"loss is {loss.tolist()}, loss_potentials gives {claimed.tolist()}"
    return None


def resize_error(trial: Trial) -> str | None:
    """Does ``resize`` leave labelings of this batch as they are?"""
    cached = trial.cached()
    try:
        fitted = trial.structure.resize(cached, trial.target)
    except ValueError as error:
        raise Skipped(str(error)) from None
    for before, after in zip(tree_tensors(cached), tree_tensors(fitted), strict=True):
        if before.shape != after.shape or not torch.equal(before, after):
            return f"resize changed labelings of this batch: {list(before.shape)} became {list(after.shape)}"
    return None


def relative_scores_error(trial: Trial) -> str | None:
    """Does ``relative_scores`` equal the one computed from the parts?"""
    structure, potentials = trial.structure, trial.potentials.detach()
    if type(structure).relative_scores is Structure.relative_scores:
        raise Skipped("it is not overridden")
    cached = trial.cached()
    ours = structure.relative_scores(cached, trial.target, potentials)
    truth = Structure.relative_scores(structure, cached, trial.target, potentials)
    if ours.shape != truth.shape or ours.dtype != torch.float64:
        return f"it returned {ours.dtype} {list(ours.shape)}, it should return float64 {list(truth.shape)}"
    wrong = ~((ours - truth).abs() <= 1e-4 * (_size(structure, potentials).unsqueeze(1) + truth.abs()))
    if bool(wrong.any()):
        row, column = (int(place) for place in wrong.nonzero()[0])
        return f"row {row}: it says {float(ours[row, column]):.6g}, the parts {float(truth[row, column]):.6g}"
    return None


def mean_difference_error(trial: Trial) -> str | None:
    """Does ``mean_difference`` equal the one computed from the parts?"""
    structure, potentials = trial.structure, trial.potentials.detach()
    if type(structure).mean_difference is Structure.mean_difference:
        raise Skipped("it is not overridden")
    cached = trial.cached()
    shape = tree_tensors(cached)[0].shape[:2]
    mass = trial.noise(torch.empty(shape, dtype=torch.float64, device=potentials.device))
    ours = conform(structure.mean_difference(cached, mass, trial.target, potentials), potentials, "mean_difference")
    return _difference(trial, ours, Structure.mean_difference(structure, cached, mass, trial.target, potentials))


def target_error(trial: Trial) -> str | None:
    """Does the oracle return the target where nothing scores more?"""
    if trial.structure.known_scores(trial.potentials) is not None:
        raise Skipped("some scores are known, beside the weights' scores")
    wrong = unreachable(trial.structure, trial.potentials.detach(), trial.target)
    if wrong is None:
        raise Skipped("the oracle is not exact, and gives no bound")
    if bool(wrong.any()):
        return (
            f"row {int(wrong.nonzero()[0])}: argmax returns an output that scores less than the target, where each "
            "scores minus its loss: it does not allow the target, or does not find the best output"
        )
    return None


def argmax_error(trial: Trial, *, augmented: bool = False) -> str | None:
    """Is the oracle's output at least as good as all others, or as samples? With the loss if ``augmented``."""
    for factor in (1.0, 0.1, 0.0):  # large scores hide the loss, small ones let it dominate
        tensors = {name: factor * t.detach() for name, t in trial.potentials.tensors.items()}
        if problem := _better_output(trial, trial.potentials.replace(tensors), trial.target if augmented else None):
            return problem
    if not augmented and trial.structure.enumerate(trial.potentials) is None:  # else all outputs were compared
        for potentials in trial.learned:
            if problem := _better_output(trial, potentials, None):
                return problem
    return None


def _better_output(trial: Trial, potentials: Potentials, target: Any) -> str | None:
    structure = trial.structure
    scores = potentials.tensors
    if target is None and (known := structure.known_scores(potentials)) is not None:
        scores = {name: tensor + known[name].to(tensor.dtype) for name, tensor in scores.items()}

    def score(labeling: Any) -> Tensor:
        return inner(trial.parts(labeling), scores)

    target_score = None if target is None else score(target)

    def value(labeling: Any) -> Tensor:
        if target_score is None:
            return score(labeling)
        # Training maximises by `difference`, which a structure may redefine (slack rescaling).
        gain = inner(structure._difference(labeling, target, potentials), potentials.tensors)
        return target_score + gain + structure.loss(labeling, target)

    decoding = as_decoding(
        structure.argmax(potentials) if target is None else structure.augmented_argmax(potentials, target)
    )
    best = value(decoding.labeling)
    slack = 1e-4 * (_size(structure, potentials) + best.abs())
    if decoding.value is not None and bool(((decoding.value - best).abs() > slack).any()):
        return f"it says value {decoding.value.tolist()}, its output has {best.tolist()}"
    ceiling = best if decoding.exact or decoding.bound is None else decoding.bound
    others: Iterable[Any] = trial.samples
    every = structure.enumerate(potentials)
    if every is not None:
        listed = list(islice(every, _MOST_LABELINGS + 1))
        others = [*trial.samples, *listed]
        try:
            values = [value(labeling) for labeling in listed]
        except Exception as error:
            raise ValueError(
                f"enumerate(potentials) must yield labelings of the whole batch, one after another: {error}"
            ) from error
        if len(listed) <= _MOST_LABELINGS and not decoding.relaxed:
            most = torch.stack(values).amax(0)
            if bool((best > most + slack).any()):
                row = int((best > most + slack).nonzero()[0])
                return (
                    f"row {row}: its output has {float(best[row]):.6g}, and no output that enumerate() lists has more "
                    f"than {float(most[row]):.6g}: it is not an output. The oracle of a relaxation must return "
                    "Decoding(..., relaxed=True)"
                )
    for labeling in others:
        better = (reached := value(labeling)) > ceiling + slack
        if bool(better.any()):
            row = int(better.nonzero()[0])
            return (
                f"row {row}: another output has {float(reached[row]):.6g}, and the oracle's "
                f"{'bound' if ceiling is not best else 'output'} {float(ceiling[row]):.6g}"
            )
    return None


def padding_error(trial: Trial) -> str | None:
    """Are parts zero in the padding, and does noise in it leave the maximum unchanged?"""
    structure, potentials, target = trial.structure, trial.potentials, trial.target
    if potentials.lengths is None:
        raise Skipped("the batch has no lengths")
    parts = conform(structure.parts(target), potentials, "parts(target)")
    corner = find_corner(structure, potentials, target)
    padding = {name: mask for name in potentials.ragged if (mask := trial.padding(name)) is not None}
    for name, mask in padding.items():
        if bool((parts[name][mask] != 0).any()):
            return f"parts {name!r} of the target are not zero in the padding"
    for _ in range(ROUNDS):
        noisy = {name: tensor.detach().clone() for name, tensor in potentials.tensors.items()}
        for name, mask in padding.items():
            noisy[name][mask] = 100 * trial.noise(noisy[name])[mask]
        again = find_corner(structure, potentials.replace(noisy), target)
        if bool(
            ((again.hinge - corner.hinge).abs() > 1e-4 * (_size(structure, potentials) + corner.hinge.abs())).any()
        ):
            other = again.hinge.tolist()
            return f"with other numbers in the padding the maximum is {other}, not {corner.hinge.tolist()}"
    if not padding:
        raise Skipped("the potentials do not say which axes are `ragged`")
    return None


REQUIREMENTS: dict[str, Callable[[Trial], str | None]] = {
    "adjoint equals autograd": adjoint_error,
    "gram_product equals autograd": gram_product_error,
    "parts are shaped like the potentials": parts_error,
    "loss is 0 at the target, else >= 0": loss_error,
    "loss equals <parts, delta> + constant": loss_potentials_error,
    "labelings keep their size": resize_error,
    "relative_scores equals the parts": relative_scores_error,
    "mean_difference equals the parts": mean_difference_error,
    "argmax can return the target": target_error,
    "argmax finds the best output": argmax_error,
    "augmented_argmax finds the best output": partial(argmax_error, augmented=True),
    "padding changes no answer": padding_error,
}
