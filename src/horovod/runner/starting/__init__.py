"""From settings to running agents, or to mpirun.

launch        secret, store and plan, then agents: the usual way
nodes         the same command on every host, without ssh
by_mpi        hands the job over; mpirun makes the command line (pure)
local, ssh    start an agent, on this machine or on another; why that failed
controller    pure: who starts the ranks
before_start  what can be found wrong before any rank runs
stdin         which rank reads what the user types
"""
