"""The exceptions of Horovod.

RuntimeError
├── HorovodInternalError       a collective failed; elastic training recovers from it
│   ├── MismatchError          ranks disagree on dtype, shape, op, root … of one name
│   ├── PeerLostError          a rank died, or its connection broke
│   ├── ShutDownError          a rank, or this one, has shut Horovod down
│   ├── StalledError           some ranks did not take part in time
│   ├── ReplicasDivergedError  what must be equal on all ranks is not
│   └── NotInitializedError    hvd.init() was not called (also a ValueError)
└── HostsUpdatedInterrupt      elastic: the set of hosts changed
ValueError
└── UsageError                 the call itself is wrong; only the calling rank sees it
    ├── DuplicateNameError     the name is already in flight in this process set
    └── UnsupportedError       a reduction that does not exist for this (also a
                               NotImplementedError and a HorovodInternalError)
ImportError
└── HorovodVersionMismatchError
RuntimeError
├── StartError                 the job could not start (rendezvous, peers, settings)
└── RankFailedError            horovod.run(): a rank of the job failed
"""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed: a peer was lost, ranks disagree, or Horovod was shut down."""


class MismatchError(HorovodInternalError):
    """Ranks submitted the same name with different dtype, shape, operation or root."""


class PeerLostError(HorovodInternalError):
    """A rank died or its connection broke; the message names the first cause."""


class ShutDownError(HorovodInternalError):
    """Horovod has been shut down on this rank or on a peer."""


class StalledError(HorovodInternalError):
    """Some ranks did not take part in time: a shutdown deadline, or a torch.distributed timeout."""


class ReplicasDivergedError(HorovodInternalError):
    """Tensors that must be equal on all ranks differ.

    Args:
        message: says all of the following in words.
        tensors: the names of the first tensors that differ.
        ranks: for each of them the global ranks whose values are not those of the majority.
    """

    def __init__(
        self, message: str, tensors: tuple[str, ...] = (), ranks: tuple[tuple[int, ...], ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.tensors = tensors
        self.ranks = ranks

    def __reduce__(self) -> tuple[type[ReplicasDivergedError], tuple[object, ...]]:
        return type(self), (self.message, self.tensors, self.ranks)


class NotInitializedError(HorovodInternalError, ValueError):
    """Horovod has not been initialized in this process; call ``hvd.init()`` first."""


class UsageError(ValueError):
    """The arguments of a call are wrong; nothing was sent to other ranks."""


class DuplicateNameError(UsageError):
    """An operation with the same name is still in flight in the same process set."""


class UnsupportedError(UsageError, HorovodInternalError, NotImplementedError):
    """There is no such reduction: some operations only sum, and Adasum takes floating types.

    Earlier versions raised one or another of these classes, so scripts catch any of them.
    """


class StartError(RuntimeError):
    """The job could not start: settings, rendezvous or the connection to a peer failed."""


class RankFailedError(RuntimeError):
    """A rank of a job that :func:`horovod.run` started has failed.

    Args:
        message: says all of the following in words.
        rank: the one that failed first; -1 if it was no rank but the launcher's own processes.
        host: where it ran.
        exit_code: of its process; 128 + number for one that a signal killed.
        signal: name of the signal that killed it, such as SIGKILL, or None.
        traceback: of the exception that it raised, as text; empty if there is none.
    """

    def __init__(
        self,
        message: str,
        rank: int = -1,
        host: str = "",
        exit_code: int = 1,
        signal: str | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rank = rank
        self.host = host
        self.exit_code = exit_code
        self.signal = signal
        self.traceback = traceback

    def __reduce__(self) -> tuple[type[RankFailedError], tuple[object, ...]]:
        fields = (self.message, self.rank, self.host, self.exit_code, self.signal, self.traceback)
        return type(self), fields


class HostsUpdatedInterrupt(RuntimeError):
    """Elastic training: the set of hosts changed.

    Args:
        skip_sync: True when only hosts were removed, so that no newcomer needs the state.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is installed in a version that this Horovod cannot work with."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(
            f"{name} {installed_version} is installed, but this Horovod needs {name} {version}"
        )
        self.name = name
        self.version = version
        self.installed_version = installed_version


# TensorFlow's AutoGraph keeps the class of an error only if it is made just as an Exception is.
HorovodInternalError.__init__ = Exception.__init__  # type: ignore[method-assign]
UsageError.__init__ = Exception.__init__  # type: ignore[method-assign]
