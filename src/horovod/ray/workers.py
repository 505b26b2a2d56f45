"""The actors of one job, from their start to their end."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.errors import PeerLostError, ShutDownError, UsageError
from horovod.ray.job_actor import Found, JobActor, end_job, show_job
from horovod.ray.strategy import place
from horovod.ray.worker import BaseHorovodWorker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horovod.ray.settings import MiniSettings, Wanted
    from horovod.ray.strategy import Placement

_logger = logging.getLogger(__name__)

# Ray notices the death of a node after about 2 s; ranks that lost it raise at once.
_CAUSE_S = 5.0


class Workers:
    """The actors of one job.

    Args:
        wanted: how many, with what resources.
        settings: see :class:`MiniSettings`.
        env_vars: variables of the environment of their processes.
    """

    def __init__(
        self, wanted: Wanted, settings: MiniSettings, env_vars: Mapping[str, object]
    ) -> None:
        self._wanted = wanted
        self._settings = settings
        self._env_vars = {name: str(value) for name, value in env_vars.items()}
        self._placement: Placement | None = None
        self._job: Any = None
        # In the order of the ranks, as soon as there are any.
        self._actors: list[Any] = []
        self._names: list[str] = []
        self._found: list[Found] = []
        self._failure = ""

    def start(self) -> None:
        """Finds room, starts the actors, and gives them their places.

        Raises:
            TimeoutError: see :func:`horovod.ray.strategy.create_placement_group`; or workers did
                not start, for which the placement group of the caller may have no room.
            StartError: the store of the job cannot listen.
        """
        settings, wanted = self._settings, self._wanted
        self._placement = place(wanted, settings.placement_group_timeout_s)
        actor_class = ray.remote(BaseHorovodWorker)
        for worker in range(wanted.size):
            options: dict[str, Any] = {
                "num_cpus": wanted.cpus_per_worker,
                "num_gpus": wanted.gpus_per_worker,
                "scheduling_strategy": self._placement.of(worker),
                "max_restarts": 0,
            }
            if self._env_vars:
                options["runtime_env"] = {"env_vars": self._env_vars}
            self._actors.append(actor_class.options(**options).remote(worker, wanted.size))
        self._names = [f"worker {index}" for index in range(wanted.size)]
        self._await_start()
        found = [Found(*where) for where in self.call("where")]
        self._begin_job(found)
        self._share_gpus(found)

    def call(self, method: str, *args: object, ranks: Sequence[int] | None = None) -> list[Any]:
        """Calls a method on all ranks, or some; returns the results in their order.

        Raises:
            UsageError: a rank has failed before.
            Exception: what the first rank raised that failed by itself; all ranks are ended then.
        """
        ranks = range(len(self._actors)) if ranks is None else ranks
        results: dict[int, Any] = {}
        pending = dict(zip(self.begin(method, *args, ranks=ranks), ranks, strict=True))
        while pending:
            try:
                (ref,), _ = ray.wait(list(pending), num_returns=1)
                results[pending[ref]] = ray.get(ref)
                del pending[ref]
            except KeyboardInterrupt:
                self._give_up("Ctrl-C")
                _hear(pending)
                raise
            except Exception as error:
                first, rank = self._cause(error, pending.pop(ref), pending)
                self._give_up(f"{self._names[rank]} has failed: {_text(first)}")
                _hear(pending)
                raise self._named(first, rank) from None
        return [results[rank] for rank in ranks]

    def begin(self, method: str, *args: object, ranks: Sequence[int] | None = None) -> list[Any]:
        """Begins to call a method; returns references to the results.

        Raises:
            UsageError: a rank has failed before.
        """
        if self._failure:
            raise UsageError(
                f"the workers of this RayExecutor have ended, because {self._failure}: call "
                "shutdown(), then start()"
            )
        chosen = self._actors if ranks is None else [self._actors[rank] for rank in ranks]
        return [getattr(actor, method).remote(*args) for actor in chosen]

    def end(self) -> None:
        """Ends all actors, and gives the resources back. Idempotent."""
        for actor in self._actors:
            ray.kill(actor)
        if self._job is not None:
            end_job(self._job)
        self._actors, self._job = [], None
        if self._placement is not None:
            self._placement.remove()
            self._placement = None

    def _await_start(self) -> None:
        settings, number = self._settings, len(self._actors)
        timeout_s = settings.placement_group_timeout_s + settings.timeout_s
        _, pending = ray.wait(self.begin("node_id"), num_returns=number, timeout=timeout_s)
        if pending:
            group = "its own" if self._placement and self._placement.is_own else "the caller's"
            raise TimeoutError(
                f"{len(pending)} of {number} workers did not start within {timeout_s:g} s in "
                f"{group} placement group: does it have {number} x "
                f"{self._wanted.cpus_per_worker:g} CPU and {self._wanted.gpus_per_worker:g} GPU "
                "that nobody else uses? Reserve more, ask for less, or wait for longer "
                "(placement_group_timeout_s)"
            )

    def _begin_job(self, found: list[Found]) -> None:
        here = NodeAffinitySchedulingStrategy(found[0].node, soft=False)
        interface = min(self._settings.nics or {""})
        options = {"num_cpus": 0, "scheduling_strategy": here}
        self._job = (
            ray.remote(JobActor).options(**options).remote(self._settings.timeout_s, interface)
        )
        timeout_s = self._settings.timeout_s
        assignments = ray.get(self._job.assign.remote(found), timeout=timeout_s)
        show_job(self._job, self._env_vars)
        ray.get(
            [
                actor.take_place.remote(each)
                for actor, each in zip(self._actors, assignments, strict=True)
            ],
            timeout=timeout_s,
        )
        order = sorted(range(len(found)), key=lambda index: assignments[index].place.rank)
        self._actors = [self._actors[index] for index in order]
        found[:] = self._found = [found[index] for index in order]
        self._names = [
            f"rank {rank} (process {each.pid} on {each.address}, node {each.node[:8]})"
            for rank, each in enumerate(found)
        ]
        for name in self._names:
            _logger.info("%s is ready", name)

    def _share_gpus(self, found: Sequence[Found]) -> None:
        if not self._wanted.gpus_per_worker:
            return
        of_node: dict[str, list[str]] = {}
        for each, ids in zip(found, self.call("get_gpu_ids"), strict=True):
            of_node.setdefault(each.node, []).extend(ids)
        ray.get(
            [
                actor.update_env_vars.remote({"CUDA_VISIBLE_DEVICES": ",".join(of_node[each.node])})
                for actor, each in zip(self._actors, found, strict=True)
            ],
            timeout=self._settings.timeout_s,
        )

    def _cause(self, error: Exception, rank: int, pending: dict[Any, int]) -> tuple[Exception, int]:
        """Return the error of a rank that failed by itself, not of one that only lost it."""
        pending = dict(pending)
        first = error, rank
        while _is_loss(first[0]) and pending:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=_CAUSE_S)
            if not done:
                break
            rank = pending.pop(done[0])
            try:
                ray.get(done[0])
            except Exception as another:
                if not _is_loss(another):
                    first = another, rank
        return first

    def _named(self, error: Exception, rank: int) -> Exception:
        """Let an error say whose it is."""
        name = self._names[rank]
        if self._found:
            where = self._found[rank]
            with suppress(AttributeError):  # the class of the user may have such names itself
                for attribute, value in (
                    ("rank", rank),
                    ("host", where.address),
                    ("pid", where.pid),
                ):
                    setattr(error, attribute, value)
        if hasattr(error, "add_note"):
            error.add_note(f"Raised on {name}")
        return error

    def _give_up(self, why: str) -> None:
        self._failure = why
        _logger.error("%s; ending all ranks", why)
        for actor in self._actors:
            ray.kill(actor)


def _hear(pending: Iterable[Any]) -> None:
    """Take what ended ranks leave, of which Ray would print an "Unhandled error" each later."""
    refs = list(pending)
    done, _ = ray.wait(refs, num_returns=len(refs), timeout=_CAUSE_S) if refs else ([], [])
    for ref in done:
        with suppress(Exception):
            ray.get(ref)


def _is_loss(error: Exception) -> bool:
    """Whether a rank failed because it lost another one."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return isinstance(cause, PeerLostError | ShutDownError)


def _text(error: Exception) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0] if lines else ''}".rstrip(": ")
