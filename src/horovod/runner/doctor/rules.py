"""Lists changes since Horovod 0.28 as data for the doctor; compatibility.md explains them."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """Severity of a remark."""

    FAILS = "fails"
    DEPRECATED = "deprecated"
    CHANGED = "changed"
    IGNORED = "ignored"
    HONORED = "honored"
    HINT = "hint"


@dataclass(frozen=True)
class Remark:
    """One thing that the doctor says.

    Attributes:
        place: such as ``train.py:12``, or ``environment``.
        level: how much it matters.
        text: what it is, and what to do.
    """

    place: str
    level: Level
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.level.value}: {self.text}"


@dataclass(frozen=True)
class Rule:
    """Remark on a call or an argument."""

    level: Level
    text: str


# Names that a module no longer exports.
MISSING_NAMES = {
    "check_extension": "there is one build, and it always has its native code",
    "extension_available": "there is one build, and it always has its native code",
}

_NO_LIBRARY = Rule(
    Level.CHANGED,
    "is False or 0: the engine is Horovod's own; gloo_built() is True, which scripts take for "
    "'works without MPI'",
)

# By function; said wherever it is called.
CALLS = {
    **dict.fromkeys(
        ("mpi_built", "nccl_built", "cuda_built", "rocm_built"),
        Rule(
            Level.CHANGED,
            "reports what is found on this machine: nothing is compiled against MPI, CUDA or NCCL",
        ),
    ),
    **dict.fromkeys(("mpi_enabled", "ddl_built", "ccl_built"), _NO_LIBRARY),
    "mpi_threads_supported": Rule(
        Level.CHANGED, "is False unless MPI moves the data (HOROVOD_CPU_OPERATIONS=mpi)"
    ),
    "broadcast_optimizer_state": Rule(
        Level.CHANGED, "sends the state of the root as it is, and takes no step with zero gradients"
    ),
}


# By function, the argument that stands first; the rule for it counts without its name, too.
FIRST_ARGUMENTS = {"join": "device"}

# By function and argument.
ARGUMENTS = {
    ("init", "comm"): Rule(
        Level.FAILS,
        "takes no communicator of MPI and no subset: all ranks that were launched form the job; "
        "use process_sets",
    ),
    **{
        (name, "average"): Rule(Level.DEPRECATED, "use op=hvd.Average or op=hvd.Sum")
        for name in (
            *("allreduce", "allreduce_", "allreduce_async", "allreduce_async_"),
            *("grouped_allreduce", "grouped_allreduce_"),
            *("grouped_allreduce_async", "grouped_allreduce_async_"),
        )
    },
    ("DistributedOptimizer", "num_groups"): Rule(Level.DEPRECATED, "use groups"),
    ("run", "np"): Rule(Level.DEPRECATED, "use num_proc"),
    ("run", "network_interface"): Rule(Level.DEPRECATED, "use network_interfaces"),
    ("join", "device"): Rule(
        Level.IGNORED, "is only a hint where tensors on GPUs are in flight; leave it out"
    ),
    ("run", "use_mpi"): Rule(
        Level.CHANGED, "mpirun starts the ranks as before, but Horovod's engine moves their data"
    ),
    ("run", "use_gloo"): Rule(Level.IGNORED, "it is the default, and uses no Gloo"),
    ("run", "disable_cache"): Rule(Level.IGNORED, "nothing is cached"),
    ("run", "min_np"): Rule(Level.DEPRECATED, "use min_num_proc"),
    ("run", "max_np"): Rule(Level.DEPRECATED, "use max_num_proc"),
}
