"""Jobs whose agents are started by a cluster manager, such as Spark, and then connect to the launcher.

The launcher creates a `Gathering`, and the cluster manager sends the gathering's ticket to its processes. Each process
uses the ticket to connect to the launcher and becomes an agent. The launcher then runs the job on these agents. See
`docs/adr/0030-agents-that-call-home.md`.

    launcher                                        each process that the manager starts
    gathering = Gathering("Spark task")
    gathering.ticket ------- with the closure ----> become_agent(ticket, number)     until the job ends
    run_fixed(gathering, call, 4, options)           one rank, started by that agent
    run_elastic(gathering, call, settings, options)
    run_command(gathering, settings, ...)            a command in place of a call, in pods of Kubernetes
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.runner.cluster.gathering import Gathering
    from horovod.runner.cluster.jobs import Call, JobOptions, run_command, run_elastic, run_fixed
    from horovod.runner.cluster.task import ArrivalError, Ticket, become_agent

__all__ = [
    "ArrivalError",
    "Call",
    "Gathering",
    "JobOptions",
    "Ticket",
    "become_agent",
    "run_command",
    "run_elastic",
    "run_fixed",
]

_HOMES = {
    "gathering": ("Gathering",),
    "jobs": ("Call", "JobOptions", "run_command", "run_elastic", "run_fixed"),
    "task": ("ArrivalError", "Ticket", "become_agent"),
}


def __getattr__(name: str) -> Any:
    # Import these modules on demand, because processes that become agents do not need the launcher.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
