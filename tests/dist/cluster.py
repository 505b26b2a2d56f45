"""Hosts that are network namespaces of this machine, for jobs that run between hosts.

    with Cluster(2, rate_mbit=1000) as cluster:
        outcome = cluster.run(2, [sys.executable, "train.py"])

A *host* is a network namespace with one interface (``eth0``), joined by a veth pair to a bridge
in a namespace of its own, so that the network of the machine is never touched. Root and iproute2
are needed; :func:`why_not` tells what is missing. A rate holds in both directions of each host:
at the host's end of the pair, and at the bridge's port. What is shared are processors, memory and
the file system.

Names hold the id of this process. What a killed process left behind is removed by the next one.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from cluster_job import Job, JobHost, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

INTERFACE = "eth0"
MTU = 1500
# What TCP with timestamps can use of a rate: 1448 bytes of each frame of 1514.
WIRE_SHARE = (MTU - 52) / (MTU + 14)

_NAMESPACES = Path("/run/netns")
_OURS = re.compile(r"hvd(\d+)-\d+-\w+")
_CLONE_NEWNET = 0x40000000
_COMMAND_TIMEOUT_S = 20.0
# A bucket must hold what the interface sends between two ticks of its timer, and a whole
# unsegmented packet; more of it would let short messages pass above the rate.
_BURST_BYTES = 128 * 1024
# As a switch with a few megabytes of memory at 1 Gbit/s.
_QUEUE_MS = 20

_numbers = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


class ClusterError(RuntimeError):
    """A command that builds the network failed."""


def why_not() -> str:
    """What is missing for clusters on this machine; an empty text if nothing is."""
    if os.geteuid() != 0:
        return "emulated hosts need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"emulated hosts need iproute2: {' and '.join(missing)} not found"
    try:
        with Cluster(1, rate_mbit=1000):
            return ""
    except (ClusterError, OSError) as error:
        return f"emulated hosts cannot be made here: {error}"


@dataclass(frozen=True)
class Host:
    """One host of a cluster.

    Attributes:
        name: as ranks and messages have it.
        address: of its interface.
        namespace: its network namespace.
        port: its port at the bridge.
    """

    name: str
    address: str
    namespace: str
    port: str


class Cluster:
    """Hosts on a bridge; leaving the context removes all of it.

    Args:
        num_hosts: at least 1.
        rate_mbit: Mbit/s that each host can send, and receive; None for no limit.
        delay_ms: of each packet at the host's interface, if the kernel has netem; not together
            with a rate.

    Raises:
        ClusterError: the network cannot be made; nothing is left of it.
    """

    def __init__(
        self, num_hosts: int, rate_mbit: float | None = None, delay_ms: float | None = None
    ) -> None:
        assert rate_mbit is None or delay_ms is None
        prefix = f"hvd{os.getpid()}-{next(_numbers)}-"
        self._switch = f"{prefix}net"
        self.hosts = [
            Host(f"host{i}", f"10.77.0.{i + 1}", f"{prefix}h{i}", f"p{i}") for i in range(num_hosts)
        ]
        self._cleanup = ExitStack()
        remove_leftovers()
        try:
            self._make()
            for host in self.hosts:
                self._shape(host, rate_mbit, delay_ms)
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for name in (self._switch, *(host.namespace for host in self.hosts)):
            # Registered first: a failure in the midst of it leaves a name behind.
            self._cleanup.callback(_remove_namespace, name)
            _command("ip", "netns", "add", name)
        # No host may wait for a port that first listens whether there is a loop.
        _batch(self._switch, ["link add br0 type bridge forward_delay 0", "link set br0 up"])
        for host in self.hosts:
            pair = f"link add {host.port} type veth peer name {INTERFACE} netns {host.namespace}"
            port = f"link set {host.port} master br0 mtu {MTU} up"
            _batch(self._switch, [pair, port])
            address = f"address add {host.address}/24 dev {INTERFACE}"
            _batch(host.namespace, ["link set lo up", f"link set {INTERFACE} up", address])

    def _shape(self, host: Host, rate_mbit: float | None, delay_ms: float | None) -> None:
        ends = ((host.namespace, INTERFACE), (self._switch, host.port))
        if rate_mbit is not None:
            bucket = ("burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms")
            for namespace, interface in ends:
                root = ("qdisc", "replace", "dev", interface, "root")
                _command("tc", "-n", namespace, *root, "tbf", "rate", f"{rate_mbit}mbit", *bucket)
        if delay_ms is not None:
            root = ("qdisc", "replace", "dev", INTERFACE, "root", "netem")
            _command("tc", "-n", host.namespace, *root, "delay", f"{delay_ms}ms")

    def cut(self, host: int) -> None:
        """Takes a host off the network: its packets, and those for it, vanish without a word."""
        _command("ip", "-n", self._switch, "link", "set", self.hosts[host].port, "down")

    def mend(self, host: int) -> None:
        """Brings a host back that was cut off."""
        _command("ip", "-n", self._switch, "link", "set", self.hosts[host].port, "up")

    def start(
        self,
        ranks_per_host: int,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        relay: bool = False,
    ) -> Job:
        """Starts a job with ranks on all hosts; the caller has to close it.

        Args:
            ranks_per_host: how many.
            command: what every rank executes.
            env: variables beside those of this process and of the launcher.
            relay: write what the ranks write to stderr, too.
        """
        hosts = [
            JobHost(host.name, host.address, INTERFACE, partial(entered, host.namespace))
            for host in self.hosts
        ]
        return Job(hosts, ranks_per_host, command, env or {}, relay)

    def run(
        self,
        ranks_per_host: int,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        deadline_s: float = 60.0,
        relay: bool = False,
    ) -> Outcome:
        """Runs a job to its end, see :meth:`start`; what runs at the deadline is killed."""
        with self.start(ranks_per_host, command, env, relay) as job:
            return job.wait(deadline_s)

    def close(self) -> None:
        """Removes everything. Idempotent."""
        self._cleanup.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Sockets that this thread makes, and processes that it starts, are in the namespace."""
    with ExitStack() as stack:
        own = stack.enter_context(open("/proc/thread-self/ns/net"))
        other = stack.enter_context(open(_NAMESPACES / namespace))
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot enter a network namespace: {os.strerror(code)}")


def remove_leftovers() -> None:
    """Removes the namespaces of processes that are gone."""
    names = [path.name for path in _NAMESPACES.iterdir()] if _NAMESPACES.is_dir() else []
    for name in names:
        ours = _OURS.fullmatch(name)
        if ours and not psutil.pid_exists(int(ours[1])):
            _remove_namespace(name)


def _remove_namespace(name: str) -> None:
    # A pair goes with either end of it. Another process may be removing the same leftovers.
    try:
        _command("ip", "netns", "delete", name)
    except ClusterError:
        if (_NAMESPACES / name).exists():
            raise


def _batch(namespace: str, lines: Sequence[str]) -> None:
    _command("ip", "-n", namespace, "-batch", "-", text="\n".join(lines))


def _command(*words: str, text: str = "") -> None:
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S
    )
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(words)} {text!r}: {done.stderr.strip()}")
