"""The actor that is a worker of an elastic job."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle

from horovod._job.worker import Dismissed
from horovod._rank import context
from horovod._rank.reports.end import EndReport, report_of
from horovod.ray.worker import BaseHorovodWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod._job.environment import Assignment


@dataclass(frozen=True)
class ActorCall:
    """The function that each worker runs.

    Attributes:
        func: called with the executable.
        executable_cls, executable_args, executable_kwargs: make the executable; None for none.
        queue: where :func:`horovod.ray.ray_logger.log` sends to; None for nowhere.
    """

    func: Callable[[Any], Any]
    executable_cls: type | None = None
    executable_args: Sequence[object] | None = None
    executable_kwargs: Mapping[str, object] | None = None
    queue: Any = None


@dataclass(frozen=True)
class Finished:
    """The function of a worker has returned."""

    value: Any


@dataclass(frozen=True)
class Left:
    """The job goes on without this worker."""

    text: str


@dataclass(frozen=True)
class Failed:
    """The function of a worker has raised an error.

    Attributes:
        report: about the error.
        traceback: as Python prints it.
        error: itself, pickled; empty if it cannot be.
    """

    report: EndReport
    traceback: str
    error: bytes

    def load(self) -> BaseException | None:
        """The error; None if it cannot be made here."""
        try:
            found = cloudpickle.loads(self.error)
        except Exception:  # whatever the user's class may raise
            return None
        return found if isinstance(found, BaseException) else None


class ElasticActor(BaseHorovodWorker):
    """The actor of a worker whose place changes. It runs one function, once."""

    def take_part(
        self, assignment: Assignment, call: ActorCall, gpus_of_node: int
    ) -> Finished | Left | Failed:
        """Joins the job, and leaves it at the end of the function."""
        self.set_queue(call.queue)
        self.take_place(assignment)
        if gpus_of_node:
            own = self.get_gpu_ids()
            visible = visible_gpus(own, gpus_of_node, assignment.slot)
            self.update_env_vars({"CUDA_VISIBLE_DEVICES": ",".join(visible)})
        try:
            value = self._call(call)
        except Dismissed as dismissed:
            _leave()
            return Left(str(dismissed))
        except SystemExit as error:
            if error.code not in (None, 0):
                return _failed(error)
            value = None
        except Exception as error:
            return _failed(error)
        _leave()
        return Finished(value)

    def _call(self, call: ActorCall) -> Any:
        self.start_executable(call.executable_cls, call.executable_args, call.executable_kwargs)
        return self.execute(call.func)


def visible_gpus(own: Sequence[str], of_node: int, slot: int) -> list[str]:
    """All GPUs of a node, with the own one where its local rank looks for it: at its slot. Pure."""
    everything = [str(number) for number in range(of_node)]
    if not own or own[0] not in everything or slot >= of_node:
        return list(own)
    at = everything.index(own[0])
    everything[at], everything[slot] = everything[slot], everything[at]
    return everything


def _leave() -> None:
    context.shutdown()
    context.current().part()


def _failed(error: BaseException) -> Failed:
    text = traceback.format_exc()
    context.current().shutdown(f"it raised {type(error).__name__}: {error}"[:500])
    try:
        packed = cloudpickle.dumps(error)
    except Exception:  # whatever the user's class may raise
        packed = b""
    return Failed(report_of(error), text, packed)
