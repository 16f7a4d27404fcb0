"""Faults on purpose: what is to happen in a job, when and to whom (``plan``), and what came of it (``report``).

All of it is pure: a text, with a seed in it perhaps, gives the same events each time. Nothing here does harm.
"""

from horovod.chaos.events import Event, Kind
from horovod.chaos.grammar import Plan, plan

__all__ = ["Event", "Kind", "Plan", "plan"]
