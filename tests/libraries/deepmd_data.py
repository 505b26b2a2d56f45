"""Writes what DeePMD-kit trains on: atoms in a box that attract and repel each other in pairs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

NUM_ATOMS = 6
BOX = 6.0
STEPS = 100


def frames(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates, energies and forces of springs between neighbors on a ring.

    Returns:
        Arrays of shapes (count, 3 * atoms), (count,) and (count, 3 * atoms), in Å, eV and eV/Å.
    """
    generator = np.random.default_rng(seed)
    angles = 2 * np.pi * np.arange(NUM_ATOMS) / NUM_ATOMS
    ring = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1) * 1.5 + BOX / 2
    positions = ring + 0.15 * generator.standard_normal((count, NUM_ATOMS, 3))
    steps = np.roll(positions, -1, axis=1) - positions
    lengths = np.linalg.norm(steps, axis=2, keepdims=True)
    pulls = 2.0 * (lengths - 1.5) * steps / lengths
    forces = pulls - np.roll(pulls, 1, axis=1)
    energies = ((lengths - 1.5) ** 2).sum(axis=(1, 2))
    return positions.reshape(count, -1), energies, forces.reshape(count, -1)


def write_system(folder: Path, count: int, seed: int) -> None:
    """One system as DeePMD-kit reads it."""
    part = folder / "set.000"
    part.mkdir(parents=True)
    positions, energies, forces = frames(count, seed)
    (folder / "type.raw").write_text("0\n" * NUM_ATOMS)
    (folder / "type_map.raw").write_text("H\n")
    np.save(part / "coord.npy", positions.astype(np.float32))
    np.save(part / "energy.npy", energies.astype(np.float32))
    np.save(part / "force.npy", forces.astype(np.float32))
    np.save(part / "box.npy", np.tile(np.eye(3).flatten() * BOX, (count, 1)).astype(np.float32))


def settings(folder: Path) -> dict[str, Any]:
    """The contents of input.json for a small model."""
    descriptor = {
        "type": "se_e2_a",
        "sel": [NUM_ATOMS],
        "rcut_smth": 1.0,
        "rcut": 3.0,
        "neuron": [4, 8],
        "axis_neuron": 4,
        "seed": 1,
    }
    return {
        "model": {
            "type_map": ["H"],
            "descriptor": descriptor,
            "fitting_net": {"neuron": [16, 16], "seed": 1},
        },
        "learning_rate": {"type": "exp", "start_lr": 0.005, "stop_lr": 1e-4, "decay_steps": 20},
        "loss": {
            "type": "ener",
            "start_pref_e": 0.1,
            "limit_pref_e": 1,
            "start_pref_f": 100,
            "limit_pref_f": 10,
        },
        "training": {
            "training_data": {"systems": [str(folder / "train")], "batch_size": 4},
            "validation_data": {"systems": [str(folder / "test")], "batch_size": 8},
            "numb_steps": STEPS,
            "disp_freq": 20,
            "save_freq": STEPS,
            "seed": 1,
        },
    }


def write_all(folder: Path) -> Path:
    """Writes two systems and the settings; returns the file of the settings."""
    write_system(folder / "train", count=64, seed=0)
    write_system(folder / "test", count=16, seed=1)
    path = folder / "input.json"
    path.write_text(json.dumps(settings(folder)))
    return path
