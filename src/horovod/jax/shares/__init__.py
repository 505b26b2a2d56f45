"""The state of an optimizer of optax, divided among the ranks: ZeRO, stage 1."""
