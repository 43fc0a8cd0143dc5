"""The dual state in a checkpoint: its content, its checks, and how it is restored."""

from __future__ import annotations

from typing import Any

import torch

from torchssvm.core.schema import Entry, Maybe, Same, Schema, Stateful, damaged, version, with_seal
from torchssvm.core.structure import Structure
from torchssvm.dual.held_weights import HeldWeights
from torchssvm.dual.storage import Storage

FORMAT = 4
_ADVICE = (
    ": since format 4 heads hold their weights as nn.Linear does, [out, in], and boundary weights have other names. "
    "Load it with the release that wrote it, or train anew"
)
_ROUNDING = 1e-9  # of losses, which are at least 0 in exact arithmetic
_TENSORS = ("loss", "gap_estimates", "oracle_gaps", "targets")
_NUMBERS = ("certified_gap", "cache_hits", "steps", "oracle_calls", "visits", "moved", "relaxed")


class SavedDual(HeldWeights, Stateful):
    """The part of ``DualState`` that reads and writes checkpoints."""

    state_name = "dual"

    num_examples: int
    _lam: float
    structure: Structure
    storage: Storage

    def state_dict(self) -> dict[str, Any]:
        """The exact state as tensors, numbers and strings, which ``weights_only=True`` can load."""
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

    def _schema(self) -> Schema:
        n = self.num_examples
        weights = [Entry(p.dtype, tuple(p.shape)) for p in self.parameters]
        gaps = Entry(torch.float64, (n,), low=0.0, infinite=True)
        count = Entry(int, low=0)
        return {
            "format": version(FORMAT, _ADVICE),
            "num_examples": Same(n),
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
        smallest, largest = state["loss"].aminmax()
        if smallest < -_ROUNDING * max(largest, -smallest, 1.0):
            raise damaged(f"{where}['loss'] should be at least 0, it has {float(smallest)}")
        self.box.check_state(state["box"], self.parameters, f"{where}['box']")
        held = state["storage"]
        if state["steps"] and not (held.get("buffers") or held.get("blocks") or held.get("sets", {}).get("labelings")):
            raise damaged(f"{where}['storage'] is empty after {state['steps']} steps")

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the same bits of blocks, counters and weights from a state that passed :meth:`check_state`."""
        device = self.parameters[0].device
        for parameter, weights in zip(self.parameters, state["weights"], strict=True):
            parameter.copy_(weights)
        self.box.to(device)
        self.unclipped = self.box.restored(state["box"], self.parameters)
        recomputed = state["recomputed"]
        self.recomputed = None if recomputed is None else [tensor.to(device, copy=True) for tensor in recomputed]
        for name in _TENSORS:
            setattr(self, name, state[name].to(device, copy=True))
        for name in _NUMBERS:
            setattr(self, name, state[name])
        self.storage.restore(state["storage"])
