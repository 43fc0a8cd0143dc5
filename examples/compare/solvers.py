"""The registry: every solver that can be compared, by name. A new one is one more entry of ``SOLVERS``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn

from compare.baselines import CuttingPlaneRun, ExponentiatedRun, HingeRun
from compare.runs import CompiledRun, Run, Settings, TorchRun
from compare.tasks import Task
from torchssvm import (
    BCFW,
    Average,
    Away,
    BlockGap,
    BoxQP,
    CacheOracle,
    CommonStep,
    Corrective,
    DualState,
    ExactSearch,
    FrankWolfe,
    Hybrid,
    Labelings,
    MaxOracle,
    NSlack,
    OneSlack,
    Pairwise,
    Permutation,
    PredefinedStep,
    Proportional,
    RunOptions,
    Subgradient,
    SuffixAverage,
    Uniform,
    WeightedAverage,
)
from torchssvm.solvers import Steps
from torchssvm.steps.cache import OracleRule
from torchssvm.steps.direction import DirectionRule
from torchssvm.steps.line_search import LineSearch
from torchssvm.steps.orders import Order


@dataclass(frozen=True)
class Solver:
    """A solver.

    Attributes:
        about: One line.
        start: Makes a run: ``start(task, settings)``.
        chains_only: Whether it is for chains alone.
    """

    about: str
    start: Callable[[Task, Settings], Run]
    chains_only: bool = False


@dataclass(frozen=True)
class BlockFrankWolfe:
    """Every kind of block-coordinate Frank-Wolfe, in the torch loop or in the compiled one.

    It makes exact passes of its own, one in 10 passes, where order, oracle or direction look at what these refresh.

    Attributes:
        order: In which order blocks are visited.
        direction: Where to.
        oracle: Decode or look into the cache.
        line_search: How far.
        whole: All examples in every step, with one common step size: batch Frank-Wolfe.
        average: What to offer in place of the last iterate.
        compiled: Which loop.
    """

    order: Order
    direction: DirectionRule = field(default_factory=FrankWolfe)
    oracle: OracleRule = field(default_factory=MaxOracle)
    line_search: LineSearch = field(default_factory=ExactSearch)
    whole: bool = False
    average: type[Average] | None = None
    compiled: bool = False

    def __call__(self, task: Task, settings: Settings) -> Run:
        """A run."""
        exact_passes = self.order.needs_gaps or self.oracle.needs_labelings or self.direction.needs_curvature
        if self.compiled:
            rules = {"order": self.order, "direction": self.direction, "oracle": self.oracle}
            return CompiledRun(task, settings, self._dual, exact_passes, **rules)
        return TorchRun(task, settings, self._dual, self._steps, exact_passes, self.average)

    def _dual(self, head: nn.Module, n: int, lam: float) -> DualState:
        labelings = self.compiled or self.direction.needs_labelings or self.oracle.needs_labelings
        return DualState.for_head(head, n, lam, storage=Labelings() if labelings else None)

    def _steps(self, run: TorchRun) -> Steps:
        return Steps(
            run.head,
            BlockGap(run.dual, self.direction, oracle=self.oracle, block_steps=CommonStep() if self.whole else BoxQP()),
            run.task.train,
            RunOptions(
                batch_size=run.n if self.whole else run.settings.batch_size, order=self.order, seed=run.settings.seed
            ),
            optimizer=BCFW(run.head.parameters(), run.dual, line_search=self.line_search),
        )


def _subgradient(head: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    return Subgradient(head.parameters(), settings.lam)


def _adam(head: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    # weight_decay adds lam w to the gradient: the whole objective is descended
    return torch.optim.Adam(head.parameters(), lr=settings.learning_rate, weight_decay=settings.lam)


_BLOCKS: dict[str, tuple[str, BlockFrankWolfe]] = {
    "uniform-fw": ("BCFW [B13 Algorithm 4]", BlockFrankWolfe(Uniform())),
    "uniform-fw-cache": ("and a cache [G16 Algorithm 5]", BlockFrankWolfe(Uniform(), oracle=CacheOracle())),
    "uniform-pairwise": ("pairwise steps [G16 Algorithm 3]", BlockFrankWolfe(Uniform(), Pairwise())),
    "uniform-pairwise-cache": ("both", BlockFrankWolfe(Uniform(), Pairwise(), CacheOracle())),
    "gap-fw": ("gap sampling [G16 Algorithm 2]", BlockFrankWolfe(Proportional())),
    "gap-fw-cache": ("gap sampling, cache", BlockFrankWolfe(Proportional(), oracle=CacheOracle())),
    "gap-pairwise": ("gap sampling, pairwise", BlockFrankWolfe(Proportional(), Pairwise())),
    "gap-pairwise-cache": ("gap sampling, pairwise, cache", BlockFrankWolfe(Proportional(), Pairwise(), CacheOracle())),
    "gap-away": ("gap sampling, away steps [G16 Algorithm 4]", BlockFrankWolfe(Proportional(), Away())),
    "gap-hybrid": ("gap sampling, the best of the three directions", BlockFrankWolfe(Proportional(), Hybrid())),
    "gap-corrective-cache": (
        "gap sampling, the best distribution over the cached labelings",
        BlockFrankWolfe(Proportional(), Corrective(), CacheOracle()),
    ),
}

SOLVERS: dict[str, Solver] = {
    **{name: Solver(about, start) for name, (about, start) in _BLOCKS.items()},
    **{
        f"compiled-{name}": Solver(f"{name}, compiled, one block after another", replace(start, compiled=True), True)
        for name, (_, start) in _BLOCKS.items()
    },
    "uniform-fw-weighted": Solver(
        "uniform-fw, the weighted average of its iterates", BlockFrankWolfe(Uniform(), average=WeightedAverage)
    ),
    "uniform-fw-suffix": Solver(
        "uniform-fw, the suffix average of its iterates", BlockFrankWolfe(Uniform(), average=SuffixAverage)
    ),
    "batch-fw": Solver("all blocks at once [B13 Algorithm 2]", BlockFrankWolfe(Permutation(), whole=True)),
    "batch-fw-predefined": Solver(
        "the same with steps 2/(k+2)", BlockFrankWolfe(Permutation(), line_search=PredefinedStep(), whole=True)
    ),
    "subgradient": Solver("stochastic subgradient, Pegasos steps", partial(HingeRun, optimizer=_subgradient)),
    "subgradient-weighted": Solver(
        "the weighted average of its iterates", partial(HingeRun, optimizer=_subgradient, average=WeightedAverage)
    ),
    "subgradient-suffix": Solver(
        "the suffix average of its iterates", partial(HingeRun, optimizer=_subgradient, average=SuffixAverage)
    ),
    "one-slack": Solver("cutting plane, 1-slack", partial(CuttingPlaneRun, slack=OneSlack)),
    "n-slack": Solver("cutting plane, n-slack", partial(CuttingPlaneRun, slack=NSlack)),
    "exponentiated-gradient": Solver("online exponentiated gradient", ExponentiatedRun),
    "adam": Solver("Adam on the structured hinge and lam/2 |w|^2", partial(HingeRun, optimizer=_adam)),
}

_EIGHT = [name for name in _BLOCKS if name.split("-")[1] in ("fw", "pairwise")]
GROUPS: dict[str, list[str]] = {
    "eight": _EIGHT,
    "blocks": list(_BLOCKS),
    "compiled": [name for name in SOLVERS if name.startswith("compiled-")],
    "baselines": [name for name in SOLVERS if name not in _BLOCKS and not name.startswith("compiled-")],
    "all": list(SOLVERS),
}


def choose(names: Sequence[str], task: Task) -> dict[str, Solver]:
    """The solvers of these names and groups, each once, in the order given.

    Raises:
        ValueError: A name is not known, or a solver that was named is not for this task (groups leave those out).
    """
    chosen: dict[str, Solver] = {}
    for name in names:
        if name not in SOLVERS and name not in GROUPS:
            raise ValueError(
                f"no solver is called {name!r}; there are {', '.join(SOLVERS)}; and the groups {', '.join(GROUPS)}"
            )
        if name in SOLVERS and SOLVERS[name].chains_only and not task.is_chain:
            raise ValueError(f"the solver {name!r} is for chains, and the task {task.name} is none")
        for member in GROUPS.get(name, [name]):
            if task.is_chain or not SOLVERS[member].chains_only:
                chosen[member] = SOLVERS[member]
    if not chosen:
        raise ValueError(f"none of {', '.join(names)} is for the task {task.name}")
    return chosen
