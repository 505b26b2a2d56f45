"""Elastic jobs whose hosts and workers come, go, fail and fall silent in every order.

The world checks each command; see ``tests/fakes/elastic_world.py``. Here is what may happen, and
that all of it comes to an end.
"""

from __future__ import annotations

import profiles
from elastic_world import World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from horovod.runner.supervision import events
from horovod.runner.supervision.elastic.rules import Rules
from horovod.runner.supervision.elastic.states import Going
from horovod.runner.supervision.stopping import Over

HOSTS = ("red", "blue", "green", "gray")
THOROUGH = 10_000
PICK = st.integers(0, 11)
ERRORS = st.sampled_from(["", "", "ValueError", "MismatchError"])


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    np = draw(st.integers(1, 4))
    min_np = draw(st.integers(1, np))
    return Rules(
        np=np,
        min_np=min_np,
        max_np=draw(st.none() | st.integers(min_np, 6)),
        elastic_timeout_s=draw(st.sampled_from([20.0, 600.0])),
        reset_limit=draw(st.sampled_from([None, None, None, 2])),
        cooldown_range=draw(st.sampled_from([None, (1.0, 2.0), (1.0, 2.0), (10.0, 100.0)])),
        missed_polls=draw(st.integers(1, 2)),
        fixed_hosts=draw(st.sampled_from([False, False, True])),
        spare_neighbors=draw(st.booleans()),
        slow_worker=draw(st.sampled_from(["report", "remove", "replace"])),
    )


class ElasticJobs(RuleBasedStateMachine):
    """What may happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Rules(np=1))

    @initialize(
        rules=rules(),
        says_running=st.sampled_from([True, True, True, False]),
        slots=st.integers(1, 3),
        runs=st.sampled_from([True, True, True, False]),
        loses_wakeups=st.booleans(),
    )
    def begin(
        self, rules: Rules, says_running: bool, slots: int, runs: bool, loses_wakeups: bool
    ) -> None:
        """Most jobs run before anything else happens."""
        self.world = World(rules, says_running=says_running)
        self.world.loses_wakeups = loses_wakeups and says_running
        if runs:
            self.world.discover(**dict.fromkeys(HOSTS[:3], slots))
            self.world.run()

    def goes_on(self) -> bool:
        return isinstance(self.world.state, Going)

    def one(self, number: int, *stages: str) -> int | None:
        """One of the workers in such a state."""
        found = [
            each.number
            for each in self.world.workers.values()
            if (not stages or each.stage in stages) and not each.stopped
        ]
        return found[number % len(found)] if found else None

    # -- hosts

    @rule(host=st.sampled_from(HOSTS), slots=st.integers(-1, 3))
    def discover(self, host: str, slots: int) -> None:
        listing = {name: each for name, each in self.world.listing.items() if name != host}
        if slots >= 0:
            listing[host] = slots
        self.world.discover(**listing)

    @rule()
    def discover_the_same(self) -> None:
        self.world.discover(**self.world.listing)

    @rule(number=PICK)
    def agent_runs(self, number: int) -> None:
        starting = [host for host, does in self.world.agents.items() if does == "starting"]
        if starting:
            self.world.find(starting[number % len(starting)])

    @rule(number=PICK)
    def lose_host(self, number: int) -> None:
        if number < min(2, len(self.world.agents)):
            self.world.lose_host(list(self.world.agents)[number])

    @rule(number=PICK)
    def agent_ends_its_workers(self, number: int) -> None:
        running = [host for host, does in self.world.agents.items() if does == "runs"]
        if number == 0 and running:
            host = running[-1]
            self.world.feed(events.HostStopping(self.world.now_s, host, "SIGTERM", 15))
            for each in self.world.on(host):
                self.world.exit(each, -15)
            if host in self.world.agents:  # else it was released
                self.world.lose_host(host)

    @rule(host=st.sampled_from(HOSTS), slots=st.integers(1, 2))
    def a_host_comes(self, host: str, slots: int) -> None:
        """Its workers are admitted while the others train."""
        world = self.world
        if host not in world.listing:
            world.discover(**world.listing, **{host: slots})
            if world.agents.get(host) == "starting":
                world.find(host)
            for each in world.on(host):
                if world.workers[each].stage == "loading":
                    world.ready(each)

    @rule()
    def no_answer(self) -> None:
        self.world.feed(events.DiscoveryFailed(self.world.now_s, "exit code 1", first=False))

    # -- workers

    @rule()
    def all_go_on(self) -> None:
        self.world.all_act()

    @rule(seconds=st.sampled_from([0.05, 1.0, 20.0]))
    def all_go_on_for(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(number=PICK)
    def ready(self, number: int) -> None:
        worker = self.one(number, "loading")
        if worker is not None:
            self.world.ready(worker)

    @rule(number=PICK)
    def give_up(self, number: int) -> None:
        worker = self.one(number, "broken", "connecting", "training")
        if worker is not None:
            self.world.reset(worker)

    @rule(number=PICK, times=st.integers(1, 12))
    def newcomers_give_up(self, number: int, times: int) -> None:
        """Those that train are long in coming."""
        world = self.world
        for _ in range(times):
            new = [
                each.number
                for each in world.workers.values()
                if each.stage == "connecting" and each.trained < 0 and not each.stopped
            ]
            if new and self.goes_on():
                world.reset(new[number % len(new)], "rank 0 did not come")
                world.at_deadline()

    @precondition(lambda self: self.world.memberships)
    @rule()
    def next_commit(self) -> None:
        self.world.boundary()

    @precondition(lambda self: self.world.memberships)
    @rule()
    def connect(self) -> None:
        self.world.connect()

    @rule(number=PICK, code=st.sampled_from([1, 3, -9, -11]), error=ERRORS)
    def fail(self, number: int, code: int, error: str) -> None:
        worker = self.one(number)
        if worker is not None:
            self.world.exit(worker, code, error)

    @rule(number=PICK)
    def lose_connection(self, number: int) -> None:
        worker = self.one(number)
        if worker is not None:
            self.world.gone(worker)

    @rule(number=PICK)
    def fall_silent(self, number: int) -> None:
        worker = self.one(number)
        if worker is not None:
            self.world.workers[worker].stopped = True

    @rule(number=PICK)
    def is_heard_no_more(self, number: int) -> None:
        world = self.world
        stopped = [each for each in world.workers if world.workers[each].stopped]
        if stopped:
            silent = world.workers[stopped[number % len(stopped)]]
            world.feed(events.WorkerSilent(world.now_s, silent.identity, 60.0))

    @rule(number=PICK)
    def want_to_leave(self, number: int) -> None:
        worker = self.one(number)
        if worker is not None:
            self.world.leaving(worker)

    @rule(number=PICK, gain=st.sampled_from([0.1, 0.5, 0.9]))
    def is_slow(self, number: int, gain: float) -> None:
        worker = self.one(number, "training")
        if worker is not None:
            self.world.slow(worker, gain)

    @rule(number=PICK)
    def leave(self, number: int) -> None:
        worker = self.one(number, "ready", "waiting", "training", "broken")
        if worker is not None:
            self.world.leave(worker)

    @rule(number=PICK)
    def finish_alone(self, number: int) -> None:
        worker = self.one(number, "training", "loading", "left")
        if worker is not None and number < 3:
            self.world.exit(worker, 0)

    @rule(number=PICK)
    def finish_together(self, number: int) -> None:
        """Whatever was published since they looked for changes last."""
        if number == 0:
            self.world.finish()

    # -- time, and the outside

    @rule()
    def deadline(self) -> None:
        self.world.at_deadline()

    @rule(number=PICK)
    def signal(self, number: int) -> None:
        if number == 0:
            self.world.feed(events.Signal(self.world.now_s, 15))

    # -- the end

    def teardown(self) -> None:
        """From here on all goes well: the job trains, or has ended; then all finish."""
        world = self.world
        if world.went_wrong:
            return
        self._go_on(20)
        for each in world.workers.values():
            each.stopped = False  # those for which nobody waits
        self._go_on(20)
        if self.goes_on():
            self._check_that_it_trains()
            world.finish()
            self._go_on(20)
        assert not self.goes_on(), f"it never ends: {world.state}"
        assert world.verdict is not None
        world.end_told()
        assert world.over().exit_code == world.verdict.exit_code
        assert isinstance(world.state, Over)

    def _go_on(self, times: int) -> None:
        for _ in range(times):
            if self.goes_on():
                self._leave_those_who_left()
                self.world.time_out()
                self.world.run(700.0)

    def _leave_those_who_left(self) -> None:
        for number, each in list(self.world.workers.items()):
            if each.stage == "left" and not each.stopped and number in self.world.workers:
                self.world.exit(number, 0)

    def _check_that_it_trains(self) -> None:
        world = self.world
        assert world.memberships, world.state
        newest = world.memberships[-1]
        for each in newest.members:
            (worker,) = (w for w in world.workers.values() if w.identity == each.worker.identity)
            assert worker.stopped or worker.stage == "training", worker
            assert worker.stopped or worker.trained == newest.generation


TestElasticJobs = ElasticJobs.TestCase


def _settings() -> settings:
    thorough = settings.get_current_profile_name() == "thorough"
    number = THOROUGH if thorough else 100
    return settings(profiles.examples(), max_examples=number, stateful_step_count=30)


TestElasticJobs.settings = _settings()
