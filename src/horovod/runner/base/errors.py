"""Exceptions that the launcher raises if a job cannot start or an agent fails."""

from __future__ import annotations


class LaunchError(ValueError):
    """Error of a job that cannot start as requested, because a flag, host, variable or file is invalid."""


class AgentError(RuntimeError):
    """Error of an agent that cannot start, has ended too early, or has sent an invalid message."""


class OutcomeError(RuntimeError):
    """Error of `horovod.run` if a function's result or exception cannot be sent to the caller."""
