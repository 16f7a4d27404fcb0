"""Exceptions of the launcher."""

from __future__ import annotations


class LaunchError(ValueError):
    """Error of a job that cannot start as requested, because a flag, host, variable or file is wrong."""


class AgentError(RuntimeError):
    """Error of a host's agent, which could not start, ended early or sent an invalid message."""


class OutcomeError(RuntimeError):
    """Error that `horovod.run` raises if a function's result or exception cannot be sent to the caller."""
