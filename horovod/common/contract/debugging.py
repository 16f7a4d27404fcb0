"""A job in which somebody looks at one rank with a debugger: nobody runs out of patience."""

from __future__ import annotations

from horovod.common.contract.settings import BY_NAME, Settings

VARIABLE = "HOROVOD_DEBUG_RANK"


def patient(settings: Settings) -> Settings:
    """The settings, or with a rank that is debugged: timeouts as long as they can be (a day), no stall check."""
    if settings.integer(VARIABLE) < 0:
        return settings
    longest = {name: BY_NAME[name].high for name in ("HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS")}
    return settings.with_values(
        {**longest, "HOROVOD_STALL_CHECK_DISABLE": True, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 0.0}
    )
