"""Horovod for Keras on JAX; import :mod:`horovod.keras`, which finds the backend."""
