"""Hidden states: the data give labels, each of which one or several states show."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_int64, check_readable, check_tensor, check_type, naming
from torchssvm.core.decoding import as_decoding
from torchssvm.core.marginals import Marginals
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.structure import Structure, augmented, loss_by_name, reject_rows
from torchssvm.structures.common import Around, check_labels, check_lengths, check_shape, reject_entries

UNKNOWN = -100
"""The label of a position whose label is unknown: the default ``ignore_index`` of torch."""


class Completed(NamedTuple):
    """A target of :class:`HiddenStates` with its hidden part.

    Attributes:
        observed: int64 ``[B]`` or ``[B, N]``, the labels; -1 in the padding, -100 where the label is unknown. Or sets
            of labels, bool ``[B, L]`` or ``[B, N, L]``; empty in the padding.
        states: int64 ``[B]`` or ``[B, N]``, a state for each label, or set, that shows it.
    """

    observed: Tensor
    states: Tensor

    @property
    def digested(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors of a digest; the mask of unknown labels tells them from padding, as both are negative."""
        return self.observed, self.states, self.observed == UNKNOWN


class HiddenStates(Around):
    """A structure of S states, such as ``Chain(S)`` or ``Multiclass(S)``, of which the data show labels.

    Each label is shown by one or several states: with ``shows=[0, 1, 1]``, label 1 by states 1 and 2. Outputs are
    states; :meth:`observe` gives their labels. Targets are labels, int64 ``[B]`` or ``[B, N]``, and -100 where a label
    is unknown, which all states show; or the labels that are allowed, bool ``[B, L]`` or ``[B, N, L]``, at least one at
    each position. The loss comes from the structure, and a state that shows a right or allowed label costs nothing.

    :func:`torchssvm.latent` trains it: it chooses the states of the targets, by :meth:`complete`, and trains the
    weights, in turns. :class:`torchssvm.SoftmaxMargin` sums over all states that show the labels, and
    :class:`torchssvm.StructuredHinge` takes the best ones. All else refuses to train for labels that several states
    show. The states that ``check_target`` notes are the first ones, or where the structure has forbidden transitions
    some that it allows.

    Args:
        structure: A structure whose outputs are int64 states, and whose loss is a sum of costs of states.
        shows: The label that each state shows, S whole numbers of 0 or more; all labels up to the largest are shown.
            None gives each of ``structure.num_states`` states its label, for targets with unknown labels.

    Raises:
        TypeError: ``structure`` is no structure, or has no ``num_states`` where ``shows`` is None.
        ValueError: ``shows`` leaves out a label.

    Example:
        >>> structure = HiddenStates(Chain(3), shows=[0, 1, 1])
        >>> tags = torch.tensor([[1, 0, 1]])
        >>> potentials = LinearChain(4, 3)(tokens[:1, :3])
        >>> structure.observe(structure.complete(potentials, structure.check_target(tags, potentials)).states)
        tensor([[1, 0, 1]])
    """

    def __init__(self, structure: Structure, shows: Any = None) -> None:
        self.structure: Any = check_type(structure, Structure, "structure", "one such as Chain(3)")
        if isinstance(structure, HiddenStates) or (shows is None and not hasattr(structure, "num_states")):
            raise TypeError(f"structure={structure!r} has no states to hide: give one such as Chain(3), or shows=")
        shows = list(range(self.structure.num_states)) if shows is None else shows
        check_readable(shows, "shows")
        self.shows = torch.as_tensor(shows).cpu()
        labels = self.shows.unique()
        if (
            self.shows.dtype != torch.int64
            or self.shows.ndim != 1
            or not torch.equal(labels, torch.arange(len(labels)))
        ):
            raise ValueError(f"shows={shows!r} must be whole numbers, a label for each state, every label from 0 on")
        self.padding, self._quick_to_decode = structure.padding, structure._quick_to_decode

    @property
    def num_labels(self) -> int:
        """L, the number of labels."""
        return int(self.shows.max()) + 1

    def observe(self, states: Tensor) -> Tensor:
        """The labels that states show; -1 stays -1."""
        states = check_tensor(states, "states")
        return torch.where(states < 0, states, self.shows.to(states.device)[states.clamp(min=0)])

    @override
    def _check_chosen(self, given: Tensor | Completed, target: Completed, index: Tensor | None) -> None:
        if isinstance(given, Completed):
            return
        hidden = self._allowed(target.observed).sum(-1) > 1
        with naming(index):
            reject_rows(
                _any(hidden),
                "several states show a label of {rows}: choose by torchssvm.latent(head, dataset, lam), or sum by "
                "SoftmaxMargin",
            )

    def complete(self, potentials: Potentials, target: Completed) -> Completed:
        """The target with the states that score highest among those that show its labels.

        Raises:
            ValueError: The structure finds no such states, as where its transitions forbid them.
        """
        delta, _ = loss_by_name(self.structure, target.states, potentials)
        finite = (t.detach().masked_fill(t.detach() == -torch.inf, 0.0) for t in potentials.tensors.values())
        sizes = [tensor.abs().flatten(1).sum(1, dtype=torch.float64) for tensor in finite]
        low = -1.0 - 2.0 * torch.stack(sizes).sum(0)  # below what all other potentials can make up for
        barred = {
            name: self._wrong(target.observed, costs) * low.view(-1, *[1] * (costs.ndim - 1))
            for name, costs in delta.items()
        }
        states = as_decoding(self.structure.argmax(augmented(potentials.detach(), barred))).labeling
        wrong = ~self._shown(states, target.observed) & (target.states >= 0)
        reject_rows(_any(wrong), "no states show the labels of {rows}: leave them out, or allow transitions")
        return Completed(target.observed, states)

    @override
    def _choose_target(self, potentials: Potentials, given: Tensor | Completed, target: Completed) -> Completed:
        return target if isinstance(given, Completed) else self.complete(potentials, target)

    @override
    def marginals(self, potentials: Potentials) -> Marginals:
        return self.structure.marginals(potentials)

    @override
    def _sample(self, potentials: Potentials, n: int, generator: torch.Generator | None) -> Any:
        return self.structure._sample(potentials, n, generator)

    @override
    def _target_marginals(self, potentials: Potentials, target: Completed) -> Marginals:
        delta, _ = loss_by_name(self.structure, target.states, potentials)
        tensors = {
            name: potentials.tensors[name].detach().masked_fill(self._wrong(target.observed, costs) > 0.0, -torch.inf)
            for name, costs in delta.items()
        }
        return self.structure.marginals(potentials.replace({**potentials.tensors, **tensors}))

    def _inner(self, output: Tensor | Completed) -> Tensor:
        return output.states if isinstance(output, Completed) else output

    def loss(self, labeling: Tensor | Completed, target: Completed) -> Tensor:
        """The cost of states that show wrong labels, ``[B]``."""
        states = self._inner(labeling)
        return self.structure.loss(
            torch.where(self._shown(states, target.observed), target.states, states), target.states
        )

    def loss_potentials(self, target: Completed) -> tuple[Tensor | Parts, Tensor]:
        """The structure's costs, and 0 for states that show the right label."""
        delta, constant = self.structure.loss_potentials(target.states)
        if isinstance(delta, Tensor):
            return delta * self._wrong(target.observed, delta), constant
        return {name: costs * self._wrong(target.observed, costs) for name, costs in delta.items()}, constant

    def check_target(self, target: Tensor | Completed, potentials: Potentials) -> Completed:
        """Check labels and, of a completed target, states.

        Raises:
            ValueError: Shape, dtype or a label does not fit, or a state does not show its label.
            TypeError: The structure's outputs are more than states, as in ``PairwiseGraph``.
        """
        observed = target.observed if isinstance(target, Completed) else target
        sets = isinstance(observed, Tensor) and observed.dtype == torch.bool
        if sets:
            check_shape(observed, "target", *["B", "N"][: max(observed.ndim - 1, 1)], self.num_labels)
        else:
            check_int64(observed, "target", observed.shape if observed.ndim in (1, 2) else ("B", "N"), ", labels")
        shape = observed.shape[:-1] if sets else observed.shape
        real = torch.ones(shape, dtype=torch.bool, device=observed.device)
        if len(shape) == 2 and potentials.lengths is not None:
            real = check_lengths(potentials.lengths, observed)
        if sets:
            reject_rows(_any(real & ~observed.any(-1)), "target has a set of no labels in {rows}")
            observed = observed & real.unsqueeze(-1)
        else:
            check_labels(observed, self.num_labels, real & (observed != UNKNOWN))
            observed = observed.masked_fill(~real, -1)
        if isinstance(target, Completed):
            states = check_int64(target.states, "target.states", shape).masked_fill(~real, -1)
            hidden = (states < 0) | (states >= len(self.shows)) | ~self._shown(states, observed)
            reject_entries(hidden & real, states, "target.states has", "give a state that shows the label")
        else:
            states = self._allowed(observed).to(torch.int8).argmax(-1).masked_fill(~real, -1)  # the first ones
            if getattr(self.structure, "transitions", None) is not None:  # the first states may be forbidden
                nothing = potentials.replace({name: torch.zeros_like(t) for name, t in potentials.tensors.items()})
                states = self.complete(nothing, Completed(observed, states)).states
        checked = self.structure.check_target(states, potentials)
        if not isinstance(checked, Tensor):
            raise TypeError(f"structure={self.structure!r} must have outputs that are int64 states, such as Chain(3)")
        return Completed(observed, checked)

    def _allowed(self, observed: Tensor) -> Tensor:
        """Whether each state shows the label, or one of the set: ``[..., S]`` bool."""
        shows = self.shows.to(observed.device)
        if observed.dtype == torch.bool:
            return observed[..., shows]
        observed = observed.unsqueeze(-1)
        return (shows == observed) | (observed == UNKNOWN)

    def _shown(self, states: Tensor, observed: Tensor) -> Tensor:
        """Whether states show the labels, bool in the shape of ``states``; undefined in the padding."""
        allowed = self._allowed(observed)
        return allowed.gather(-1, states.clamp(0, len(self.shows) - 1).unsqueeze(-1)).squeeze(-1)

    def _wrong(self, observed: Tensor, costs: Tensor) -> Tensor:
        """1.0 where ``costs`` ``[..., S]`` has a state that shows a wrong label, else 0.0, float64."""
        allowed = self._allowed(observed)
        if costs.shape != allowed.shape:
            raise ValueError(f"shows={self.shows.tolist()} must have one label for each of {costs.shape[-1]} states")
        return (~allowed).to(torch.float64)

    @override
    def _fingerprint(self) -> str:
        return f"HiddenStates({self.structure._fingerprint()}, shows={self.shows.tolist()})"

    def __repr__(self) -> str:
        return f"HiddenStates({self.structure!r}, shows={self.shows.tolist()})"


def _any(mask: Tensor) -> Tensor:
    """Whether any position of each example is True: ``[B]`` bool, of ``[B]`` or ``[B, N]``."""
    return mask.flatten(1).any(1) if mask.ndim > 1 else mask
