"""A real sshd on each host of an emulated cluster, and an ssh that finds its way to them.

    with Cluster(2) as cluster, SshHosts(cluster, folder) as ssh_hosts:
        with ssh_hosts.launched("-np", "4", "-H", "host0:2,host1:2", "true") as launcher:
            ...

Keys, known hosts and configuration lie in the folder; a wrapper named ssh makes the system's ssh
read them, because it looks for the user's configuration in the password file, not in HOME. The
names of the hosts are known to ssh only.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from cluster import entered
from cluster import why_not as why_no_cluster
from launcher import launched

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cluster import Cluster, Host
    from launcher import Launcher

PORT = 22
_DEADLINE_S = 20.0


def why_not() -> str:
    """What is missing for jobs over ssh on this machine; an empty text if nothing is."""
    missing = [tool for tool in ("ssh", "ssh-keygen") if shutil.which(tool) is None]
    if _sshd() is None:
        missing.append("sshd")
    if missing:
        return f"jobs over ssh need openssh-server: {' and '.join(missing)} not found"
    return why_no_cluster()


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


class SshHosts:
    """The running daemons; leaving the context ends them.

    Args:
        cluster: its hosts get a sshd each.
        folder: for keys and configuration.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._cleanup = ExitStack()
        self.daemons: list[subprocess.Popen[bytes]] = []
        try:
            self._write_files()
            for host in cluster.hosts:
                self._start(host)
        except BaseException:
            self._cleanup.close()
            raise

    def _write_files(self) -> None:
        os.chmod(self._folder, 0o700)
        for name in ("host_key", "user_key", "stranger_key"):
            path = str(self._folder / name)
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path]
            subprocess.run(words, check=True, timeout=_DEADLINE_S)
        shutil.copy(self._folder / "user_key.pub", self._folder / "authorized_keys")
        host_key = (self._folder / "host_key.pub").read_text()
        known = "".join(f"{host.address} {host_key}" for host in self.cluster.hosts)
        (self._folder / "known_hosts").write_text(known)
        self._write_client()
        self._write_server()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd locks itself up there

    def _write_client(self) -> None:
        config = self._folder / "ssh_config"
        lines = [f"Host {host.name}\n  HostName {host.address}\n" for host in self.cluster.hosts]
        # As many names as a test likes for the first host.
        lines += [f"Host alias*\n  HostName {self.cluster.hosts[0].address}\n"]
        lines += [
            "Host *\n  User root\n  IdentitiesOnly yes\n  StrictHostKeyChecking yes\n",
            f"  IdentityFile {self._folder}/user_key\n",
            f"  UserKnownHostsFile {self._folder}/known_hosts\n",
        ]
        config.write_text("".join(lines))
        binaries = self._folder / "bin"
        binaries.mkdir()
        wrapper = binaries / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        wrapper.chmod(0o755)

    def _write_server(self) -> None:
        (self._folder / "sshd_config").write_text(
            f"HostKey {self._folder}/host_key\n"
            f"AuthorizedKeysFile {self._folder}/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "MaxStartups 200\nPidFile none\nPrintMotd no\n"
        )

    def _start(self, host: Host) -> None:
        sshd = _sshd()
        assert sshd is not None
        config = f"{self._folder}/sshd_config"
        address = ["-o", f"ListenAddress={host.address}:{PORT}"]
        with entered(host.namespace):
            log = self._cleanup.enter_context((self._folder / f"{host.name}.log").open("wb"))
            daemon = subprocess.Popen([sshd, "-D", "-e", "-f", config, *address], stderr=log)
            self.daemons.append(daemon)
            self._cleanup.callback(_end, daemon)
            _wait_for_listener(host.address)

    @property
    def environment(self) -> dict[str, str]:
        """What a launcher needs to find the hosts."""
        return {"PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}"}

    @property
    def stranger_key(self) -> str:
        """A private key that no host knows."""
        return str(self._folder / "stranger_key")

    @contextmanager
    def launched(self, *words: str, env: Mapping[str, str] | None = None) -> Iterator[Launcher]:
        """A running horovodrun on the first host."""
        with ExitStack() as stack:
            with entered(self.cluster.hosts[0].namespace):
                variables = {**self.environment, **(env or {})}
                launcher = stack.enter_context(launched(*words, **variables))
            yield launcher

    def horovodrun(self, *words: str, **env: str) -> Launcher:
        """Runs horovodrun on the first host to its end."""
        with self.launched(*words, env=env) as launcher:
            launcher.wait()
        return launcher

    def processes(self, host: int) -> list[psutil.Process]:
        """Those that run on a host, without sshd and its sessions."""
        path = f"/run/netns/{self.cluster.hosts[host].namespace}"
        return [
            process
            for process in psutil.process_iter()
            if _same_file(f"/proc/{process.pid}/ns/net", path) and _name(process) != "sshd"
        ]

    def cut_sessions(self, host: int) -> None:
        """Kills the sessions of a host's sshd, but nothing that they started."""
        for process in psutil.Process(self.daemons[host].pid).children(recursive=True):
            # One that is killed may take another one with it.
            with suppress(psutil.NoSuchProcess):
                if _name(process) == "sshd":
                    process.kill()

    def assert_nothing_runs(self, timeout_s: float) -> None:
        """Waits until no process of a job is left on any host."""
        deadline = time.monotonic() + timeout_s
        for host in range(len(self.cluster.hosts)):
            # Meanwhile an agent may make the process that ends it.
            while left := [each for each in self.processes(host) if each.is_running()]:
                assert time.monotonic() < deadline, f"on host {host}: {left}"
                psutil.wait_procs(left, max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Ends all daemons. Idempotent."""
        self._cleanup.close()

    def __enter__(self) -> SshHosts:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _end(daemon: subprocess.Popen[bytes]) -> None:
    family = psutil.Process(daemon.pid).children(recursive=True) if daemon.poll() is None else []
    daemon.kill()
    daemon.wait(_DEADLINE_S)
    for process in family:
        if process.is_running() and _name(process) == "sshd":
            process.kill()


def _wait_for_listener(address: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            socket.create_connection((address, PORT), _DEADLINE_S).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"no sshd at {address}"
            time.sleep(0.01)  # a listener gives no sign


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False  # it ended meanwhile


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
