"""Exceptions that the launcher raises if a job cannot start or an agent fails."""

from __future__ import annotations


class LaunchError(ValueError):
    """Error raised if a job cannot start as requested, because a flag, host, variable or file is invalid."""


class AgentError(RuntimeError):
    """Error raised if an agent cannot start, exits too early, or sends an invalid message."""


class OutcomeError(RuntimeError):
    """Error that `horovod.run` raises if a function's result or exception cannot be sent to the caller."""
