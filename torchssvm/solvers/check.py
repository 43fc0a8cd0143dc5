"""``torchssvm.check``: finds errors in a user's head and structure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchssvm.core.batch import Batch, apply_head, to_device
from torchssvm.core.decoding import as_decoding
from torchssvm.core.linearity import linearity_error
from torchssvm.core.potentials import Potentials, as_potentials, conform, inner, subtract
from torchssvm.core.problem import Bound, Box
from torchssvm.core.structure import Structure
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.state import DualState
from torchssvm.kinds.adapter import find_adapter
from torchssvm.solvers.certificate import certify, weights_kept, write
from torchssvm.solvers.compiled.solver import CompiledBCFW
from torchssvm.solvers.requirements import REQUIREMENTS, ROUNDS, Skipped, Trial
from torchssvm.steps.directions import CacheOracle, Corrective, FrankWolfe, MaxOracle


@dataclass(frozen=True)
class Finding:
    """The result of one check: ``problem`` is None if it passed; ``skipped`` says why it was not made."""

    name: str
    problem: str | None = None
    skipped: str | None = None


@dataclass(frozen=True)
class CheckReport:
    """The findings of :func:`torchssvm.check`; prints as a table.

    Example:
        >>> head = LinearChain(4, 3)
        >>> report = check(head, head.structure, next(iter(in_order(chains))))
        >>> print(report)
        head is linear in its weights           ok
        head and target fit the structure       ok
        adjoint equals autograd                 ok
        gram_product equals autograd            ok
        parts are shaped like the potentials    ok
        loss is 0 at the target, else >= 0      ok
        loss equals <parts, delta> + constant   ok
        labelings keep their size               ok
        relative_scores equals the parts        ok
        mean_difference equals the parts        ok
        argmax can return the target            ok
        argmax finds the best output            ok
        augmented_argmax finds the best output  ok
        padding changes no answer               ok
        compiled form equals the structure      ok
    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(finding.problem is None for finding in self.findings)

    def raise_if_wrong(self) -> None:
        """Raise ValueError with the whole table if a check failed."""
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
    ``mean_difference``, if the structure overrides them, against those computed from the parts; that the max oracle
    can return the target; the max oracle, plain and loss-augmented, against all outputs (if ``structure.enumerate``
    lists them and they are few), else against sampled outputs; that padding changes no result; and, of a head with a
    ``compiled_form``, that the compiled loop and the torch loop certify the same. The head's weights are restored.

    Args:
        head: An ``nn.Module`` linear in its weights.
        batch: A few examples from the data loader.
        bounds: ``(lower, upper)`` by parameter name, None for no bound, such as ``{"pairwise": (0.0, None)}``. Give
            them if the oracle needs them: only weights within the bounds are tried.

    Returns:
        A report; print it, or use ``report.ok`` and ``report.raise_if_wrong()``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``bounds`` has an unknown parameter name.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> report = check(head, head.structure, next(iter(in_order(data))))
        >>> report.ok
        True
    """
    if not isinstance(head, nn.Module) or not isinstance(structure, Structure) or not isinstance(batch, Batch):
        raise TypeError("check(head, structure, batch) takes a Module, a Structure and a Batch, not these")
    args = (batch.x,) if batch.lengths is None else (batch.x, batch.lengths)
    findings = [_examine("head is linear in its weights", linearity_error, head, args)]
    weights = list(head.parameters())
    named = dict(head.named_parameters())
    if unknown := sorted(set(bounds or {}) - set(named)):
        raise ValueError(f"bounds names {unknown}, but head has the parameters {sorted(named)}")
    box = Box(weights, [(bounds or {}).get(name, (None, None)) for name in named])
    generator = torch.Generator().manual_seed(0)
    with weights_kept(weights):
        write(_random_weights(weights, box, generator), weights)  # with zero weights all outputs tie
        try:
            potentials = apply_head(head, batch)
            target = structure.check_target(batch.y, potentials)
        except Exception as error:
            findings.append(Finding("head and target fit the structure", f"{type(error).__name__}: {error}"))
            return CheckReport(tuple(findings))
        findings.append(Finding("head and target fit the structure"))
        samples = _samples(structure, _random_potentials(head, args, potentials, box, generator), target)
        learned = _learned(head, args, structure, target, box)
        trial = Trial(structure, potentials, target, samples, weights, generator, learned)
        findings += [_examine(name, error_of, trial) for name, error_of in REQUIREMENTS.items()]
    if hasattr(head, "compiled_form"):
        findings.append(_examine("compiled form equals the structure", _compiled_error, head, structure, batch))
    return CheckReport(tuple(findings))


def _compiled_error(head: nn.Module, structure: Structure, batch: Batch) -> str | None:
    trial = copy.deepcopy(head).cpu()
    try:
        find_adapter(trial)
    except TypeError as error:
        raise Skipped(str(error)) from None
    if not structure.same_as(head.structure):  # type: ignore[arg-type]
        raise Skipped(f"head.structure is {head.structure}")
    batch = to_device(batch, "cpu").replace(index=torch.arange(len(batch.index)))
    n = len(batch.index)
    for storage, direction, oracle in (
        (Labelings(capacity=2), Corrective(), CacheOracle()),
        (MeanParts(), FrankWolfe(), MaxOracle()),
    ):
        with torch.no_grad():
            for p in trial.parameters():
                p.zero_()
        dual = DualState.for_head(trial, n, 0.1, structure=structure, storage=storage)
        loop = CompiledBCFW(trial, dual, [batch], direction=direction, oracle=oracle)
        rounding = 1e-4 if dual.parameters[0].dtype is torch.float32 else 1e-9
        for _ in range(2):
            loop.visit(torch.arange(n).repeat(4))
            compiled, plain = loop.certify(refresh=False), certify(trial, dual, [batch], refresh=False)
            for name in ("primal", "dual"):
                value, right = getattr(compiled, name), getattr(plain, name)
                if abs(value - right) > rounding * max(abs(plain.primal), abs(right)):
                    return f"the {name} of the compiled loop is {value:.6g}, of the structure {right:.6g}"
            if (drift := max(compiled.drift, plain.drift)) > 100 * rounding:
                return f"the weights of the compiled loop differ by {drift:.2g} from its blocks'"
            loop.certify()
    return None


def _examine(name: str, error_of: Callable[..., str | None], *args: Any) -> Finding:
    """The finding of ``error_of(*args)``; an exception is a problem."""
    try:
        return Finding(name, error_of(*args))
    except Skipped as reason:
        return Finding(name, skipped=str(reason))
    except Exception as error:
        return Finding(name, f"{type(error).__name__}: {error}")


def _random_weights(weights: list[nn.Parameter], box: Box, generator: torch.Generator) -> list[Tensor]:
    return box.clip([torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in weights])


def _potentials_at(head: nn.Module, args: tuple[Any, ...], weights: list[Tensor]) -> Potentials:
    """The head's potentials for these weights; the head does not change."""
    values = {name: buffer.clone() for name, buffer in head.named_buffers()}
    values.update(zip(dict(head.named_parameters()), weights, strict=True))
    return as_potentials(functional_call(head, values, args))


def _random_potentials(
    head: nn.Module, args: tuple[Any, ...], potentials: Potentials, box: Box, generator: torch.Generator
) -> Iterator[Potentials]:
    """Random potentials; if weights are bounded, the head's potentials for random weights within the bounds."""
    for _ in range(ROUNDS):
        if box.has_bounds:
            with torch.no_grad():
                drawn = _potentials_at(head, args, _random_weights(list(head.parameters()), box, generator))
            yield drawn
        else:
            noise = {
                name: torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device)
                for name, t in potentials.tensors.items()
            }
            yield potentials.replace(noise)


def _learned(
    head: nn.Module, args: tuple[Any, ...], structure: Structure, target: Any, box: Box
) -> Iterator[Potentials]:
    """Potentials for the weights of a perceptron, which come to favour the targets, as in training."""
    weights = box.clip([torch.zeros_like(p) for p in head.parameters()])
    for _ in range(ROUNDS):
        leaves = [weight.detach().requires_grad_() for weight in weights]
        with torch.enable_grad():
            potentials = _potentials_at(head, args, leaves)
        plain = potentials.detach()
        yield plain
        with torch.enable_grad():
            best = as_decoding(structure.argmax(plain)).labeling
            true, other = (conform(structure.parts(each), plain, "parts") for each in (target, best))
            gain = inner(subtract(true, other), potentials.tensors).sum()
            steps = torch.autograd.grad(gain, leaves, materialize_grads=True)
        weights = box.clip([weight.detach() + step for weight, step in zip(leaves, steps, strict=True)])


def _samples(structure: Structure, others: Iterable[Potentials], target: Any) -> list[Any]:
    samples = [target]
    for potentials in others:
        try:
            samples.append(as_decoding(structure.argmax(potentials)).labeling)
        except Exception:
            return samples
    return samples
