"""Which rank goes where, and what each host has to do. Nothing here starts anything.

hosts         pure: host lists, which rank goes where
allocation    pure: the hosts that Slurm or LSF gave
this_machine  which names mean this machine
plan          pure: what the agent of each host has to do
torch_environment  the variables of PyTorch, and the port of rank 0
jax_environment  those of JAX and Keras
threads       pure: how the cores of a host are divided among its ranks
"""
