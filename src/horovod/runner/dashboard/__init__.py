"""Live web page that shows a running job. It is only imported for jobs with a dashboard."""

from __future__ import annotations

from horovod.runner.dashboard.sink import DashboardSink
from horovod.runner.plan.settings import LaunchSettings


def open_sink(settings: LaunchSettings) -> DashboardSink:
    """Start the dashboard that the settings request. Raises LaunchError if its port cannot be used."""
    if settings.dashboard is None:
        return DashboardSink()
    from horovod.runner.dashboard.server import Dashboard

    return Dashboard(settings)
