"""What a rank tells those who watch the job; loaded when there is a viewer."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from horovod._rank.reports.answers import Answers
from horovod._rank.reports.gpu_usage import GpuUsage
from horovod._rank.reports.phases import PhaseSampler
from horovod._rank.reports.usage import read_usage
from horovod._rendezvous.observed import Observed, observed_key

if TYPE_CHECKING:
    import threading

    from horovod._native import Engine
    from horovod._rank.reports.steps import Steps
    from horovod._rendezvous.store import StoreClient
    from horovod._settings.config import Config

# Twenty samples in a second tell the phases of a step, and cost 0.1 % of a core with stacks
# of 30 frames.
SAMPLE_S = 0.05


class Observation:
    """The reports of one rank while there are viewers; for the thread that reports.

    Args:
        engine: of this rank.
        config: says which rank this is.
        steps: counts them.

    Attributes:
        answers: to commands of viewers.
    """

    def __init__(self, engine: Engine, config: Config, steps: Steps) -> None:
        self._engine = engine
        self._config = config
        self._steps = steps
        self._sampler = PhaseSampler()
        self._gpus = GpuUsage()
        self.answers = Answers(engine, config, steps)

    def __enter__(self) -> Observation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.answers.close()
        self._gpus.close()

    def sample_for(self, interval_s: float, ended: threading.Event) -> None:
        """Look at the main thread again and again, until the time is over or the rank ends."""
        until = time.monotonic() + interval_s
        while time.monotonic() < until and not ended.wait(SAMPLE_S):
            self._sampler.sample()

    def tell(self, store: StoreClient, link_bytes_per_s: float) -> None:
        """Report once.

        Raises:
            StartError: the store was lost.
        """
        numbers, lengths = self._engine.statistics(), self._steps.take_lengths()
        report = Observed(
            at_s=time.monotonic(),
            waited_s=numbers["waited_ns"] / 1e9,
            submitted=numbers["submitted"],
            steps=self._steps.number,
            step_s=median(lengths) if lengths else 0.0,
            slowest_step_s=max(lengths, default=0.0),
            link_bytes_per_s=link_bytes_per_s,
            samples=dict(self._sampler.samples),
            places=self._sampler.take_places(),
            now=self._sampler.now,
            **read_usage(),
            **self._gpus.read(),
        )
        store.set(observed_key(self._config.generation, self._config.rank), report.to_json())
