"""Horovod for Keras on PyTorch; import :mod:`horovod.keras`, which finds the backend."""
