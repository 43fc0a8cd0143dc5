"""LLVM's code of kernels: named tuples as pointers, and elements of arrays in few instructions."""

from __future__ import annotations

import collections
import functools
import hashlib
import sys
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs
from numba.core.compiler_machinery import register_pass
from numba.core.datamodel import models, register_default
from numba.core.imputils import lower_getattr_generic
from numba.core.ir import Assign, Expr
from numba.core.ir_utils import get_definition, guard
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering
from typing_extensions import override

from torchssvm.compiler.hidden_fields import hidden_fields


class Fields(types.NamedTuple):
    """Type of a named tuple of this package, which kernels receive as a pointer to its fields.

    Tuples that a kernel makes keep Numba's type: LLVM assumes that nothing writes to these fields. Fields that the
    class names by ``with_hidden`` are behind a pointer, and an address for kernels that do not know their types.
    """

    def __init__(self, members: Any, kind: type) -> None:
        super().__init__(members, kind)
        # LLVM's code names the types of arguments at every call
        self.name = f"{kind.__name__}_{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"

    def __hash__(self) -> int:
        """Numba hashes the types of arguments at every call; Python keeps the hash of a string."""
        return hash(self.name)


HIDDEN = types.intp
"""Type of an address of a value whose type a kernel does not know."""


@register_default(Fields)
class _FieldsModel(models.TupleModel):
    """A pointer, from which a kernel loads the fields that it reads.

    Numba represents a tuple as one value, with hundreds of numbers for an example. Every use of a field would copy all
    of them, until LLVM removes the copies.
    """

    def get_value_type(self) -> Any:
        """A pointer to bytes: with typed pointers the names of all fields would fill most of the code."""
        return cgutils.voidptr_t

    get_argument_type = get_value_type

    @functools.cached_property
    def fields(self) -> Any:
        """The structure that it points to."""
        members = zip(self._fe_type.fields, self._models, strict=True)
        return ir.LiteralStructType(
            [cgutils.voidptr_t if is_hidden(self._fe_type, name) else one.get_value_type() for name, one in members]
        )

    @functools.cache  # noqa: B019
    def offset(self, target: Any, at: int) -> int:
        """Offset of a field in bytes."""
        return self.fields.get_element_offset(target, at)

    def as_argument(self, builder: Any, value: Any) -> Any:
        return value

    def from_argument(self, builder: Any, value: Any) -> Any:
        return value


def is_hidden(kind: Any, name: str) -> bool:
    """Whether a field is behind a pointer."""
    return name in hidden_fields.get(kind.instance_class, ()) and kind[kind.fields.index(name)] != HIDDEN


@lower_getattr_generic(Fields)
def _field(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    model, at = context.data_model_manager[kind], kind.fields.index(name)
    place = builder.gep(value, [cgutils.intp_t(model.offset(context.target_data, at))], inbounds=True)
    loaded = builder.load(builder.bitcast(place, model.fields.elements[at].as_pointer()))
    module = builder.module
    field = module.add_metadata(["field", module.add_metadata(["torchssvm"]), cgutils.intp_t(0)])
    # nothing writes to fields: LLVM may load one before the loop that uses it
    loaded.set_metadata("tbaa", module.add_metadata([field, field, cgutils.intp_t(0), cgutils.intp_t(1)]))
    of = kind[at]
    if is_hidden(kind, name) and not isinstance(of, Fields | types.Opaque | types.NoneType):
        return builder.load(builder.bitcast(loaded, context.get_value_type(of).as_pointer()))
    return loaded


class _Lower(Lower):
    """Numba's lowering without reference counts, and with few instructions for an array element."""

    def _find_singly_assigned_variable(self) -> None:
        """Variables with one assignment, which comes before every use, have a value and no place in memory.

        Numba stores all variables that several blocks use.
        """
        used, assigned = compute_use_defs(self.blocks).usemap, collections.defaultdict(list)
        dominators = compute_cfg_from_blocks(self.blocks).dominators()
        for at, block in self.blocks.items():
            for assignment in block.find_insts(Assign):
                assigned[assignment.target.name].append(at)
        late = {
            name
            for at, names in used.items()
            for name in names
            if not all(place < at and place in dominators[at] for place in assigned[name])
        }
        self._singly_assigned_vars = {name for name, places in assigned.items() if len(places) == 1} - late
        self._blk_local_varmap: dict[str, Any] = {}

    def delvar(self, name: str) -> None:
        """Do nothing: no variable owns memory."""

    def storevar(self, value: Any, name: str, argidx: Any = None) -> None:
        """Store a value without reading the old one."""
        self._alloca_var(name, self.typeof(name))
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        """Slices, and loops over ``range``, in few instructions."""
        builder = self.builder
        if self._calls(expr, slice, (2,)):
            begin, end = expr.args
            return self._struct(resty, [self._bound(begin, 0), self._bound(end, sys.maxsize), cgutils.intp_t(1)])
        if expr.op == "getiter" and self._calls(guard(get_definition, self.func_ir, expr.value), range, (1, 2)):
            begin, end = (builder.extract_value(self.loadvar(expr.value.name), at) for at in (0, 1))
            count, at = cgutils.alloca_once(builder, begin.type), cgutils.alloca_once(builder, begin.type)
            builder.store(builder.sub(end, begin), count)
            builder.store(begin, at)
            return self._struct(resty, [at, end, begin.type(1), count])
        if expr.op == "iternext" and isinstance(self.typeof(expr.value.name), types.RangeIteratorType):
            at, _, step, count = cgutils.unpack_tuple(builder, self.loadvar(expr.value.name), 4)
            value, left = builder.load(at), builder.load(count)
            builder.store(builder.sub(left, left.type(1), flags=["nsw"]), count)
            builder.store(builder.add(value, step), at)
            return self._struct(resty, [value, builder.icmp_signed(">", left, left.type(0))])
        if expr.op in ("pair_first", "pair_second"):
            return builder.extract_value(self.loadvar(expr.value.name), int(expr.op == "pair_second"))
        return super().lower_expr(resty, expr)

    def _struct(self, kind: Any, members: list[Any]) -> Any:
        """A value of a type that is a structure."""
        made = ir.Constant(self.context.get_value_type(kind), ir.Undefined)
        for at, member in enumerate(members):
            made = self.builder.insert_value(made, member, at)
        return made

    def _bound(self, variable: Any, missing: int) -> Any:
        """The bound of a slice, ``missing`` where it is None."""
        kind = self.typeof(variable.name)
        if isinstance(kind, types.NoneType):
            return cgutils.intp_t(missing)
        return self.context.cast(self.builder, self.loadvar(variable.name), kind, types.intp)

    def _calls(self, made: Any, builtin: type, counts: tuple[int, ...]) -> bool:
        """Whether an expression calls a built-in class with one of these numbers of arguments."""
        if not isinstance(made, Expr) or made.op != "call" or made.vararg or len(made.args) not in counts:
            return False
        return getattr(self.typeof(made.func.name), "typing_key", None) is builtin

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """Load an element, or a view of the part that the leading indices or a slice select."""
        kind = self.typeof(value.name)
        indices = self._indices(kind, index, slices=True)
        if indices is None:
            return super().lower_getitem(resty, expr, value, index, signature)
        array, builder = self.loadvar(value.name), self.builder
        place, shape = self._place(kind, array, indices)
        if not shape:
            return self.context.cast(builder, self.context.unpack_value(builder, kind.dtype, place), kind.dtype, resty)
        size = functools.reduce(builder.mul, shape)
        strides = cgutils.unpack_tuple(builder, builder.extract_value(array, 6), kind.ndim)[-len(shape) :]
        part = ir.Constant(self.context.get_value_type(resty), None)
        whole = (
            size,
            builder.extract_value(array, 3),
            place,
            cgutils.pack_array(builder, shape),
            cgutils.pack_array(builder, strides),
        )
        for at, member in enumerate(whole, 2):
            part = builder.insert_value(part, member, at)
        return part

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        kind = self.typeof(target_var.name)
        indices = self._indices(kind, index_var)
        if indices is None or len(indices) < kind.ndim:
            return super().lower_setitem(target_var, index_var, value_var, signature)
        value = self.context.cast(self.builder, self.loadvar(value_var.name), self.typeof(value_var.name), kind.dtype)
        place, _ = self._place(kind, self.loadvar(target_var.name), indices)
        self.context.pack_value(self.builder, kind.dtype, value, place)
        return None

    def _indices(self, kind: Any, index: Any, slices: bool = False) -> Any:
        """Types and values of integer indices, or of a slice, into a contiguous array; None for any other index."""
        if not isinstance(kind, types.Array) or kind.layout != "C" or not kind.aligned:
            return None
        of: Any = self.typeof(index.name)
        if slices and isinstance(of, types.SliceType) and not of.has_step:
            return [(of, self.loadvar(index.name))]
        several = isinstance(of, types.BaseTuple)
        every = list(of) if several else [of]
        if not every or not all(isinstance(one, types.Integer) for one in every):
            return None
        value = self.loadvar(index.name)
        values = cgutils.unpack_tuple(self.builder, value, len(every)) if several else [value]
        return list(zip(every, values, strict=True))

    def _place(self, kind: Any, array: Any, indices: Any) -> Any:
        """A pointer to the place, and the sizes of the remaining axes; a slice keeps the first axis."""
        builder = self.builder
        shape = cgutils.unpack_tuple(builder, builder.extract_value(array, 5), kind.ndim)
        place, kept = cgutils.intp_t(0), len(indices)
        for axis, size in enumerate(shape):
            if axis:
                place = builder.mul(place, size)
            if axis < len(indices):
                of, index = indices[axis]
                if isinstance(of, types.SliceType):
                    begin, end = (self._clipped(builder.extract_value(index, at), size) for at in (0, 1))
                    end = builder.select(builder.icmp_signed("<", end, begin), begin, end)
                    shape[0], kept = builder.sub(end, begin), 0
                    of, index = types.uintp, begin
                index = self.context.cast(builder, index, of, types.intp if of.signed else types.uintp)
                if of.signed and getattr(of, "literal_value", -1) < 0:  # counted from the end
                    index = builder.select(
                        builder.icmp_signed("<", index, cgutils.intp_t(0)), builder.add(index, size), index
                    )
                place = builder.add(place, index) if axis else index
        return builder.gep(builder.extract_value(array, 4), [place]), shape[kept:]

    def _clipped(self, bound: Any, size: Any) -> Any:
        """A bound of a slice as a place from 0 to ``size``."""
        builder, zero = self.builder, cgutils.intp_t(0)
        bound = builder.select(builder.icmp_signed("<", bound, zero), builder.add(bound, size), bound)
        bound = builder.select(builder.icmp_signed("<", bound, zero), zero, bound)
        return builder.select(builder.icmp_signed(">", bound, size), size, bound)


@register_pass(mutates_CFG=False, analysis_only=False)
class Lowering(NativeLowering):
    """The compiler pass that writes LLVM's code."""

    _name = "torchssvm_lowering"

    @property
    @override
    def lowering_class(self) -> Any:
        return _Lower
