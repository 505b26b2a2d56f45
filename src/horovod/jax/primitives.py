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
from horovod.jax.devices import TransferMode, check_devices, devices_of, transfer_mode_on
from horovod.jax.host_copy import callback_of, run_now, warn_of_copies

try:
    from jax.interpreters.xla import apply_primitive
except ImportError:
    from jax._src.dispatch import apply_primitive

PRIMITIVES = {kind: Primitive(f"horovod_{kind}") for kind in KINDS}
"""By kind. Operands: arrays, then the weight of a weighted collective; results: as many arrays."""

_IN_PLACE = ("allreduce", "broadcast")
_LINK = jax.core.ShapedArray((1,), np.dtype(np.uint32))
_MODULES_KEPT = 4


def bind(arrays: list[Any], collective: Collective, weight: Any = None) -> list[Any]:
    """Runs a collective, or adds it to the program that is being traced."""
    operands = arrays if weight is None else [*arrays, weight]
    results: list[Any] = PRIMITIVES[collective.kind].bind(*operands, collective=collective)
    return results


def _abstract(*avals: Any, collective: Collective) -> list[Any]:
    arrays = avals[: len(avals) - collective.weighted]
    return [
        aval.update(shape=collective.shape_of_result(index, aval.shape), weak_type=False)
        for index, aval in enumerate(arrays)
    ]


class _Program:
    """The lowering of one module: how often each name came, and the last call of each block."""

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
    """Return the attributes of ``native/bindings/jax/attributes.cc``; none is of this very rank."""
    return {
        "kind": np.int64(KINDS[collective.kind]),
        "grouped": np.int64(collective.grouped),
        "name": name,
        "job": np.int64(collective.job),
        "process_set": np.int64(collective.process_set),
        "call_site": collective.call_site,
        "reduce_op": np.int64(collective.op),
        "quantization": np.int64(collective.quantization),
        "num_residuals": np.int64(collective.num_residuals),
        "prescale": np.float64(collective.prescale),
        "postscale": np.float64(collective.postscale),
        "root": np.int64(collective.root),
        "size": np.int64(collective.size if collective.depends_on_size else 0),
        "weighted": np.int64(collective.weighted),
        "table": " ".join(str(rows) for row in collective.table for rows in row),
    }


def _lower(mode: TransferMode, context: Any, *operands: Any, collective: Collective) -> Any:
    check_devices(context)
    program = _programs.of(context.module_context.module)
    key = (collective.kind, collective.name)
    count = program.names[key]
    program.names[key] += 1
    name = f"{collective.name}.{count}" if count else collective.name
    block = mlir.ir.InsertionPoint.current.block
    before = program.last_in(block) if collective.ordered else None
    if before is None:
        before = mlir.ir_constant(np.zeros(1, np.uint32))
    extended = context.replace(
        avals_in=[*context.avals_in, _LINK], avals_out=[*context.avals_out, _LINK]
    )
    rule = _by_callback if mode is TransferMode.HOST_COPY else _by_marked_handler
    *results, last = rule(extended, [*operands, before], collective, name)
    if collective.ordered:
        program.set_last(block, last)
    return results


def _by_marked_handler(
    context: Any, operands: list[Any], collective: Collective, name: str
) -> list[Any]:
    """Return the arrays of the tree, followed by its mark."""
    if collective.tree is None:
        return _by_handler(context, operands, collective, name)
    place = len(context.avals_out) - 1
    mark = jax.core.ShapedArray(collective.tree.mark, context.avals_in[collective.first].dtype)
    given, made = list(context.avals_in), list(context.avals_out)
    given.insert(place, mark)
    made.insert(place, mark)
    operands = list(operands)
    operands.insert(place, mlir.ir_constant(np.zeros(mark.shape, mark.dtype)))
    extended = context.replace(avals_in=given, avals_out=made)
    results = _by_handler(extended, operands, collective, name)
    return [*results[:place], *results[place + 1 :]]


def _by_handler(context: Any, operands: list[Any], collective: Collective, name: str) -> list[Any]:
    in_place = collective.kind in _IN_PLACE
    num_results = len(context.avals_out) - 1
    rule = jax.ffi.ffi_lowering(
        native_ops.TARGET,
        has_side_effect=True,
        operand_output_aliases={i: i for i in range(num_results)} if in_place else None,
    )
    results: list[Any] = rule(context, *operands, **_attributes(collective, name))
    return results


def _by_callback(context: Any, operands: list[Any], collective: Collective, name: str) -> list[Any]:
    warn_of_copies()
    call = callback_of(collective, name, [aval.shape for aval in context.avals_out[:-1]])
    results, _, _ = mlir.emit_python_callback(
        context, call, None, operands, context.avals_in, context.avals_out, has_side_effect=True
    )
    return list(results)


def _refuse(context: Any, *operands: Any, collective: Collective) -> Any:
    """On devices that collectives do not know."""
    for platform in context.module_context.platforms:
        transfer_mode_on(platform)
    raise NotImplementedError("a collective of horovod.jax is lowered for several platforms")


def _run(primitive: Primitive, *operands: Any, collective: Collective) -> Any:
    """Outside of programs."""
    devices = devices_of(operands)
    if len(devices) < 2 and all(
        transfer_mode_on(device.platform) is TransferMode.DIRECT for device in devices
    ):
        return apply_primitive(primitive, *operands, collective=collective)
    return run_now(operands, collective)


def lower_on(platform: str, mode: TransferMode) -> None:
    """Registers how programs for a platform run collectives."""
    for primitive in PRIMITIVES.values():
        rule = functools.partial(_lower, mode)
        mlir.register_lowering(primitive, rule, platform=platform, **_options)


# Without it, each rule is lowered inside of a function of its own, and there is no order.
_options = (
    {"cacheable": False}
    if "cacheable" in inspect.signature(mlir.register_lowering).parameters
    else {}
)
for _primitive in PRIMITIVES.values():
    _primitive.multiple_results = True
    _primitive.def_impl(functools.partial(_run, _primitive))
    _primitive.def_abstract_eval(_abstract)
    mlir.register_lowering(_primitive, _refuse, **_options)
for _platform in ("cpu", "cuda", "rocm"):
    lower_on(_platform, transfer_mode_on(_platform))
