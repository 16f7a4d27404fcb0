"""The launcher's own errors."""

from __future__ import annotations


class LaunchError(ValueError):
    """What the user asked for cannot be started: a bad flag, host, variable or file."""


class AgentError(RuntimeError):
    """The agent of a host could not be started, ended early or sent something that is no message."""


class OutcomeError(RuntimeError):
    """What a function of `horovod.run` returned or raised cannot travel to the caller."""
