"""Horovod's interface for Keras, as far as it does not depend on the backend of Keras.

What depends on it is in ``horovod.tensorflow.keras``, ``horovod.jax.keras`` and
``horovod.torch.keras``, behind :class:`horovod._keras.seam.Seam`.
"""
