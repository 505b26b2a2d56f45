"""``horovodrun --join``: this host joins an elastic job by itself, without ssh."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import horovod
from horovod._base import files
from horovod._job.environment import without_job
from horovod._job.python_path import with_horovod_on_path
from horovod._rendezvous.messages import MAX_TIMEOUT_S
from horovod._rendezvous.secret import check_secret, secret_of
from horovod._rendezvous.store import StoreClient
from horovod._settings.config import Config
from horovod.errors import StartError, UsageError
from horovod.runner.output.console import say
from horovod.runner.protocol import joining
from horovod.runner.protocol.frames import Decoder, FrameError, encode
from horovod.runner.protocol.invitation import Invitation
from horovod.runner.protocol.joining import HostMessage, Receiver, Sender, Session, at_host
from horovod.runner.starting import local
from horovod.runner.system.signals import caught_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import IO

    from horovod.runner.starting.requests import JoinRequest

_CONNECT_S = 5.0  # to each address of the launcher
_ANSWER_S = 15.0
_LAST_WORD_S = 10.0  # from the end of an agent to that of its job
_DISCARDED = "the job goes on without this host, whose worker has failed or is not needed"
_READ_BYTES = 256 * 1024
_MOST_BYTES = 1 << 20  # of an invitation
_SECRET_NAMES = ("HOROVOD_SECRET_KEY", "HOROVOD_SECRET_FILE")
STDIN = "-"


def run(request: JoinRequest) -> int:
    """Join a job from the command line, and report why the visit is over.

    Raises:
        UsageError, StartError: see :func:`read_invitation` and :func:`join`.
    """
    invitation = read_invitation(request.where, request.environ, sys.stdin)
    with caught_signals() as interrupts:
        reason = join(request, invitation, interrupts, lambda line: say(sys.stderr, line))
    say(sys.stderr, reason)
    return 0


def read_invitation(where: str, environ: Mapping[str, str], stdin: IO[str]) -> Invitation:
    """Return the address of the job's store, and its secret.

    Args:
        where: see :class:`JoinRequest`.
        environ: may hold the secret, or name its file, for an address.
        stdin: is read for ``-``, and for an address without a secret.

    Raises:
        UsageError: there is neither such a file, nor is it an address; or the file is a link,
            belongs to another user, or others can read or write it, so that it may lead this host
            to a stranger's job.
        StartError: the file or the secret makes no sense.
    """
    if where == STDIN:
        return Invitation.from_json(stdin.read().encode())
    if os.path.exists(where):
        try:
            with os.fdopen(files.open_trusted(where, files.ANY_ACCESS), "rb") as file:
                return Invitation.from_json(file.read(_MOST_BYTES))
        except OSError as error:
            raise UsageError(f"--join {where}: {error.strerror}") from None
        except StartError as error:
            raise StartError(f"--join {where}: {error}; --join-file writes such a file") from None
    address, _, port = where.rpartition(":")
    if not address or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"--join {where}: there is no such file; name the file that the job's --join-file "
            "wrote, '-' for its text on stdin, or ADDRESS:PORT of the job's store"
        )
    return Invitation(((address.strip("[]"), int(port)),), _secret(environ, stdin))


def _secret(environ: Mapping[str, str], stdin: IO[str]) -> bytes:
    given = {name: environ[name] for name in _SECRET_NAMES if environ.get(name)}
    if given:
        return secret_of(Config.from_env(given))
    try:
        return check_secret(bytes.fromhex(stdin.readline().strip()))
    except ValueError:
        raise StartError(
            "--join ADDRESS:PORT needs the job's secret: 64 hexadecimal digits on stdin, in "
            "HOROVOD_SECRET_KEY, or in the file that HOROVOD_SECRET_FILE names"
        ) from None


def join(
    options: JoinRequest, invitation: Invitation, interrupts: int | None, say: Callable[[str], None]
) -> str:
    """Takes part in a job until it ends, or until a signal tells this host to leave.

    The first signal lets the workers commit and leave, the second ends them.

    Args:
        options: of the user.
        invitation: leads to the store of the job.
        interrupts: a descriptor from which signals can be read; None if this host gets none.
        say: takes one line.

    Returns:
        Why the stay is over.

    Raises:
        StartError: the job cannot be reached, refuses this host, or was lost.
    """
    with ExitStack() as stack:
        stay = _Stay(options, invitation, stack)
        say(f"this host, {options.host}, has joined the job with {options.slots} slot(s)")
        thread = threading.Thread(target=stay.run, name="horovod-joined", daemon=True)
        thread.start()
        with selectors.DefaultSelector() as selector:
            if interrupts is not None:
                selector.register(interrupts, selectors.EVENT_READ)
            selector.register(stay.ended_fd, selectors.EVENT_READ)
            times = 0
            while not stay.ended.is_set() and times < 2:
                ready = {key.fd for key, _ in selector.select()}
                if interrupts is not None and interrupts in ready and os.read(interrupts, 64):
                    times += 1
                    if times == 1:
                        say("this host leaves once its workers have; a second signal ends them now")
                        stay.leave()
        if times == 2:
            stay.abort()
        stay.close()
        thread.join(_ANSWER_S)
        if times == 2:
            return "its workers were ended by a second signal"
        if stay.failure:
            raise StartError(stay.failure)
        return stay.reason


class _Stay:
    """The stay of this host in a job.

    Raises:
        StartError: the job cannot be reached, or refuses this host.
    """

    def __init__(self, options: JoinRequest, invitation: Invitation, stack: ExitStack) -> None:
        self._options = options
        self._invitation = invitation
        self.ended = threading.Event()
        self.reason = ""
        self.failure = ""
        self.ended_fd, self._ended_write = os.pipe()
        stack.callback(os.close, self.ended_fd)
        stack.callback(os.close, self._ended_write)
        # The first two wait, each for another thread; no request on the third one does.
        endpoint = reached(invitation)
        self._orders, self._incoming, self._outgoing = (
            stack.enter_context(_connect(endpoint, invitation.secret)) for _ in range(3)
        )
        self._agent: subprocess.Popen[bytes] | None = None
        self._message = HostMessage(
            joining.JOIN,
            joining.new_visit(),
            options.host,
            options.slots,
            horovod.__version__,
        )
        self._join()

    def _join(self) -> None:
        gone = self._said(joining.GONE)
        self._orders.leave_will(joining.MESSAGES, gone, append=True)
        self._outgoing.append(joining.MESSAGES, self._message.to_json())
        key = joining.answer_key(self._message.visit)
        answer = self._orders.wait_all([key], _ANSWER_S).get(key)
        if answer is None:
            raise StartError(
                "the job does not answer: it lets no hosts join; was it started with --join-file?"
            )
        if answer:
            raise StartError(f"this host may not join: {answer.decode(errors='replace')}")

    def _said(self, kind: str) -> bytes:
        message = self._message
        return HostMessage(
            kind, message.visit, message.host, message.slots, message.version
        ).to_json()

    def run(self) -> None:
        """Starts agents when the launcher wants one, until the stay is over."""
        over = joining.over_key(self._message.visit)
        number = 0
        try:
            while True:
                session = Session(self._message.visit, number)
                found = self._orders.wait_all([session.wanted_key], MAX_TIMEOUT_S, over)
                if over in found:
                    self.reason = found[over].decode(errors="replace")
                    break
                if session.wanted_key in found:
                    self._serve(session)
                    number += 1
                    if self._options.once:
                        found = self._orders.wait_all([over], _LAST_WORD_S)
                        self.reason = found.get(over, b"").decode(errors="replace")
                        self.failure = "" if self.reason else _DISCARDED
                        break
        except (StartError, OSError) as error:
            self.failure = f"the job was lost: {error}"
        finally:
            self.ended.set()
            with suppress(OSError):
                os.write(self._ended_write, b"!")

    def leave(self) -> None:
        """Asks the launcher to let this host go."""
        with suppress(StartError):  # then run() hears of it, too
            self._outgoing.append(joining.MESSAGES, self._said(joining.LEAVE))

    def abort(self) -> None:
        """Ends the agent, which ends its workers."""
        agent = self._agent
        if agent is not None and agent.stdin is not None:
            with suppress(OSError, ValueError):
                agent.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                agent.wait(_ANSWER_S)

    def close(self) -> None:
        """Ends the connections; whoever waits for something there hears of it."""
        for each in (self._orders, self._incoming, self._outgoing):
            each.interrupt()

    def _serve(self, session: Session) -> None:
        """Runs one agent to its end.

        Raises:
            StartError: the store was lost.
            OSError: the agent cannot be started.
        """
        environ = dict(self._options.environ)
        self._agent = agent = local.start_agent(environ)
        listener = threading.Thread(target=self._listen, args=(session, agent), daemon=True)
        listener.start()
        complaints = threading.Thread(target=_show, args=(agent.stderr,), daemon=True)
        complaints.start()
        assert agent.stdout is not None
        sender = Sender(self._outgoing, session.to_launcher)
        try:
            while data := os.read(agent.stdout.fileno(), _READ_BYTES):
                sender.send(data)
            sender.send(b"")
            self._outgoing.set(session.broken_key, b"")
        finally:
            # Upon either of these the agent ends its workers, if it still has some.
            _close(agent.stdin)
            _close(agent.stdout)
            agent.wait()
            listener.join(_ANSWER_S)
            complaints.join(_ANSWER_S)
            self._agent = None

    def _listen(self, session: Session, agent: subprocess.Popen[bytes]) -> None:
        """Passes on what the launcher tells an agent, until either end is silent."""
        options, decoder = self._options, Decoder()
        environ = with_horovod_on_path(without_job(options.environ))
        receiver = Receiver(self._incoming, session, session.to_agent)
        assert agent.stdin is not None
        with suppress(StartError, FrameError, OSError, ValueError):
            while data := receiver.receive():
                for frame in decoder.feed(data):
                    own = at_host(
                        frame, self._invitation.secret, environ, options.cwd, options.python
                    )
                    agent.stdin.write(encode(own.kind, own.worker, own.payload))
                agent.stdin.flush()
        _close(agent.stdin)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with suppress(OSError, ValueError):
            pipe.close()


def _show(pipe: IO[bytes] | None) -> None:
    """Passes on what an agent complains about."""
    assert pipe is not None
    with pipe, suppress(OSError, ValueError):
        for line in pipe:
            sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()


def reached(invitation: Invitation) -> tuple[str, int]:
    """The first address of the launcher that answers.

    Raises:
        StartError: none does.
    """
    failures = []
    for address, port in invitation.endpoints:
        try:
            with StoreClient(address, port, invitation.secret, _CONNECT_S):
                return address, port
        except StartError as error:
            failures.append(f"\n    {error}")
    raise StartError("no address of the launcher answers:" + "".join(failures))


def _connect(endpoint: tuple[str, int], secret: bytes) -> StoreClient:
    address, port = endpoint
    return StoreClient(address, port, secret, purpose="launcher")
