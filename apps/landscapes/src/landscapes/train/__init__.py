"""Data-parallel training of the networks with Horovod."""
