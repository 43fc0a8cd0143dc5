"""Arguments of kernels that know no kind: examples and scratch arrays with hidden fields, and addresses of a kind's kernels.

Stock Numba has no hidden fields: it compiles every kernel for every kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.compiler import stock
from torchssvm.kinds import block
from torchssvm.kinds.examples import Examples, Scratch
from torchssvm.kinds.weights import Model


def hide(arguments: Any) -> Any:
    """Examples or scratch arrays with hidden fields."""
    if stock.is_on():
        return arguments
    from torchssvm.compiler.by_address import Erased

    return arguments._replace(**{name: Erased(getattr(arguments, name)) for name in arguments.hidden})


class Calls:
    """The examples with hidden fields, with addresses for arrays of the types of those given.

    Args:
        examples: The training set.
        fills: The kernels that write the addresses, of :mod:`.block`.
    """

    def __init__(self, examples: Examples, *fills: Any) -> None:
        self._examples, self._fills = examples, fills
        self._hidden = hide(examples)
        self._made: dict[Any, Examples] = {}

    def __reduce__(self) -> Any:  # another process has other addresses
        return Calls, (self._examples, *self._fills)

    def __call__(self, model: Model, blocks: Any, scratch: Scratch) -> Examples:
        """The examples for kernels; ``scratch`` has hidden fields."""
        if stock.is_on():
            return self._examples
        key = model.emission.dtype, blocks.labelings.dtype
        if key not in self._made:
            from torchssvm.compiler.by_address import Types

            calls, types = np.zeros(16, np.int64), Types((self._hidden, model, blocks, scratch))
            for fill in self._fills:
                fill(calls, types)
            self._made[key] = self._hidden._replace(calls=calls)
        return self._made[key]


def fills_of(whole: bool, curved: bool) -> tuple[Any, ...]:
    """The kernels that write the addresses of a loop: of whole blocks, or of steps with products of labelings."""
    return (block.fill_whole,) if whole else (block.fill_visits, *([block.fill_products_calls] if curved else []))
