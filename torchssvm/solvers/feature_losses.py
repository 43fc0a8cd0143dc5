"""The losses that train the features: the structured hinge, and two smooth ones, by marginals and by noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_flags, check_number, check_whole
from torchssvm.core.decoding import Labeling, as_decoding
from torchssvm.core.likelihood import once_differentiable
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import Parts, Potentials, as_potentials, conform, inner
from torchssvm.core.precision import full_precision
from torchssvm.core.problem import as_structure
from torchssvm.core.structure import Structure, augmented, loss_by_name, per_example, reject_rows


class StructuredHinge(nn.Module):
    """The mean structured hinge of a batch, ``(1/B) sum_i H_i`` with ``H_i = max_y L_i(y) + <p(y) - p(y_i), theta_i>``.

    For ordinary optimizers: it trains the features below the head or, with weight decay ``lam``, the head itself by
    subgradients. BCFW refuses its gradient.

    With an approximate oracle (``Decoding.exact`` is False) the value is a lower bound of the hinge, and the gradient a
    subgradient of that bound. For an upper bound of the primal use :func:`torchssvm.solvers.primal` or ``certify``,
    which take ``Decoding.bound`` and say ``exact=False``.

    For labels of :class:`HiddenStates`, the last term is the largest score of the outputs that show them, so that the
    objective is no longer convex.

    Example:
        >>> hinge = StructuredHinge(Multiclass(2))
        >>> scores = torch.tensor([[0.0, 0.25]])
        >>> hinge(scores, torch.tensor([1]))  # 1 + 0 - 0.25
        tensor(0.7500)
    """

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        as_structure(structure)
        self.structure = structure

    def forward(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any) -> Tensor:
        """The mean over the batch, a scalar of the potentials' dtype.

        Raises:
            ValueError: Target or potentials are not valid, the batch is empty, or the oracle returned invalid outputs.
        """
        potentials = _filled(potentials)
        checked = self.structure.check_target(target, potentials)
        target = self.structure._choose_target(potentials, target, checked)
        corner = find_corner(self.structure, potentials, target)
        return _linear(corner.loss.mean(), corner.parts, potentials)


class SoftmaxMargin(nn.Module):
    """The mean softmax-margin of a batch, ``(1/B) sum_i S_i``.

    ``S_i = T log sum_y exp((L_i(y) + <p(y), theta_i>) / T) - <p(y_i), theta_i>``, with the temperature T: a smooth
    upper bound of the structured hinge, which it becomes as T goes to 0 (Gimpel and Smith, *Softmax-Margin CRFs:
    Training Log-Linear Models with Cost Functions*, NAACL 2010, with T = 1). With ``cost=False`` it is the negative
    log-likelihood of a conditional random field. Its gradient is ``mu_i - p(y_i)``, with the mean parts mu_i of the
    structure's ``marginals``: smooth in the features too, where the hinge has kinks. For :class:`HiddenStates`, whose
    targets leave states or labels unknown, the last term is ``T log sum exp(<p(y), theta_i> / T)`` of all outputs y
    that show the labels, so that the objective is no longer convex.

    For ordinary optimizers: it trains the features below the head and the head itself. BCFW refuses its gradient.

    Args:
        structure: What an output is, with ``marginals`` and ``loss_potentials``, such as a chain or classes.
        temperature: T, positive.
        cost: Whether the loss L_i is added to the scores; without it the value is T times the mean negative
            log-likelihood of a conditional random field with the scores ``theta / T``.

    Raises:
        TypeError: ``structure`` is not a Structure, or ``cost`` is no flag.
        ValueError: ``structure`` has no marginals, or ``temperature`` is not positive and finite.

    Example:
        >>> scores = torch.tensor([[0.0, 0.25]])
        >>> smooth = SoftmaxMargin(Multiclass(2), temperature=0.01)
        >>> smooth(scores, torch.tensor([1]))  # nearly the hinge, 0.75
        tensor(0.7500)
    """

    def __init__(self, structure: Structure, temperature: float = 1.0, *, cost: bool = True) -> None:
        super().__init__()
        as_structure(structure)
        if not has_marginals(structure):
            raise ValueError(f"structure={structure} has no marginals(potentials): use StructuredHinge(structure)")
        self.structure = structure
        self.temperature = check_number(temperature, "temperature", above=0.0)
        check_flags(cost=cost)
        self.cost = cost

    def forward(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any) -> Tensor:
        """The mean over the batch, a scalar of the potentials' dtype.

        Raises:
            ValueError: Target or potentials are not valid, the batch is empty, or the structure has no
                ``loss_potentials``.
        """
        potentials = _filled(potentials)
        if not self.cost:
            cooled = potentials.replace({name: t / self.temperature for name, t in potentials.tensors.items()})
            value = self.structure.log_prob(cooled, target)
            _reject_infinite(value.detach())
            return -self.temperature * value.mean().to(potentials.dtype)
        target = self.structure.check_target(target, potentials)
        rest, parts = self._at(potentials.examining(), target)
        return once_differentiable(_linear(rest.mean(), parts, potentials), potentials, "SoftmaxMargin")

    @torch.no_grad()
    def _at(self, potentials: Potentials, target: Labeling) -> tuple[Tensor, Parts]:
        """Mean loss plus T times entropy, ``[B]`` float64, and the gradient ``mu_i - p(y_i)``."""
        structure, temperature = self.structure, self.temperature
        with full_precision(potentials.device):
            try:
                delta, constant = loss_by_name(structure, target, potentials)
            except NotImplementedError as error:
                raise ValueError(
                    f"structure={structure} has no loss_potentials(target): use StructuredHinge(structure)"
                ) from error
            scores = augmented(potentials, delta).tensors
            cooled = {name: tensor / temperature for name, tensor in scores.items()}
            model = structure.marginals(potentials.replace(cooled))
            mean = conform(model.parts, potentials, "marginals(potentials).parts")
            rest = temperature * per_example(model.log_partition, potentials, "marginals(potentials).log_partition")
            rest = rest + constant.to(torch.float64) - inner(mean, potentials.tensors)
            cooled = {name: tensor / temperature for name, tensor in potentials.tensors.items()}
            shown = structure._target_marginals(potentials.replace(cooled), target)
            true = conform(shown.parts, potentials, "parts(target)")
            rest = rest - (temperature * shown.log_partition - inner(true, potentials.tensors))
        _reject_infinite(rest)
        return rest, {name: tensor - true[name] for name, tensor in mean.items()}


class PerturbedFenchelYoung(nn.Module):
    """The mean perturbed Fenchel-Young loss of a batch: ``(1/B) sum_i E max_y <p(y) - p(y_i), theta_i + sigma Z>``.

    It is smooth for every structure that decodes, also where no marginals exist, as for matchings, cuts and programs
    (Berthet et al., *Learning with Differentiable Perturbed Optimizers*, NeurIPS 2020; PyEPO's PFYL). Z is standard
    normal noise on the first potentials, the scores of single parts, and the expectation a mean over samples. The
    gradient is the mean of ``p(y) - p(y_i)`` over the outputs that are best with noise. The task loss does not occur.

    For ordinary optimizers, like :class:`SoftmaxMargin`. Noise is drawn from torch's generator: ``torch.manual_seed``
    repeats a run.

    Args:
        structure: What an output is.
        sigma: The size of the noise, positive, in units of the scores.
        samples: How many outputs of each example are decoded, at least 1.

    Raises:
        TypeError: ``structure`` is not a Structure.
        ValueError: ``sigma`` is not positive and finite, or ``samples`` is less than 1.

    Example:
        >>> loss = PerturbedFenchelYoung(Multiclass(2), sigma=0.01)
        >>> value = loss(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
        >>> value.round(decimals=1)  # nearly the mean of max_y score(y) - score(y_i)
        tensor(0.5000)
    """

    def __init__(self, structure: Structure, sigma: float = 1.0, samples: int = 10) -> None:
        super().__init__()
        self.structure = as_structure(structure)
        self.sigma = check_number(sigma, "sigma", above=0.0)
        self.samples = check_whole(samples, "samples")

    def forward(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any) -> Tensor:
        """The mean over the batch, a scalar of the potentials' dtype.

        Raises:
            ValueError: Target or potentials are not valid, or the batch is empty.
        """
        potentials = _filled(potentials)
        checked = self.structure.check_target(target, potentials)
        target = self.structure._choose_target(potentials, target, checked)
        rest, parts = self._at(potentials.detach(), target)
        return _linear(rest.mean(), parts, potentials)

    @torch.no_grad()
    def _at(self, potentials: Potentials, target: Labeling) -> tuple[Tensor, Parts]:
        """The mean ``<p(y) - p(y_i), sigma Z>``, ``[B]`` float64, and the mean ``p(y) - p(y_i)``."""
        structure, (first, *_), share = self.structure, potentials.tensors, 1.0 / self.samples
        known = structure.known_scores(potentials) or {}
        rest = torch.zeros(potentials.batch_size, dtype=torch.float64, device=potentials.device)
        parts = {name: torch.zeros_like(tensor) for name, tensor in potentials.tensors.items()}
        with full_precision(potentials.device):
            for _ in range(self.samples):
                noise = self.sigma * torch.randn_like(potentials[first])
                noisy = potentials.replace({**potentials.tensors, first: potentials[first] + noise})
                best = as_decoding(structure._gated_argmax(noisy)).labeling
                change = structure._difference(best, target, potentials)
                for added in ({first: noise}, known):
                    if added:
                        rest += share * inner({name: change[name] for name in added}, added)
                for name, tensor in change.items():
                    parts[name] += share * tensor
        _reject_infinite(inner(parts, potentials.tensors))
        return rest, parts


def _reject_infinite(value: Tensor) -> None:
    reject_rows(~torch.isfinite(value), "the potentials of {rows} are not finite: check features and weights")


def _filled(given: Potentials | Tensor | Mapping[str, Tensor]) -> Potentials:
    potentials = as_potentials(given)
    if not potentials.batch_size:
        raise ValueError("potentials are empty: give at least one example")
    return potentials


def _linear(value: Tensor, parts: Parts, potentials: Potentials) -> Tensor:
    """``value + (1/B) <parts, theta>``, in the dtype of the potentials."""
    for name, tensor in potentials.tensors.items():
        value = value + (parts[name] * tensor).sum() / potentials.batch_size
    return value.to(potentials.dtype)


def has_marginals(structure: Structure) -> bool:
    """Whether the structure defines ``marginals``, and what it wraps does, too."""
    while type(structure).marginals is not Structure.marginals and getattr(structure, "_has_marginals", True):
        if not isinstance(wrapped := getattr(structure, "structure", None), Structure):
            return True
        structure = wrapped
    return False
