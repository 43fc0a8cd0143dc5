"""Arguments of kernels that know no kind: hidden fields, and addresses of the kind's kernels.

Stock Numba has no hidden fields: it compiles every kernel for every kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.compiler import stock
from torchssvm.compiler.hidden_fields import hidden_fields
from torchssvm.kinds import calls
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.weights import Model

_SLOTS = 16  # more than there are functions by address


class Hidden:
    """Examples or scratch arrays for kernels, ``arguments``: fields that the class calls hidden are addresses."""

    def __init__(self, plain: Any) -> None:
        self.plain = self.arguments = plain
        if not stock.is_on():
            from torchssvm.compiler.placed import Placed

            self._values = {name: Placed(getattr(plain, name)) for name in hidden_fields[type(plain)]}
            self.fields = plain._replace(**{name: value.address for name, value in self._values.items()})
            self.arguments = Placed(self.fields)

    def __reduce__(self) -> Any:  # a copy has other addresses
        return Hidden, (self.plain,)


class Calls:
    """The examples for kernels, with addresses of the kind's kernels for arrays of the types of those given.

    Args:
        examples: The training set.
        fills: The kernels that write the addresses, of :mod:`.calls`.
    """

    def __init__(self, examples: Examples, *fills: Any) -> None:
        self._fills, self._hidden = fills, Hidden(examples)
        self._made: dict[Any, Any] = {}

    def __reduce__(self) -> Any:  # another process has other addresses
        return Calls, (self._hidden.plain, *self._fills)

    def __call__(self, model: Model, blocks: Any, scratch: Hidden) -> Any:
        """The examples as an argument of a kernel."""
        key = model.emission.dtype, blocks.labelings.dtype
        if stock.is_on():
            return self._hidden.plain
        if key not in self._made:
            from torchssvm.compiler.by_address import Types
            from torchssvm.compiler.placed import Placed

            places, types = np.zeros(_SLOTS, np.int64), Types((self._hidden.plain, model, blocks, scratch.plain))
            for fill in self._fills:
                fill(places, types)
            self._made[key] = Placed(self._hidden.fields._replace(calls=places))
        return self._made[key]


def fills_of(whole: bool, curved: bool) -> tuple[Any, ...]:
    """The kernels that write the addresses of a loop: of whole blocks, or of steps with products of labelings."""
    return (calls.fill_whole,) if whole else (calls.fill_visits, *([calls.fill_products_calls] if curved else []))
