"""The collectives as primitives of JAX, and as custom calls of XLA.

They have no effect for JAX, so its fast dispatch stays; XLA is told that they have a side effect,
so it neither drops, merges nor moves them. XLA runs independent calls in an order that depends on
shapes, so each call gets a result of the one before as an operand: they run as in the program.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from horovod.jax import native_ops
from horovod.jax.collective import KINDS, Collective

try:
    from jax.interpreters.xla import apply_primitive
except ImportError:
    from jax._src.dispatch import apply_primitive

PRIMITIVES = {kind: Primitive(f"horovod_{kind}") for kind in KINDS}
"""By kind. Operands: arrays, then the weight of a weighted collective; results: as many arrays."""

_IN_PLACE = ("allreduce", "broadcast")
_SEPARATE = ("horovod.jax runs on the CPU only; use JAX_PLATFORMS=cpu, or jax.distributed and "
             "lax.psum on {}")  # fmt: skip
_MODULES_KEPT = 4


def bind(arrays: list[Any], collective: Collective, weight: Any = None) -> list[Any]:
    """Runs a collective, or adds it to the program that is being traced."""
    operands = arrays if weight is None else [*arrays, weight]
    results: list[Any] = PRIMITIVES[collective.kind].bind(*operands, collective=collective)
    return results


def _abstract(*avals: Any, collective: Collective) -> list[Any]:
    arrays = avals[: len(avals) - collective.weighted]
    if collective.kind in _IN_PLACE:
        return [aval.update(weak_type=False) for aval in arrays]
    shapes = [
        (collective.rows_of_result(index, aval.shape[0]), *aval.shape[1:])
        for index, aval in enumerate(arrays)
    ]
    return [
        aval.update(shape=shape, weak_type=False)
        for aval, shape in zip(arrays, shapes, strict=True)
    ]


class _Program:
    """What was lowered of one module: how often each name came, and the last call of each block."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.names: Counter[tuple[str, str]] = Counter()
        self._last: list[tuple[Any, Any]] = []

    def last_in(self, block: Any) -> Any:
        return next((value for known, value in self._last if known == block), None)

    def set_last(self, block: Any, value: Any) -> None:
        self._last = [pair for pair in self._last if pair[0] != block]
        self._last.append((block, value))


class _Programs(threading.local):
    """The modules that this thread lowers, the latest ones."""

    def __init__(self) -> None:
        self._programs: list[_Program] = []

    def of(self, module: Any) -> _Program:
        for program in self._programs:
            if program.module.operation == module.operation:
                return program
        self._programs = [*self._programs[1 - _MODULES_KEPT :], _Program(module)]
        return self._programs[-1]


_programs = _Programs()


def _attributes(collective: Collective, name: str) -> dict[str, Any]:
    """As in ``native/bindings/jax/attributes.cc``; nothing of this very rank is among them."""
    depends_on_size = collective.kind in ("allgather", "alltoall", "reducescatter")
    return {
        "kind": np.int64(KINDS[collective.kind]),
        "grouped": np.int64(collective.grouped),
        "name": name,
        "job": np.int64(collective.job),
        "process_set": np.int64(collective.process_set),
        "call_site": collective.call_site,
        "reduce_op": np.int64(collective.op),
        "prescale": np.float64(collective.prescale),
        "postscale": np.float64(collective.postscale),
        "root": np.int64(collective.root),
        "size": np.int64(collective.size if depends_on_size else 0),
        "weighted": np.int64(collective.weighted),
        "table": " ".join(str(rows) for row in collective.table for rows in row),
    }


def _check_devices(context: Any) -> None:
    """Refuses programs over several devices.

    XLA may run those of a process one after the other, in orders that differ between the ranks.
    """
    axes = context.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    count = mesh.size if mesh is not None else getattr(axes, "num_devices", None)
    if (count or 1) > 1:
        raise NotImplementedError(
            f"a collective of horovod.jax is in a program over {count} devices of this process; "
            "start one rank for each device instead, or keep it out of the sharded program"
        )


def _lower(context: Any, *operands: Any, collective: Collective) -> Any:
    _check_devices(context)
    program = _programs.of(context.module_context.module)
    key = (collective.kind, collective.name)
    count = program.names[key]
    program.names[key] += 1
    name = f"{collective.name}.{count}" if count else collective.name
    link = jax.core.ShapedArray((1,), np.dtype(np.uint32))
    block = mlir.ir.InsertionPoint.current.block
    before = program.last_in(block) if collective.ordered else None
    if before is None:
        before = mlir.ir_constant(np.zeros(1, np.uint32))
    num_results = len(context.avals_out)
    in_place = collective.kind in _IN_PLACE
    rule = jax.ffi.ffi_lowering(
        native_ops.TARGET,
        has_side_effect=True,
        operand_output_aliases={i: i for i in range(num_results)} if in_place else None,
    )
    *results, last = rule(
        context.replace(
            avals_in=[*context.avals_in, link], avals_out=[*context.avals_out, link]
        ),
        *operands,
        before,
        **_attributes(collective, name),
    )  # fmt: skip
    if collective.ordered:
        program.set_last(block, last)
    return results


def _refuse(context: Any, *operands: Any, collective: Collective) -> Any:
    """On what is no CPU."""
    platforms = context.module_context.platforms
    raise NotImplementedError(_SEPARATE.format(", ".join(platforms).upper()))


# Without it, each rule is lowered inside of a function of its own, and there is no order.
_options = (
    {"cacheable": False}
    if "cacheable" in inspect.signature(mlir.register_lowering).parameters
    else {}
)
for _primitive in PRIMITIVES.values():
    _primitive.multiple_results = True
    _primitive.def_impl(functools.partial(apply_primitive, _primitive))
    _primitive.def_abstract_eval(_abstract)
    mlir.register_lowering(_primitive, _lower, platform="cpu", **_options)
    mlir.register_lowering(_primitive, _refuse, **_options)
