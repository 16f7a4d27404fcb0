"""Settings for a job in which one rank runs under a debugger."""

from __future__ import annotations

from horovod.common.contract.settings import BY_NAME, Settings

VARIABLE = "HOROVOD_DEBUG_RANK"


def patient(settings: Settings) -> Settings:
    """Return the settings; if a rank is debugged, with timeouts of a day and without the stall check."""
    if settings.integer(VARIABLE) < 0:
        return settings
    longest = {name: BY_NAME[name].high for name in ("HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS")}
    return settings.with_values(
        {**longest, "HOROVOD_STALL_CHECK_DISABLE": True, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 0.0}
    )
