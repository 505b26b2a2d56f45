"""The facts about a compute job that a training job needs, as a file that both can read."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from horovod._base import files
from horovod.data.compute_service import Addresses, ComputeClient
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_POLL_S = 0.2
_MOST_BYTES = 1 << 20
_SIDES = ("training", "compute")


@dataclass(frozen=True)
class TfDataServiceConfig:
    """Where the compute service is, and who runs the servers of tf.data's service.

    Attributes:
        dispatchers: one for all training ranks, or one for each.
        workers_per_dispatcher: how many processes of the compute job serve each.
        dispatcher_side: who runs the dispatchers, ``training`` or ``compute``.
        addresses: of the compute service, by network interface: pairs of address and port.
        key: the secret, 32 bytes.
        timeout: seconds to wait for dispatchers and workers.
        serve_without_authentication: whether everybody who can reach the servers may use them, and
            so read and write the files of the user who runs them; see
            :mod:`horovod.data.exposure`.

    Raises:
        UsageError: the side is neither.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Addresses
    key: bytes
    timeout: float = 60
    serve_without_authentication: bool = False

    def __post_init__(self) -> None:
        if self.dispatcher_side not in _SIDES:
            raise UsageError(
                f"dispatcher_side is {self.dispatcher_side!r}, but must be one of "
                f"{', '.join(_SIDES)}"
            )

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Connects to the compute service.

        Args:
            verbose: no effect; accepted for old scripts.

        Raises:
            StartError: it cannot be reached within ``timeout``, or has another key.
        """
        return ComputeClient(self.addresses, self.key, self.timeout)

    def to_dict(self) -> dict[str, Any]:
        """The fields, the key in hexadecimal digits."""
        return {**asdict(self), "key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """The opposite of :meth:`to_dict`; what it does not know is left out.

        Raises:
            UsageError: a field is missing or makes no sense.
        """
        known = {field.name for field in fields(TfDataServiceConfig)}
        try:
            values = {name: value for name, value in config.items() if name in known}
            values["key"] = bytes.fromhex(values["key"])
            values["addresses"] = {
                nic: [(str(address), int(port)) for address, port in pairs]
                for nic, pairs in values["addresses"].items()
            }
            return TfDataServiceConfig(**values)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is no configuration of a compute job: {error!r}") from error

    def write(self, filename: str) -> None:
        """Writes a file that only this user can read; who reads it finds all of it or nothing.

        Raises:
            OSError: the folder does not exist or cannot be written to.
        """
        with files.writing_whole(filename, 0o600) as file:
            file.write(json.dumps(self.to_dict()).encode())

    def remove(self, filename: str) -> None:
        """Removes the file, if it is still that of this compute job."""
        with suppress(OSError, UsageError):
            if TfDataServiceConfig.read(filename).key == self.key:
                os.unlink(filename)

    @staticmethod
    def read(
        filename: str, wait_for_file_creation: bool = False, timeout: float = 600.0
    ) -> TfDataServiceConfig:
        """Reads what the compute job wrote.

        Args:
            wait_for_file_creation: whether the file may be written later.
            timeout: seconds to wait for it.

        Raises:
            FileNotFoundError: there is no such file, and ``wait_for_file_creation`` is false.
            TimeoutError: it did not appear in time.
            UsageError: it holds something else; or it is a link, belongs to another user, or others
                can read or write it: its servers run code here, and its key is a secret.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                text = _read_private(filename)
                break
            except FileNotFoundError:
                if not wait_for_file_creation:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no compute job wrote {filename} within {timeout:g} s: does it run, and do "
                    "both jobs see the same file system?"
                )
            time.sleep(_POLL_S)
        try:
            return TfDataServiceConfig.from_dict(json.loads(text))
        except ValueError as error:
            raise UsageError(f"{filename}: {error}") from error


def _read_private(filename: str) -> str:
    try:
        with os.fdopen(files.open_trusted(filename, files.ANY_ACCESS), "rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(
            f"{filename} is not used as the configuration of a compute job: {error.strerror}"
        ) from error
