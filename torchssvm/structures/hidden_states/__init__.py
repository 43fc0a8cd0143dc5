"""States of which the data show a part only."""

from torchssvm.structures.hidden_states.structure import HiddenStates

__all__ = ["HiddenStates"]
