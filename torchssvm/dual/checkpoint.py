"""The dual state in a checkpoint: its content, its checks, and how it is restored."""

from __future__ import annotations

from typing import Any

import torch

from torchssvm.core.by_rank import ByRank
from torchssvm.core.ranks import Ranks
from torchssvm.core.schema import Entry, Maybe, Same, Schema, check_seal, damaged, version, with_seal
from torchssvm.core.structure import Structure
from torchssvm.dual.held_weights import HeldWeights
from torchssvm.dual.storage import Storage

FORMAT = 4
_ADVICE = (
    ": since format 4 heads hold their weights as nn.Linear does, [out, in], and boundary weights have other names. "
    "Load it with the release that wrote it, or train anew"
)
_TENSORS = ("loss", "gap_estimates", "oracle_gaps", "targets")
_NUMBERS = ("certified_gap", "cache_hits", "steps", "oracle_calls", "visits", "moved", "relaxed")


class SavedDual(HeldWeights, ByRank):
    """The part of ``DualState`` that reads and writes checkpoints."""

    state_name = "dual"

    num_examples: int
    ranks: Ranks
    own: range
    _lam: float
    structure: Structure
    storage: Storage

    @property
    def _group(self) -> Ranks:
        return self.ranks

    def own_state(self) -> dict[str, Any]:
        """The exact state of the own blocks as tensors, numbers and strings, which ``weights_only=True`` can load."""
        return with_seal(
            {
                "format": FORMAT,
                "num_examples": self.num_examples,
                "lam": self._lam,
                "structure": repr(self.structure),
                "weights": [parameter.detach().clone() for parameter in self.parameters],
                "box": self.box.state_dict(self.unclipped) if self.box.has_bounds else None,
                "recomputed": None if self.recomputed is None else [tensor.clone() for tensor in self.recomputed],
                **{name: getattr(self, name).clone() for name in _TENSORS},
                **{name: getattr(self, name) for name in _NUMBERS},
                "storage": self.storage.state_dict(),
            }
        )

    def _progress(self) -> Any:
        return self._lam, *(getattr(self, name) for name in _NUMBERS)

    def kept(self) -> dict[str, Any]:
        """As ``own_state()``, which ``load_state_dict`` takes too."""
        return self.own_state()

    def _merge(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The state of one process that holds all blocks."""
        every = [self.ranks.own(self.num_examples, rank) for rank in range(self.ranks.size)]
        return with_seal(
            {
                **parts[0],
                **{name: torch.cat([part[name] for part in parts]) for name in _TENSORS},
                "relaxed": any(part["relaxed"] for part in parts),
                "storage": self.storage.merged([part["storage"] for part in parts], every),
            }
        )

    def _part(self, state: Any, where: str) -> dict[str, Any]:
        whole = self.ranks and isinstance(state, dict) and state.get("num_examples") == self.num_examples
        if not whole or "seal" not in state or len(state["loss"]) == len(self.own):
            return state
        check_seal(state, where)
        some = slice(self.own.start, self.own.stop)
        return with_seal(
            {
                **state,
                **{name: state[name][some] for name in _TENSORS},
                "storage": self.storage.part(state["storage"], self.own),
            }
        )

    def _schema(self) -> Schema:
        n = len(self.own)
        weights = [Entry(p.dtype, tuple(p.shape)) for p in self.parameters]
        gaps = Entry(torch.float64, (n,), low=0.0, infinite=True)
        count = Entry(int, low=0)
        return {
            "format": version(FORMAT, _ADVICE),
            "num_examples": Same(self.num_examples),
            "lam": Same(self._lam),
            "structure": Same(repr(self.structure)),
            "weights": weights,
            "box": self.box.schema(self.parameters),
            "recomputed": Maybe(weights),
            "loss": Entry(torch.float64, (n,)),
            "gap_estimates": gaps,
            "oracle_gaps": gaps,
            "targets": Entry(torch.int64, (n,)),
            "certified_gap": Entry(float, low=0.0, infinite=True),
            "cache_hits": count,
            "steps": count,
            "oracle_calls": count,
            "visits": count,
            "moved": count,
            "relaxed": bool,
            "storage": self.storage.check_state,
            "seal": int,
        }

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        self.box.check_state(state["box"], self.parameters, f"{where}['box']")
        held = state["storage"]
        if state["steps"] and not (held.get("buffers") or held.get("blocks") or held.get("sets", {}).get("labelings")):
            raise damaged(f"{where}['storage'] is empty after {state['steps']} steps")

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the same bits of blocks, counters and weights from a state that passed :meth:`check_state`."""
        state = self._part(state, self.state_name)
        device = self.parameters[0].device
        for parameter, weights in zip(self.parameters, state["weights"], strict=True):
            parameter.copy_(weights)
        self.box.to(device)
        self.unclipped = self.box.restored(state["box"], self.parameters)
        recomputed = state["recomputed"]
        self.recomputed = None if recomputed is None else [tensor.to(device, copy=True) for tensor in recomputed]
        for name in _TENSORS:
            setattr(self, name, state[name].to("cpu" if name == "targets" else device, copy=True))
        for name in _NUMBERS:
            setattr(self, name, state[name])
        self.storage.restore(state["storage"])
