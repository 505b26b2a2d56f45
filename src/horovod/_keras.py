"""The module that the classes of wrapped Keras optimizers name, as they always have.

What makes them is in :mod:`horovod.tensorflow.keras`.
"""
