"""Draw the rooms of the package and the imports between them: python docs/pictures/rooms.py writes rooms.png beside it.

The arrows are what the files import, as ``tests/project/test_rooms.py`` reads them. An import that follows from others
by way of a third room has no arrow.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "project"))

from test_rooms import MAY_IMPORT, inner_imports, modules, room  # noqa: E402  # a folder that is no package

GROUPS = {
    "foundation": ("#e3e6ea", {"compiler": 3.0, "core": 3.0}),
    "outputs and data": ("#d5ead6", {"kinds": 1.9, "structures": 1.9, "datasets": 0.6, "models": 0.0}),
    "training": ("#d3e3f5", {"dual": 4.2, "steps": 4.2, "distributed": 4.2, "solvers": 4.2, "path": 4.4}),
    "what users meet": (
        "#fbe6c8",
        {
            **{"deployment": 2.0, "lightning": 2.1, "warm": 6.0, "transformers": 1.2, "estimators": 4.4},
            **{"tag_files": 4.4, "info": 6.0, "cli": 4.4},
        },
    ),
}
"""A colour for each group, and where each of its rooms stands from left to right."""

WIDE, HIGH = 1.1, 0.5  # of a box; floors are 1 apart


def imports() -> dict[str, set[str]]:
    """The rooms that the files of each room import."""
    rooms: dict[str, set[str]] = {place: set() for place in MAY_IMPORT}
    for name in modules():
        if room(name):
            rooms[room(name)] |= {room(other) for other in inner_imports(name)} - {room(name), ""}
    return rooms


def main() -> None:
    """Draw and save."""
    below = imports()
    del below["__main__"]  # the command again

    @cache
    def reached(place: str) -> frozenset[str]:
        return frozenset().union(*({other} | reached(other) for other in below[place]))

    @cache
    def floor(place: str) -> int:
        return 1 + max(map(floor, below[place]), default=-1)

    figure, axes = plt.subplots(figsize=(7.0, 5.7))
    at = {place: (x, floor(place)) for _, columns in GROUPS.values() for place, x in columns.items()}
    assert at.keys() == below.keys(), "GROUPS must say where each room stands"
    for place, (x, y) in at.items():
        for other in sorted(below[place]):
            if any(other in reached(third) for third in below[place]):
                continue
            to, high = at[other]
            lean = max(-0.44, min(0.44, 0.24 * (to - x)))  # arrows to one room end beside each other
            start, end = (x + lean, y - HIGH / 2), (to - lean, high + HIGH / 2)
            style = {"arrowstyle": "-|>", "mutation_scale": 9, "shrinkA": 0, "shrinkB": 0}
            axes.add_patch(FancyArrowPatch(start, end, color="#7b8794", linewidth=1.0, zorder=1, **style))
    for colour, columns in GROUPS.values():
        for place in columns:
            x, y = at[place]
            corner, style = (x - WIDE / 2, y - HIGH / 2), "round,pad=0,rounding_size=0.1"
            box = {"facecolor": colour, "edgecolor": "#52606d", "linewidth": 0.9, "zorder": 2}
            axes.add_patch(FancyBboxPatch(corner, WIDE, HIGH, boxstyle=style, **box))
            axes.text(x, y, place, ha="center", va="center", fontsize=10.5, color="#1f2933", zorder=3)
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor="#52606d", linewidth=0.9, label=name)
        for name, (colour, _) in GROUPS.items()
    ]
    axes.legend(handles=handles, loc="upper left", fontsize=9.5, frameon=False, borderaxespad=0.0)
    axes.set(xlim=(-0.65, 6.65), ylim=(-0.35, 0.35 + max(map(floor, below))))
    axes.axis("off")
    figure.subplots_adjust(0.0, 0.0, 1.0, 1.0)
    figure.savefig(HERE / "rooms.png", dpi=200, facecolor="white")


if __name__ == "__main__":
    main()
