"""Starts the ranks of a job and watches over them: ``horovodrun`` and ``horovod.run``.

A *launcher* (the process of the user) starts one *agent* per host; the agent starts all ranks of
its host, relays what they print and ends every process of the job when the launcher asks for it
or is gone.

    cli          ``horovodrun``
    function     ``horovod.run``
    checks       ``--check`` and ``--check-build``
    doctor       what changed for a script
    starting     from settings to running agents, or to mpirun
    supervision  the launcher's loop: relays, decides, stops
    agent        the process that owns the ranks of one host
    output       prefixes and files of what the ranks print
    placing      which rank goes where; what each host has to do
    protocol     what launcher and agents say to each other
    settings     flags and the config file
    system       processes, signals and inherited variables

Each folder imports only those below it (``pyproject.toml`` has the contract). ``launch``,
``common`` and ``elastic`` are import paths of earlier versions.

``runner.run`` is the function, which brings the launcher along when somebody asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._compat.absent import no_attribute

if TYPE_CHECKING:
    from horovod.runner.function.run import run as run
else:

    def __getattr__(name: str) -> Any:
        if name == "run":
            from horovod.runner.function.run import run

            return run
        raise no_attribute(__name__, name)


__all__ = ["run"]
