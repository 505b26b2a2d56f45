"""A user's scripts pass a strict type checker: README's, and one that uses the results of run()."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import horovod

pytest.importorskip("mypy")

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(horovod.__file__).resolve().parent.parent
# Reading PyTorch's types takes 20 s, the first time.
CACHE = ROOT / "build" / "mypy_cache_of_scripts"
# What is installed is found anyway, and mypy refuses to be told.
PATHS = {} if SOURCE.name == "site-packages" else {"MYPYPATH": str(SOURCE)}
DEADLINE_S = 300.0

# In an installation nobody looks into libraries; Keras and TensorFlow bring no types.
CONFIG = """
[mypy]
strict = true
[mypy-horovod.*,torch.*]
follow_imports = silent
[mypy-keras.*,tensorflow.*,cloudpickle.*,yaml.*]
ignore_missing_imports = true
"""

RUN = """
import horovod


def length(text: str) -> int:
    return len(text)


total: int = sum(horovod.run(length, args=("abc",), num_proc=2))
texts: list[str] = horovod.run(length, args=("abc",))
"""

TORCH = """
import torch
import horovod.torch as hvd
from horovod.torch.optimizer import ReducingOptimizer

hvd.init()
model = torch.nn.Linear(10, 1)
adam = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters()),
    named_parameters=model.named_parameters(),
    op=hvd.Average,
    compression=hvd.Compression.fp16,
)
scheduler = torch.optim.lr_scheduler.StepLR(adam, 30)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(adam, root_rank=0)
mean: torch.Tensor = hvd.allreduce(torch.ones(3), name="loss")
assert isinstance(adam, ReducingOptimizer)
adam.synchronize()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
with adam.skip_synchronize():
    adam.step()
epoch: int = hvd.broadcast_object(3, root_rank=0)
num_ranks: int = hvd.mpi_ops.size()
again: torch.Tensor = hvd.mpi_ops.allreduce(mean)
"""

KERAS = """
import keras
import numpy as np

import horovod.keras as hvd

hvd.init()
model = keras.Sequential([keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
model.compile(optimizer, "mse")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
model.fit(np.ones((4, 2)), np.ones(4), callbacks=callbacks, verbose=int(hvd.rank() == 0))
"""


def readme() -> str:
    text = (ROOT / "README.md").read_text()
    return text.split("<!-- file: train.py -->\n```python\n")[1].split("```")[0]


def test_scripts_pass_a_strict_type_checker(tmp_path: Path) -> None:
    scripts = {"readme": readme(), "run": RUN, "torch_script": TORCH, "keras_script": KERAS}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", CACHE, *(f"{name}.py" for name in scripts)],
        cwd=tmp_path,
        env={**PATHS, "PATH": "/bin"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert not done.stderr
    (found, count) = done.stdout.splitlines()
    assert found.startswith("run.py:10: error: ")  # what is wrong is found
    assert 'incompatible type "Callable[[str], int]"; expected "Callable[..., str]"' in found
    assert count.startswith("Found 1 error in 1 file (checked 4 source files)")
