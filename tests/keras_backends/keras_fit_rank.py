"""Each recipe on the ranks and in one process with all rows, then further cases.

Then the contract of all adapters. Rank 0 writes the trained weights, by recipe. On other backends,
TensorFlow cannot be imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from keras_blocked import block_tensorflow

block_tensorflow()

sys.path.append(str(Path(__file__).parents[1] / "contract"))

import keras  # noqa: E402
import keras_api  # noqa: E402
import keras_backend_cases  # noqa: E402
import numpy as np  # noqa: E402
from keras_recipes import (  # noqa: E402
    FITS,
    Recipe,
    assert_alike,
    assert_equal_on_all_ranks,
    fit_alone,
    fit_on_a_rank,
)

import horovod.keras as hvd  # noqa: E402

_alone: dict[Any, Any] = {}


def compare(name: str, recipe: Recipe, weights: list[np.ndarray], history: Any) -> None:
    """Compare what the ranks have trained with what one process does."""
    key = (recipe.optimizer, recipe.passes, recipe.scale, recipe.model, recipe.norm)
    if key not in _alone:
        _alone[key] = fit_alone(recipe)
    expected, alone = _alone[key]
    assert_alike(name, weights, expected, recipe.tolerance)
    if recipe.passes == 1 and recipe.scale == 1.0 and recipe.tolerance <= 1e-7:
        for kind in ("loss", "val_loss"):
            assert len(history[kind]) == 2, name
            np.testing.assert_allclose(history[kind], alone[kind], rtol=1e-6, err_msg=name)


def main(path: Path, names: list[str]) -> None:
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    hvd.init()
    results = {}
    left_out = os.environ.get("HVD_TEST_LEAVE_OUT", "").split(";")
    for name in names or FITS:
        if name in left_out or name == "contract":
            continue
        weights, history = fit_on_a_rank(FITS[name])
        assert_equal_on_all_ranks(name, weights)
        if hvd.rank() == 0:
            compare(name, FITS[name], weights, history)
        results[name] = [np.asarray(weight).tolist() for weight in weights]
    if not names:
        keras_backend_cases.run_all(path.parent)
    for check in () if "contract" in left_out else keras_api.run_all_checks():
        print("contract:", check, flush=True)
    if hvd.rank() == 0:
        path.write_text(json.dumps(results))
    print(f"{len(results)} recipes agree on {keras.backend.backend()}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
