"""Where the compiled loop applies."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchssvm.core.structure import Structure
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.solvers.compiled.base_adapter import HeadAdapter
from torchssvm.solvers.compiled.head_adapter import find_adapter
from torchssvm.solvers.compiled.solver import check_compiled
from torchssvm.steps.line_search import ExactSearch


def compiled_form(head: nn.Module, structure: Structure, solver: Any) -> tuple[HeadAdapter | None, str | None]:
    """The adapter of a head, or None and why the compiled loop cannot train it, as a clause.

    Args:
        head: The head; if it is on a device, the loop trains it on the CPU.
        structure: What an output is.
        solver: The ``Solver``, with all of its rules.
    """
    if solver.bounds:
        return None, "the weights have bounds"
    if solver.line_search is not None and type(solver.line_search) is not ExactSearch:
        return None, f"line_search={solver.line_search} is not ExactSearch()"
    if type(solver.storage) not in (MeanParts, Labelings):
        return None, f"storage={type(solver.storage).__name__}() is not compiled"
    try:
        check_compiled(solver.direction, solver.oracle)
        adapter = find_adapter(head, anywhere=True)
    except (ImportError, TypeError) as error:
        return None, str(error).removesuffix("; use BlockGap and BCFW")
    if not structure.same_as(adapter.structure):
        return None, f"structure={structure} is not that of the head, {adapter.structure}"
    return adapter, None
