"""Trained networks in a folder: ``model.safetensors`` and ``config.json``, never pickles.

``load_model`` is what every command paints with. The weights are averages over training, in
bfloat16, with spectral normalization worked in; the generator needs nothing but labels and styles.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from landscapes.errors import LandscapesError, naming_failure
from landscapes.nets.encoder import StyleEncoder
from landscapes.nets.generator import Generator
from landscapes.nets.presets import Preset, preset_named
from landscapes.nets.segmenter import Segmenter
from landscapes.nets.start import initialize

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
SHIPPED = Path(__file__).parent / "weights" / "tiny64"


@dataclass(frozen=True)
class Model:
    """Networks that paint, on the CPU, in float32, in evaluation.

    ``generator(planes (n, 9, size, size), styles (n, z_dim))`` returns pictures in [-1, 1];
    ``encoder(pictures)`` returns mean and logarithm of the variance of their styles; ``segmenter``
    sees classes, hour and biome, and is None if the folder has none. ``digest`` names the weights;
    ``config`` says how they were trained.
    """

    preset: Preset
    generator: Generator
    encoder: StyleEncoder
    segmenter: Segmenter | None
    config: dict[str, Any]
    digest: str


def load_generator(path: Path | str) -> Generator:
    """Return the averaged generator of a folder; see ``load_model``."""
    return load_model(path).generator


def load_model(path: Path | str) -> Model:
    """Return the networks of a folder with ``model.safetensors``, or of that file.

    Raise LandscapesError for a folder without a model, a damaged file, or another format.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "model.safetensors"
    tensors, metadata = read_tensors(file)
    config = metadata.get("config", {})
    if config.get("format") != FORMAT:
        raise LandscapesError(
            f"{file} has the format {config.get('format')!r}, and this version reads {FORMAT}."
        )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return _assemble(file, tensors, config, digest)


def _assemble(
    file: Path, tensors: Mapping[str, torch.Tensor], config: dict[str, Any], digest: str
) -> Model:
    preset = preset_named(config["preset"])
    generator = Generator(preset, synced=False, spectral=False)
    encoder = StyleEncoder(preset, spectral=False)
    segmenter = Segmenter(config["segmenter"]) if config.get("segmenter") else None
    for name, module in (("generator", generator), ("encoder", encoder), ("segmenter", segmenter)):
        if module is None:
            continue
        try:
            module.load_state_dict(part_of(tensors, name))
        except RuntimeError as error:
            raise LandscapesError(
                f"The {name} in {file} does not fit the preset {preset.name}: {error}"
            ) from error
        module.eval().requires_grad_(False)
    return Model(preset, generator, encoder, segmenter, config, digest)


def random_model(preset: str = "smoke32", seed: int = 0) -> Model:
    """Return networks that have learned nothing: same seed, same weights."""
    chosen = preset_named(preset)
    generator = Generator(chosen, synced=False, spectral=False)
    encoder = StyleEncoder(chosen, spectral=False)
    segmenter = Segmenter(8)
    for module in (generator, encoder, segmenter):
        initialize(module, 1.0, seed)
        module.eval().requires_grad_(False)
    config = {"format": FORMAT, "preset": preset, "seed": seed, "step": 0, "segmenter": 8}
    return Model(chosen, generator, encoder, segmenter, config, f"random-{preset}-{seed}")


def save_model(
    folder: Path, networks: Mapping[str, torch.nn.Module], config: Mapping[str, Any]
) -> None:
    """Write plain networks by name into ``folder``, each file in one step.

    Names are generator, encoder and segmenter; weights become bfloat16.
    """
    tensors = {
        f"{name}.{key}": value.to(torch.bfloat16) if value.dim() > 1 else value
        for name, network in networks.items()
        for key, value in network.state_dict().items()
    }
    complete = {"format": FORMAT, **config}
    write_file(folder / "config.json", (json.dumps(complete, indent=2) + "\n").encode())
    write_tensors(folder / "model.safetensors", tensors, {"config": complete})


def part_of(tensors: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with ``name`` and a dot, without both."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }


def read_tensors(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return tensors and JSON values of a safetensors file. Refuse a missing or damaged one."""
    try:
        with safe_open(file, "pt") as opened:
            metadata = {key: json.loads(text) for key, text in (opened.metadata() or {}).items()}
            return {key: opened.get_tensor(key) for key in opened.keys()}, metadata  # noqa: SIM118
    except FileNotFoundError:
        raise LandscapesError(
            f"There is no {file}: name the folder that `landscapes train --out` wrote."
        ) from None
    except (OSError, SafetensorError, ValueError) as error:
        raise LandscapesError(f"{file} cannot be read ({error}): it is damaged.") from error


def write_tensors(
    file: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write tensors and JSON values as one safetensors file, in one step."""
    # Copies: safetensors refuses tensors that share memory.
    whole = {key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}
    texts = {key: json.dumps(value) for key, value in metadata.items()}
    write_file(file, save(whole, texts))


def write_file(file: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all, also after a crash."""
    with naming_failure(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", delete=False) as temporary:
            try:
                temporary.write(content)
                temporary.flush()
                os.fsync(temporary.fileno())
                Path(temporary.name).chmod(0o644)
                os.replace(temporary.name, file)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise
