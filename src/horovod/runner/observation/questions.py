"""Questions to all ranks: their stacks, or a trace. Answers come through the store of the job."""

from __future__ import annotations

import base64
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod._rendezvous.bounds import number_in
from horovod._rendezvous.observed import Command, answer_key
from horovod._rendezvous.waits import COMMAND_KEY

if TYPE_CHECKING:
    from horovod.runner.observation.subscriber import Subscriber
    from horovod.runner.observation.watched import WatchedJob

# Beyond the time until the ranks look for a question, and rank 0 for the end of a trace. A trace
# may take 10 s, and its transfer.
_STACKS_S, _TRACE_S = 8.0, 30.0
_MOST_STACK_BYTES = 1 << 20
_NO_ANSWER = (
    "no answer: the process is stopped or has ended, or native code keeps the interpreter's lock"
)


@dataclass
class _Question:
    """A question under way."""

    command: Command
    asker: Subscriber
    ranks: tuple[int, ...]
    deadline: float


class Questions:
    """Asks one question at a time, and passes the answers on.

    Args:
        job: with its store.
    """

    def __init__(self, job: WatchedJob) -> None:
        self._job = job
        self._store = job.store
        self._number = 0
        self._open: _Question | None = None

    @property
    def is_open(self) -> bool:
        """Whether an answer is awaited."""
        return self._open is not None

    def ask(self, request: dict[str, Any], asker: Subscriber, interval_s: float) -> None:
        """Put a question to the ranks.

        Args:
            request: ``{"do": "stacks"}`` or ``{"do": "trace", "steps": 10}``.
            asker: gets the answer.
            interval_s: how often the ranks report; they look for questions with every second report
                or, if that takes longer than 3 s, with each.
        """
        kind = str(request["do"])
        if self._open is not None:
            asker.answer({"type": kind, "problem": "another question is being answered; try again"})
            return
        is_trace = kind == "trace"
        try:
            num_steps = number_in(request.get("steps", 10), 1, 1000) if is_trace else 0
        except ValueError as error:
            asker.answer({"type": kind, "problem": f"steps: {error}"})
            return
        self._number += 1
        command = Command(self._number, kind, num_steps)
        membership = self._job.membership
        size = len(membership.hosts) if membership else 0
        ranks = (0,) if is_trace else tuple(range(size))
        limit_s = 2 * interval_s + (_TRACE_S if is_trace else _STACKS_S)
        self._open = _Question(command, asker, ranks, time.monotonic() + limit_s)
        self._store.set(COMMAND_KEY, command.to_json())

    def look(self) -> None:
        """Pass on the answers if all are there, or the time is over."""
        question = self._open
        if question is None:
            return
        keys = {answer_key(question.command.number, rank): rank for rank in question.ranks}
        found = self._store.wait_all(list(keys), 0.0)
        if len(found) < len(keys) and time.monotonic() < question.deadline:
            return
        self._open = None
        self._store.delete_prefix(COMMAND_KEY)
        self._store.delete_prefix(f"observe/answer/{question.command.number}/")
        answers = {keys[key]: value for key, value in found.items()}
        if question.command.kind == "trace":
            question.asker.answer(_trace(answers.get(0)))
        else:
            question.asker.answer(_stacks(question.ranks, answers))


def _trace(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {"type": "trace", "problem": f"rank 0: {_NO_ANSWER}"}
    if not value.startswith(b"="):
        return {"type": "trace", "problem": value[1:501].decode(errors="replace")}
    return {"type": "trace", "zlib": base64.b64encode(value[1:]).decode()}


def _stacks(ranks: tuple[int, ...], answers: dict[int, bytes]) -> dict[str, Any]:
    return {"type": "stacks", "ranks": {rank: _stack(answers.get(rank)) for rank in ranks}}


def _stack(value: bytes | None) -> str:
    if value is None or not value.startswith(b"="):
        return _NO_ANSWER
    try:
        text = zlib.decompressobj().decompress(value[1:], _MOST_STACK_BYTES)
    except zlib.error:
        return "a malformed answer"
    return text.decode(errors="replace")
