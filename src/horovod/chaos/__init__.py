"""Fault injection: which faults to inject into a job, when and where (``plan``), and the results (``report``).

This package only computes events; other modules inject them. The same text always gives the same events, even if it
requests random faults with a seed.
"""

from horovod.chaos.events import Event, Kind
from horovod.chaos.grammar import Plan, plan

__all__ = ["Event", "Kind", "Plan", "plan"]
