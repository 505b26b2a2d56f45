"""What ``horovod.keras`` and ``horovod.tensorflow.keras`` share: Keras 3 on TensorFlow."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"Horovod's Keras interface works with Keras on TensorFlow, but Keras runs on "
        f"{keras.backend.backend()}: set KERAS_BACKEND=tensorflow before anything imports keras. "
        "With PyTorch, use horovod.torch in a training loop of your own"
    )
