"""Who wants to see the job? What a page needs is loaded only where there is one."""

from __future__ import annotations

from horovod.runner.dashboard.audience import Audience
from horovod.runner.plan.settings import LaunchSettings


def open_audience(settings: LaunchSettings) -> Audience:
    """The one that the settings ask for. Raises LaunchError naming a port that cannot be had."""
    if settings.dashboard is None:
        return Audience()
    from horovod.runner.dashboard.dashboard import Dashboard

    return Dashboard(settings)
