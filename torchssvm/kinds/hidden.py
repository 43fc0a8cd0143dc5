"""Arguments of kernels that know no kind: hidden fields, and addresses of the kind's kernels.

Stock Numba has no hidden fields: it compiles every kernel for every kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.compiler import stock
from torchssvm.compiler.hidden_fields import hidden_fields
from torchssvm.compiler.jit import ByAddress
from torchssvm.kinds import calls
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.weights import Model


class Hidden:
    """Examples or scratch arrays, laid out for kernels once; their hidden fields are addresses.

    Kernels take ``arguments``; ``plain`` are the arrays that were given.
    """

    def __init__(self, plain: Any) -> None:
        self.plain = self.arguments = plain
        if not stock.is_on():
            from torchssvm.compiler.placed import Placed

            self._values = {name: Placed(getattr(plain, name)) for name in hidden_fields.get(type(plain), ())}
            self.fields = plain._replace(**{name: value.address for name, value in self._values.items()})
            self.arguments = Placed(self.fields)

    def __reduce__(self) -> Any:  # a copy has other addresses
        return Hidden, (self.plain,)


class Calls:
    """The examples for kernels, with addresses of the kind's kernels for arrays of the types of those given.

    Args:
        examples: The training set.
        writers: The kernels that write the addresses, of :mod:`.calls`.
    """

    def __init__(self, examples: Examples, *writers: Any) -> None:
        self._writers, self._hidden = writers, Hidden(examples)
        self._made: dict[Any, Any] = {}

    def __reduce__(self) -> Any:  # another process has other addresses
        return Calls, (self._hidden.plain, *self._writers)

    def __call__(self, model: Model, blocks: Any, scratch: Hidden) -> Any:
        """The examples as an argument of a kernel."""
        if stock.is_on():
            return self._hidden.plain
        key = model.emission.dtype, blocks.labelings.dtype
        if key not in self._made:
            from torchssvm.compiler.by_address import Types
            from torchssvm.compiler.placed import Placed

            places, types = (
                np.zeros(ByAddress.slots, np.int64),
                Types((self._hidden.plain, model, blocks, scratch.plain)),
            )
            for write in self._writers:
                write(places, types)
            self._made[key] = Placed(self._hidden.fields._replace(calls=places))
        return self._made[key]


def writers_of(whole: bool, curved: bool) -> tuple[Any, ...]:
    """The kernels that write the addresses of a loop: of whole blocks, or of steps with products of labelings."""
    return (calls.write_whole,) if whole else (calls.write_visits, *([calls.write_products] if curved else []))
