"""XLA cannot compile operations that talk to other ranks; whoever asks for it is told early."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.errors import UsageError

REFUSAL = (
    "Horovod's operations cannot be compiled by XLA: use jit_compile=False, in "
    "model.compile(...) as well as in tf.function(...), and for parts of the step that should be "
    "compiled, such as the forward pass, a tf.function(jit_compile=True) of their own"
)


def refuse_xla() -> None:
    """Raises if XLA compiles what is being traced.

    Raises:
        UsageError: this is called in a ``tf.function(jit_compile=True)``.
    """
    if not tf.executing_eagerly() and _is_compiled(tf.compat.v1.get_default_graph()):
        raise UsageError(REFUSAL)


def _is_compiled(graph: Any) -> bool:
    """Whether a graph, or one around it, is traced for XLA."""
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False
