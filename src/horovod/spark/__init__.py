"""Horovod on Spark."""
