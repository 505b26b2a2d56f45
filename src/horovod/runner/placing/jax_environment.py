"""The variables with which ``jax.distributed`` and ``keras.distribution`` find the ranks of a job.

JAX reads the address of its coordinator only; ``horovod.jax`` tells it the rest. Keras reads all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._settings.jax_variables import COORDINATOR, KERAS_ADDRESSES, KERAS_COUNT, KERAS_PROCESS
from horovod.runner.placing.torch_environment import with_torch_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod.runner.protocol.agent_job import AgentJob

_OF_KERAS = (KERAS_ADDRESSES, KERAS_COUNT, KERAS_PROCESS)


def with_jax_variables(job: AgentJob, address: str, port: int) -> AgentJob:
    """Return the job of a host whose workers have the variables of JAX and Keras, too.

    The ranks share a port with PyTorch's: a program may call ``jax.distributed.initialize`` or
    ``torch.distributed.init_process_group``, and gets an error if it calls both.

    Args:
        job: of an agent; variables that the user has set there stay. If one of Keras is among
            them, Keras gets no others.
        address, port: where rank 0 may listen for all ranks.
    """
    coordinator = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    is_told = job.env.get(KERAS_PROCESS) and job.env[KERAS_PROCESS] == job.env.get("HOROVOD_RANK")
    # Those of a job in which horovodrun was called lead to that one.
    of_user: Mapping[str, str] = {} if is_told else job.env
    told = {COORDINATOR: of_user.get(COORDINATOR) or coordinator}
    if any(of_user.get(name) for name in _OF_KERAS):
        workers = tuple(replace(worker, env={**worker.env, **told}) for worker in job.workers)
    else:
        told[KERAS_ADDRESSES] = told[COORDINATOR]
        workers = tuple(
            replace(worker, env={**worker.env, **told, **_place(worker.env)})
            for worker in job.workers
        )
    return replace(job, workers=workers)


def with_framework_variables(job: AgentJob, address: str, port: int) -> AgentJob:
    """Return the job of a host whose workers have the variables of PyTorch, JAX and Keras, too.

    Args:
        job, address, port: see :func:`with_jax_variables`.
    """
    return with_jax_variables(with_torch_variables(job, address, port), address, port)


def _place(env: Mapping[str, str]) -> dict[str, str]:
    return {KERAS_COUNT: env["HOROVOD_SIZE"], KERAS_PROCESS: env["HOROVOD_RANK"]}
