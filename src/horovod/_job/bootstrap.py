"""Lets ranks of another launcher find each other: mpirun, srun, jsrun, Kubernetes.

Rank 0 opens the store of the job in its own process. Where it listens, and the secret, the other
ranks learn over the first of these that there is:

- a store of PyTorch, or what the variables of torchrun describe;
- a bootstrap address that the user named (``HOROVOD_RENDEZVOUS``), with a secret that all ranks
  were given alike;
- MPI, if the program has initialized it with mpi4py;
- the key-value space of the launcher, by PMI-1 or PMIx;
- a private file in the user's home, if the launcher gives the job a name.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from horovod._job.job import open_job
from horovod._rendezvous import pmix
from horovod._rendezvous.handshake import HandshakeError
from horovod._rendezvous.incarnation import Incarnation, latest_key
from horovod._rendezvous.interfaces import address_of, own_addresses, reachable_addresses
from horovod._rendezvous.job_file import JobFile
from horovod._rendezvous.pmi import PmiSession
from horovod._rendezvous.reach import AuthenticationError, Endpoint, StoreEndpoint, reach
from horovod._rendezvous.secret import has_given_secret, secret_of
from horovod._rendezvous.sockets import remaining_s, resolve
from horovod._rendezvous.store import StoreClient
from horovod._rendezvous.versions import check_version
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._job.lent_store import Meeting
    from horovod._rendezvous.server import StoreServer
    from horovod._settings.config import Config

_LOOPBACK = "127.0.0.1"
# A PMI-1 value has at most 1024 characters.
_MAX_ENDPOINTS = 8
_MPI_TEXT_BYTES = 4096
_MPI_PAUSE_S = 0.001
_PAUSE_S = 0.1
_TWIN_LEARNED_S = 5.0


@dataclass(frozen=True)
class _Notice:
    """The message of rank 0 to the other ranks."""

    endpoints: tuple[Endpoint, ...]
    secret: bytes

    def to_text(self) -> str:
        document = {"endpoints": self.endpoints, "secret": self.secret.hex()}
        return json.dumps(document).encode("ascii").hex()

    @staticmethod
    def from_text(text: str) -> _Notice:
        try:
            document = json.loads(bytes.fromhex(text))
            endpoints = tuple((str(address), int(port)) for address, port in document["endpoints"])
            return _Notice(endpoints, bytes.fromhex(document["secret"]))
        except (ValueError, KeyError, TypeError) as error:
            raise StartError(f"rank 0 published something that makes no sense: {error}") from None


class Bootstrap:
    """The place where the ranks of a job meet; leaving it open lets them meet again.

    Args:
        config: of this rank, which has no address of a store.
        member: what those are that meet, for messages: ranks, or nodes that start ranks.
        meeting: of the ranks over a store that another program lends; None if there is none.

    Raises:
        StartError: the ranks did not find each other; the message names ways out.
    """

    def __init__(
        self, config: Config, member: str = "rank", meeting: Meeting | None = None
    ) -> None:
        self._member = member
        self._meeting = meeting
        self._cleanup = ExitStack()
        self._deadline = time.monotonic() + config.start_timeout_s
        self._server: StoreServer | None = None
        self._file: JobFile | None = None
        self._pmi: PmiSession | None = None
        self._rank, self._size = config.rank, config.size
        self._used: set[Endpoint] = set()
        try:
            if self._size > 1:
                self._meeting = self._meeting or self._meet_at_master(config)
            if self._meeting is not None:
                self._cleanup.callback(self._meeting.close)
            server = self._open_store(config) if config.rank == 0 else None
            notice, reached = self._find(config, server)
            endpoint = self._settle(notice, reached, f"{config.hostname} (process {os.getpid()})")
            if server is not None and len(self._used) == 1:
                server.narrow(endpoint)  # nobody uses the other ports
            if self._file is not None and config.rank == 0:
                self._file.remove()  # all have come, so all have read it
        except BaseException:
            self.close()
            raise
        finally:
            if self._meeting is not None:
                self._meeting.forget()
        self._address, self._port = endpoint
        self._secret_key = notice.secret.hex()

    def attend(self, config: Config) -> Config:
        """The settings of this rank, with the store of the bootstrap."""
        return replace(
            config,
            rendezvous_addr=self._address,
            rendezvous_port=self._port,
            secret_key=self._secret_key,
            holds_store=self._server is not None,
        )

    def close(self) -> None:
        """Closes the store, if it is in this process, and what the launcher lent. Idempotent."""
        self._cleanup.close()

    def part(self, *, mpi_was_initialized: bool) -> None:
        """At the end of the process: takes leave of the launcher, unless MPI does."""
        if self._pmi is not None and not mpi_was_initialized:
            self._pmi.end()
        self.close()

    def _meet_at_master(self, config: Config) -> Meeting | None:
        """The meeting that the variables of torchrun describe; None if another way is there."""
        launcher = config.foreign_launcher
        if launcher is None or launcher.master is None or config.bootstrap_address is not None:
            return None
        # Here, because a job of another launcher does not need it.
        from horovod._job.at_master import meet_at_master

        return meet_at_master(config, launcher.master, self._deadline)

    def _open_store(self, config: Config) -> StoreServer:
        given = config.secret_key or config.secret_file
        one_host = self._size == 1 or (self._meeting is not None and self._meeting.one_host)
        address, *further = [_LOOPBACK] if one_host else _addresses(config, self._deadline)
        port = config.bootstrap_address[1] if config.bootstrap_address else 0
        job = open_job(
            address,
            port,
            further_addresses=further[: _MAX_ENDPOINTS - 1],
            secret=secret_of(config) if given else None,
        )
        self._server = self._cleanup.enter_context(job).server
        self._secret = job.where.secret
        return self._server

    def _find(self, config: Config, server: StoreServer | None) -> tuple[_Notice, StoreEndpoint]:
        """Learns of the store and reaches it."""
        own = None if server is None else _Notice(server.endpoints, self._secret)
        if own is not None and self._size == 1:
            return own, reach(own.endpoints, own.secret, self._deadline)
        if self._meeting is not None:
            return self._by_meeting(self._meeting, config, own)
        if config.bootstrap_address is not None:
            return self._by_name(config.bootstrap_address, config, own)
        text = None if own is None else own.to_text()
        shared = self._share(text, config)
        if shared is not None:
            notice = _Notice.from_text(shared)
            return notice, reach(notice.endpoints, notice.secret, self._deadline)
        return self._by_file(config, own)

    def _share(self, text: str | None, config: Config) -> str | None:
        """Brings a text of rank 0 to all by what the launcher lends; None if that is nothing."""
        foreign_launcher = config.foreign_launcher
        if (mpi := _running_mpi()) is not None:
            return _share_by_mpi(mpi, text, config, self._deadline)
        if foreign_launcher is None:
            return None
        if foreign_launcher.pmi_fd is not None:
            self._pmi = PmiSession(foreign_launcher.pmi_fd)
            self._cleanup.callback(self._pmi.close)
            return self._pmi.share(text, self._deadline)
        if not foreign_launcher.pmix_folders:
            return None
        try:
            return pmix.share(text, foreign_launcher.pmix_folders, remaining_s(self._deadline))
        except OSError as error:
            raise StartError(f"rank {config.rank} could not meet the others: {error}") from error

    def _by_meeting(
        self, meeting: Meeting, config: Config, own: _Notice | None
    ) -> tuple[_Notice, StoreEndpoint]:
        """A secret that the user gave all ranks does not travel."""
        is_given = has_given_secret(config)
        while True:
            text = None
            if own is not None:
                text = (replace(own, secret=b"") if is_given else own).to_text()
            notice = _Notice.from_text(meeting.share(text, self._deadline))
            if not notice.secret and not is_given:
                raise StartError(
                    f"rank 0 was given a secret of the job, but rank {config.rank} was not: set "
                    "HOROVOD_SECRET_KEY or HOROVOD_SECRET_FILE alike on all ranks"
                )
            notice = replace(notice, secret=secret_of(config)) if is_given else notice
            try:
                return notice, reach(notice.endpoints, notice.secret, self._deadline)
            except StartError:
                if own is not None or time.monotonic() + _PAUSE_S >= self._deadline:
                    raise
                time.sleep(_PAUSE_S)  # a job that was killed left its text in the lent store

    def _by_name(
        self, point: tuple[str, int], config: Config, own: _Notice | None
    ) -> tuple[_Notice, StoreEndpoint]:
        """Rank 0 may open its store later than this rank looks for it."""
        host, port = point
        if own is None:
            named = [(address, port) for address in resolve(host, self._deadline)]
            own = _Notice(tuple(named), secret_of(config))
        refusal: AuthenticationError | None = None
        while True:
            try:
                return own, reach(own.endpoints, own.secret, self._deadline)
            except StartError as error:
                # One that refused us and is gone by now says more than that it is gone.
                refusal = error if isinstance(error, AuthenticationError) else refusal
                if time.monotonic() + _PAUSE_S >= self._deadline:
                    raise StartError(
                        f"{self._member} 0 was not met at {host} port {port} within "
                        f"{config.start_timeout_s:g} s: {refusal or error}"
                    ) from error
                time.sleep(_PAUSE_S)  # a port gives no sign when somebody begins to listen

    def _by_file(self, config: Config, own: _Notice | None) -> tuple[_Notice, StoreEndpoint]:
        foreign_launcher = config.foreign_launcher
        if foreign_launcher is None or not foreign_launcher.job:
            raise StartError(_no_way(config))
        self._file = file = JobFile(foreign_launcher.job)
        if own is not None:
            file.write(own.to_text())
            self._cleanup.callback(file.remove)
            return own, reach(own.endpoints, own.secret, self._deadline)
        text = ""
        while True:
            text = file.read(self._deadline, text)
            notice = _Notice.from_text(text)
            try:
                return notice, reach(notice.endpoints, notice.secret, self._deadline)
            except HandshakeError:
                raise
            except StartError:
                continue  # a job that was killed left the file, and rank 0 is about to replace it

    def _settle(self, notice: _Notice, reached: StoreEndpoint, me: str) -> Endpoint:
        """Agrees with the other ranks of this host on an address that other hosts reach, too."""
        with StoreClient(*reached.endpoint, notice.secret, remaining_s(self._deadline)) as store:
            check_version(store, f"{self._member} {self._rank} ({me})", *_FAILED_KEYS)
            claim_place(store, self._member, self._rank, me)
            if not reached.stays_here:
                store.set(_place_key(self._rank), json.dumps(reached.endpoint).encode())
                return reached.endpoint
            store.set(_place_key(self._rank), b"null")
            keys = [_place_key(rank) for rank in range(self._size)]
            found = store.wait_all(keys, remaining_s(self._deadline), TWIN_KEY)
        if TWIN_KEY in found and self._server is not None:
            self._let_all_learn(self._server, found)
        check_twin(found)
        missing = [rank for rank, key in enumerate(keys) if key not in found]
        if missing:
            late = ", ".join(map(str, missing[:16]))
            raise StartError(
                f"{self._member} {late} of {self._size} never came to the store of {self._member} "
                f"0 at {reached.endpoint[0]} port {reached.endpoint[1]}; look for its errors"
                f"{self._wrong_secrets()}"
            )
        places: list[Any] = [json.loads(found[key]) for key in keys]
        remote = [(str(place[0]), int(place[1])) for place in places if place is not None]
        endpoint = remote[0] if remote else reached.endpoint
        self._used = {endpoint, *remote}
        return endpoint

    def _let_all_learn(self, server: StoreServer, found: Mapping[str, bytes]) -> None:
        """Keep the store open until those who have claimed a place know why the start failed."""
        deadline = time.monotonic() + _TWIN_LEARNED_S
        # Those of other hosts have left, and come back to connect.
        elsewhere = [
            rank for rank in range(self._size) if found.get(_place_key(rank), b"null") != b"null"
        ]
        with suppress(StartError):
            if self._member == "rank":
                server.wait_all([latest_key(rank) for rank in elsewhere], _TWIN_LEARNED_S)
            server.wait_unused(remaining_s(deadline))

    def _wrong_secrets(self) -> str:
        """Describe for a message who used another secret at the store of this process."""
        found = {} if self._server is None else self._server.wrong_secrets()
        if not found:
            return ""
        places = ", ".join(found)
        return (
            f". Authentication failed for connections from {places}: their secret differs from "
            "this one's; set the same HOROVOD_SECRET_KEY or HOROVOD_SECRET_FILE everywhere"
        )


TWIN_KEY = "bootstrap/twin"
"""Where it stands that two processes have the same place, or different versions; ends all waits."""

# Ranks that have met already wait for the other ones to connect.
_FAILED_KEYS = TWIN_KEY, Incarnation(0, 1).failed_key


def claim_place(
    store: StoreClient, member: str, index: int, me: str, stage: str = "bootstrap"
) -> None:
    """Makes sure that nobody else has this place, as long as the connection is open.

    Args:
        store: the connection; nothing else may leave a will there meanwhile.
        member: what those are that meet: rank, or node.
        index: the place.
        me: names this process in messages.
        stage: each claims once in each.

    Raises:
        StartError: another process has it, or the store was lost.
    """
    token = secrets.token_hex(8)
    store.leave_will(_gone_key(token), b"")  # one that died may come again
    key = f"{stage}/claim/{index}"
    claim = f"{token} {me}".encode()
    other = store.add(key, claim)
    if other is None:
        return
    other_token, _, name = other.decode("utf-8", "replace").partition(" ")
    if store.try_get(_gone_key(other_token)) is not None:
        store.set(key, claim)
        return
    text = (
        f"{member} {index} is there twice: on {name} and on {me}; give each {member} a number of "
        f"its own{' (--node-rank)' if member == 'node' else ''}"
    )
    for failed_key in _FAILED_KEYS:
        store.add(failed_key, text.encode())
    raise StartError(text)


def check_twin(found: Mapping[str, bytes]) -> None:
    """Ends a wait that TWIN_KEY has ended.

    Raises:
        StartError: two processes have the same place, or different versions.
    """
    if TWIN_KEY in found:
        raise StartError(found[TWIN_KEY].decode("utf-8", "replace"))


def _gone_key(token: str) -> str:
    return f"bootstrap/gone/{token}"


def _place_key(rank: int) -> str:
    return f"bootstrap/place/{rank}"


def _addresses(config: Config, deadline: float) -> list[str]:
    """Return the addresses at which the store of rank 0 listens."""
    if config.bootstrap_address:
        named = [a for a in resolve(config.bootstrap_address[0], deadline) if a in own_addresses()]
        # The name may stand for a service in front of this host.
        return named or reachable_addresses()
    if config.foreign_launcher is not None and config.foreign_launcher.one_host:
        return [_LOOPBACK]
    if config.network_interface:
        return [address_of(config.network_interface)]
    return reachable_addresses()


def _running_mpi() -> Any:
    """The module MPI of mpi4py, if the program has initialized it."""
    module: Any = sys.modules.get("mpi4py.MPI")
    running = module is not None and module.Is_initialized() and not module.Is_finalized()
    return module if running else None


def _share_by_mpi(mpi: Any, text: str | None, config: Config, deadline: float) -> str:
    world = mpi.COMM_WORLD
    if (world.rank, world.size) != (config.rank, config.size):
        raise StartError(
            f"this process is rank {config.rank} of {config.size}, but MPI has it as {world.rank} "
            f"of {world.size}; start the script with the mpirun of the MPI that it loads"
        )
    buffer = bytearray((text or "").encode("ascii").ljust(_MPI_TEXT_BYTES))
    request = world.Ibcast(buffer, 0)
    while not request.Test():
        remaining_s(deadline)
        time.sleep(_MPI_PAUSE_S)  # MPI has nothing to wait on with a deadline
    return buffer.decode("ascii").strip()


def _no_way(config: Config) -> str:
    launcher = "its launcher" if config.foreign_launcher is None else config.foreign_launcher.name
    return (
        f"rank {config.rank} of {config.size} was not told where the job's store listens "
        f"(HOROVOD_GLOO_RENDEZVOUS_ADDR is missing), and {launcher} lends no way to tell: start "
        "the script with horovodrun, or give all ranks HOROVOD_RENDEZVOUS=host:port of rank 0's "
        "host and HOROVOD_SECRET_KEY (openssl rand -hex 32)"
    )
