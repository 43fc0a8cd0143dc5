"""The state of the dual: blocks, losses, gap estimates and counters of one training problem."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.proposal import Proposal
from torchssvm.dual.storage import Storage, require
from torchssvm.linearity import check_at_first_call
from torchssvm.potentials import Potentials
from torchssvm.structures import Structure

_FORMAT = 2


class Observer(Protocol):
    """Wants to know of steps."""

    def after_step(self) -> None:
        """A step was taken or discarded."""
        ...


class DualState:
    """One dual block for every training example, and what is known of it.

    The weights follow from it: ``w = (1/(lam n)) sum_i Phi_i^T (p(y_i) - mu_i)``; the dual objective is
    ``D = sum_i l_i - lam/2 |w|^2``, with ``l_i`` = :attr:`loss`. Scalars are float64; blocks have the weights' dtype.
    ``BCFW`` carries this state in its ``state_dict``.

    Args:
        num_examples: n, the size of the training set.
        lam: Regularisation, the lambda of ``lam/2 |w|^2``; positive.
        structure: What an output is.
        parameters: The head's parameters, in the order of ``head.parameters()``; float32 or float64.
        storage: How blocks are kept; None is ``MeanParts()``.
        memory_limit: Bytes that the blocks may take; None is what the device has left when they are first needed.

    Attributes:
        loss: ``[n]`` float64, l_i = (1/n) times the mean loss of the block.
        gap_estimates: ``[n]`` float64, each block's gap when it was last seen; infinite before that.
        oracle_gaps: ``[n]`` float64, each block's gap when the max oracle last saw it; infinite before that.
        certified_gap: The gap of the last exact pass; infinite before that.
        steps: Steps taken.
        cache_hits: Examples that went to a cached labeling instead of being decoded.
        oracle_calls: Examples decoded with loss augmentation, exact passes included.
        visits: Training batches seen.
        recomputed: Weights that the next step starts from, if an exact pass has recomputed them.
        held_norm: Norm of the weights as the last step left them.
        version: Counts changes of blocks or weights: directions computed before one are void after it.

    Raises:
        ValueError: ``num_examples`` or ``lam`` is not positive, or there is no parameter.
        TypeError: A parameter is not float32 or float64, or ``structure`` is not a Structure.
    """

    def __init__(
        self,
        num_examples: int,
        lam: float,
        structure: Structure,
        parameters: Iterable[nn.Parameter],
        *,
        storage: Storage | None = None,
        memory_limit: int | None = None,
    ) -> None:
        if isinstance(num_examples, bool) or not isinstance(num_examples, int) or num_examples < 1:
            raise ValueError(f"num_examples={num_examples} must be a positive number: is the dataset empty?")
        if isinstance(lam, bool) or not isinstance(lam, float | int) or not (lam > 0 and math.isfinite(lam)):
            raise ValueError(f"lam={lam} must be positive and finite")
        if not isinstance(structure, Structure):
            raise TypeError(f"structure must be a torchssvm.Structure, not {type(structure).__name__}")
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("the head has no parameters to train")
        for parameter in self.parameters:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise TypeError(
                    f"the head's weights are {parameter.dtype}; keep the head in float32 or float64 "
                    "(the features below it may have any dtype)"
                )
        if len({parameter.dtype for parameter in self.parameters}) > 1:
            raise TypeError("the head's weights have several dtypes; use one")
        self.num_examples = num_examples
        self.lam = float(lam)
        self.structure = structure
        self.storage = storage if storage is not None else MeanParts()
        self.storage.bind(num_examples, self.lam, structure, self.parameters, memory_limit)
        self.loss = torch.zeros(num_examples, dtype=torch.float64)
        self.gap_estimates = torch.full((num_examples,), math.inf, dtype=torch.float64)
        self.oracle_gaps = self.gap_estimates.clone()
        self.certified_gap = math.inf
        self.steps = 0
        self.cache_hits = 0
        self.oracle_calls = 0
        self.visits = 0
        self.recomputed: list[Tensor] | None = None
        self.held_norm = 0.0
        self.version = 0
        self._pending: list[Proposal] = []
        self._observers: weakref.WeakSet[Observer] = weakref.WeakSet()

    @classmethod
    def for_head(
        cls,
        head: nn.Module,
        num_examples: int,
        lam: float,
        *,
        structure: Structure | None = None,
        storage: Storage | None = None,
        memory_limit: int | None = None,
    ) -> DualState:
        """The dual state of a head; the head's linearity is checked when it is first called.

        Args:
            head: An ``nn.Module`` linear in all its weights.
            num_examples: n, the size of the training set.
            lam: Regularisation; positive.
            structure: What an output is; None is ``head.structure``.
            storage: How blocks are kept; None is ``MeanParts()``.
            memory_limit: Bytes that the blocks may take; None is what the device has left.

        Raises:
            ValueError: As the constructor, or there is no structure, or a parameter does not require a gradient.
        """
        structure = structure if structure is not None else getattr(head, "structure", None)
        if structure is None:
            raise ValueError(
                f"structure=None, and {type(head).__name__} has no attribute `structure`: pass one of them"
            )
        frozen = [name for name, parameter in head.named_parameters() if not parameter.requires_grad]
        if frozen:
            raise ValueError(
                f"parameters {frozen} of the head do not require a gradient: a head must be linear in the weights that "
                "are trained, so move constants into the features"
            )
        dual = cls(num_examples, lam, structure, head.parameters(), storage=storage, memory_limit=memory_limit)
        check_at_first_call(head)
        return dual

    @property
    def passes(self) -> float:
        """Effective passes: oracle calls divided by n."""
        return self.oracle_calls / self.num_examples

    @property
    def gap_estimate(self) -> float:
        """Sum of the block gaps as last seen: a figure for a progress bar, not a certificate."""
        return float(self.gap_estimates.sum())

    @torch.no_grad()
    def value(self) -> float:
        """The dual objective at the weights held now, ``sum_i l_i - lam/2 |w|^2``."""
        return float(self.loss.sum()) - self.lam / 2 * squared_norm(self.parameters)

    @property
    def pending(self) -> bool:
        """Whether a backward pass has proposed a step that is not taken yet."""
        return bool(self._pending)

    def check_batch(self, index: Tensor, potentials: Potentials) -> Tensor:
        """The index on the right device, or an error.

        Raises:
            ValueError: ``index`` is not int64 ``[B]`` within 0 .. n - 1.
            TypeError: The potentials are not of the weights' dtype.
        """
        size, weights = potentials.batch_size, self.parameters[0]
        if not isinstance(index, Tensor) or index.shape != (size,) or index.dtype != torch.int64:
            found = f"{index.dtype} {list(index.shape)}" if isinstance(index, Tensor) else type(index).__name__
            raise ValueError(f"index must be int64 [{size}], one number for each example, got {found}")
        if not size:
            raise ValueError("the batch is empty: index holds no example")
        if bool(((index < 0) | (index >= self.num_examples)).any()):
            raise ValueError(
                f"index holds {int(index.min())} to {int(index.max())}; the dual has num_examples={self.num_examples}"
            )
        if potentials.dtype != weights.dtype:
            raise TypeError(
                f"the potentials are {potentials.dtype} and the head's weights {weights.dtype}: run the head in the "
                "dtype of its weights, with autocast off"
            )
        self.to(weights.device)
        return index.to(weights.device)

    def to(self, device: torch.device) -> None:
        """Move what is stored."""
        if self.loss.device != device:
            self.loss, self.gap_estimates = self.loss.to(device), self.gap_estimates.to(device)
            self.oracle_gaps = self.oracle_gaps.to(device)
            self.storage.to(device)
            if self.recomputed is not None:
                self.recomputed = [tensor.to(device) for tensor in self.recomputed]

    def remember_weights(self) -> None:
        """Note the weights as those of the dual; ``BCFW.step`` refuses others, and directions computed before."""
        self.version += 1
        self.held_norm = math.sqrt(squared_norm(self.parameters))

    def propose(self, proposal: Proposal) -> None:
        """Keep a step until the optimizer takes it; called by the backward pass of ``BlockGap``."""
        self._pending.append(proposal)
        self.visits += 1

    def take(self) -> list[Proposal]:
        """The steps proposed since the last one; they are forgotten here."""
        proposals, self._pending = self._pending, []
        return proposals

    def discard(self) -> None:
        """Forget proposed steps, as ``zero_grad`` forgets their gradients."""
        if self._pending:
            self._pending = []
            self.notify()

    def observe(self, observer: Observer) -> None:
        """Call ``observer.after_step()`` whenever a step was taken or discarded, as long as it lives."""
        self._observers.add(observer)

    def forget(self, observer: Observer) -> None:
        """Call it no more."""
        self._observers.discard(observer)

    def notify(self) -> None:
        """Tell the observers that a step was taken or discarded."""
        for observer in list(self._observers):
            observer.after_step()

    def state_dict(self) -> dict[str, Any]:
        """Everything, exactly: tensors, numbers and strings only, so that ``weights_only=True`` can load it."""
        return {
            "format": _FORMAT,
            "num_examples": self.num_examples,
            "lam": self.lam,
            "structure": repr(self.structure),
            "weights": [parameter.detach().clone() for parameter in self.parameters],
            "recomputed": None if self.recomputed is None else [tensor.clone() for tensor in self.recomputed],
            "loss": self.loss.clone(),
            "gap_estimates": self.gap_estimates.clone(),
            "oracle_gaps": self.oracle_gaps.clone(),
            "certified_gap": self.certified_gap,
            "cache_hits": self.cache_hits,
            "steps": self.steps,
            "oracle_calls": self.oracle_calls,
            "visits": self.visits,
            "storage": self.storage.state_dict(),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ValueError if ``state`` is another problem's or damaged; changes nothing."""
        if require(state, "format", int, "dual") != _FORMAT:
            raise ValueError(f"the checkpoint has format {state['format']}, this version reads format {_FORMAT}")
        weights = require(state, "weights", list, "dual")
        expected = {
            "num_examples": (self.num_examples, require(state, "num_examples", int, "dual")),
            "lam": (self.lam, require(state, "lam", float, "dual")),
            "structure": (repr(self.structure), require(state, "structure", str, "dual")),
            "weights": (
                [(list(p.shape), p.dtype) for p in self.parameters],
                [(list(w.shape), w.dtype) for w in weights if isinstance(w, Tensor)],
            ),
        }
        for name, (here, there) in expected.items():
            if here != there:
                raise ValueError(f"the checkpoint is of another problem: {name} is {there} there and {here} here")
        for name, allowed in (
            ("loss", math.nextafter(math.inf, 0.0)),
            ("gap_estimates", math.inf),
            ("oracle_gaps", math.inf),
        ):
            values = require(state, name, Tensor, "dual")
            if (
                values.shape != (self.num_examples,)
                or values.dtype != torch.float64
                or not bool((values.abs() <= allowed).all())
                or (name != "loss" and bool((values < 0.0).any()))
            ):
                raise ValueError(
                    f"the checkpoint is damaged: dual[{name!r}] does not hold {self.num_examples} valid float64 numbers"
                )
        if not require(state, "certified_gap", float, "dual") >= 0.0:
            raise ValueError(f"the checkpoint is damaged: dual['certified_gap'] is {state['certified_gap']}")
        for name in ("steps", "oracle_calls", "cache_hits", "visits"):
            if require(state, name, int, "dual") < 0:
                raise ValueError(f"the checkpoint is damaged: dual[{name!r}] is {state[name]}")
        for name in ("weights", "recomputed"):
            if name not in state:
                raise ValueError(f"the checkpoint is damaged: dual[{name!r}] is missing")
            if state[name] is not None and not self._fit(require(state, name, list, "dual")):
                raise ValueError(
                    f"the checkpoint is damaged: dual[{name!r}] does not hold finite numbers for each weight"
                )
        self.storage.check_state(require(state, "storage", dict, "dual"))
        storage = state["storage"]
        if state["steps"] and not (
            storage.get("buffers") or storage.get("blocks") or storage.get("sets", {}).get("labelings")
        ):
            raise ValueError(f"the checkpoint is damaged: dual['storage'] is empty after {state['steps']} steps")

    def _fit(self, tensors: list[Any]) -> bool:
        return len(tensors) == len(self.parameters) and all(
            isinstance(t, Tensor) and t.shape == p.shape and t.dtype == p.dtype and bool(torch.isfinite(t).all())
            for t, p in zip(tensors, self.parameters, strict=True)
        )

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore blocks, counters and weights to the bit; nothing changes if the state does not fit.

        Raises:
            ValueError: The state is of another problem, or damaged.
        """
        self.check_state(state)
        device = self.parameters[0].device
        for parameter, weights in zip(self.parameters, state["weights"], strict=True):
            parameter.copy_(weights)
        recomputed = state["recomputed"]
        self.recomputed = None if recomputed is None else [tensor.to(device, copy=True) for tensor in recomputed]
        self.loss = state["loss"].to(device, copy=True)
        self.gap_estimates = state["gap_estimates"].to(device, copy=True)
        self.oracle_gaps = state["oracle_gaps"].to(device, copy=True)
        self.certified_gap = state["certified_gap"]
        self.steps, self.oracle_calls, self.visits = state["steps"], state["oracle_calls"], state["visits"]
        self.cache_hits = state["cache_hits"]
        self.storage.load_state_dict(state["storage"])
        self._pending = []
        self.remember_weights()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles; observers that are copied along observe the copy."""
        return {**vars(self), "_observers": list(self._observers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._observers = weakref.WeakSet(state["_observers"])

    def __repr__(self) -> str:
        return (
            f"DualState(num_examples={self.num_examples}, lam={self.lam:g}, structure={self.structure}, "
            f"storage={type(self.storage).__name__}, steps={self.steps})"
        )


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of ``tensors`` in one float64 vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).to(torch.float64)


def squared_norm(tensors: Iterable[Tensor]) -> float:
    """``sum |t|^2`` in float64."""
    numbers = flat(tensors)
    return float(numbers @ numbers)
