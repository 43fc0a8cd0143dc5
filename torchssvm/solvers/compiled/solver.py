"""Compiled BCFW for fixed features: blocks one after another, without Python in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_whole
from torchssvm.core.batch import Batch, Part, pass_over, to_device, tree_map
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.packages import warn
from torchssvm.core.potentials import as_potentials
from torchssvm.core.problem import Box
from torchssvm.core.states import Numbers, Stateful, check_entries
from torchssvm.core.threads import torch_threads
from torchssvm.dual.checks import check_visits, digest_examples, digest_targets
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.state import DualState
from torchssvm.kinds.adapter import HeadAdapter, NotCompiledError, find_adapter
from torchssvm.kinds.examples import Examples, make_scratch
from torchssvm.kinds.hidden import Calls, Hidden, writers_of
from torchssvm.solvers.certificate import Certificate, conclude
from torchssvm.solvers.compiled.damping import Damping
from torchssvm.solvers.compiled.draws import ALL, Draws, left_of_cycle, phase
from torchssvm.solvers.compiled.exact_pass import ExactPasses
from torchssvm.solvers.compiled.memory import (
    BlockMemory,
    Options,
    Scalars,
    validate_blocks,
    validate_problem,
    validate_weights,
)
from torchssvm.solvers.compiled.packing import Piece, long_features, pack, staying
from torchssvm.solvers.compiled.rounds import Kept, Rounds, blend, keep_blocks
from torchssvm.solvers.exact_pass import ExactPass
from torchssvm.solvers.solver import WhenEstimated
from torchssvm.solvers.trainer import DualTrainer
from torchssvm.steps.directions import (
    DIRECTIONS,
    CacheOracle,
    Corrective,
    DirectionRule,
    FrankWolfe,
    MaxOracle,
    OracleRule,
    Order,
    Proportional,
    check_rules,
    solves_whole,
)
from torchssvm.structures.weighted import apart, joined


class CompiledBCFW(DualTrainer, Stateful):
    """Compiled single-example BCFW for a head with a compiled form and fixed features, on the CPU.

    Trains the same head and dual state as ``BlockGap`` and ``BCFW``: each can continue from the other. Blocks
    are drawn as in [G16] Algorithm 2, from the current gaps at every draw. Features are copied without padding, as
    lists if they are mostly zero.

    Args:
        head: One with a ``compiled_form``, on the CPU.
        dual: Its dual state, with ``storage=MeanParts()`` or ``Labelings()``.
        batches: Every training example exactly once, on any device; read once, and freed one after another.
        direction: As in ``BlockGap``; None is ``FrankWolfe()``.
        oracle: As in ``BlockGap``; None is ``MaxOracle()``.
        order: ``Proportional()`` (the default), ``Uniform()`` or ``Permutation()``.
        seed: Seed of the draws.
        round_visits: Of several processes, the visits that each makes between two exchanges; None chooses it by the
            sizes of weights and examples.
        adapter: The compiled form of the head, from :func:`torchssvm.solvers.choose`.
        earlier: An earlier loop, and the place ``[n]`` int64 that each example had in it, -1 for the examples of
            ``batches``.

    Raises:
        TypeError: The head, its structure, a rule or the storage has no compiled form.
        ValueError: The batches do not hold every example once, or are not valid; the dual belongs to another head,
            structure or training set; or ``direction`` or ``oracle`` needs a storage that keeps labelings.
        MemoryError: The blocks would not fit in the dual's ``memory_limit``.
        RuntimeError: A target has changed since the dual's last exact pass.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> dual = DualState.for_head(head, num_examples=30, lam=0.1, storage=Labelings())
        >>> trainer = CompiledBCFW(head, dual, in_order(data), direction=Pairwise(), oracle=CacheOracle())
        >>> trainer.solve(tolerance=0.01).gap <= 0.01
        True
    """

    examples: Examples
    piece: Piece  # the same, which another loop may take over
    state_name = "draws"
    idle_epochs = 10  # an exact pass costs less than an epoch of visits, and the gaps that they are drawn by grow old

    def __init__(
        self,
        head: nn.Module,
        dual: DualState,
        batches: Iterable[Batch],
        *,
        direction: DirectionRule | None = None,
        oracle: OracleRule | None = None,
        order: Order | None = None,
        seed: int = 0,
        round_visits: int | None = None,
        adapter: HeadAdapter | None = None,
        earlier: tuple[CompiledBCFW, Tensor] | None = None,
    ) -> None:
        self.direction: Any = direction if direction is not None else FrankWolfe()
        self.oracle: Any = oracle if oracle is not None else MaxOracle()
        size = None if round_visits is None else check_whole(round_visits, "round_visits")
        if adapter is None:
            check_compiled(self.direction, self.oracle)
            adapter = find_adapter(head)
        validate_problem(head.structure, dual)  # type: ignore[arg-type]
        for each in (dual, dual.storage):  # which may have been made before the head was moved
            each.to(dual.parameters[0].device)
        check_rules(self.direction, self.oracle, dual.storage, whole=adapter.whole() is not None)
        self._whole = solves_whole(self.direction, dual.storage)
        if self._whole:  # every cycle of sweeps visits all blocks, so that no gap grows old
            self.schedule = WhenEstimated(passes=30.0)
            adapter = adapter.whole()
            assert adapter is not None
        self._corrects = isinstance(self.direction, Corrective) and not self._whole
        self.draws = Draws(order if order is not None else Proportional(), dual, seed, whole=self._whole)
        self._adapter, self._layout = adapter, [(p.shape, p.dtype) for p in dual.parameters]
        self._made = 0  # visits of the last call
        self._seen: tuple[Any, int] | None = None  # the storage's contents and the version that were validated
        self.head, self.dual = head, dual
        dual.ranks.run_on_all(lambda: self._read(batches, earlier))
        dual.ranks.check_same(round_visits=size)
        rows, pairs = int(self.examples.length.max()), int(self.examples.pair_rows.max())
        states, weights = adapter.num_states, adapter.weights
        sizes = rows, states, max(weights.width, states), pairs, weights.pair_width
        self._make_scratch = partial(
            make_scratch,
            *sizes,
            self.memory.capacity + 2,
            self.examples.added.dtype,
            long_features(self.examples),
            self.memory.longest,
            adapter.room_of(self.examples),
        )
        self._scratch = Hidden(self._make_scratch())
        self._calls = Calls(self.examples, *writers_of(self._whole, self.direction.needs_curvature))
        self._exact = ExactPasses(self.examples, self._targets, self._make_scratch, whole=self._whole)
        if dual.begin(Box(dual.parameters)):
            warn("the head's weights were not zero, and a new dual stands for zero weights: they are now zero")
        self._rounds = Rounds(self, size) if dual.ranks else None
        self._damping = None if dual.ranks or not isinstance(self.direction, Corrective) else Damping(self)
        self._factor = 1.0  # of lambda, in the current visits

    def _read(self, batches: Iterable[Batch], earlier: tuple[CompiledBCFW, Tensor] | None) -> None:
        adapter, dual = self._adapter, self.dual
        validate_weights(adapter, dual, self._layout, begun=False)
        before = None
        if earlier is not None:
            adapter.carries |= earlier[0]._adapter.carries
            before = staying(adapter, earlier[0].piece, earlier[1])
        self.examples, self.piece = pack(adapter, dual, batches, before)
        self._targets, self._lengths = self.piece.targets, self.piece.lengths
        self._validate_blocks()
        labels = int(torch.from_numpy(self.examples.start).diff().max())
        self.memory = BlockMemory(adapter, dual, self._lengths, labels, curvature=self.direction.needs_curvature)

    def packs_for(self, head: nn.Module) -> bool:
        """Whether a loop of this head can take over packed examples from here; not from a copy, which has none."""
        pairs = zip(head.parameters(), self.dual.parameters, strict=True)
        wide = all(now >= then for new, old in pairs for now, then in zip(new.shape, old.shape, strict=True))
        return wide and type(head) is type(self._adapter.head) and not self._adapter.notes and hasattr(self, "piece")

    def check_staying(self, dataset: Any, kept: Tensor, adapter: HeadAdapter) -> None:
        """Raise RuntimeError if an example's target or length differs from its place ``kept`` ``[n]`` in this loop.

        ``adapter`` belongs to the new head, which may take more features.
        """
        rows = (kept >= 0).nonzero().flatten()
        for batch in pass_over(Part(dataset, rows)) if len(rows) else ():
            batch = to_device(batch, "cpu")
            places = rows[batch.index]
            if bool((wrong := self._digests(batch, adapter) != self._targets[kept[places]]).any()):
                raise RuntimeError(
                    f"kept maps examples {places[wrong][:5].tolist()} to other targets or lengths of start: use -1 for "
                    "new or changed examples"
                )

    def reseed(self, seed: int) -> None:
        """Begin the draws of the blocks anew, by another seed."""
        self.draws = Draws(self.draws.order, self.dual, seed, whole=self._whole)

    @torch.no_grad()
    def step(self, visits: int | None = None) -> int:
        """Draw blocks and visit them, one after another; the head holds the new weights afterwards.

        Draws by gaps need an exact pass some every ten passes, by :meth:`certify`: a block whose last gap was small is
        not drawn before, however large its gap has become. :meth:`solve` makes these passes.

        Where lambda is small for the features, one process draws the blocks and the steps are corrective, the head's
        weights are damped from the second epoch on: see :mod:`torchssvm.solvers.compiled.damping`. They have a smaller
        primal than the weights of the blocks, towards which each step moves them; certificates are of the head's.

        From the fortieth epoch of the dual's visits on, where one process draws the blocks and the steps are
        corrective, they are drawn by the roots of their gaps, and three steps of four are over-relaxed: see
        :func:`.draws.phase`. Steps of :meth:`visit` are exact.

        Args:
            visits: Number of visits, of all processes together; None is a quarter of an epoch, or a whole epoch for
                fewer than 1000 examples and where weights are damped; with ``Corrective()``, from the fortieth epoch
                on, two epochs. Where whole blocks are solved, None is a sweep.

        Returns:
            Visits made; fewer only when all gaps are zero. Blocks that a sweep leaves out count.

        Raises:
            ValueError: ``visits`` is negative; or the head or the dual no longer fit this loop.
            TypeError: The weights now have bounds.
            RuntimeError: The weights were changed by others; nothing changes then. Or the weights have overflowed.
            MemoryError: A labeling must leave its slot for the first time, and the rest would not fit in the dual's
                ``memory_limit``. The earlier visits of the step are kept.
        """
        if visits is None:
            return self.advance(math.inf)
        visits = check_whole(visits, "visits", 0)
        return self._step(visits) if self._rounds is None else self._rounds.step(visits)

    @torch.no_grad()
    def advance(self, passes: float) -> int:
        """A step of a run that may make ``passes`` more passes; a sweep ends when they are made."""
        visits = self.next_visits()
        if self._rounds is not None:
            return self._rounds.step(visits)
        return self._step(visits, passes * self.dual.num_examples if self.draws.sweeps else None)

    @property
    def damps(self) -> bool:
        """Whether steps of labelings damp the weights where lambda is small."""
        return self._damping is not None and self.memory.labelings is not None

    def next_visits(self) -> int:
        """Visits of a step by default."""
        n, cycles = self.dual.num_examples, self._corrects and self._rounds is None
        if self._whole or self.dual.damped:
            return n
        return (left_of_cycle(self.dual.moved, n) if cycles else None) or usual_visits(n)

    def _step(self, visits: int, calls: float | None = None) -> int:
        """See :meth:`step`; with ``calls``, a sweep goes on until it has made as many oracle calls."""
        factor = 1.0 if self._damping is None else self._damping.factor
        if self._damping is None or factor == 1.0:
            with self._visiting():
                return self._draw_and_visit(visits, calls)
        n, made = self.dual.num_examples, 0
        for first in range(0, visits, n):  # weights are damped after each epoch
            part = min(visits - first, n)
            with self._visiting(factor), self._damping.step(factor, part / n):
                made += self._draw_and_visit(part, calls)
        return made

    def _draw_and_visit(self, visits: int, calls: float | None) -> int:
        dual, n, done = self.dual, self.dual.num_examples, 0
        end = math.inf if calls is None else dual.oracle_calls + calls
        while done < visits and dual.oracle_calls < end:
            most, relaxation, power = phase(dual.moved, n) if self._corrects else (visits, 1.0, 1.0)
            order, points = self.draws.next(min(visits - done, most) if calls is None else ALL)
            if self._whole:
                relaxation = self.draws.relaxation
                if not len(order):
                    break
            left = end - dual.oracle_calls
            made = self._visit(order, points, drawn=len(order) > 0, relaxation=relaxation, power=power, most=left)
            done += made
            if not self._whole and made < max(len(order), len(points)):
                if bool((dual.gap_estimates == 0.0).all()):
                    break
                self._make_room()
        return done

    @contextmanager
    def _visiting(self, factor: float = 1.0, index: Tensor | None = None) -> Iterator[None]:
        """Visits of these blocks, None for any, at ``factor`` lambda; an interrupt waits until they are accepted."""
        with undisturbed(), torch_threads():
            self._factor = factor
            try:
                self.begin()
                try:
                    yield
                finally:
                    self.end(index)
            finally:
                self._factor = 1.0

    @property
    def mean_step(self) -> float:
        """Mean step of the last call's visits: between 0 and 1, or the relaxation."""
        return float(self._scratch.plain.step[0]) / max(self._made, 1)

    @torch.no_grad()
    def visit(self, index: Tensor) -> None:
        """Visit the given blocks, one after another.

        Args:
            index: ``[V]`` int64, examples; a repeated example is visited again.

        Raises:
            ValueError: ``index`` is not valid; or as :meth:`step`, like the rest.
            TypeError: See :meth:`step`.
            RuntimeError: See :meth:`step`.
        """
        index = check_visits(index, self.dual.num_examples, self.dual.own)
        self.dual.ranks.refuse_several("visit(index)", "Call step(), which draws blocks in every process")
        nowhere = torch.zeros(0, dtype=torch.float64)
        with self._visiting(index=index):
            while len(index):
                index = index[self._visit(index, nowhere, drawn=False) :]
                if len(index):
                    self._make_room()

    def check_targets(self, batch: Batch) -> None:
        """Check that a batch's index names the examples that the loop keeps under these numbers.

        Raises:
            ValueError: The index is not valid.
            RuntimeError: An example of the loop has another target or length.
        """
        batch = to_device(batch, "cpu")
        index = check_visits(batch.index, self.dual.num_examples, self.dual.own)
        digests = self._digests(batch, self._adapter)
        if bool((wrong := digests != self._targets[index]).any()):
            examples = (index[wrong].unique() + self.dual.own.start).tolist()
            raise RuntimeError(
                f"index names {examples[:5]}, whose targets or lengths differ: give each example's place in the dataset"
            )

    def _digests(self, batch: Batch, adapter: HeadAdapter) -> Tensor:
        """Digests of the targets of a batch, ``[B]`` int64; the head is applied where they need what features carry."""
        (batch, weight), lengths = apart(batch, self.dual.structure), batch.lengths
        if self._adapter.carries:
            potentials = as_potentials(adapter.apply(batch))
            target = adapter.structure.check_target(batch.y, potentials)
            return digest_examples(joined(target, weight), potentials)
        if lengths is None and self._adapter.ragged:  # a chain's potentials have lengths all the same
            lengths = torch.full((len(batch.y),), batch.y.shape[1])

        def without_padding(leaf: Tensor) -> Tensor:
            if lengths is None or leaf.ndim < 2:
                return leaf
            beyond = torch.arange(leaf.shape[1]) >= lengths.unsqueeze(1)
            return leaf.masked_fill(beyond.view(*beyond.shape, *[1] * (leaf.ndim - 2)), 0)

        return digest_targets(joined(tree_map(without_padding, batch.y), weight), lengths)

    @torch.no_grad()
    def certify(self, *, refresh: bool = True) -> Certificate:
        """An exact pass on all of torch's threads, with the results of :func:`torchssvm.certify`.

        Args:
            refresh: Whether the next step starts from the recomputed weights.

        Raises:
            ValueError: The head or the dual no longer fit this loop.
            TypeError: The weights now have bounds.
            RuntimeError: The weights were changed by others, or are not finite. Or the gap is negative by more than
                rounding: the dual does not belong to these examples.
        """
        dual, memory = self.dual, self.memory
        options = self._options(False)._replace(direction=FrankWolfe.rule)

        def make_pass() -> ExactPass:
            with undisturbed():
                self._validate()
                blocks = memory.laid_out()
            made = self._exact(self._adapter.weights.model(), blocks, dual, options, memory)
            return made._replace(remember=partial(self._remember, made.remember))

        with torch_threads():
            return conclude(dual, make_pass, refresh=refresh)

    def _remember(self, remember: Callable[[], None]) -> None:
        remember()
        self.memory.remember_lengths(None)
        self._seen = (self._contents, self.dual.version)

    def __repr__(self) -> str:
        return f"CompiledBCFW({self.dual}, direction={self.direction}, oracle={self.oracle}, order={self.draws.order})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_scratch", "piece")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._scratch = Hidden(self._make_scratch())

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect the draws of all ranks for the next ``state_dict()`` of the rank ``to``; all ranks call it."""
        self.draws.consolidate_state_dict(to)

    def state_dict(self) -> dict[str, Any]:
        """The state of the draws; the dual's state is separate."""
        return {**self.draws.state_dict(), **self._entries()}

    def _entries(self) -> dict[str, Any]:
        return {} if self._rounds is None else {"round_visits": self._rounds.visits}

    def _check_own(self, state: dict[str, Any]) -> None:
        check_entries({"round_visits": state.get("round_visits", 1)}, {"round_visits": Numbers(int, low=1)}, "loop")
        self.draws.check_state({name: value for name, value in state.items() if name != "round_visits"})

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.draws.restore(state)
        if self._rounds is not None:
            self._rounds.visits = state.get("round_visits", self._rounds.visits)

    def columns_of(self, index: np.ndarray) -> np.ndarray | None:
        """The features of some examples, ascending, int64; None where features are no lists."""
        if self.examples.dense:
            return None
        columns, start = self._columns
        some = [columns[begin:end] for begin, end in zip(start[index], start[index + 1], strict=True)]
        return np.unique(np.concatenate([columns[:0], *some])).astype(np.int64)

    @property
    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        """The features of all examples, and where each example's begin, ``[n + 1]``."""
        examples = self.examples
        if len(examples.distinct):
            return examples.distinct, examples.distinct_start
        return examples.column, examples.row[examples.line]

    @property
    def num_features(self) -> int:
        """How many numbers or columns the features of all examples have together."""
        return self.examples.x.size if self.examples.dense else self._columns[0].size

    @property
    def emission(self) -> Tensor:
        """The emissions of the head, ``[F, K]``."""
        return self._adapter.weights.emission

    @property
    def _contents(self) -> Any:
        storage: Any = self.dual.storage
        return storage.sets if isinstance(storage, Labelings) else storage.buffers

    def _validate(self) -> None:
        validate_weights(self._adapter, self.dual, self._layout)
        limits = self._adapter.limits  # the oracle may have other ones now
        if len(limits):
            limits[:] = find_adapter(self._adapter.head).limits
        if self._seen is None or self._seen[0] is not self._contents or self._seen[1] != self.dual.version:
            self.memory.changed()
            self._validate_blocks()

    def _validate_blocks(self) -> None:
        sizes = torch.from_numpy(self.examples.start).diff()
        validate_blocks(self._adapter, self.dual, self._lengths, sizes, self._targets)
        self._seen = (self._contents, self.dual.version)

    def begin(self) -> None:
        """Check that visits can be made, and set the weights that they start from."""
        dual = self.dual
        dual.ranks.run_on_all(self._validate)
        dual.targets = self._targets
        if self._factor > 1.0:
            dual.damp()
        elif dual.recomputed is not None:
            dual.set_weights(dual.recomputed)
        dual.discard()
        self._scratch.plain.step[:] = 0.0
        self._made = 0

    def end(self, index: Tensor | None = None) -> None:
        """Accept the weights after visits of these blocks; None is any."""
        self.memory.remember_lengths(index)
        squared = self.dual.held_norm**2 + float(self._scratch.plain.step[1])
        self.dual.remember_weights(squared if self._factor == 1.0 else None, self._made)
        self._seen = (self._contents, self.dual.version)
        self.dual.mailbox.notify()

    def _visit(
        self,
        order: Tensor,
        points: Tensor,
        *,
        drawn: bool,
        relaxation: float = 1.0,
        power: float = 1.0,
        most: float = math.inf,
    ) -> int:
        """Visit blocks by ``order``, or draw them by random ``points``, see ``Draws.next``; returns the visits made.

        ``drawn`` says that ``order`` came from ``Draws``; the rest are as in ``Options``.
        """
        if self._whole:  # they import Numba, which takes half a second
            from torchssvm.solvers.compiled.whole import solve_blocks as visit_blocks
        else:
            from torchssvm.solvers.compiled.loop import visit_blocks
        dual, memory = self.dual, self.memory
        leaves = 1 << max(len(dual.gap_estimates) - 1, 1).bit_length() if len(points) else 1
        tree, counters = np.empty(2 * leaves), np.array([0, 0, memory.clock, 0])
        model, blocks = self._adapter.weights.model(), memory.laid_out()
        options = self._options(len(points) > 0)._replace(relaxation=relaxation, power=power, most=most)
        if self._whole:
            options = options._replace(gap=self.draws.gap if drawn else math.inf)
        gap = math.inf
        try:
            gap = visit_blocks(
                order.numpy(),
                points.numpy(),
                tree,
                self._calls(model, blocks.plain, self._scratch),
                model,
                blocks.arguments,
                Scalars(dual.loss.numpy(), dual.gap_estimates.numpy(), dual.oracle_gaps.numpy()),
                options,
                self._scratch.arguments,
                counters,
            )
        finally:  # an interrupt is raised after the compiled code has returned
            self._adapter.weights.take_back(model)
            calls, hits, memory.clock, made = (int(number) for number in counters)
            dual.oracle_calls += calls
            dual.cache_hits += hits
            dual.steps += calls + hits
            dual.moved += calls + hits
            self._made += calls + hits
            if drawn:
                self.draws.used(made, gap)
        return made

    def keep(self, order: Tensor) -> Kept:
        """Copies of the blocks that a round visits, each of which gets a rest that can take over its labelings."""
        index, times = order.unique(return_counts=True)
        blocks, memory = self.memory.blocks(), self.memory
        full = bool((torch.from_numpy(blocks.count)[index] + times > memory.capacity).any())
        if full and memory.capacity and not memory.has_rest:
            memory.make_rest()
        return self.copy_blocks(index.numpy())

    def copy_blocks(self, index: np.ndarray) -> Kept:
        """Copies of the blocks ``index``, ``[U]`` int64, distinct."""
        blocks = self.memory.blocks()
        return keep_blocks(index, self.examples, self._known(blocks), blocks, self.dual.loss.numpy())

    def visit_all(self, order: Tensor) -> None:
        """Visit these blocks, one after another."""
        try:
            if len(order) and self._visit(order, torch.zeros(0, dtype=torch.float64), drawn=False) < len(order):
                self._make_room()
        finally:
            self._scratch.plain.step[1] = 0.0  # the joint step says how the norm of the weights changes

    def blend(self, kept: Kept, share: float) -> None:
        """Mix ``share`` of the blocks' current dual variables with 1 - ``share`` of the kept ones."""
        blocks, losses = self.memory.blocks(), self.dual.loss.numpy()
        blend(kept, share, self._known(blocks), blocks, losses, self.dual.num_examples, self._scratch.arguments)

    def _known(self, blocks: Any) -> Examples:
        """The examples for kernels."""
        return self._calls(self._adapter.weights.model(), blocks, self._scratch)

    def _make_room(self) -> None:
        if self.memory.has_rest:
            raise RuntimeError("the gaps are not finite: scale the features, or choose a larger lam")
        self.memory.make_rest()

    def _options(self, by_gap: bool) -> Options:
        dual, cached = self.dual, isinstance(self.oracle, CacheOracle)
        return Options(
            direction=self.direction.rule,
            steps=self.direction.steps,
            tolerance=self.direction.tolerance,
            cache=cached,
            factor=float(self.oracle.factor) if cached else 0.0,
            threshold=self.oracle.least(dual) if cached else 0.0,
            lam=self._factor * dual.lam,
            num_examples=dual.num_examples,
            by_gap=by_gap,
        )


def usual_visits(num_examples: int, whole: int = 1000) -> int:
    """Visits of one step: a quarter of an epoch, or ``whole`` where that is more, and never more than an epoch."""
    return max(num_examples // 4, min(num_examples, whole))


def check_compiled(direction: Any, oracle: Any) -> None:
    """Raise TypeError unless these rules have a compiled form."""
    for name, rule, kinds in (("direction", direction, DIRECTIONS), ("oracle", oracle, (MaxOracle, CacheOracle))):
        if type(rule) not in kinds:
            raise NotCompiledError(f"{name}={rule} is not compiled")
