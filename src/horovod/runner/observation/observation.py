"""Makes the views of a job while it is watched; loaded when there is a viewer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._rendezvous.logged import LOGGED_KEY, Logged
from horovod._rendezvous.observed import OBSERVED_PREFIX, Observed, observed_key
from horovod._rendezvous.waits import OBSERVE_KEY
from horovod.errors import StartError
from horovod.runner.observation.assembler import Assembler
from horovod.runner.observation.questions import Questions
from horovod.runner.observation.records import JobView
from horovod.runner.observation.verdicts import is_nearly_stuck, judge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod.runner.observation.news import JobNews
    from horovod.runner.observation.records import RankView, Verdict
    from horovod.runner.observation.watched import WatchedJob

# A report of a rank costs the launcher about half a millisecond, with all that follows.
_REPORTS_PER_S = 20.0
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.5, 10.0
# Once no rank has submitted anything for some time, reports are read so many times as often: the
# next of them decides whether the job is stuck.
_LOOKS_WHILE_STILL = 4


class Observation:
    """Reads the reports of the ranks from the store, and follows the generations of the job.

    Args:
        job: with its store.
        news: what the launcher has learned.
        key: of the job.
        command: what the ranks run.
        began_at: seconds since the epoch.

    Attributes:
        interval_s: how often the ranks report.
        questions: of viewers to the ranks.
    """

    def __init__(
        self, job: WatchedJob, news: JobNews, key: str, command: str, began_at: float
    ) -> None:
        self._job = job
        self._news = news
        self._key = key
        self._command = command
        self._began_at = began_at
        self._generation = -1
        self._size = 0
        self._assembler = Assembler(_LEAST_INTERVAL_S)
        self._number = 0
        self._told: dict[int, bytes] = {}
        self._logged: Logged | None = None
        self._verdicts: tuple[Verdict, ...] = ()
        self._is_nearly_stuck = False
        self.interval_s = _LEAST_INTERVAL_S
        self.questions = Questions(job)

    def look_again_in_s(self) -> float:
        """Return after how many seconds the next view is due."""
        return self.interval_s / (_LOOKS_WHILE_STILL if self._is_nearly_stuck else 1)

    def begin(self) -> None:
        """Ask the ranks for reports; what they told earlier viewers does not count."""
        self._generation = -1
        self._job.store.delete_prefix(OBSERVED_PREFIX)
        self.follow()
        self._ask_for_reports()

    def _ask_for_reports(self) -> None:
        self._job.store.set(OBSERVE_KEY, b"%.3f" % self.interval_s)

    def follow(self) -> None:
        """Begin anew if the job has other ranks now."""
        membership = self._job.membership
        if membership is None or membership.generation == self._generation:
            return
        is_change = self._generation >= 0
        if is_change:
            # Those of the one before, too: its ranks may have told until their next commit.
            for over in range(max(0, self._generation - 1), membership.generation):
                self._job.store.delete_prefix(f"{OBSERVED_PREFIX}{over}/")
        self._generation, self._size = membership.generation, len(membership.hosts)
        interval_s = max(_LEAST_INTERVAL_S, self._size / _REPORTS_PER_S)
        self.interval_s = min(interval_s, _MOST_INTERVAL_S)
        self._assembler = Assembler(self.interval_s)
        self._assembler.follow(membership.hosts)
        self._told = {}
        self._verdicts = ()
        if is_change:
            hosts = len(set(membership.hosts))
            where = f"{hosts} hosts" if hosts > 1 else "one host"
            text = f"generation {self._generation}: {self._size} ranks on {where}"
            self._news.add("generation", text)
            self._ask_for_reports()

    def view(self, now: float, ended: str) -> JobView:
        """Return the newest view.

        Args:
            now: on the monotonic clock.
            ended: how the job ended; empty while it runs.

        Raises:
            StartError: the store was closed.
        """
        self._read(now)
        windows = self._with_ends(self._assembler.windows(now))
        ranks = tuple(
            replace(view, said=self._news.last_line_of(view.rank))
            for view in self._with_ends(self._assembler.views(now))
        )
        self._number += 1
        still_s = self._assembler.still_s(now)
        self._verdicts = judge(windows, still_s, self._verdicts)
        self._is_nearly_stuck = is_nearly_stuck(windows, still_s)
        return JobView(
            number=self._number,
            at=time.time(),
            job=self._key,
            command=self._command,
            began_at=self._began_at,
            generation=max(0, self._generation),
            ranks=ranks,
            verdicts=self._verdicts,
            events=self._news.events(),
            logged_step=-1 if self._logged is None else self._logged.step,
            logged={} if self._logged is None else self._logged.values,
            ended=ended,
        )

    def _with_ends(self, views: Iterable[RankView]) -> list[RankView]:
        """Return views that say which ranks have ended."""
        state_of = self._news.state_of
        return [replace(view, state=state_of(view.rank) or view.state) for view in views]

    def _read(self, now: float) -> None:
        if self._generation < 0:
            return
        keys = {observed_key(self._generation, rank): rank for rank in range(self._size)}
        found = dict(self._job.store.wait_all([*keys, LOGGED_KEY], 0.0))
        values = found.pop(LOGGED_KEY, None)
        if values is not None and self._told.get(-1) != values:
            self._told[-1] = values
            self._take_logged(values)
        fresh = {}
        for key, text in found.items():
            rank = keys[key]
            if self._told.get(rank) != text:
                self._told[rank] = text
                report = self._parsed(rank, text)
                if report is not None:
                    fresh[rank] = report
        self._assembler.add(now, fresh)

    def _take_logged(self, text: bytes) -> None:
        try:
            latest = Logged.from_json(text)
        except StartError as error:
            self._news.add("warning", str(error), 0)
            return
        earlier = self._logged.values if self._logged else {}
        self._logged = Logged(latest.step, {**earlier, **latest.values})

    def _parsed(self, rank: int, text: bytes) -> Observed | None:
        """Return a report; one that makes no sense is an event, and changes nothing else."""
        try:
            return Observed.from_json(text)
        except StartError as error:
            self._news.add("warning", str(error), rank)
            return None
