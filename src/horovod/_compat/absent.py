"""Modules that Horovod once had, or is to have, and what to use instead of each.

``import horovod`` brings a finder that asks here when nobody else finds a module of Horovod.
"""

from __future__ import annotations

TO_COME: dict[str, str] = {}
"""By module, which includes all below it: what the next versions bring."""

_LAUNCHER = "use the command horovodrun, or the function horovod.run()"
_NOTHING_TO_LOAD = (
    "there is nothing to load: all frameworks share one engine, which `import {}` brings"
)

GONE = {
    "horovod.common": "use the module of the framework, such as horovod.torch; exceptions are in "
    "horovod.common.exceptions, questions about the build in horovod.common.util",
    "horovod.run": "it is a function: write `from horovod import run`, or use horovodrun",
    "horovod.runner": _LAUNCHER,
    "horovod.runner.common.service": "the agents of horovodrun take the place of its services",
    "horovod.runner.common.util.network": "ranks find each other through the store of horovodrun",
    "horovod.runner.common.util.secret": "horovodrun makes the job's secret, and gives it to the "
    "ranks in a private file",
    "horovod.runner.common.util.settings": "give them as arguments of horovod.run()",
    "horovod.runner.driver": "`horovodrun --check` tells what hosts and ranks can reach",
    "horovod.runner.elastic": "start elastic jobs with `horovodrun -np 2 --min-np 1`, or with "
    "horovod.run(min_num_proc=…); only horovod.runner.elastic.discovery is left",
    "horovod.runner.gloo_run": _LAUNCHER,
    "horovod.runner.http": "the store that horovodrun opens for the ranks takes its place",
    "horovod.runner.js_run": "use `horovodrun --jsrun`",
    "horovod.runner.mpi_run": "use `horovodrun --mpi`",
    "horovod.runner.service": "the agents of horovodrun take the place of its services",
    "horovod.runner.task": "the agents of horovodrun take the place of its services",
    "horovod.runner.task_fn": "the agents of horovodrun take the place of its services",
    "horovod.spark.driver": "tasks of Spark host the agents of horovod.spark.run()",
    "horovod.spark.task": "tasks of Spark host the agents of horovod.spark.run(); only "
    "get_available_devices is left",
    **{
        f"{framework}.{library}": _NOTHING_TO_LOAD.format(framework)
        for framework in ("horovod.torch", "horovod.tensorflow", "horovod.mxnet")
        for library in ("mpi_lib", "mpi_lib_impl", "mpi_lib_v2")
    },
}
"""By module, which includes all below it: what will not come back. Python asks for a package before
what is in it, so a row below a package that is missing would never be read."""


def hint_for(module: str) -> str:
    """Return the replacement of a module that Horovod does not have; empty if it never had it.

    Args:
        module: in full, such as ``horovod.torch.elastic.state``.
    """
    parts = module.split(".")
    for length in range(len(parts), 1, -1):
        prefix = ".".join(parts[:length])
        if hint := GONE.get(prefix) or TO_COME.get(prefix):
            return hint
    return ""


def refuse(module: str) -> None:
    """Raises for a module that Horovod once had, or is to have.

    Raises:
        ModuleNotFoundError: says what to use instead.
    """
    if hint := hint_for(module):
        # Without its name: `from horovod.torch import elastic` would swallow the sentence.
        raise ModuleNotFoundError(f"there is no module {module} in this Horovod: {hint}")


def no_attribute(module: str, name: str) -> AttributeError:
    """The error for a name that a module of Horovod does not have; says so if it is to come."""
    hint = TO_COME.get(f"{module}.{name}")
    return AttributeError(
        f"module {module!r} has no attribute {name!r}" + (f": {hint}" if hint else "")
    )
