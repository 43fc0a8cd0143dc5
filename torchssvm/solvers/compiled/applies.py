"""Where the compiled loop applies."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchssvm.core.structure import Structure
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.solvers.compiled.head_adapter import find_adapter
from torchssvm.solvers.compiled.solver import check_compiled
from torchssvm.steps.line_search import ExactSearch


def reason_not_compiled(head: nn.Module, structure: Structure, rules: Any, *, bounds: bool) -> str | None:
    """Why the compiled loop cannot train a head by these rules, as a clause; None if it can.

    Args:
        head: The head; if it is on a device, the loop trains it on the CPU.
        structure: What an output is.
        rules: The ``Rules`` of its steps.
        bounds: Whether the weights have bounds.
    """
    if bounds:
        return "the weights have bounds"
    if rules.line_search is not None and type(rules.line_search) is not ExactSearch:
        return f"line_search={rules.line_search} is not ExactSearch()"
    if type(rules.storage) not in (MeanParts, Labelings):
        return f"storage={type(rules.storage).__name__}() is not compiled"
    try:
        check_compiled(rules.direction, rules.oracle)
        adapter = find_adapter(head, anywhere=True)
    except (ImportError, TypeError) as error:
        return str(error).removesuffix("; use BlockGap and BCFW")
    if not structure.same_as(adapter.structure):
        return f"structure={structure} is not that of the head, {adapter.structure}"
    return None
