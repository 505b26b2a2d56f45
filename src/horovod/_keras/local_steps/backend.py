"""What local steps need of a backend of Keras."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod._train.compression import NoneCompressor
from horovod._train.optimizer_options import reduces
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.reduce_op import Average

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from horovod._rank.reduction import ReduceOp
    from horovod._train.compression import CompressorLike
    from horovod._train.outer_schedule import OuterSchedule


@dataclass(frozen=True)
class LocalStepsSettings:
    """The arguments of LocalSGD and DiLoCo.

    Attributes:
        name: what the operations are called after.
        schedule: when to exchange what.
        outer: an optimizer of Keras whose configuration is that of the outer one; None averages
            parameters.
        compression: how changes travel.
        process_set: the ranks that take part.
        call_site: ``file:line`` where the optimizer was made.
        op: of changes, always Average.
    """

    name: str
    schedule: OuterSchedule
    outer: Any = None
    compression: CompressorLike = NoneCompressor
    process_set: ProcessSet = global_process_set
    call_site: str = ""
    op: ReduceOp = Average


class LocalStepsBackend(ABC):
    """Runs the exchanges of one optimizer, eagerly or as a part of a compiled step.

    Args:
        settings: of the optimizer.
    """

    def __init__(self, settings: LocalStepsSettings) -> None:
        self.settings = settings

    def reduces(self) -> bool:
        """Whether there are others to exchange with; True in graphs that find out when they run."""
        return reduces(group_of(self.settings.process_set))

    @abstractmethod
    def run_if(self, condition: Any, change: Callable[[], None], touched: Sequence[Any]) -> None:
        """Change variables if a condition is true when the step runs.

        Args:
            condition: a tensor with one truth value.
            change: assigns to some variables.
            touched: all variables that it may read or assign to.
        """

    def counting(self) -> AbstractContextManager[object]:
        """Around what makes and changes counters, whose values decide what a step does next."""
        return nullcontext()

    def copied(self, tensor: Any) -> Any:
        """Return what a variable can be assigned that is to share no memory with another one."""
        return tensor  # which an assignment copies

    @abstractmethod
    def average(self, tensors: Sequence[Any], name: str) -> list[Any]:
        """Return the averages over the ranks; collective.

        Args:
            tensors: at least one.
            name: what the ranks agree on.
        """

    @abstractmethod
    def compare(self, tensors: Sequence[Any], names: Sequence[str], name: str, what: str) -> Any:
        """Compare tensors between the ranks; collective.

        Args:
            tensors: at least one.
            names: of the tensors, for messages.
            name: what the ranks agree on.
            what: begins the message of the error.

        Returns:
            0, which is known once they have been compared.

        Raises:
            ReplicasDivergedError: a tensor differs; in a compiled step an error of the framework
                with the same text.
        """
