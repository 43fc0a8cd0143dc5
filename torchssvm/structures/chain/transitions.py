"""Which states of a chain may follow each other, begin it, and end it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_tensor, number_of, row_name
from torchssvm.core.operators import constant, on_host
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import digest

_FIRST = 1000  # lengths that are looked at when the rules are made


class Transitions:
    """The sequences that are outputs: those without a forbidden pair, first or last state.

    Every oracle of a :class:`Chain` that is made with it finds such sequences only: the forbidden potentials are
    ``-inf`` there, whatever the weights.

    Args:
        pairs: ``[K, K]`` bool, whether a state (row) may be followed by another (column).
        first: ``[K]`` bool, whether a state may stand at the first position; None allows all.
        last: ``[K]`` bool, the same of the last position.

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: An argument is not bool or has another shape, or for some length there is no sequence at all;
            lengths beyond 1000 are looked at when they come.

    Example:
        >>> pairs = torch.tensor([[True, True], [False, True]])  # state 1 is never followed by state 0
        >>> chain = Chain(2, transitions=Transitions(pairs))
        >>> emission = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
        >>> chain.argmax(Potentials({"emission": emission, "transition": torch.zeros(1, 2, 2)})).labeling
        tensor([[0, 0, 1]])
    """

    # There are sequences of all lengths up to this one; pickles that do not have it were made after a look at all.
    _checked: float = math.inf

    def __init__(self, pairs: Tensor, *, first: Tensor | None = None, last: Tensor | None = None) -> None:
        states = check_tensor(pairs, "pairs").shape[0] if pairs.ndim else 0
        self.pairs = _checked("pairs", pairs, (states, states))
        every = torch.ones(states, dtype=torch.bool, device=self.pairs.device)
        self.first = every if first is None else _checked("first", first, (states,))
        self.last = every if last is None else _checked("last", last, (states,))
        self._checked = 0
        self._reached = self.first.cpu().numpy()
        self._check_lengths(_FIRST)

    def _check_lengths(self, longest: int) -> None:
        """Raise ValueError unless some sequence of each length up to ``longest`` is allowed.

        The states that can be last depend on those of one length less. Where both are the same, so are all that follow;
        in a longer cycle each length is looked at.
        """
        pairs, last = self.pairs.cpu().numpy(), self.last.cpu().numpy()
        while self._checked < longest:
            length = int(self._checked) + 1
            if not (self._reached & last).any():
                raise ValueError(f"no sequence of length {length} is allowed: allow more pairs, first or last states")
            following = pairs[self._reached].any(0)
            self._checked = math.inf if (following == self._reached).all() else length
            self._reached = following

    def to(self, device: torch.device) -> Transitions:
        """The same on a device."""
        if self.pairs.device == device:
            return self
        moved = copy.copy(self)
        moved.pairs, moved.first, moved.last = (constant(mask, device) for mask in (self.pairs, self.first, self.last))
        return moved

    def restrict(self, potentials: Potentials) -> Potentials:
        """Chain potentials that are ``-inf`` where a state or a pair is forbidden.

        Raises:
            ValueError: No sequence of some length up to N is allowed.
        """
        allowed = self.to(potentials.device)
        emission, transition = potentials.tensors["emission"], potentials.tensors["transition"]
        self._check_lengths(emission.shape[1])
        shared = transition.stride(0) == 0 and transition.shape[0] > 0  # one matrix seen B times stays one
        pairs = (transition[:1] if shared else transition).masked_fill(~allowed.pairs, -torch.inf)
        emission, lengths = emission.clone(), potentials.lengths
        rows = torch.arange(len(emission), device=emission.device)
        last = emission.shape[1] - 1 if lengths is None else (lengths - 1).clamp(0, emission.shape[1] - 1)
        emission[:, 0].masked_fill_(~allowed.first, -torch.inf)
        emission[rows, last] = emission[rows, last].masked_fill(~allowed.last, -torch.inf)
        return potentials.replace({"emission": emission, "transition": pairs.expand(transition.shape)})

    def allows(self, labels: Tensor) -> Tensor:
        """Whether sequences are outputs.

        Args:
            labels: ``[B, N]`` int64, states; -1 beyond the length.

        Returns:
            ``[B]`` bool.
        """
        allowed, known = self.to(labels.device), labels.clamp(min=0)
        real = labels >= 0
        fine = allowed.pairs[known[:, :-1], known[:, 1:]] | ~real[:, 1:]
        last = (real.sum(1) - 1).clamp(min=0)
        end = known.gather(1, last.unsqueeze(1)).squeeze(1)
        return fine.all(1) & allowed.first[known[:, 0]] & allowed.last[end]

    def check(self, labels: Tensor, names: Sequence[Any] | None = None) -> None:
        """Raise ValueError, and say where, unless all sequences ``[B, N]`` are outputs; ``names`` are of the states."""
        labels = on_host(labels)  # the caller has checked them there
        wrong = ~self.allows(labels)
        if not bool(wrong.any()):
            return
        row = int(wrong.nonzero()[0, 0])
        states = labels[row][labels[row] >= 0].tolist()
        shown = [f"state {state}" if names is None else repr(names[state]) for state in states]
        pairs, first, last = self.pairs.tolist(), self.first.tolist(), self.last.tolist()
        if not first[states[0]]:
            what = f"begins with {shown[0]}"
        elif not last[states[-1]]:
            what = f"ends with {shown[-1]}"
        else:
            place = next(t for t in range(1, len(states)) if not pairs[states[t - 1]][states[t]])
            what = f"has {shown[place]} after {shown[place - 1].removeprefix('state ')} at position {place}"
        which = f"target {what} in {row_name(row)}" if names is None else f"y[{number_of(row)}] {what}"
        raise ValueError(f"{which}, which the transitions forbid: repair it, or allow it")

    def extends(self, other: Transitions) -> bool:
        """Whether ``other`` allows the same sequences of the first states."""
        size = len(other.first)
        mine, theirs = ((one.pairs[:size, :size], one.first[:size], one.last[:size]) for one in (self, other))
        return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))

    def __repr__(self) -> str:
        return f"Transitions({digest(torch.cat([self.pairs, self.first[None], self.last[None]]))})"


def _checked(name: str, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    if check_tensor(mask, name).dtype != torch.bool or mask.shape != shape or not mask.numel():
        raise ValueError(
            f"{name} must be bool {'[K, K]' if len(shape) == 2 else list(shape)}, got {mask.dtype} {list(mask.shape)}"
        )
    return mask.detach().clone()
