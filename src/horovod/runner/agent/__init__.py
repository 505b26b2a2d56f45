"""The process that owns the ranks of one host (``python -m horovod.runner.agent``).

agent     guard and agent, and the loop of the latter
workers   how a worker is started, and why one cannot be
outbox    frames on their way to the launcher
launcher connection  the agent's own connection to the launcher
"""
