"""Plain decoding of examples against their targets: mean loss and share of errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import naming
from torchssvm.core.batch import apply_head, as_batch, check_batches, check_fits, to_device
from torchssvm.core.decoding import as_decoding
from torchssvm.core.marginals import marginals_at
from torchssvm.core.modules import evaluating
from torchssvm.core.packages import warn
from torchssvm.core.potentials import Potentials, conform, inner
from torchssvm.core.problem import as_structure
from torchssvm.core.structure import Structure


@dataclass(frozen=True)
class Evaluation:
    """Plain decoding (without the loss) of some examples against their targets.

    Attributes:
        loss: Mean task loss of an example.
        token_error: Share of wrong tokens among all tokens; None where labelings are not int64 ``[B]`` or ``[B, N]``.
        example_error: Share of examples with a wrong token, such as words with a wrong letter; None as above.
        num_examples: Number of examples.
        exact: Whether decoding was exact for all of them; otherwise the results come from an approximate decoder.
        num_tokens: Number of tokens, for classes the number of examples; None as above.
        losses: ``[num_examples]`` float64, one an example, in the order of the batches; None where they are not kept.
        unit: What is called a token here: the structure's ``unit``, such as a label.

    Example:
        >>> head = LinearChain(4, 3)
        >>> evaluation = evaluate(head, head.structure, chains)  # weights of zero: every label is the first
        >>> evaluation.num_examples, evaluation.loss == evaluation.token_error
        (20, True)
        >>> print(evaluation)
        70.00 % of 100 tokens wrong, 100.00 % of 20 examples wrong, loss 0.7
    """

    loss: float
    token_error: float | None
    example_error: float | None
    num_examples: int
    exact: bool = True
    num_tokens: int | None = None
    losses: Tensor | None = field(default=None, compare=False, repr=False)
    unit: str = field(default="token", repr=False)

    @property
    def is_plain(self) -> bool:
        """Whether every example is one token, as with classes, so that wrong tokens are wrong examples."""
        return self.num_tokens == self.num_examples

    def __str__(self) -> str:
        if self.token_error is None or self.example_error is None:
            text = f"loss {self.loss:.4g} of {self.num_examples:,} examples"
        else:
            text = f"{100 * self.example_error:.2f} % of {self.num_examples:,} examples wrong, loss {self.loss:.4g}"
            if not self.is_plain:
                text = f"{100 * self.token_error:.2f} % of {self.num_tokens:,} {self.unit}s wrong, {text}"
        return text if self.exact else f"{text}; decoded approximately"


def count_errors(labeling: Any, target: Any) -> tuple[Tensor, Tensor] | None:
    """Wrong tokens and tokens of every example, ``[B]`` int64 each; None where labelings are not integers by position.

    ``labeling`` and ``target``, from ``check_target``, are int64 ``[B]`` or ``[B, N]``, or objects with such a tensor
    as ``.labels``; negative entries of the target are padding.
    """
    labeling, labels = (getattr(output, "labels", output) for output in (labeling, target))
    if not (isinstance(labeling, Tensor) and isinstance(labels, Tensor)):
        return None
    if labeling.shape != labels.shape or labeling.ndim not in (1, 2) or labeling.is_floating_point():
        return None
    labeling, labels = labeling.view(len(labels), -1), labels.view(len(labels), -1)
    real = labels >= 0
    return ((labeling != labels) & real).sum(1), real.sum(1)


@torch.no_grad()
def evaluate(
    forward: Callable[..., Any], structure: Structure, batches: Any, device: torch.device | str | None = None
) -> Evaluation:
    """Decode every example without the loss and compare it with its target.

    Args:
        forward: Head or model, ``(x)`` or ``(x, lengths)`` -> potentials. A module runs in evaluation mode; afterwards
            every submodule is back in its mode.
        batches: The examples: a map-style dataset with ``collate``, or an iterable of :class:`torchssvm.Batch` such as
            a ``DataLoader``.
        device: The device to move batches to; None is the device of the weights of ``forward``, if it has any.

    Raises:
        ValueError: There are no examples, or a target does not fit.
        TypeError: ``structure`` or ``batches`` is of another kind, or holds something else than batches.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> certificate = solve(head, data, lam=0.01)
        >>> evaluate(head, head.structure, data).example_error < 0.1
        True
    """
    check_fits(forward, as_structure(structure), batches)
    if device is None and isinstance(forward, nn.Module):
        device = next((weights.device for weights in forward.parameters()), None)
    examples, loss, wrong, tokens, spoilt, counted, exact = 0, 0.0, 0, 0, 0, True, True
    each: list[Tensor] = []
    with evaluating(forward):
        for batch in check_batches(batches):
            batch = as_batch(batch) if device is None else to_device(as_batch(batch), device)
            potentials = apply_head(forward, batch)
            target = structure.check_target(to_device(batch.y, potentials.device), potentials)
            decoding = as_decoding(structure.argmax(potentials))
            labeling = decoding.labeling
            exact &= decoding.exact
            losses = structure.task_loss(labeling, target)
            loss += float(losses.sum(dtype=torch.float64))
            each.append(losses.detach().to("cpu", torch.float64))
            examples += potentials.batch_size
            counts = count_errors(structure.by_position(labeling), structure.by_position(target))
            if counts is None:
                counted = False
                continue
            wrong += int(counts[0].sum())
            tokens += int(counts[1].sum())
            spoilt += int((counts[0] > 0).sum())
    if not examples:
        raise ValueError("batches are empty: give at least one example")
    return Evaluation(
        loss=loss / examples,
        token_error=wrong / max(tokens, 1) if counted else None,
        example_error=spoilt / examples if counted else None,
        num_examples=examples,
        exact=exact,
        num_tokens=tokens if counted else None,
        losses=torch.cat(each),
        unit=structure.unit,
    )


def merge_evaluations(parts: Sequence[Evaluation]) -> Evaluation:
    """One evaluation of all examples of several evaluations, such as folds."""
    n, tokens = sum(part.num_examples for part in parts), [part.num_tokens or 0 for part in parts]
    counted, losses = parts[0].num_tokens is not None, [part.losses for part in parts if part.losses is not None]
    loss = sum(part.loss * part.num_examples for part in parts)
    wrong = sum((part.token_error or 0.0) * count for part, count in zip(parts, tokens, strict=True))
    spoilt = sum((part.example_error or 0.0) * part.num_examples for part in parts)
    return Evaluation(
        loss=loss / n,
        token_error=wrong / max(sum(tokens), 1) if counted else None,
        example_error=spoilt / n if counted else None,
        num_examples=n,
        exact=all(part.exact for part in parts),
        num_tokens=sum(tokens) if counted else None,
        losses=torch.cat(losses) if losses else None,
        unit=parts[0].unit,
    )


_STEPS = 40  # of the search: they halve the interval


@torch.no_grad()
def fit_temperature(structure: Structure, examples: Iterable[tuple[Potentials, Any]]) -> float:
    """The T that makes the targets most probable, ``P(y) = exp(score(y) / T) / Z``, from 0.001 to 1000.

    See Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017. ``examples`` are potentials and targets of
    every batch, of a structure with ``marginals``. If all targets are certain at T, a smaller T would do as well,
    and a warning says so.
    """
    scored = []
    for potentials, target in examples:
        with naming(potentials.index):
            target = structure.check_target(target, potentials)
        parts = conform(structure.parts(target), potentials, "parts(target)")
        scored.append((potentials, float(inner(parts, potentials.tensors).sum())))

    def slope(factor: float) -> float:
        """The derivative of the negative log-likelihood by 1/T, which grows with 1/T."""
        total = 0.0
        for potentials, score in scored:
            tensors = potentials.tensors
            warm = potentials.replace({name: factor * tensor for name, tensor in tensors.items()})
            total += float(inner(structure.marginals(warm).parts, tensors).sum()) - score
        return total

    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(math.exp(middle)) < 0.0 else (low, middle)
    temperature, unsure = math.exp(-(low + high) / 2), 0.0
    for potentials, score in scored:
        unsure += float(marginals_at(structure, potentials, temperature).log_partition.sum()) - score / temperature
    if unsure < 1e-3:  # nats
        warn(
            f"the temperature, {temperature:.2g}, makes all probabilities 0 or 1: all of these examples are predicted "
            "right. Give more examples, some of which are predicted wrongly"
        )
    return temperature
