"""A program of JAX as a list of operations, without calls of other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax._src import source_info_util  # the line of an operation is told nowhere else
from jax.extend.core import ClosedJaxpr, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

_CALLS = (
    "pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr", "remat", "remat2", "checkpoint",
)  # fmt: skip


@dataclass(eq=False)
class Place:
    """A variable of the program.

    Attributes:
        aval: shape and dtype in the program, whose arrays are whole.
        value: of :mod:`horovod.jax.shares.values`; None until it is computed.
    """

    aval: Any
    value: Any = None


@dataclass(eq=False)
class Step:
    """One operation: ``outputs = eqn.primitive(inputs)``, from a line of a source file."""

    eqn: Any
    line: str
    inputs: list[Place]
    outputs: list[Place]


def flatten(
    closed: ClosedJaxpr, inputs: Sequence[Place], known: Any
) -> tuple[list[Step], list[Place]]:
    """Return the operations of a program in an order in which they can run, and its results.

    Args:
        closed: the program.
        inputs: its arguments.
        known: makes the value of a constant of it.
    """
    steps: list[Step] = []
    outputs = _add(closed.jaxpr, closed.consts, list(inputs), known, steps, "an unknown place")
    return steps, outputs


def _add(
    jaxpr: Any, consts: Any, inputs: list[Place], known: Any, steps: list[Step], caller: str
) -> list[Place]:
    places = {
        var: Place(var.aval, known(const))
        for var, const in zip(jaxpr.constvars, consts, strict=True)
    }
    places |= dict(zip(jaxpr.invars, inputs, strict=True))

    def place_of(atom: Any) -> Place:
        if isinstance(atom, Literal):
            return Place(atom.aval, known(atom.val))
        return places[atom]

    for eqn in jaxpr.eqns:
        given = [place_of(atom) for atom in eqn.invars]
        line = source_info_util.summarize(eqn.source_info) or caller
        inner = _program_of(eqn)
        if inner is None:
            outputs = [Place(var.aval) for var in eqn.outvars]
            steps.append(Step(eqn, line, given, outputs))
        else:
            outputs = _add(*inner, given, known, steps, line)
        places |= dict(zip(eqn.outvars, outputs, strict=True))
    return [place_of(atom) for atom in jaxpr.outvars]


def _program_of(eqn: Any) -> tuple[Any, Any] | None:
    """Return the program that an operation calls, and its constants; None if it calls none."""
    if eqn.primitive.name not in _CALLS:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(name)
        if inner is not None:
            return (inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, ())
    return None
