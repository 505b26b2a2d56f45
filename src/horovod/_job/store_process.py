"""The store of a job as a process of its own: ``python -m horovod._job.store_process``.

What it needs comes over stdin as one line of JSON, because it holds the secret. It answers with one
line that tells where it listens.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from horovod._job.environment import python_command, with_horovod_on_path, without_job
from horovod._rendezvous.server import StoreServer
from horovod._settings.config import inherited_environment
from horovod.errors import StartError

_END = "end\n"
_END_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class StoreProcess:
    """A store that was started.

    Attributes:
        endpoint: address and port at which it listens.
        process: it.
    """

    endpoint: tuple[str, int]
    process: subprocess.Popen[str]

    def close(self) -> None:
        """Ends the process. Idempotent."""
        if self.process.returncode is None:
            try:
                self.process.communicate(_END, timeout=_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()


def start_store_process(address: str, port: int, secret: bytes) -> StoreProcess:
    """Starts a store; see :func:`horovod._job.job.open_job_process`.

    Raises:
        StartError: it cannot be started, or cannot listen.
    """
    process = subprocess.Popen(
        python_command(__name__),
        env=with_horovod_on_path(without_job(inherited_environment())),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C ends the ranks, who then need the store
    )
    assert process.stdin is not None
    assert process.stdout is not None
    told = {"address": address, "port": port, "secret": secret.hex()}
    try:
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline() or "{}")
    except (OSError, ValueError):
        answer = {}
    if "endpoint" not in answer:
        process.kill()
        process.communicate()
        raise StartError(f"the store cannot be started: {answer.get('error', 'it ended')}")
    return StoreProcess((str(answer["endpoint"][0]), int(answer["endpoint"][1])), process)


def main() -> int:
    """Serves until it is told to end, or the launcher is gone and nobody is connected any more."""
    told = json.loads(sys.stdin.readline())
    try:
        server = StoreServer(bytes.fromhex(told["secret"]), told["address"], told["port"])
    except StartError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    with server:
        print(json.dumps({"endpoint": (server.address, server.port)}), flush=True)
        if sys.stdin.readline() != _END:
            server.wait_unused()
    return 0


if __name__ == "__main__":
    sys.exit(main())
