"""BCFW on a linear chain with fixed features, compiled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.batch import Batch
from torchssvm.caching import CacheOracle, MaxOracle, OracleRule
from torchssvm.certificate import Certificate, certify
from torchssvm.compiled.gate import Gate
from torchssvm.compiled.packing import pack
from torchssvm.compiled.state import Blocks, Examples, Model, Options, Scalars, Scratch
from torchssvm.directions import Away, Corrective, DirectionRule, FrankWolfe, Hybrid, Pairwise
from torchssvm.dual import DualState
from torchssvm.dual.storage import require
from torchssvm.heads import LinearChain
from torchssvm.oracles.compiled import numba_available
from torchssvm.sampling import Order, Permutation, Proportional, Uniform, check_random_state
from torchssvm.solve import Schedule, run_until

_DIRECTIONS: list[type] = [FrankWolfe, Pairwise, Away, Hybrid, Corrective]


class CompiledChain:
    """Exact BCFW on a :class:`LinearChain` with fixed features: one block after another, no Python in the loop.

    It trains the same head and the same dual state as ``BlockGap`` and ``BCFW`` do: either goes on where the other
    stopped. Needs Numba (``torchssvm[numba]``) and tensors on the CPU. Blocks are drawn as [G16] Algorithm 2 says, from
    the gaps as they stand at every draw.

    Args:
        head: The head, on the CPU.
        dual: Its dual state, with ``storage=Labelings()``.
        batches: Every training example exactly once; features are copied.
        direction: As in ``BlockGap``; None is ``FrankWolfe()``.
        oracle: As in ``BlockGap``; None is ``MaxOracle()``.
        order: ``Proportional()`` (the default), ``Uniform()`` or ``Permutation()``.
        seed: Of the draws.

    Raises:
        ImportError: Numba is not installed.
        TypeError: The head, its structure, a rule or the storage is not one that is compiled.
        ValueError: The batches do not hold every example once, or are not valid; or the dual is that of another head,
            structure or training set.
        MemoryError: The blocks would not fit in the dual's ``memory_limit``.
    """

    def __init__(
        self,
        head: LinearChain,
        dual: DualState,
        batches: Iterable[Batch],
        *,
        direction: DirectionRule | None = None,
        oracle: OracleRule | None = None,
        order: Order | None = None,
        seed: int = 0,
    ) -> None:
        if not numba_available():
            raise ImportError("CompiledChain needs Numba: pip install torchssvm[numba]")
        self.direction: Any = direction if direction is not None else FrankWolfe()
        self.oracle: Any = oracle if oracle is not None else MaxOracle()
        self.order: Any = order if order is not None else Proportional()
        if type(self.direction) not in _DIRECTIONS:
            raise TypeError(f"direction={self.direction} is not compiled; use BlockGap and BCFW")
        if type(self.oracle) not in (MaxOracle, CacheOracle):
            raise TypeError(f"oracle={self.oracle} is not compiled; use BlockGap and BCFW")
        if type(self.order) not in (Proportional, Uniform, Permutation) or getattr(self.order, "power", 1.0) != 1.0:
            raise TypeError(f"order={self.order} is not compiled; use Proportional(), Uniform() or Permutation()")
        self._gate = Gate(head, dual)
        self.head, self.dual, self.storage = head, dual, self._gate.storage
        self.generator = torch.Generator().manual_seed(seed)
        self._batches = list(batches)
        examples = pack(head, dual, self._batches)
        self._lengths = examples.start.diff()
        self._gate.check_blocks(self._lengths)
        self._check_memory()
        self._examples = Examples(*(t.numpy() for t in examples))
        self._longest = int(self._lengths.max())
        self._scratch = _scratch(
            self._longest, head.structure.num_states, self.storage.capacity + 2, examples.value.numpy().dtype
        )
        self._gate.begin()
        self._waiting = torch.zeros(0, dtype=torch.int64)

    @torch.no_grad()
    def run(self, visits: int) -> int:
        """Visit blocks ``visits`` times; the head holds the new weights afterwards.

        Returns:
            Visits made; fewer only when all gaps are zero.

        Raises:
            ValueError: ``visits`` is negative; or the head or the dual are no longer those of this loop.
            TypeError: The weights have bounds by now.
            RuntimeError: The weights were changed by others. Nothing has changed then.
        """
        from torchssvm.compiled.chain_loop import visit_blocks

        if visits < 0:
            raise ValueError(f"visits={visits} must be at least 0")
        self._gate.check_weights()
        self._gate.check_blocks(self._lengths)
        dual = self.dual
        if dual.recomputed is not None:
            dual.set_weights(dual.recomputed)
        dual.discard()
        done = 0
        while done < visits:
            order, points = self._draw(visits - done)
            tree = _tree(dual.gap_estimates) if len(points) else torch.zeros(2, dtype=torch.float64)
            counters = torch.tensor([0, 0, self.storage.sets.clock])
            made = visit_blocks(
                order.numpy(),
                points.numpy(),
                tree.numpy(),
                self._examples,
                self._model(),
                self._blocks(),
                Scalars(dual.loss.numpy(), dual.gap_estimates.numpy(), dual.oracle_gaps.numpy()),
                self._options(len(points) > 0),
                self._scratch,
                counters.numpy(),
            )
            calls, hits, self.storage.sets.clock = (int(number) for number in counters)
            dual.oracle_calls += calls
            dual.cache_hits += hits
            dual.steps += made
            dual.moved += made
            done += made
            if len(order):
                self._waiting = (self._waiting if len(self._waiting) else order)[made:]
            if made < max(len(order), len(points)):
                if bool((dual.gap_estimates == 0.0).all()):
                    break
                if self.storage.rest.buffers and all(b.complete for b in self.storage.rest.buffers.values()):
                    raise RuntimeError("the gaps are not finite: the weights must have overflowed")
                self._make_room()
        self._gate.remember_lengths(self._lengths)
        dual.remember_weights()
        dual.notify()
        return done

    def solve(
        self,
        tolerance: float,
        *,
        schedule: Schedule | None = None,
        max_passes: float = math.inf,
        on_check: Callable[[Certificate], None] | None = None,
    ) -> Certificate:
        """Train until an exact pass proves that the gap is within ``tolerance``; see :func:`torchssvm.solve`.

        Args:
            tolerance: The gap to reach.
            schedule: When exact passes are made, asked after every quarter of an epoch, or after an epoch of fewer than
                1000 examples; None is ``WhenEstimated()``.
            max_passes: Stop after the portion of visits in which the dual's effective passes, those before this call
                included, come to so many; one more pass is the certificate.
            on_check: Called with the certificate of every exact pass.

        Raises:
            ValueError: An argument is out of range.
        """
        visits = max(self.dual.num_examples // 4, min(self.dual.num_examples, 1000))  # a call costs some 0.3 ms
        return run_until(
            (self.run(visits) for _ in itertools.repeat(None)),
            self.dual,
            self.certify,
            tolerance=tolerance,
            schedule=schedule,
            max_passes=max_passes,
            on_check=on_check,
        )

    def certify(self) -> Certificate:
        """An exact pass, see :func:`torchssvm.certify`."""
        return certify(self.head, self.dual, self._batches)

    def _draw(self, visits: int) -> tuple[Tensor, Tensor]:
        """The next examples, or the random points that draw them: one of the two is empty."""
        none, n = torch.zeros(0, dtype=torch.int64), self.dual.num_examples
        if len(self._waiting):
            return self._waiting[:visits], none.double()
        if isinstance(self.order, Uniform):
            return torch.randint(n, (visits,), generator=self.generator), none.double()
        unknown = torch.isinf(self.dual.gap_estimates)
        if isinstance(self.order, Permutation):
            unknown.fill_(True)
        if bool(unknown.any()):
            order = unknown.nonzero().flatten()
            self._waiting = order[torch.randperm(len(order), generator=self.generator)]
            return self._waiting[:visits], none.double()
        return none, torch.rand(visits, dtype=torch.float64, generator=self.generator)

    def _model(self) -> Model:
        head, states = self.head, self.head.structure.num_states
        zero = torch.zeros(states, dtype=head.emission.dtype)
        bias, first, last = (zero if p is None else p.detach() for p in (head.bias, head.first, head.last))
        return Model(
            head.emission.detach().numpy(),
            head.transition.detach().numpy(),
            bias.numpy(),
            first.numpy(),
            last.numpy(),
            head.bias is not None,
            head.first is not None,
        )

    def _blocks(self) -> Blocks:
        storage, sets = self.storage, self.storage.sets
        states, dtype = self.head.structure.num_states, self.head.emission.dtype
        if self.direction.needs_curvature:
            storage.keep_curvature()
            sets.keep_gram(dtype)
        like = torch.full((1, self._longest), states - 1)
        sets.reserve(like)
        gram = sets.gram if sets.gram is not None else torch.zeros(1, 1, 1, dtype=dtype)
        buffers = storage.rest.buffers
        if buffers:
            emission, transition = buffers["emission"], buffers["transition"]
            rest = [emission.values, emission.start, transition.values, transition.start]
        else:
            n = self.dual.num_examples
            nowhere = torch.zeros(n, dtype=torch.int64)
            rest = [torch.zeros(1, states, dtype=dtype), nowhere, torch.zeros(1, states, states, dtype=dtype), nowhere]
        return Blocks(
            *(t.numpy() for t in (sets.count, sets.mass, sets.loss, sets.used, sets.labelings[0], gram, sets.known)),
            *(t.numpy() for t in (storage.rest_mass, storage.rest_loss, storage.mixed, *rest)),
        )

    def _options(self, by_gap: bool) -> Options:
        dual, cached = self.dual, isinstance(self.oracle, CacheOracle)
        known = cached and math.isfinite(dual.certified_gap)
        return Options(
            direction=_DIRECTIONS.index(type(self.direction)),
            steps=self.direction.steps if isinstance(self.direction, Corrective) else 0,
            tolerance=self.direction.tolerance if isinstance(self.direction, Corrective) else 0.0,
            cache=cached,
            factor=float(self.oracle.factor) if cached else 0.0,
            threshold=self.oracle.floor * dual.certified_gap / dual.num_examples if known else 0.0,
            lam=dual.lam,
            by_gap=by_gap,
        )

    def _check_memory(self) -> None:
        if self.direction.needs_curvature:
            self.storage.keep_curvature()
        batch = self._batches[0]
        self.storage.check_memory(
            self.head(batch.x, batch.lengths), "Labelings(capacity=...) with a smaller capacity takes less"
        )

    def _make_room(self) -> None:
        """Give every example its rows in the rest."""
        batch = self._batches[0]
        self.storage.rest.check_memory(self.head(batch.x, batch.lengths), "a larger capacity of Labelings() avoids it")
        for batch in self._batches:
            potentials = self.head(batch.x, batch.lengths).detach()
            nothing = {name: torch.zeros_like(tensor) for name, tensor in potentials.tensors.items()}
            self.storage.rest.add(batch.index, potentials, nothing)

    def state_dict(self) -> dict[str, Any]:
        """What the next draws depend on; the dual has a state of its own."""
        return {"generator": self.generator.get_state(), "waiting": self._waiting.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the draws.

        Raises:
            ValueError: The state is damaged.
        """
        waiting, generator = (require(state, name, Tensor, "state") for name in ("waiting", "generator"))
        if (
            waiting.dtype != torch.int64
            or waiting.ndim != 1
            or bool(((waiting < 0) | (waiting >= self.dual.num_examples)).any())
        ):
            raise ValueError("the checkpoint is damaged: state['waiting'] does not hold examples")
        check_random_state(generator, "state['generator']")
        self.generator.set_state(generator)
        self._waiting = waiting.clone()


def _tree(gaps: Tensor) -> Tensor:
    """Sums over a binary tree with the gaps as its leaves: entry 1 is the root, 2 k and 2 k + 1 the children of k."""
    leaves = 1 << max(len(gaps) - 1, 1).bit_length()
    level = torch.zeros(leaves, dtype=torch.float64)
    level[: len(gaps)] = gaps
    levels = [level]
    while len(level) > 1:
        level = level.view(-1, 2).sum(1)
        levels.append(level)
    return torch.cat([torch.zeros(1, dtype=torch.float64), *reversed(levels)])


def _scratch(longest: int, states: int, atoms: int, dtype: np.dtype) -> Scratch:
    return Scratch(
        emission=np.zeros((longest, states), dtype),
        row=np.zeros(states, dtype),
        prefixes=np.zeros((longest, states), dtype),
        response=np.zeros((longest, states)),
        pairs=np.zeros((states, states)),
        delta=np.zeros((longest, states)),
        delta_pairs=np.zeros((states, states)),
        corner=np.zeros(longest, np.int64),
        mass=np.zeros(atoms),
        hinge=np.zeros(atoms),
        score_loss=np.zeros(atoms),
        change=np.zeros(atoms),
        gram=np.zeros((atoms, atoms)),
        work=np.zeros(atoms),
    )
