"""What the doctor says of TensorFlow 2 and Keras 3, and that it is true of those installed here."""

from __future__ import annotations

import importlib
import operator
import os
from typing import Any

import pytest

from horovod.runner.doctor.examination import examine_script
from horovod.runner.doctor.frameworks import GONE, KERAS_3, METHODS, OF_OPTIMIZERS, VERSION_1

HINT = "hint: TF_USE_LEGACY_KERAS=1"


def said(text: str, **environ: str) -> list[str]:
    """The remarks on a script, without its name."""
    return [str(each).removeprefix("x.py:") for each in examine_script(text, "x.py", environ)]


@pytest.mark.parametrize(
    "text",
    [
        "import tensorflow as tf\ntf.Variable(1)\ntf.summary.scalar('a', 1)",
        "import tensorflow.compat.v1 as tf\ntf.ConfigProto()\ntf.train.AdamOptimizer(1)",
        "import tensorflow as tf\ntf = tf.compat.v1\ntf.Session()",
        "import tensorflow as tf\ntf.compat.v1.Session()",
        "from tensorflow import keras\nopt = keras.optimizers.SGD(0.1)\nopt.learning_rate = 1",
        "import keras\nopt = keras.optimizers.SGD(0.1)\nopt.variables[0]",
        "import tf_keras as keras\nopt = keras.optimizers.SGD(lr=0.1)\nopt.lr",
        "import torch\nopt = torch.optim.SGD(p, lr=0.1)\nopt.lr\nmodel.optimizer.lr",
        "import keras\nopt = keras.optimizers.SGD(0.1)\nopt = mine()\nopt.lr",
        "lr = 3\nargs.lr\nconfig.weights",
    ],
)
def test_what_is_right_gets_no_remark(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (
            "import tensorflow as tf\nc = tf.ConfigProto()",
            "2: fails: TensorFlow 2 has no tf.ConfigProto: write tf.compat.v1.ConfigProto, or",
        ),
        (
            "import tensorflow as tf\ntf.train.AdamOptimizer(0.1)",
            "2: fails: TensorFlow 2 has no tf.train.AdamOptimizer: write tf.compat.v1.train.Adam",
        ),
        ("from tensorflow import Session", "1: fails: TensorFlow 2 has no tf.Session: write"),
        (
            "import mxnet as mx\ncontext = mx.gpu(0)",
            "2: fails: horovod.mxnet takes arrays on",
        ),
        (
            "import tensorflow as tf\ntf.contrib.layers.flatten(x)",
            "2: fails: TensorFlow has no tf.contrib any more: its parts",
        ),
        (
            "model.compile(\n  'sgd',\n  experimental_run_tf_function=False)",
            "3: ignored: compile(experimental_run_tf_function=…) has had no meaning since",
        ),
    ],
)
def test_what_tensorflow_dropped_is_told_with_its_line(text: str, remark: str) -> None:
    (found,) = said(text)
    assert found.startswith(remark)


OPTIMIZER = "import keras\nopt = keras.optimizers.SGD(0.1)\n"


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (
            "from tensorflow.keras import backend as K\nK.set_session(s)",
            "2: fails: Keras 3 (TensorFlow 2.16 and newer) has no keras.backend.set_session",
        ),
        (
            "from keras.backend.tensorflow_backend import set_session",
            "1: fails: Keras 3 (TensorFlow 2.16 and newer) has no keras.backend.tensorflow_backend",
        ),
        (
            "import tensorflow as tf\ntf.keras.optimizers.legacy.Adam(0.1)",
            "2: fails: Keras 3 (TensorFlow 2.16 and newer) has no keras.optimizers.legacy",
        ),
        (
            "import keras\nkeras.optimizers.SGD(lr=0.1)",
            "2: fails: Keras 3 (TensorFlow 2.16 and newer) has no argument lr: use learning_rate",
        ),
        (
            "import keras\nmodel.fit_generator(x)",
            "2: fails: Keras 3 (TensorFlow 2.16 and newer) has no fit_generator() of models",
        ),
        (
            f"{OPTIMIZER}b(opt.variables())",
            "3: fails: Keras 3 (TensorFlow 2.16 and newer) has no variables() of optimizers",
        ),
        (
            f"{OPTIMIZER}opt.lr",
            "3: fails: Keras 3 (TensorFlow 2.16 and newer) has no lr of optimizers",
        ),
        (
            "import keras\nmodel.optimizer.lr.assign(1)",
            "2: fails: Keras 3 (TensorFlow 2.16 and newer) has no lr of optimizers",
        ),
        (
            "import horovod.tensorflow.keras as hvd\nimport tensorflow as tf\n"
            "opt = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1))\nopt.variables()",
            "4: fails: Keras 3 (TensorFlow 2.16 and newer) has no variables() of optimizers",
        ),
    ],
)
def test_what_keras_dropped_is_told_with_the_way_to_keep_it(text: str, remark: str) -> None:
    found, hint = said(text)
    assert found.startswith(remark)
    assert hint.endswith("'import tf_keras as keras'")
    assert HINT in hint


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("", {"TF_USE_LEGACY_KERAS": "1"}),
        ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n", {}),
    ],
)
def test_who_keeps_keras_2_hears_nothing_of_keras_3(text: str, environ: dict[str, str]) -> None:
    script = f"{text}import tensorflow as tf\ntf.keras.backend.set_session(s)\n"
    assert said(script, **environ) == []
    assert said(f"{script}import keras\nkeras.backend.set_session(s)", **environ) != []


# -- whether it is true


def has(module: Any, name: str) -> bool:
    try:
        return operator.attrgetter(name)(module) is not None
    except (AttributeError, ImportError):
        return False


def newest(name: str) -> Any:
    module = pytest.importorskip(name)
    keras = importlib.import_module("keras")
    if keras.__version__ < "3" or os.environ.get("TF_USE_LEGACY_KERAS"):
        pytest.skip("this is Keras 2")
    return module


def test_these_names_are_those_of_version_1() -> None:
    tf = newest("tensorflow")
    assert [name for name in sorted(VERSION_1) if has(tf, name)] == []
    assert [name for name in sorted(VERSION_1) if not has(tf.compat.v1, name)] == []
    assert [name for name in sorted(GONE) if has(tf, name) or has(tf.compat.v1, name)] == []


def test_these_names_are_gone_from_keras() -> None:
    keras = newest("keras")
    stubs = {"optimizers.legacy", "wrappers.scikit_learn"}
    assert [name for name in sorted(KERAS_3) if has(keras, name) and name not in stubs] == []
    with pytest.raises(ImportError):
        keras.optimizers.legacy.SGD()
    optimizer, model = keras.optimizers.SGD(0.1), keras.Sequential()
    assert [name for name in OF_OPTIMIZERS if has(optimizer, name)] == []
    assert not callable(optimizer.variables)
    assert [name for name in METHODS if has(model, name)] == []
    with pytest.raises(ValueError, match="lr"):
        keras.optimizers.SGD(lr=0.1)
