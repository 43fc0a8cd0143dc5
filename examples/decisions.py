"""Routes by predicted travel times, python examples/decisions.py: SPO+ to a certified gap, beside least squares.

Travel times depend on five numbers, such as weather and hour, by the polynomials of Elmachtoub and Grigas (2022); both
predictors are linear. Prints certificate and regrets, and draws the first three test days on which routes differ.
"""

from pathlib import Path

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm import Decisions, LinearDecisions, Relative, evaluate, solve
from torchssvm.solvers.figures import new_figure
from torchssvm.structures.decisions import DecisionProblems, ShortestPath

STYLES = {"best": ("black", 9, 0.25), "least squares": ("tab:orange", 4, 0.9), "SPO+": ("tab:blue", 1.8, 1.0)}


def days(count: int, structure: Decisions, degree: int, noise: float, seed: int) -> DecisionProblems:
    """Features of days, the travel times of all streets, and the best routes; the town is the same for every seed."""
    town, random = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    matters = torch.randint(0, 2, (5, structure.num_costs), generator=town).double()
    x = torch.randn(count, 5, generator=random)
    times = (((x.double() @ matters) / 5**0.5 + 3.0) ** degree + 1.0) / 3.5**degree
    return DecisionProblems(x, times * (1 - noise + 2 * noise * torch.rand(times.shape, generator=random)), structure)


def main(
    size: PositiveInt = 6,
    degree: PositiveInt = 6,
    noise: float = 0.25,
    count: PositiveInt = 500,
    lam: PositiveFloat = 0.01,
    gap: PositiveFloat = 0.05,
    report: Path = Path("runs/decisions"),
) -> dict[str, float]:
    """Train on some days, and compare the mean regrets on 1000 others.

    Args:
        size: Crossings in a row and in a column.
        degree: Of the polynomial; 1 is linear, but for the noise.
        noise: Times are multiplied by numbers between 1 - noise and 1 + noise.
        count: Days to train on.
        lam: Regularisation.
        gap: Stop at this gap, as a share of the primal.
        report: Folder of the picture.
    """
    torch.set_num_threads(1)
    structure = Decisions(ShortestPath.grid(size, size))
    train, test = (days(n, structure, degree, noise, seed) for seed, n in ((1, count), (2, 1000)))
    heads = {name: LinearDecisions(5, structure=structure) for name in ("least squares", "SPO+")}
    print(solve(heads["SPO+"], train, lam=lam, tolerance=Relative(gap)))
    x = torch.cat([train.x, torch.ones(count, 1)], 1)
    weight = torch.linalg.lstsq(x.double(), train.target.cost).solution.T.float()
    heads["least squares"].load_state_dict({"weight": weight[:, :5], "bias": weight[:, 5]})
    best = float((test.target.y * test.target.cost).sum()) / len(test)
    regrets = {name: evaluate(head, structure, test).loss / best for name, head in heads.items()}
    print("mean regret: " + ", ".join(f"{name} {100 * regret:.1f} %" for name, regret in regrets.items()))

    routes = {"best": test.target.y, **{name: structure.decode(head(test.x)) for name, head in heads.items()}}
    differ = (routes["least squares"] != routes["SPO+"]).any(1).nonzero()[:3, 0].tolist()
    figure = new_figure((12, 4.8))
    for day, axes in zip(differ, figure.subplots(1, 3), strict=True):
        times = test.target.cost[day]
        for arc, (tail, end) in enumerate(structure.oracle.arcs):
            line = (tail % size, end % size), (-(tail // size), -(end // size))
            axes.plot(*line, color="lightgrey", linewidth=min(9.0, 1.5 * times[arc] / times.median()), zorder=0)
            for name in (name for name in STYLES if routes[name][day, arc]):
                axes.plot(*line, **dict(zip(("color", "linewidth", "alpha"), STYLES[name], strict=True)), label=name)
        axes.set_title(", ".join(f"{name} {float(y[day].double() @ times):.1f}" for name, y in routes.items()))
        axes.set_axis_off()
    known = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=3, frameon=False)
    report.mkdir(parents=True, exist_ok=True)
    figure.savefig(report / "routes.png")
    return regrets


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
