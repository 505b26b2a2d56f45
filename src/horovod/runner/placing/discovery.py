"""Which hosts a job may use now, for jobs whose hosts come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress

from horovod.errors import StartError, UsageError
from horovod.runner.placing.hosts import parse_hosts

# A script that hangs would keep everybody who waits for hosts waiting.
_TIMEOUT_S = 60.0
# Of a line that cannot be read.
_MOST_QUOTED = 80


class HostDiscovery:
    """Tells which hosts there are; derive from it to ask your own cluster."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts that may be used now, and how many ranks each may hold.

        It is called about once a second, from one thread.
        """
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """Asks a command, which prints one ``host:slots`` or ``host`` per line.

    Args:
        discovery_script: a command line of the shell, such as ``./hosts.sh --zone a``.
        slots: of a host that the command prints without a number; None refuses one.
        timeout_s: after which the command is ended, in seconds.

    Example:
        >>> HostDiscoveryScript("echo worker-0:2", None).find_available_hosts_and_slots()
        {'worker-0': 2}
    """

    def __init__(
        self, discovery_script: str, slots: int | None, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._command = discovery_script
        self._slots = slots
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None
        self._closed = False

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts that the command prints; none if it prints nothing.

        Raises:
            StartError: the command failed, or did not end in time.
            UsageError: a line cannot be read, or has no number of slots.
        """
        hosts: dict[str, int] = {}
        for number, line in enumerate(self._output().splitlines(), start=1):
            if line.strip():
                name, slots = self._parse(line.strip(), number)
                hosts[name] = hosts.get(name, 0) + slots
        return hosts

    def _parse(self, line: str, number: int) -> tuple[str, int]:
        where = f"line {number} of the host discovery script {self._command!r}"
        shown = repr(line if len(line) <= _MOST_QUOTED else f"{line[:_MOST_QUOTED]}…")
        try:
            (host,) = parse_hosts(line, least_slots=0)
        except (UsageError, ValueError) as error:
            raise UsageError(f"{where}: cannot read {shown} ({error})") from None
        slots = self._slots if host.slots is None else host.slots
        if slots is None:
            raise UsageError(
                f"{where}: {shown} gives no number of slots: print host:slots, or give "
                "--slots-per-host"
            )
        return host.name, slots

    def close(self) -> None:
        """Ends a command that runs, with all that it started; from any thread."""
        with self._lock:
            self._closed = True
            if self._running is not None:
                _kill(self._running)

    def _output(self) -> str:
        process = self._start()
        try:
            output, _ = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise StartError(
                f"the host discovery script {self._command!r} did not end within "
                f"{self._timeout_s:g} s"
            ) from None
        except UnicodeDecodeError as error:
            raise StartError(
                f"the host discovery script {self._command!r} printed something that is not "
                f"text: {error}"
            ) from None
        finally:
            with self._lock:
                self._running = None
                _kill(process)
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
        if process.returncode != 0:
            raise StartError(
                f"the host discovery script {self._command!r} failed with exit code "
                f"{process.returncode}"
            )
        return output

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise StartError("the host discovery script is no longer called")
            # A session of its own, so that all that the command started ends with it.
            self._running = subprocess.Popen(
                self._command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            return self._running


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills a command with what it started; not if it has been reaped, as its pid may be anew."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class FixedHosts(HostDiscovery):
    """Hosts that are told, and may be told anew at any time, from any thread.

    Args:
        host_slots: how many ranks each host may hold.
    """

    def __init__(self, host_slots: dict[str, int]) -> None:
        self._lock = threading.Lock()
        self._host_slots = dict(host_slots)

    def set(self, host_slots: dict[str, int]) -> None:
        """Replaces the hosts."""
        with self._lock:
            self._host_slots = dict(host_slots)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """A copy of the hosts, so that whoever keeps the last answer notices a change."""
        with self._lock:
            return dict(self._host_slots)
