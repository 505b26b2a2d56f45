"""Any data set as the batches of each rank: each sample once per epoch (docs/decisions/0054)."""
