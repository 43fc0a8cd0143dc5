"""The data of the storage by labelings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.batch import tree_map
from torchssvm.core.potentials import Potentials
from torchssvm.core.schema import Entry, Same, Schema, damaged
from torchssvm.core.structure import Labeling, Structure, as_decoding
from torchssvm.dual.active_sets import ActiveSets
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.storage import Storage

_OWN = ("rest_mass", "rest_loss", "mixed")  # beside active sets and rest


class LabelingBlocks(Storage):
    """The part of ``Labelings`` that holds the blocks: active sets and rest.

    Attributes:
        sets: The labelings and their mass.
        rest: psi of the labelings that were merged.
        rest_mass: ``[n]`` float64, the mass of the rest.
        rest_loss: ``[n]`` float64, ``1/n`` times mass times loss of the rest, as l_i.
        mixed: ``[n]`` bool, whether the rest holds merged labelings besides the target.
    """

    capacity: int
    _template: Labeling | None = None

    def bind(
        self,
        num_examples: int,
        lam: float,
        structure: Structure,
        parameters: Sequence[torch.nn.Parameter],
        memory_limit: int | None,
        own: range | None = None,
    ) -> None:
        """Set the problem."""
        super().bind(num_examples, lam, structure, parameters, memory_limit, own)
        self.rest = MeanParts()
        self.rest.bind(num_examples, lam, structure, parameters, memory_limit, own)
        device = self.parameters[0].device
        self.sets = ActiveSets(len(self.own), self.capacity, structure.padding, device)
        self.rest_mass = torch.ones(len(self.own), dtype=torch.float64, device=device)
        self.rest_loss = torch.zeros(len(self.own), dtype=torch.float64, device=device)
        self.mixed = torch.zeros(len(self.own), dtype=torch.bool, device=device)

    def labeling_like(self, potentials: Potentials, target: Labeling = None) -> Labeling:
        """A labeling of one example: a template of kind, sizes and dtypes, decoded once.

        With the target, where it is known: an oracle that finds nothing in its time returns it.
        """
        if self._template is None:
            one = potentials.detach().select(torch.zeros(1, dtype=torch.int64, device=potentials.device))
            own = () if target is None else (tree_map(lambda tensor: tensor[:1], target),)
            decode = self.structure.augmented_argmax if own else self.structure.argmax
            self._template = as_decoding(decode(one, *own)).labeling
        return self._template

    def rescale(self, factor: float) -> None:
        """``psi_i *= factor``; the mass that labelings lose goes to the target."""
        sets = self.sets
        sets.mass *= factor
        self.rest_loss *= factor
        self.rest.rescale(factor)
        self.rest_mass = factor * self.rest_mass + (1.0 - factor)

    def support(self) -> Tensor:
        """The number of labelings with mass in each block, ``[n]`` int64; the rest is not counted."""
        return (self.sets.mass > 0.0).sum(1)

    def nbytes(self) -> int:
        """Bytes held."""
        own = [self.rest_mass, self.rest_loss, self.mixed] if self.sets.labelings else []
        return self.sets.nbytes() + self.rest.nbytes() + sum(t.numel() * t.element_size() for t in own)

    def to(self, device: torch.device) -> None:
        """Move everything."""
        self.sets.to(device)
        self.rest.to(device)
        self.rest_mass, self.rest_loss = self.rest_mass.to(device), self.rest_loss.to(device)
        self.mixed = self.mixed.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Active sets and rest."""
        return {
            "kind": "labelings",
            "sets": self.sets.state_dict(),
            "rest": self.rest.state_dict(),
            **{name: getattr(self, name).clone() for name in _OWN},
        }

    def _schema(self) -> Schema:
        n = len(self.own)
        return {
            "kind": Same("labelings"),
            "sets": partial(self.sets.check_state, dtype=self.parameters[0].dtype),
            "rest": self.rest.check_state,
            "rest_mass": Entry(torch.float64, (n,), low=0.0),
            "rest_loss": Entry(torch.float64, (n,)),
            "mixed": Entry(torch.bool, (n,)),
        }

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        total = state["rest_mass"] + state["sets"]["mass"].sum(1)
        if not bool(((total - 1.0).abs() < 1e-6).all()):
            raise damaged(f"the masses of {where}['sets'] and 'rest_mass' do not sum to 1")

    def merged(self, states: list[dict[str, Any]], parts: list[range]) -> dict[str, Any]:
        """See :meth:`Storage.merged`."""
        return {
            "kind": "labelings",
            "sets": ActiveSets.merged([state["sets"] for state in states], self.structure.padding),
            "rest": self.rest.merged([state["rest"] for state in states], parts),
            **{name: torch.cat([state[name] for state in states]) for name in _OWN},
        }

    def part(self, state: dict[str, Any], own: range) -> dict[str, Any]:
        """See :meth:`Storage.part`."""
        return {
            **state,
            "sets": ActiveSets.part(state["sets"], own),
            "rest": self.rest.part(state["rest"], own),
            **{name: state[name][own.start : own.stop] for name in _OWN},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the same bits."""
        device = self.parameters[0].device
        self.sets = ActiveSets.restored(state["sets"], self.structure.padding, device)
        self.rest.restore(state["rest"])
        for name in _OWN:
            setattr(self, name, state[name].to(device, copy=True))
