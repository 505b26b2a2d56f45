"""What ``horovod.keras`` and ``horovod.tensorflow.keras`` share: Keras 3 on TensorFlow."""

import keras

from horovod.errors import HorovodVersionMismatchError

if int(keras.__version__.partition(".")[0]) < 3:
    raise HorovodVersionMismatchError(
        "keras", "3 or newer, which TensorFlow 2.16 brings", keras.__version__
    )
if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"Horovod's Keras interface works with Keras on TensorFlow, but Keras runs on "
        f"{keras.backend.backend()}: set KERAS_BACKEND=tensorflow before anything imports keras. "
        "With PyTorch, use horovod.torch in a training loop of your own"
    )
