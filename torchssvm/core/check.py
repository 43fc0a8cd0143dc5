"""``torchssvm.check``: finds errors in a user's head and structure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchssvm.core.batch import Batch, apply_head, tree_replace, tree_tensors
from torchssvm.core.bounds import Bound, Box
from torchssvm.core.gradients import adjoint, gram_product, per_example_adjoint
from torchssvm.core.linearity import linearity_error
from torchssvm.core.potentials import Parts, Potentials, as_potentials, conform, inner
from torchssvm.core.structure import Structure, as_decoding, find_corner, loss_by_name

_MOST_LABELINGS = 2_000
_RANDOM_ROUNDS = 8
_DECOMPOSES = "loss equals <parts, delta> + constant"


@dataclass(frozen=True)
class Finding:
    """The result of one check: ``problem`` is None if it passed; ``skipped`` says why it was not made."""

    name: str
    problem: str | None = None
    skipped: str | None = None


@dataclass(frozen=True)
class CheckReport:
    """The findings of :func:`torchssvm.check`; prints as a table."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no check found a problem."""
        return all(finding.problem is None for finding in self.findings)

    def raise_if_wrong(self) -> None:
        """Raise ValueError with the whole table if a check found a problem."""
        if not self.ok:
            raise ValueError(f"the head or the structure is not valid:\n{self}")

    def __str__(self) -> str:
        width = max(len(finding.name) for finding in self.findings)
        lines = []
        for finding in self.findings:
            outcome = finding.problem and f"WRONG: {finding.problem}"
            outcome = outcome or (f"not checked: {finding.skipped}" if finding.skipped else "ok")
            lines.append(f"{finding.name.ljust(width)}  {outcome}")
        return "\n".join(lines)

    __repr__ = __str__


def check(
    head: nn.Module,
    structure: Structure,
    batch: Batch,
    *,
    bounds: Mapping[str, tuple[Bound | None, Bound | None]] | None = None,
) -> CheckReport:
    """Check on one batch what training requires of a head and a structure.

    Checked are: the head's linearity; its per-example adjoint and gram_product, if it has them, against autograd; the
    parts; the loss, and that it is zero at the target; ``loss`` against ``loss_potentials``; ``relative_scores`` and
    ``mean_difference``, if the structure overrides them, against those computed from the parts; the max oracle, plain
    and loss-augmented, against all outputs (if ``structure.enumerate`` lists them and they are few), else against
    sampled outputs; and that padding changes no result. The head's weights are restored.

    Args:
        head: An ``nn.Module`` linear in its weights.
        structure: The structure.
        batch: A few examples from the data loader.
        bounds: ``(lower, upper)`` by parameter name, None for no bound, such as ``{"pairwise": (0.0, None)}``. Give
            them if the oracle needs them: only weights within the bounds are tried.

    Returns:
        A report; print it, or use ``report.ok`` and ``report.raise_if_wrong()``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``bounds`` has an unknown parameter name.
    """
    if not isinstance(head, nn.Module) or not isinstance(structure, Structure) or not isinstance(batch, Batch):
        raise TypeError(
            f"check(head, structure, batch) takes a module, a torchssvm.Structure and a torchssvm.Batch, not a "
            f"{type(head).__name__}, a {type(structure).__name__} and a {type(batch).__name__}"
        )
    findings: list[Finding] = []
    args = (batch.x,) if batch.lengths is None else (batch.x, batch.lengths)

    def run(name: str, examine: Any) -> None:
        try:
            outcome = examine()
        except Exception as error:
            outcome = Finding(name, f"{type(error).__name__}: {error}")
        findings.append(outcome if isinstance(outcome, Finding) else Finding(name, outcome))

    run("head is linear in its weights", lambda: linearity_error(head, args))
    weights = list(head.parameters())
    named = dict(head.named_parameters())
    if unknown := sorted(set(bounds or {}) - set(named)):
        raise ValueError(f"bounds names {unknown}, and the parameters of the head are {sorted(named)}")
    box = Box(weights, [(bounds or {}).get(name, (None, None)) for name in named])
    held = [p.detach().clone() for p in weights]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():  # random weights: with zero weights all outputs tie
            for p, value in zip(weights, _random_weights(weights, box, generator), strict=True):
                p.copy_(value)
        try:
            potentials = as_potentials(apply_head(head, batch))
            target = structure.check_target(batch.y, potentials)
        except Exception as error:
            findings.append(Finding("head and target fit the structure", f"{type(error).__name__}: {error}"))
            return CheckReport(tuple(findings))
        findings.append(Finding("head and target fit the structure"))
        run("adjoint equals autograd", lambda: _adjoint(potentials, structure, target, weights))
        run("gram_product equals autograd", lambda: _gram_product(potentials, structure, target, weights))
        samples = _samples(structure, _random_potentials(head, args, potentials, box, generator), target)
        run("parts are shaped like the potentials", lambda: _parts(structure, potentials, samples))
        run("loss is 0 at the target, else >= 0", lambda: _loss(structure, target, samples))
        run(_DECOMPOSES, lambda: _loss_potentials(structure, potentials, target, samples))
        run("labelings keep their size", lambda: _resize(structure, target, samples))
        run("relative_scores equals the parts", lambda: _relative_scores(structure, potentials, target, samples))
        run(
            "mean_difference equals the parts",
            lambda: _mean_difference(structure, potentials, target, samples, generator),
        )
        run("argmax finds the best output", lambda: _oracle(structure, potentials, None, samples))
        run("augmented_argmax finds the best output", lambda: _oracle(structure, potentials, target, samples))
        run("padding changes no answer", lambda: _padding(structure, potentials, target, generator))
    finally:
        with torch.no_grad():
            for p, value in zip(weights, held, strict=True):
                p.copy_(value)
    return CheckReport(tuple(findings))


def _random_weights(weights: list[nn.Parameter], box: Box, generator: torch.Generator) -> list[Tensor]:
    return box.clip([torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in weights])


def _random_potentials(
    head: nn.Module, args: tuple[Any, ...], potentials: Potentials, box: Box, generator: torch.Generator
) -> Iterator[Potentials]:
    """Random potentials; if weights are bounded, the head's potentials for random weights within the bounds."""
    for _ in range(_RANDOM_ROUNDS):
        if box.has_bounds:
            names = [name for name, _ in head.named_parameters()]
            values = dict(zip(names, _random_weights(list(head.parameters()), box, generator), strict=True))
            buffers = {name: buffer.clone() for name, buffer in head.named_buffers()}
            with torch.no_grad():
                yield as_potentials(functional_call(head, {**buffers, **values}, args))
        else:
            noise = {
                name: torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device)
                for name, t in potentials.tensors.items()
            }
            yield potentials.replace(noise)


def _samples(structure: Structure, others: Iterable[Potentials], target: Any) -> list[Any]:
    """Outputs to compare with: the target, and the oracle's outputs for other potentials."""
    samples = [target]
    for potentials in others:
        try:
            samples.append(as_decoding(structure.argmax(potentials)).labeling)
        except Exception:
            return samples
    return samples


def _adjoint(potentials: Potentials, structure: Structure, target: Any, weights: list[nn.Parameter]) -> Any:
    name = "adjoint equals autograd"
    if potentials.adjoint is None:
        return Finding(name, skipped="the head has none: torch.func computes it if it can")
    corner = find_corner(structure, potentials, target)
    ours = per_example_adjoint(potentials, corner.parts, weights)
    for row in range(potentials.batch_size):
        only = {}
        for part, tensor in corner.parts.items():
            only[part] = torch.zeros_like(tensor)
            only[part][row] = tensor[row]
        truth = adjoint(potentials, only, weights)
        for place, (mine, true) in enumerate(zip(ours, truth, strict=True)):
            if not torch.allclose(mine[row], true, rtol=1e-3, atol=1e-4 * (1 + float(true.abs().max()))):
                return f"parameter {place}, row {row}: differs by {float((mine[row] - true).abs().max()):.3g}"
    return None


def _gram_product(potentials: Potentials, structure: Structure, target: Any, weights: list[nn.Parameter]) -> Any:
    if potentials.gram_product is None:
        return Finding("gram_product equals autograd", skipped="the head has none: torch.func computes it if it can")
    parts = find_corner(structure, potentials, target).parts
    ours = gram_product(potentials, parts, weights)
    truth = gram_product(Potentials(potentials.tensors, potentials.lengths, ragged=potentials.ragged), parts, weights)
    return _difference(ours, truth, potentials)


def _difference(ours: Parts, truth: Parts, potentials: Potentials) -> str | None:
    """The first difference between two sets of parts outside the padding, or None."""
    for name, tensor in ours.items():
        wrong = (tensor - truth[name]).abs()
        if potentials.lengths is not None and name in potentials.ragged:
            position = torch.arange(tensor.shape[1], device=tensor.device)
            wrong[position >= (potentials.lengths + potentials.ragged[name]).unsqueeze(1)] = 0.0
        worst = wrong.flatten(1).amax(1) if wrong[0].numel() else wrong.new_zeros(len(wrong))
        if bool((bad := ~(worst <= 1e-4 * (1 + float(truth[name].abs().sum())))).any()):
            row = int(bad.nonzero()[0])
            return f"{name!r}, row {row}: differs by {float(worst[row]):.3g}"
    return None


def _stack(labelings: list[Any]) -> Any:
    """Several labelings ``[B, ...]`` as one ``[B, C, ...]``."""
    columns = [torch.stack(list(same), 1) for same in zip(*map(tree_tensors, labelings), strict=True)]
    return tree_replace(labelings[0], columns)


def _resize(structure: Structure, target: Any, samples: list[Any]) -> Any:
    held = _stack(samples[1:])
    try:
        fitted = structure.resize(held, target)
    except ValueError as error:
        return Finding("labelings keep their size", skipped=f"{error}")
    for before, after in zip(tree_tensors(held), tree_tensors(fitted), strict=True):
        if before.shape != after.shape or not torch.equal(before, after):
            return f"resize changed labelings of this batch: {list(before.shape)} became {list(after.shape)}"
    return None


def _relative_scores(structure: Structure, potentials: Potentials, target: Any, samples: list[Any]) -> Any:
    if type(structure).relative_scores is Structure.relative_scores:
        return Finding("relative_scores equals the parts", skipped="it is not overridden")
    held, potentials = _stack(samples[1:]), potentials.detach()
    ours = structure.relative_scores(held, target, potentials)
    truth = Structure.relative_scores(structure, held, target, potentials)
    if ours.shape != truth.shape or ours.dtype != torch.float64:
        return f"it returned {ours.dtype} {list(ours.shape)}, it should return float64 {list(truth.shape)}"
    wrong = ~((ours - truth).abs() <= 1e-4 * (1 + truth.abs()))
    if bool(wrong.any()):
        row, column = (int(place) for place in wrong.nonzero()[0])
        return f"row {row}: it says {float(ours[row, column]):.6g}, the parts {float(truth[row, column]):.6g}"
    return None


def _mean_difference(
    structure: Structure, potentials: Potentials, target: Any, samples: list[Any], generator: torch.Generator
) -> Any:
    if type(structure).mean_difference is Structure.mean_difference:
        return Finding("mean_difference equals the parts", skipped="it is not overridden")
    held, potentials = _stack(samples[1:]), potentials.detach()
    mass = torch.randn(tree_tensors(held)[0].shape[:2], generator=generator, dtype=torch.float64).to(potentials.device)
    ours = conform(structure.mean_difference(held, mass, target, potentials), potentials, "mean_difference")
    return _difference(ours, Structure.mean_difference(structure, held, mass, target, potentials), potentials)


def _parts(structure: Structure, potentials: Potentials, samples: list[Any]) -> str | None:
    for labeling in samples:
        conform(structure.parts(labeling), potentials, "parts(labeling)")
    return None


def _loss(structure: Structure, target: Any, samples: list[Any]) -> str | None:
    own = structure.loss(target, target)
    if bool((own != 0).any()):
        return f"loss(target, target) is {own.tolist()}"
    for labeling in samples:
        loss = structure.loss(labeling, target)
        if bool((loss < 0).any()) or not bool(torch.isfinite(loss).all()):
            return f"loss is {loss.tolist()}"
    return None


def _loss_potentials(structure: Structure, potentials: Potentials, target: Any, samples: list[Any]) -> Any:
    try:
        delta, constant = loss_by_name(structure, target, potentials)
    except NotImplementedError:
        if type(structure).augmented_argmax is Structure.augmented_argmax:
            raise
        return Finding(_DECOMPOSES, skipped="there are no loss_potentials, and the structure's own oracle needs none")
    for labeling in samples:
        parts = conform(structure.parts(labeling), potentials, "parts(labeling)")
        claimed = inner({name: parts[name] for name in delta}, delta) + constant
        loss = structure.loss(labeling, target).to(torch.float64)
        if not torch.allclose(claimed.to(torch.float64), loss, rtol=1e-4, atol=1e-5):
            return f"loss is {loss.tolist()}, loss_potentials gives {claimed.tolist()}"
    return None


def _oracle(structure: Structure, potentials: Potentials, target: Any, samples: list[Any]) -> str | None:
    """Compare the oracle's output with all others or with samples; loss-augmented if there is a target."""
    for factor in (1.0, 0.1, 0.0):  # large scores hide the loss, small ones let it dominate
        scaled = potentials.replace({name: factor * t.detach() for name, t in potentials.tensors.items()})
        if problem := _compare(structure, scaled, target, samples):
            return problem
    return None


def _compare(structure: Structure, potentials: Potentials, target: Any, samples: list[Any]) -> str | None:
    def score(labeling: Any) -> Tensor:
        return inner(conform(structure.parts(labeling), potentials, "parts(labeling)"), potentials.tensors)

    own = None if target is None else score(target)

    def value(labeling: Any) -> Tensor:
        if own is None:
            return score(labeling)
        # Training maximises by `difference`, which a structure may redefine (slack rescaling).
        gain = inner(structure.difference(labeling, target, potentials), potentials.tensors)
        return own + gain + structure.loss(labeling, target)

    found = as_decoding(
        structure.argmax(potentials) if target is None else structure.augmented_argmax(potentials, target)
    )
    best = value(found.labeling)
    slack = 1e-4 * (1 + best.abs())
    if found.value is not None and bool(((found.value - best).abs() > slack).any()):
        return f"it says value {found.value.tolist()}, its output has {best.tolist()}"
    ceiling = best if found.exact or found.bound is None else found.bound
    others: Iterable[Any] = samples
    every = structure.enumerate(potentials)
    if every is not None:
        listed, values = [], []
        for labeling in every:
            try:
                values.append(value(labeling))
            except Exception as error:
                raise ValueError(
                    "enumerate(potentials) must yield labelings of the whole batch, as argmax returns them, one output "
                    f"at a time: {error}"
                ) from error
            listed.append(labeling)
            if len(listed) > _MOST_LABELINGS:
                break
        others = [*samples, *listed]
        if len(listed) <= _MOST_LABELINGS and not found.relaxed:
            most = torch.stack(values).amax(0)
            if bool((best > most + slack).any()):
                row = int((best > most + slack).nonzero()[0])
                return (
                    f"row {row}: its output has {float(best[row]):.6g}, and no output that enumerate() lists has more "
                    f"than {float(most[row]):.6g}: it is no output. The oracle of a relaxation must return "
                    "Decoding(..., relaxed=True)"
                )
    for labeling in others:
        better = value(labeling) > ceiling + slack
        if bool(better.any()):
            row = int(better.nonzero()[0])
            return (
                f"row {row}: another output has {float(value(labeling)[row]):.6g}, and the oracle's "
                f"{'bound' if ceiling is not best else 'output'} {float(ceiling[row]):.6g}"
            )
    return None


def _padding(structure: Structure, potentials: Potentials, target: Any, generator: torch.Generator) -> Any:
    """Decode several times with noise in the padding."""
    name = "padding changes no answer"
    if potentials.lengths is None:
        return Finding(name, skipped="the batch has no lengths")
    parts = conform(structure.parts(target), potentials, "parts(target)")
    corner = find_corner(structure, potentials, target)
    for key, rows in potentials.ragged.items():
        tensor = potentials[key]
        position = torch.arange(tensor.shape[1], device=tensor.device)
        padding = position >= (potentials.lengths + rows).unsqueeze(1)
        if bool((parts[key][padding] != 0).any()):
            return f"parts {key!r} of the target are not zero in the padding"
    for _ in range(_RANDOM_ROUNDS):
        noisy = {}
        for key, tensor in potentials.tensors.items():
            noisy[key] = tensor.detach().clone()
            if key in potentials.ragged:
                position = torch.arange(tensor.shape[1], device=tensor.device)
                padding = position >= (potentials.lengths + potentials.ragged[key]).unsqueeze(1)
                noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
                noisy[key][padding] = 100 * noise[padding]
        again = find_corner(structure, potentials.replace(noisy), target)
        if not torch.allclose(again.hinge, corner.hinge, rtol=1e-4, atol=1e-4):
            other = again.hinge.tolist()
            return f"with other numbers in the padding the maximum is {other}, not {corner.hinge.tolist()}"
    return None if potentials.ragged else Finding(name, skipped="the potentials do not say which axes are `ragged`")
