"""Connections of a rank to its peers. Pure.

- node: Unix socket from a rank to its node's leader. Transfers the descriptors of shared memory, then serves as control
  link.
- control: TCP, from the leader of a node to rank 0.
- data: TCP, between every two ranks on different nodes; the lower rank listens.
"""

from collections.abc import Sequence

from horovod.common.wiring.peers import Plan

NODE, CONTROL, DATA = 1, 2, 3
KIND_NAMES = {NODE: "node", CONTROL: "control", DATA: "data"}

Link = tuple[int, int]
"""(kind, rank at the other end)."""


def wanted(plan: Plan, kinds: Sequence[int]) -> tuple[list[Link], list[Link]]:
    """Return (links that this rank connects, links that peers connect to this rank)."""
    outgoing = [(DATA, rank) for rank in plan.remote if rank < plan.me]
    incoming = [(DATA, rank) for rank in plan.remote if rank > plan.me]
    incoming += [(NODE, rank) for rank in plan.local_children] + [(CONTROL, rank) for rank in plan.remote_children]
    if plan.parent >= 0:
        outgoing.append((CONTROL if plan.leads else NODE, plan.parent))
    return [link for link in outgoing if link[0] in kinds], [link for link in incoming if link[0] in kinds]
