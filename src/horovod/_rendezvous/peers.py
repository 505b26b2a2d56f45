"""Connects this rank with every other one and hands the descriptors over to the native engine.

Ranks of one host meet over an abstract unix socket and exchange their ports in shared memory;
ranks of different hosts open a TCP connection for control and one or more for data. The higher
rank connects to the lower one. A thread accepts meanwhile and needs nothing from the connecting
side, so no order in which the ranks arrive can block them.
"""

from __future__ import annotations

import os
import queue
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import horovod
from horovod._rendezvous.accept import Acceptor
from horovod._rendezvous.dial import OpenSocket, dial, retrying
from horovod._rendezvous.handshake import Hello
from horovod._rendezvous.link_speed import LinkSpeeds, agree_on_speeds, number_hosts, probes
from horovod._rendezvous.local import Inbox, Port, connect_unix, receive_inbox, send_inbox
from horovod._rendezvous.roster import RankInfo, Roster, describe_ranks, host_key
from horovod._rendezvous.secret import check_secret
from horovod._rendezvous.sockets import (
    ELASTIC_SILENCE_S,
    close_quietly,
    connect_tcp,
    limit_silence,
    remaining_s,
    watch_closely,
)
from horovod.errors import StartError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from horovod._rendezvous.incarnation import Incarnation
    from horovod._rendezvous.store import StoreClient
    from horovod._settings.config import Config

__all__ = ["Connections", "Port", "connect_peers"]

PortT = TypeVar("PortT", bound=Port)

# What a connection is for: the rank of the peer, the purpose, and the number of a data connection.
_Link = tuple[int, str, int]

_LOOPBACK = ("127.0.0.1", "::1")

# How often a rank that waits for late ones asks the store whether one of them has given up.
_LOOK_AROUND_S = 0.5


@dataclass(frozen=True)
class Connections(Generic[PortT]):
    """The connections for the engine. Descriptors are close-on-exec and belong to the receiver.

    Sockets are in non-blocking mode.

    Attributes:
        port: this rank's inbox; None when no other rank is on this host.
        local_peers: (rank, local index, segment fd, doorbell fd, liveness socket fd) of each other
            rank on this host, in the order of ranks.
        remote_peers: (rank, control socket fd, data socket fds) of each rank on another host. There
            are as many data sockets on both ends, in the same order.
        rank_names: ``host:pid`` of each rank, for messages.
        hosts: the host of each rank, by number.
        speeds: of the network between the hosts.
        master: address of rank 0, and the port that it keeps free; the port is 0 for none.
    """

    port: PortT | None
    local_peers: tuple[tuple[int, int, int, int, int], ...]
    remote_peers: tuple[tuple[int, int, list[int]], ...]
    rank_names: tuple[str, ...]
    hosts: tuple[int, ...]
    speeds: LinkSpeeds
    master: tuple[str, int] = ("", 0)

    def close(self) -> None:
        """Closes all descriptors, for a receiver that cannot use them; call it at most once."""
        for local_peer in self.local_peers:
            for descriptor in local_peer[2:]:
                os.close(descriptor)
        for _, control, data in self.remote_peers:
            for descriptor in (control, *data):
                os.close(descriptor)


def connect_peers(
    config: Config,
    secret: bytes,
    store: StoreClient | None,
    make_port: Callable[[int, int], PortT],
    incarnation: Incarnation,
    version: str | None = None,
    free_port: int = 0,
) -> Connections[PortT]:
    """Meets all ranks of the job and connects with each of them.

    Args:
        config: tells rank, size, host name and ``start_timeout_s``, the time for all of this.
        secret: of the job, 32 bytes.
        store: a connection to the job's store; not used (may be None) in a job of one rank.
        make_port: called as ``make_port(num_local, local_index)`` if another rank is on this host.
        incarnation: of the engines that connect; each call in a job needs another one, the same on
            all ranks.
        version: of Horovod, which must be equal on all ranks; the installed one if None.
        free_port: of this host, kept free for PyTorch, for the others to learn; 0 for none.

    Raises:
        StartError: ranks are missing, there twice, disagree on size or version, or cannot be
            connected in time. Nothing stays open then.
    """
    check_secret(secret)
    if config.size == 1:
        name = f"{config.hostname}:{os.getpid()}"
        return Connections(None, (), (), (name,), (0,), LinkSpeeds())
    if store is None:
        raise StartError(f"rank {config.rank} of {config.size} has no connection to a store")
    deadline = time.monotonic() + config.start_timeout_s
    with ExitStack() as cleanup:
        acceptor = cleanup.enter_context(
            Acceptor(_own_address(config, store), config.rank, config.size, incarnation, secret)
        )
        info = RankInfo(
            rank=config.rank,
            size=config.size,
            host=config.hostname,
            pid=os.getpid(),
            host_key=host_key(config.hostname),
            version=horovod.__version__ if version is None else version,
            tcp_address=acceptor.tcp_address,
            tcp_port=acceptor.tcp_port,
            unix_name=acceptor.unix_name,
            num_streams=config.num_streams,
            free_port=free_port,
        )
        roster = Roster(store, incarnation, info, config.start_timeout_s)
        wiring = cleanup.enter_context(
            _Wiring(info, secret, incarnation, deadline, acceptor, make_port, roster.first_failure)
        )
        try:
            roster.announce()
            infos = roster.wait_all()
            wiring.connect(infos)
            speeds = agree_on_speeds(
                store, incarnation.prefix, info.rank, wiring.hosts, wiring.speed_links(), deadline
            )
            return wiring.detach(infos, speeds, gives_up_soon=config.elastic)
        except TimeoutError as error:
            cause = f"the start took longer than {config.start_timeout_s:g} s (--start-timeout)"
            raise _explain(roster, config, cause) from error
        except StartError as error:
            raise _explain(roster, config, str(error)) from error
        except BaseException as error:
            roster.report_failure(f"{type(error).__name__}: {error}")
            raise


def _own_address(config: Config, store: StoreClient) -> str:
    """Return the address at which the ranks of other hosts reach this one."""
    if not config.network_interface or store.local_address in _LOOPBACK:
        return store.local_address
    # Here, because a job on one host does not need it.
    from horovod._rendezvous.interfaces import address_of

    return address_of(config.network_interface)


def _explain(roster: Roster, config: Config, cause: str) -> StartError:
    """Adds who we are and, if another rank gave up before, its cause; tells the others ours."""
    first_cause = roster.first_failure()
    roster.report_failure(cause)
    if first_cause and first_cause not in cause:
        cause = f"{cause}; before that, {first_cause}"
    return StartError(
        f"rank {config.rank} of {config.size} on {config.hostname} could not start: {cause}"
    )


class _Wiring(Generic[PortT]):
    """The connections of one rank while they are made; what is not detached gets closed."""

    def __init__(
        self,
        me: RankInfo,
        secret: bytes,
        incarnation: Incarnation,
        deadline: float,
        acceptor: Acceptor,
        make_port: Callable[[int, int], PortT],
        first_failure: Callable[[], str],
    ) -> None:
        self._me = me
        self._secret = secret
        self._incarnation = incarnation
        self._deadline = deadline
        self._acceptor = acceptor
        self._make_port = make_port
        self._first_failure = first_failure
        self._port: PortT | None = None
        self._links: dict[_Link, socket.socket] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._probes: set[tuple[int, int]] = set()
        self.hosts: tuple[int, ...] = ()

    def __enter__(self) -> _Wiring[PortT]:
        return self

    def __exit__(self, *exception: object) -> None:
        for sock in self._links.values():
            close_quietly(sock)
        for inbox in self._inboxes.values():
            inbox.close()
        # A traceback may keep this object alive; the port must not live as long.
        self._port = None

    def connect(self, infos: list[RankInfo]) -> None:
        """Connects with every rank, in four steps of which only the last two wait for peers."""
        self.hosts = number_hosts([info.host_key for info in infos])
        self._probes = set(probes(self.hosts))
        local = [info for info in infos if info.host_key == self._me.host_key]
        local_index = [info.rank for info in local].index(self._me.rank)
        if len(local) > 1:
            self._port = self._make_port(len(local), local_index)
        for info in infos[: self._me.rank]:
            for link in self._links_to(info):
                self._links[link] = self._dial(info, link)
        self._send_port(local_index, range(self._me.rank))
        self._accept(infos[self._me.rank + 1 :])
        self._send_port(local_index, range(self._me.rank + 1, self._me.size))
        for index, info in enumerate(local):
            if info.rank != self._me.rank:
                self._inboxes[info.rank] = self._receive_port(info, index)

    def speed_links(self) -> dict[int, socket.socket]:
        """The connections that serve to measure the network, by peer."""
        return {
            rank: sock for (rank, purpose, _), sock in self._links.items() if purpose == "speed"
        }

    def _links_to(self, info: RankInfo) -> list[_Link]:
        if info.host_key == self._me.host_key:
            return [(info.rank, "local", 0)]
        links = [(info.rank, "control", 0)]
        links += [(info.rank, "data", stream) for stream in range(self._me.num_streams)]
        me, peer = self._me.rank, info.rank
        if not self._probes.isdisjoint({(me, peer), (peer, me)}):
            links.append((info.rank, "speed", 0))
        return links

    def _dial(self, info: RankInfo, link: _Link) -> socket.socket:
        _, purpose, stream = link
        open_socket: OpenSocket
        if purpose == "local":
            open_socket = retrying(partial(connect_unix, info.unix_name), BlockingIOError)
            address = "its unix socket"
        else:
            open_socket = partial(connect_tcp, info.tcp_address, info.tcp_port)
            address = f"{info.tcp_address} port {info.tcp_port}"
        hello = Hello(purpose, self._me.rank, info.rank, self._incarnation, stream)
        what = f"rank {info.rank} ({info.name}) at {address}"
        return dial(open_socket, self._secret, hello, self._deadline, what)[0]

    def _accept(self, infos: list[RankInfo]) -> None:
        """Takes the connections of higher ranks from the acceptor until none is missing."""
        missing = {link for info in infos for link in self._links_to(info)}
        while missing:
            try:
                admitted = self._acceptor.take(
                    min(self._deadline, time.monotonic() + _LOOK_AROUND_S)
                )
            except (TimeoutError, queue.Empty):
                late = {link[0] for link in missing}
                self._look_around([info for info in infos if info.rank in late])
                continue
            hello = admitted.hello
            link = (hello.rank, hello.purpose, hello.stream)
            # A peer dials again when it did not see our welcome: the newest connection counts.
            close_quietly(self._links.pop(link, None))
            self._links[link] = admitted.sock
            missing.discard(link)

    def _look_around(self, late: list[RankInfo]) -> None:
        """Raises if it makes no sense to wait longer for the ranks that are late."""
        failure = self._first_failure()
        if failure:
            raise StartError(failure)
        if time.monotonic() < self._deadline:
            return
        raise StartError(
            f"no connection came in time from {describe_ranks(late)}; look for their errors, "
            "check that a firewall lets them reach "
            f"{self._me.tcp_address} port {self._me.tcp_port}, or give "
            "more time with --start-timeout (HOROVOD_START_TIMEOUT)"
        )

    def _send_port(self, local_index: int, ranks: range) -> None:
        for rank in ranks:
            sock = self._links.get((rank, "local", 0))
            if sock is None or self._port is None:
                continue
            try:
                send_inbox(sock, self._me.rank, local_index, self._port, self._deadline)
            except OSError as error:
                raise StartError(f"rank {rank} on this host was lost: {error}") from error

    def _receive_port(self, info: RankInfo, local_index: int) -> Inbox:
        try:
            inbox = receive_inbox(self._links[info.rank, "local", 0], self._deadline)
        except TimeoutError:
            raise StartError(
                f"rank {info.rank} ({info.name}) on this host did not send its port in time; look "
                "for its error, or give more time with --start-timeout (HOROVOD_START_TIMEOUT)"
            ) from None
        except OSError as error:
            raise StartError(
                f"rank {info.rank} ({info.name}) on this host did not send its port: {error}"
            ) from error
        if (inbox.rank, inbox.local_index) != (info.rank, local_index):
            inbox.close()
            raise StartError(f"rank {info.rank} ({info.name}) takes itself for another rank")
        return inbox

    def detach(
        self, infos: list[RankInfo], speeds: LinkSpeeds, *, gives_up_soon: bool
    ) -> Connections[PortT]:
        """Return the engine's connections; nothing of them is closed with this object any more."""
        remaining_s(self._deadline)
        for rank in self.speed_links():
            close_quietly(self._links.pop((rank, "speed", 0)))
        for (_, purpose, _), sock in self._links.items():
            sock.setblocking(False)
            if purpose == "control" and gives_up_soon:
                watch_closely(sock, ELASTIC_SILENCE_S)
            elif purpose == "control":
                limit_silence(sock)
        descriptors = {link: sock.detach() for link, sock in self._links.items()}
        connections = Connections(
            port=self._port,
            local_peers=tuple(
                (
                    rank,
                    inbox.local_index,
                    inbox.segment_fd,
                    inbox.doorbell_fd,
                    descriptors[rank, "local", 0],
                )
                for rank, inbox in sorted(self._inboxes.items())
            ),
            remote_peers=tuple(
                (
                    info.rank,
                    descriptors[info.rank, "control", 0],
                    [
                        descriptors[info.rank, "data", stream]
                        for stream in range(self._me.num_streams)
                    ],
                )
                for info in infos
                if info.host_key != self._me.host_key
            ),
            rank_names=tuple(info.name for info in infos),
            hosts=self.hosts,
            speeds=speeds,
            master=(infos[0].tcp_address, infos[0].free_port),
        )
        self._inboxes.clear()
        return connections
