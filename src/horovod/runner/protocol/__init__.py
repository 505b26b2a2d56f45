"""The messages between launcher and agents.

agent_job   what an agent is told to run
frames      kinds and their form on a pipe
invitation  where the launcher's store is, and how to prove oneself to it
"""
