"""Live page of a job. Its modules are loaded only if there is one."""

from __future__ import annotations

from horovod.runner.dashboard.sink import DashboardSink
from horovod.runner.plan.settings import LaunchSettings


def open_sink(settings: LaunchSettings) -> DashboardSink:
    """Return the dashboard that the settings ask for. Raises LaunchError naming a port that cannot be used."""
    if settings.dashboard is None:
        return DashboardSink()
    from horovod.runner.dashboard.server import Dashboard

    return Dashboard(settings)
