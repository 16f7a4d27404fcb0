"""Jobs on clusters whose manager starts processes itself (Spark's tasks, Ray's actors): each such process becomes an
agent that calls home. See `docs/adr/0030-agents-that-call-home.md`.

    launcher                                        each process that the manager starts
    gathering = Gathering("Spark task")
    gathering.ticket ------- with the closure ----> become_agent(ticket, number)     until the job ends
    run_fixed(gathering, call, 4, wishes)           one rank, started by that agent
    run_elastic(gathering, call, limits, wishes)
    run_command(gathering, settings, ...)            a command in place of a call, in pods of Kubernetes
"""

from horovod.runner.cluster.gathering import Gathering
from horovod.runner.cluster.jobs import Call, Wishes, run_command, run_elastic, run_fixed
from horovod.runner.cluster.task import become_agent
from horovod.runner.cluster.ticket import ArrivalError, Ticket

__all__ = [
    "ArrivalError",
    "Call",
    "Gathering",
    "Ticket",
    "Wishes",
    "become_agent",
    "run_command",
    "run_elastic",
    "run_fixed",
]
