"""A finished regularisation path: its breakpoints, and the weights for every lambda between them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.files import whole_file
from torchssvm.core.problem import check_lam
from torchssvm.core.states import check_seal, with_seal
from torchssvm.solvers.certificate import weights_kept, write
from torchssvm.solvers.figures import new_figure
from torchssvm.solvers.solver import Relative, Tolerance, largest_gap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMAT = 3
_COLUMNS = ("lam", "gap", "slope", "passes", "seconds", "primal")


class Breakpoint(NamedTuple):
    """Weights that are used from ``lam`` down to the next breakpoint.

    Attributes:
        lam: The largest lambda of these weights; the first breakpoint, scaled, also covers all larger ones.
        weights: By the names of the head's parameters.
        gap: ``primal - dual`` at ``lam``; an estimate where the path is not certified.
        slope: At ``rho lam`` the gap is ``gap + (1 - rho) slope`` ([G16] Proposition 1).
        passes: Effective passes of the whole run up to this breakpoint.
        seconds: Wall-clock seconds of the whole run up to this breakpoint.
        primal: The primal of the weights at ``lam``; an estimate where the path is not certified.
    """

    lam: float
    weights: dict[str, Tensor]
    gap: float
    slope: float
    passes: float
    seconds: float
    primal: float


class RegularizationPath:
    """Epsilon-approximate weights for every lambda, constant between breakpoints ([G16] section 4).

    Above the largest breakpoint lambda_1 the weights are ``lambda_1 / lam`` times the weights at lambda_1.

    Args:
        epsilon: The largest gap of the path, a number or ``Relative(share)``.
        kappa: Breakpoints were solved to ``kappa`` times that.
        certified: Whether gaps are proved; otherwise they are estimates, or gaps of a relaxation that an oracle
            answers for.
        points: The breakpoints, the largest lambda first.
        lowest: The smallest lambda that the last breakpoint covers; 0 if it covers all.

    Attributes:
        points: Tuple of :class:`Breakpoint`.
        lowest: As above.

    Example:
        >>> from torchssvm.solvers import primal
        >>> head = LinearMulticlass(4, 3)
        >>> path = regularization_path(head, data, epsilon=0.1, lam_min=0.05)
        >>> path.apply(head, lam=0.2)
        >>> primal(head, head.structure, in_order(data), lam=0.2).exact
        True
    """

    def __init__(
        self, epsilon: Tolerance, kappa: float, certified: bool, points: list[Breakpoint], lowest: float
    ) -> None:
        self.epsilon = epsilon
        self.kappa = kappa
        self.certified = certified
        self.points = tuple(points)
        self.lowest = lowest
        lams = [point.lam for point in points]
        self.breakpoints = torch.tensor(lams, dtype=torch.float64)
        """``[J]`` float64, descending."""

    @property
    def complete(self) -> bool:
        """Whether the path covers every positive lambda."""
        return self.lowest == 0.0

    def at(self, lam: float) -> Breakpoint:
        """The breakpoint that covers ``lam``.

        Raises:
            ValueError: ``lam`` is not positive, or below the end of the path.
            TypeError: ``lam`` is not a number.
        """
        lam = check_lam(lam)
        if lam < self.lowest:
            raise ValueError(f"lam={lam:g} is below the end of the path, {self.lowest:g}: give more max_passes")
        above = int(torch.searchsorted(-self.breakpoints, -lam, right=True))  # breakpoints >= lam
        return self.points[max(above - 1, 0)]

    def weights(self, lam: float) -> dict[str, Tensor]:
        """The weights at ``lam`` by the names of the head's parameters, on the CPU.

        Raises:
            ValueError, TypeError: As :meth:`at`.
        """
        point = self.at(lam)
        return {name: tensor * min(1.0, point.lam / lam) for name, tensor in point.weights.items()}

    def gap(self, lam: float) -> float:
        """A proved upper bound of ``primal - optimum`` at ``lam``, for the weights of this path.

        Raises:
            ValueError, TypeError: As :meth:`at`.
            RuntimeError: The path is not certified.
        """
        if not self.certified:
            raise RuntimeError("the path is heuristic, or of a relaxation: use gap_estimate(lam)")
        return self.gap_estimate(lam)

    def gap_estimate(self, lam: float) -> float:
        """The gap at ``lam``; proved if the path is certified, else an estimate."""
        point = self.at(lam)
        if lam > point.lam:  # lam * gap does not grow with lam where every block is on its largest loss
            return point.gap * (point.lam / lam)
        return point.gap + (1.0 - lam / point.lam) * point.slope

    def largest_gap(self, lam: float) -> float:
        """The gap that ``epsilon`` allows at ``lam``; the primal of a share is an estimate if not certified.

        Above the largest breakpoint it is the gap that is allowed at that breakpoint.

        Raises:
            ValueError, TypeError: As :meth:`at`.
        """
        point = self.at(lam)
        lam = min(lam, point.lam)
        return largest_gap(self.epsilon, point.primal - (point.lam - lam) / 2 * self.norm(lam) ** 2)

    def norm(self, lam: float) -> float:
        """``|w|`` at ``lam``."""
        point = self.at(lam)
        squared = sum(float(tensor.to(torch.float64).square().sum()) for tensor in point.weights.values())
        return math.sqrt(squared) * min(1.0, point.lam / lam)

    def apply(self, head: nn.Module, lam: float) -> None:
        """Copy the weights at ``lam`` to a head.

        Raises:
            ValueError: As :meth:`at`, or the head has other parameters.
            TypeError: As :meth:`at`.
        """
        weights, parameters = self.weights(lam), dict(head.named_parameters())
        forms = [{name: (list(t.shape), t.dtype) for name, t in each.items()} for each in (parameters, weights)]
        if forms[0] != forms[1]:
            raise ValueError(f"head has parameters {forms[0]}, and the path weights {forms[1]}: give the path's head")
        write((weights[name] for name in parameters), parameters.values())

    def scores(
        self, head: nn.Module, score: Callable[[], float], lams: list[float] | None = None
    ) -> dict[float, float]:
        """``score()`` at each lambda, with that lambda's weights in the head; its weights are restored.

        Args:
            head: A head with the path's parameters.
            score: Evaluates the head, e.g. its error on a validation set.
            lams: The lambdas; None is all breakpoints.
        """
        result = {}
        with weights_kept(list(head.parameters())):
            for lam in self.breakpoints.tolist() if lams is None else lams:
                self.apply(head, lam)
                result[lam] = score()
        return result

    def state_dict(self) -> dict[str, Any]:
        """The whole path, exactly, in tensors, numbers and strings."""
        names = list(self.points[0].weights)
        state = {
            "format": _FORMAT,
            "kind": "regularization path",
            "epsilon": self.epsilon.share if isinstance(self.epsilon, Relative) else self.epsilon,
            "relative": isinstance(self.epsilon, Relative),
            "kappa": self.kappa,
            "certified": self.certified,
            "lowest": self.lowest,
            "columns": {
                name: torch.tensor([getattr(point, name) for point in self.points], dtype=torch.float64)
                for name in _COLUMNS
            },
            "weights": {name: torch.stack([point.weights[name] for point in self.points]) for name in names},
        }
        return with_seal(state)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> RegularizationPath:
        """The path of a :meth:`state_dict`, bit for bit.

        Raises:
            ValueError: The state is not of a path, or damaged.
        """
        content = dict(state)
        check_seal(content, _FORMAT, "path")
        columns, weights = content["columns"], content["weights"]
        rows = zip(*(columns[name].tolist() for name in _COLUMNS), strict=True)
        points = [
            Breakpoint(lam, {name: stacked[row].clone() for name, stacked in weights.items()}, *others)
            for row, (lam, *others) in enumerate(rows)
        ]
        epsilon = Relative(content["epsilon"]) if content["relative"] else content["epsilon"]
        return cls(epsilon, content["kappa"], content["certified"], points, content["lowest"])

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the path to ``file`` atomically."""
        with whole_file(file) as opened:
            torch.save(self.state_dict(), opened)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> RegularizationPath:
        """Read a file of :meth:`save`; runs no code from the file.

        Raises:
            OSError: The file cannot be opened.
            ValueError: The file is not a saved path, or damaged.
        """
        with open(file, "rb") as opened:
            try:
                return cls.from_state_dict(torch.load(opened, weights_only=True, map_location="cpu"))
            except Exception as error:  # a damaged file may raise anything
                raise ValueError(f"{os.fspath(file)} is not a saved path, or is damaged: {error}") from error

    def __repr__(self) -> str:
        kind = "certified" if self.certified else "not certified"
        return (
            f"RegularizationPath(epsilon={self.epsilon:g}, {kind}, {len(self.points)} breakpoints from "
            f"{self.points[0].lam:.6g} to {self.points[-1].lam:.6g}, "
            f"{'complete' if self.complete else f'down to {self.lowest:.6g}'})"
        )


def plot(
    path: RegularizationPath, *, scores: Mapping[float, float] | None = None, score_name: str = "validation score"
) -> Figure:
    """Gap, norm of the weights and, if given, scores against lambda, with the breakpoints marked.

    Args:
        scores: A score for some lambdas, such as the result of ``path.scores(head, score)``.

    Returns:
        A ``matplotlib.figure.Figure``; opens no window and leaves matplotlib's global state alone.

    Raises:
        ImportError: matplotlib is missing.
    """
    figure = new_figure((7, 6.5 if scores else 4.6))
    axes = figure.subplots(3 if scores else 2, 1, sharex=True)
    marks = path.breakpoints.tolist()
    largest = 3 * marks[0]
    smallest = path.lowest if path.lowest > 0.0 else marks[-1] / 30
    lams = [smallest * (largest / smallest) ** (step / 400) for step in range(401)]
    # Both ends of every piece, so that each jump is visible.
    lams += marks + [mark * (1 + 1e-9) for mark in marks]
    lams = sorted(lam for lam in lams if smallest <= lam <= largest)

    gap = "certified gap" if path.certified else "gap (estimate)"
    axes[0].plot(lams, [path.gap_estimate(lam) for lam in lams], linewidth=0.8, label=gap)
    allowed = [path.largest_gap(lam) for lam in lams]
    axes[0].plot(lams, allowed, color="black", linewidth=0.8, linestyle="--", label=f"ε = {path.epsilon:g}")
    axes[0].set_ylabel(gap)
    axes[0].set_ylim(bottom=0.0)
    axes[0].legend(loc="lower left", fontsize="small")
    axes[1].plot(lams, [path.norm(lam) for lam in lams], linewidth=0.8)
    axes[1].set_ylabel("|w|")
    axes[1].set_yscale("log")
    if scores:
        axes[2].plot(list(scores), list(scores.values()), ".-", markersize=3, linewidth=0.8)
        axes[2].set_ylabel(score_name)
    for ax in axes:  # a mark for every breakpoint, along the lower edge
        ax.plot(marks, [0.0] * len(marks), "|", color="black", markersize=6, transform=ax.get_xaxis_transform())
    axes[-1].set_xscale("log")
    axes[-1].invert_xaxis()
    axes[-1].set_xlabel(f"λ ({len(marks)} breakpoints marked)")
    return figure
