"""Fault injection: plans with targets and times, and reports of the results.

This package only computes the faults. Other modules inject them. The same plan always produces the same faults. This
includes random ones, which depend only on their seed.
"""

from horovod.chaos.events import Event, Kind
from horovod.chaos.grammar import Plan, plan

__all__ = ["Event", "Kind", "Plan", "plan"]
