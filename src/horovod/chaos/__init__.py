"""Fault injection: the faults of a job with their targets and times (``plan``), and the results (``report``).

This package only computes the faults, and other modules inject them. The same text always gives the same faults, even
if it requests random faults with a seed.
"""

from horovod.chaos.events import Event, Kind
from horovod.chaos.grammar import Plan, plan

__all__ = ["Event", "Kind", "Plan", "plan"]
