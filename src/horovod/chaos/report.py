"""Report on injected faults at the end of a job with --chaos-report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod.chaos.events import Event

AGAIN = "steps that are done again: {}"
"""Message of a rank after a failure."""


@dataclass(frozen=True)
class Outcome:
    """Result of one event. Times in seconds on one clock.

    Attributes:
        event: The event.
        at: When it was injected.
        detected: When the launcher or a rank noticed it; None: not yet.
        recovered: When the next epoch ran; None: not yet.
    """

    event: Event
    at: float
    detected: float | None = None
    recovered: float | None = None


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest of ``values`` that at least the fraction ``part`` (0 to 1) of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-part * len(ordered) // 1) - 1))]


def lines(outcomes: Sequence[Outcome], again: int | None = None) -> list[str]:
    """Return lines about the number of events and the times of detection and recovery.

    ``again``: number of repeated steps; None if unknown.
    """
    if not outcomes:
        return ["chaos: no event"]
    kinds: dict[str, int] = {}
    for one in outcomes:
        kinds[one.event.kind.value] = kinds.get(one.event.kind.value, 0) + 1
    what = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    detected = [one.detected - one.at for one in outcomes if one.detected is not None]
    recovered = [one.recovered - one.at for one in outcomes if one.recovered is not None]
    events = "1 event" if len(outcomes) == 1 else f"{len(outcomes)} events"
    made = [f"chaos: {events} ({what}), {len(detected)} detected, {len(recovered)} recovered from"]
    if again is not None:
        made.append(f"chaos: {again} {'step' if again == 1 else 'steps'} done again")
    for name, values in (("detected", detected), ("recovered", recovered)):
        if values:
            p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
            made.append(f"chaos: {name} after p50 {p50:.3f} s, p99 {p99:.3f} s, at most {max(values):.3f} s")
    return made
