"""A run of training from its settings to its last checkpoint, elastic if its launcher is."""

from __future__ import annotations

import contextlib
import fcntl
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import torch

import horovod.torch as hvd
from landscapes.data import open_pairs
from landscapes.devices import device_named
from landscapes.errors import LandscapesError, naming_failure
from landscapes.losses import Perceptual, VggPerceptual, load_vgg
from landscapes.nets import preset_named
from landscapes.nets.segmenter import Segmenter
from landscapes.train.batches import Stream
from landscapes.train.networks import Networks
from landscapes.train.reports import Lines, open_board, write_sheet
from landscapes.train.saving import (
    TRAINING,
    estimate_statistics,
    load_training,
    save_average,
    save_training,
)
from landscapes.train.segmenting import Course, train_segmenter
from landscapes.train.step import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from landscapes.train.settings import Settings

GUIDE_WIDTH = 12
SHOWN = 6  # pairs on a sheet


@dataclass(frozen=True)
class Run:
    """The parts of a run on this rank."""

    settings: Settings
    trainer: Trainer
    guide: Segmenter | None
    stream: Stream
    shown: Stream
    device: torch.device
    begun_at: float

    @property
    def fixed(self) -> dict[str, Any]:
        """What must be the same on all ranks, and when the run is resumed."""
        loss = self.trainer.perceptual
        digest = loss.digest if isinstance(loss, VggPerceptual) else None
        return self.settings.fixed(self.stream.pairs.fingerprint, digest)

    @property
    def networks(self) -> Networks:
        """All networks, which train in place."""
        return self.trainer.networks


def train(settings: Settings) -> int:
    """Train until the steps or the time are over, and return how many steps the run has.

    All ranks call it after ``hvd.init()``. Raise LandscapesError for settings that cannot be
    honored, before any work.
    """
    run = _prepare(settings)
    state: Any = hvd.elastic.TorchState(
        networks=run.networks,
        painting=run.trainer.painting,
        judging=run.trainer.judging,
        guide=run.guide or torch.nn.Identity(),
        guided=run.guide is None,
        step=0,
        position=0,
    )
    if settings.resume and hvd.rank() == 0 and hvd.elastic.generation() == 0:
        progress = load_training(settings.out / TRAINING, run.trainer, run.guide, run.fixed)
        state.step, state.position, state.guided = progress["step"], progress["position"], True
        state.save()
    hvd.elastic.run(_train)(state, run)
    return int(state.step)


def _prepare(settings: Settings) -> Run:
    begun_at = time.monotonic()
    preset = preset_named(settings.preset)
    pairs = open_pairs(settings.data, "train")
    if pairs.size != preset.size:
        raise LandscapesError(
            f"{settings.data} has pictures of {pairs.size} px, and {preset.name} paints "
            f"{preset.size} px: render them with --size {preset.size}, or name another preset."
        )
    _refuse_run(settings)
    device = device_named(settings.device)
    guide = Segmenter(GUIDE_WIDTH).to(device) if settings.perceptual == "own" else None
    networks = Networks(preset, settings.seed).to(device)
    if device.type == "cuda":
        networks.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    perceptual = _perceptual(settings, guide, device)
    trainer = Trainer(networks, perceptual, half=device.type == "cuda")
    stream = Stream(pairs, settings.seed, preset.z_dim, settings.by_hand)
    shown = Stream(open_pairs(settings.data, "val"), 0, preset.z_dim)
    return Run(settings, trainer, guide, stream, shown, device, begun_at)


def _perceptual(
    settings: Settings, guide: Segmenter | None, device: torch.device
) -> Perceptual | VggPerceptual | None:
    if guide is not None:
        return Perceptual(guide)
    if settings.perceptual == "none":
        return None
    if settings.vgg_weights is None:
        raise LandscapesError("--perceptual vgg19 needs --vgg-weights FILE.")
    return load_vgg(settings.vgg_weights).to(device)


def _train(state: Any, run: Run) -> None:
    """Train from ``state``; called again after each change of the ranks."""
    settings = run.settings
    with _owned(settings) if hvd.rank() == 0 else contextlib.nullcontext():
        _compare_ranks(run)
        is_shown = settings.tensorboard and hvd.rank() == 0
        board = open_board(settings.out / "tensorboard") if is_shown else None
        _guide(state, run)
        lines = Lines(settings.print_every, board) if hvd.rank() == 0 else None
        saved_at = -1
        is_over = state.step >= settings.steps
        while not is_over:
            losses, is_over = _step(state, run)
            is_over = is_over or state.step >= settings.steps
            if lines is not None:
                lines.add(state.step, losses, settings.batch * hvd.size())
            if is_over or state.step % settings.save_every == 0:
                _save(state, run)
                saved_at = state.step
            if state.step % settings.commit_every == 0:
                state.commit()
        if saved_at != state.step:
            _save(state, run)
        if lines is not None:
            lines.flush(state.step)
            lines.close()


def _step(state: Any, run: Run) -> tuple[torch.Tensor, bool]:
    """Take one step; return the mean losses (5,) of all ranks, and whether time is over."""
    batch, budget_s = run.settings.batch, run.settings.budget_s
    drawn = run.stream.batch(state.position + hvd.rank() * batch, batch)
    losses = run.trainer.step(drawn.to(run.device, torch.float32), state.step + 1)
    is_late = budget_s is not None and time.monotonic() - run.begun_at > budget_s
    report = torch.cat((losses.float().cpu(), torch.tensor([float(is_late)])))
    report = hvd.allreduce(report, op=hvd.Average, name="landscapes.report")
    if not bool(torch.isfinite(report).all()):
        raise LandscapesError(
            f"The loss is no number any more at step {state.step + 1}. Go on from the last "
            "checkpoint with --resume and another --batch."
        )
    state.step += 1
    state.position += batch * hvd.size()
    return report[:-1], bool(report[-1] > 0)


def _guide(state: Any, run: Run) -> None:
    """Train the network that guides, unless it is trained."""
    if state.guided or run.guide is None:
        return
    begun_at = time.monotonic()
    course = Course(GUIDE_WIDTH, run.settings.seed + 100, run.settings.guide_steps)
    trained = train_segmenter(run.stream.pairs, course, run.device)
    run.guide.load_state_dict(trained.state_dict())
    state.guided = True
    state.commit()
    if hvd.rank() == 0:
        took_s = time.monotonic() - begun_at
        print(f"guide: {course.steps} steps on the train split, {took_s:.0f} s", flush=True)


def _save(state: Any, run: Run) -> None:
    """Write checkpoint, model and sheet on rank 0. All ranks take part in the statistics."""
    hvd.check_in_sync(run.networks)
    estimate_statistics(run.networks.average, run.stream, run.settings.batch)
    if hvd.rank() != 0:
        return
    settings, pairs = run.settings, run.stream.pairs
    progress = {
        "step": state.step,
        "position": state.position,
        "fixed": run.fixed,
    }
    save_training(settings.out / TRAINING, run.trainer, run.guide, progress)
    config = {
        "step": state.step,
        "pictures": state.position,
        "ranks": hvd.size(),
        "batch": settings.batch,
        "seed": settings.seed,
        "data": pairs.fingerprint,
    }
    save_average(settings.out, run.networks, run.guide, config)
    batch = run.shown.batch(0, min(SHOWN, len(run.shown.pairs))).to(run.device, torch.float32)
    sheet = settings.out / "sheets" / f"step-{state.step:06d}.png"
    write_sheet(sheet, run.networks.average, batch)


def _compare_ranks(run: Run) -> None:
    """Refuse ranks that read other data or weights than rank 0, or have other options."""
    found = hvd.allgather_object(
        {**run.fixed, "batch": run.settings.batch}, name="landscapes.fixed"
    )
    for key in found[0]:
        values = [each[key] for each in found]
        if len(set(values)) == 1:
            continue
        if key == "data":
            raise LandscapesError(
                f"The ranks read different data: fingerprints {values}, by rank. Copy "
                f"{run.settings.data} to all hosts."
            )
        option = f"--{key.replace('_', '-')}"
        raise LandscapesError(
            f"The ranks differ in {option}: {values}, by rank. Give all the same."
        )


@contextlib.contextmanager
def _owned(settings: Settings) -> Iterator[None]:
    """Hold the folder of the run. Refuse it if another run has it."""
    with _open_lock(settings.out) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LandscapesError(
                f"Another run is writing to {settings.out}: name another --out."
            ) from None
        # Another run may have ended while this one began.
        _refuse_run(settings)
        yield


def _open_lock(folder: Path) -> IO[str]:
    with naming_failure(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / "run.lock").open("w")


def _refuse_run(settings: Settings) -> None:
    """Refuse a folder that holds a run, unless it goes on, or this rank came later."""
    if settings.resume or hvd.elastic.generation() != 0:
        return
    if (settings.out / TRAINING).exists():
        raise LandscapesError(
            f"{settings.out} already holds a run: add --resume to go on with it, or name another "
            "--out."
        )
