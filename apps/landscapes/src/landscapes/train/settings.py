"""What a run of training is asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

# What must not change when a run goes on, or it would not be the same run.
FIXED = ("preset", "seed", "perceptual", "guide_steps", "by_hand")


@dataclass(frozen=True)
class Settings:
    """Options of ``landscapes train``.

    Attributes:
        data: folder of pairs.
        out: folder of the run.
        preset: name of the sizes.
        seed: all random numbers follow from it.
        batch: pictures of each rank in a step.
        steps: where the run ends, counted from its beginning.
        budget_s: seconds after which to stop with a checkpoint, or None.
        save_every, print_every: steps between checkpoints, and between lines.
        commit_every: steps between commits of elastic training.
        perceptual: "own", "vgg19" or "none".
        vgg_weights: file with the weights of VGG19, for that.
        guide_steps: steps of training the network that guides.
        by_hand: share of the maps that the generator gets as a hand would draw them.
        resume: whether to go on from the checkpoint in ``out``.
        device: "cpu", "cuda" or "auto".
        tensorboard: whether to write scalars for TensorBoard.
    """

    data: Path
    out: Path
    preset: str = "tiny64"
    seed: int = 1
    batch: int = 4
    steps: int = 1000
    budget_s: float | None = None
    save_every: int = 200
    print_every: int = 10
    commit_every: int = 10
    perceptual: str = "own"
    vgg_weights: Path | None = None
    guide_steps: int = 300
    by_hand: float = 0.0
    resume: bool = False
    device: str = "auto"
    tensorboard: bool = False

    def fixed(self, data: str, vgg_weights: str | None) -> dict[str, Any]:
        """Return what a checkpoint notes of its run; the arguments are digests of what it read."""
        read = {"data": data, "vgg_weights": vgg_weights}
        return {key: asdict(self)[key] for key in FIXED} | read
