"""Fault injection: which faults to inject into a job, when and where (``plan``), and the results (``report``).

Everything here is pure. The same text gives the same events each time, even if it contains a random seed. Nothing here
injects faults.
"""

from horovod.chaos.events import Event, Kind
from horovod.chaos.grammar import Plan, plan

__all__ = ["Event", "Kind", "Plan", "plan"]
