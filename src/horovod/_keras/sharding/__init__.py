"""Optimizers of Keras 3 of whose state each rank has its share: ZeRO, stage 1."""
