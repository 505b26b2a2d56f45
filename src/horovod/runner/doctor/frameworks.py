"""Finds what TensorFlow 2 and Keras 3 dropped, and GPUs of MXNet, in old scripts.

Which names are gone is data; ``tests/unit/runner/doctor/test_frameworks.py`` compares it with the
TensorFlow that is installed.
"""

from __future__ import annotations

import ast

from horovod.runner.doctor.rules import Level, Remark

# In TensorFlow 2 only below tf.compat.v1.
_VERSION_1 = """
    ConfigProto GPUOptions OptimizerOptions RunOptions Session InteractiveSession placeholder
    placeholder_with_default global_variables_initializer initialize_all_variables
    local_variables_initializer tables_initializer get_variable variable_scope get_default_graph
    get_default_session reset_default_graph global_variables trainable_variables logging flags app
    gfile layers enable_eager_execution disable_eager_execution set_random_seed random_uniform
    random_normal truncated_normal truncated_normal_initializer glorot_uniform_initializer
    AUTO_REUSE assign assign_add log to_float to_int32 py_func mod div distributions
    train.AdamOptimizer train.GradientDescentOptimizer train.MomentumOptimizer
    train.RMSPropOptimizer train.AdagradOptimizer train.MonitoredTrainingSession
    train.StopAtStepHook train.LoggingTensorHook train.NanTensorHook train.SessionRunHook
    train.get_or_create_global_step train.get_global_step train.Saver summary.FileWriter
    summary.merge_all nn.softmax_cross_entropy_with_logits_v2
"""
VERSION_1 = frozenset(_VERSION_1.split())

# Gone for good.
GONE = {
    "contrib": "its parts live in packages of their own, such as tf_slim and tensorflow_addons",
    "estimator": "train with model.fit, or with sessions and tf.compat.v1",
}

_NO_SESSIONS = (
    "there are no sessions; a rank chooses its GPU with tf.config.set_visible_devices, and lets "
    "its memory grow with tf.config.experimental.set_memory_growth"
)
KERAS_3 = {
    "backend.set_session": _NO_SESSIONS,
    "backend.get_session": _NO_SESSIONS,
    "backend.tensorflow_backend": _NO_SESSIONS,
    "backend.learning_phase": "pass training= to the layers",
    "backend.set_learning_phase": "pass training= to the layers",
    "optimizers.legacy": "use keras.optimizers",
    "optimizers.experimental": "use keras.optimizers",
    "utils.multi_gpu_model": "each rank trains on its own GPU",
    "utils.np_utils": "keras.utils has to_categorical",
    "wrappers.scikit_learn": "the package scikeras has such wrappers",
    "layers.experimental": "use keras.layers",
    "layers.CuDNNLSTM": "keras.layers.LSTM uses cuDNN by itself",
    "layers.CuDNNGRU": "keras.layers.GRU uses cuDNN by itself",
    "experimental": "use what replaced it in keras",
    "estimator": "train with model.fit",
}
METHODS = {
    "fit_generator": "use fit",
    "evaluate_generator": "use evaluate",
    "predict_generator": "use predict",
    "predict_classes": "use predict and argmax",
}
OF_OPTIMIZERS = {
    "lr": "use learning_rate",
    "weights": "use variables",
    "get_weights": "use variables",
    "get_gradients": "use compute_gradients of tf.GradientTape",
    "_decayed_lr": "use learning_rate",
}
_WITHOUT_MEANING = "experimental_run_tf_function"

_ROOTS = ("tensorflow", "keras", "mxnet", "horovod", "os")
_KERAS = ("tensorflow.keras", "tensorflow.compat.v1.keras", "tensorflow.compat.v2.keras", "keras")
_TENSORFLOW = ("tensorflow", "tensorflow.compat.v2")
_MAKERS = tuple(
    f"{module}.DistributedOptimizer"
    for module in ("horovod.keras", "horovod.tensorflow.keras", "horovod.tensorflow")
)
LEGACY = "TF_USE_LEGACY_KERAS"


def examine_frameworks(tree: ast.Module, path: str, *, keras_2: bool) -> list[tuple[int, Remark]]:
    """Remarks with the lines that they are about.

    Args:
        tree: the script.
        path: its name, for messages.
        keras_2: whether ``tf.keras`` is Keras 2 (``TF_USE_LEGACY_KERAS``).
    """
    reading = _Reading(path, keras_2)
    reading.visit(tree)
    if reading.is_about_keras:
        hint = (
            f"{LEGACY}=1, set before TensorFlow is imported, with tf_keras installed, keeps Keras "
            "2 for tf.keras and for Horovod; in place of 'import keras' write 'import tf_keras as "
            "keras'"
        )
        reading.remarks.append((reading.last_line, Remark(path, Level.HINT, hint)))
    return reading.remarks


class _Reading(ast.NodeVisitor):
    """Walks over a script; knows what names stand for, and which of them are optimizers."""

    def __init__(self, path: str, keras_2: bool) -> None:
        self.remarks: list[tuple[int, Remark]] = []
        self.is_about_keras = False
        self.last_line = 0
        self._path = path
        self._keras = _KERAS[-1:] if keras_2 else _KERAS
        self._meanings: dict[str, str] = {}
        self._optimizers: set[str] = set()

    def _say(self, node: ast.AST, level: Level, text: str) -> None:
        line = getattr(node, "lineno", 0)
        remark = Remark(f"{self._path}:{line}", level, text)
        if (line, remark) not in self.remarks:
            self.remarks.append((line, remark))
        self.last_line = max(line, self.last_line)

    def _say_keras_3(self, node: ast.AST, what: str, hint: str) -> None:
        self.is_about_keras = True
        text = f"Keras 3 (TensorFlow 2.16 and newer) has no {what}: {hint}"
        self._say(node, Level.FAILS, text)

    # -- what names stand for

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            root = alias.name.split(".")[0]
            if root in _ROOTS:
                self._meanings[alias.asname or root] = alias.name if alias.asname else root
                self._check_name(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or module.split(".")[0] not in _ROOTS:
            return
        for alias in node.names:
            name = f"{module}.{alias.name}"
            self._meanings[alias.asname or alias.name] = name
            self._check_name(node, name)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._bind(target.id, node.value)
        self.generic_visit(node)

    def _bind(self, name: str, value: ast.expr) -> None:
        self._optimizers.discard(name)
        if isinstance(value, ast.Call) and self._makes_optimizer(self._meaning_of(value.func)):
            self._optimizers.add(name)
        elif meaning := self._meaning_of(value):
            self._meanings[name] = meaning
        else:
            self._meanings.pop(name, None)

    def _makes_optimizer(self, meaning: str) -> bool:
        return meaning in _MAKERS or self._below_keras(meaning).startswith("optimizers.")

    def _meaning_of(self, node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return self._meanings.get(node.id, "")
        if isinstance(node, ast.Attribute):
            owner = self._meaning_of(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""

    def _below_keras(self, meaning: str) -> str:
        """The part of a name behind that of Keras; empty if it is not Keras's."""
        return next((meaning[len(k) + 1 :] for k in self._keras if meaning.startswith(f"{k}.")), "")

    # -- uses

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if meaning := self._meaning_of(node):
            self._check_name(node, meaning)
        elif self._is_optimizer(node.value) and node.attr in OF_OPTIMIZERS:
            what = f"{node.attr} of optimizers"
            self._say_keras_3(node, what, OF_OPTIMIZERS[node.attr])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute):
            if function.attr == "variables" and self._is_optimizer(function.value):
                self._say_keras_3(node, "variables() of optimizers", "write variables, without ()")
            elif function.attr in METHODS and self._knows_keras():
                what = f"{function.attr}() of models"
                self._say_keras_3(node, what, METHODS[function.attr])
        for keyword in node.keywords:
            if keyword.arg == _WITHOUT_MEANING:
                text = f"compile({_WITHOUT_MEANING}=…) has had no meaning since TensorFlow 2.2"
                self._say(keyword.value, Level.IGNORED, text)
            elif keyword.arg == "lr" and self._makes_optimizer(self._meaning_of(function)):
                self._say_keras_3(keyword.value, "argument lr", OF_OPTIMIZERS["lr"])
        self.generic_visit(node)

    def _is_optimizer(self, node: ast.AST) -> bool:
        """Also ``model.optimizer``, in a script that imports Keras."""
        if isinstance(node, ast.Name):
            return node.id in self._optimizers
        return isinstance(node, ast.Attribute) and node.attr == "optimizer" and self._knows_keras()

    def _knows_keras(self) -> bool:
        meanings = self._meanings.values()
        return any(f"{meaning}.".startswith(f"{k}.") for meaning in meanings for k in self._keras)

    def _check_name(self, node: ast.AST, name: str) -> None:
        if name in ("mxnet.gpu", "mxnet.context.gpu"):
            text = "horovod.mxnet takes arrays on the CPU only: write mx.cpu() in place of mx.gpu()"
            self._say(node, Level.FAILS, text)
        keras = self._below_keras(name)
        if keras:
            gone = next((each for each in KERAS_3 if f"{keras}.".startswith(f"{each}.")), "")
            if gone:
                self._say_keras_3(node, f"keras.{gone}", KERAS_3[gone])
            return
        below = next((name[len(t) + 1 :] for t in _TENSORFLOW if name.startswith(f"{t}.")), "")
        first = below.partition(".")[0]
        if first in GONE:
            self._say(node, Level.FAILS, f"TensorFlow has no tf.{first} any more: {GONE[first]}")
        elif below in VERSION_1:
            hint = f"write tf.compat.v1.{below}, or import tensorflow.compat.v1 as tf"
            self._say(node, Level.FAILS, f"TensorFlow 2 has no tf.{below}: {hint}")
