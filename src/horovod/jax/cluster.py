"""Tells ``jax.distributed.initialize()`` which rank of horovodrun this process is.

JAX reads no variable for the number of processes and the index of this one. It asks the classes
that are derived from its ``ClusterEnv``. The module of that class has no public name, so a version
of JAX may lack it: then ``initialize()`` raises an error, unless it is given both numbers.
"""

from __future__ import annotations

import importlib
from typing import Any

from horovod._settings.config import inherited_environment
from horovod._settings.jax_variables import JaxProcess, jax_process_in

_MODULE = "jax._src.clusters"


def register_cluster() -> None:
    """Let ``jax.distributed.initialize()`` ask Horovod, if this version of JAX asks anyone.

    Horovod comes first: in an allocation of Slurm, ranks have Slurm's variables too, which describe
    the process that started them.
    """
    try:
        base: Any = importlib.import_module(_MODULE).ClusterEnv
    except (ImportError, AttributeError):
        return
    # JAX lists its subclasses, and asks the first that is present.
    cluster = type("HorovodCluster", (_Answers, base), {"name": "horovodrun"})
    known = getattr(base, "_cluster_types", [])
    if cluster in known:
        known.remove(cluster)
        known.insert(0, cluster)


class _Answers:
    """What JAX asks."""

    @classmethod
    def is_env_present(cls) -> bool:
        """Whether horovodrun has started this process as a rank."""
        return _process() is not None

    @classmethod
    def get_coordinator_address(cls, *args: Any, **kwargs: Any) -> str:
        """Return host and port where rank 0 listens; versions of JAX give different arguments."""
        return _known().coordinator

    @classmethod
    def get_process_count(cls) -> int:
        """Return the number of ranks."""
        return _known().count

    @classmethod
    def get_process_id(cls) -> int:
        """Return the rank."""
        return _known().index

    @classmethod
    def get_local_process_id(cls) -> int | None:
        """Return None: a rank may use all devices that it sees."""
        return None


def _process() -> JaxProcess | None:
    return jax_process_in(inherited_environment())


def _known() -> JaxProcess:
    process = _process()
    assert process is not None  # JAX has asked is_env_present() before
    return process
