"""Starts the ranks of a job and watches over them: ``horovodrun`` and ``horovod.run``.

A *launcher* (the process of the user) starts one *agent* per host; the agent starts all ranks of
its host, relays what they print and ends every process of the job when the launcher asks for it
or is gone.

    hosts     pure: host lists, which rank goes where
    flags     pure: the table of tuning flags and their variables
    plan      pure: what the agent of each host has to do
    failure   pure: which of several failures was the first
    frames    the messages between launcher and agent
    agent     the process that owns the ranks of one host; ranks, outbox and processes serve it
    local     starts an agent on this machine
    ssh       starts one on another machine; why that failed
    connect_back  pure: which address of the launcher all hosts reach
    lifeline  the agent's own connection to the launcher
    gathering  pure: which hosts are ready or failed, and whether to go on
    link      the launcher's end of one agent
    job       the launcher's loop: relays, decides, stops
    output    prefixes and files of what the ranks print
    launch    store + plan + job
    nodes     the same command on every host, without ssh
    allocation  pure: the hosts that Slurm or LSF gave
    mpirun    pure: the command line of mpirun or jsrun; by_mpi becomes it
    options   the command line
    config_file  the file of ``--config-file``; its schema follows from flags
    controller   pure: who starts the ranks
    dry_run   pure: what ``--dry-run`` prints
    startup   says who was late, if starting takes long
    summary   pure: what became of the ranks of a job that failed
    check_build  what ``--check-build`` prints
    check_hosts  ``--check``; preflight asks the hosts, probe answers there with facts, and
              preflight_report makes a table and advice of it; run_on carries question and answer
    threads   pure: how the cores of a host are divided among its ranks
    before_start  what can be found wrong before any rank runs
    greetings  pure: which lines of a rank's stderr come with each start of TensorFlow
    doctor    what changed for a script; exports reads what modules offer, doctor_rules what
              changed in Horovod, doctor_frameworks in TensorFlow and Keras; doctor_command is
              ``horovodrun doctor``
    cli       ``horovodrun``
    run_function  ``horovod.run``; run_task is what its ranks execute; run_by_mpi starts mpirun

``runner.run`` is the function, which brings the launcher along when somebody asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.absent import no_attribute

if TYPE_CHECKING:
    from horovod.runner.run_function import run as run
else:

    def __getattr__(name: str) -> Any:
        if name == "run":
            from horovod.runner.run_function import run

            return run
        raise no_attribute(__name__, name)


__all__ = ["run"]
