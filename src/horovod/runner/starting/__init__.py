"""From settings to running agents, or to mpirun.

requests      what there is to start: a frozen request for each mode
modes         the modes, and the sentence that refuses an option of another one
launch        chooses the means and assembles a job; elastic, invited: what two kinds are made of
means         local, ssh: start an agent, on this machine or on another, or on hosts that join
supervise     makes the supervisor
run_job       the same from the command line, with its console and signals
nodes         the same command on every host, without ssh
by_mpi        hands the job over; mpirun makes the command line (pure)
controller    pure: who starts the ranks
before_start  what can be found wrong before any rank runs
stdin         which rank reads what the user types
"""
