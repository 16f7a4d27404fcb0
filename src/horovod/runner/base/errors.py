"""Exceptions of the launcher."""

from __future__ import annotations


class LaunchError(ValueError):
    """The job cannot be started as requested: a flag, host, variable or file is wrong."""


class AgentError(RuntimeError):
    """The agent of a host could not be started, ended early or sent an invalid message."""


class OutcomeError(RuntimeError):
    """The result or exception of a function run by `horovod.run` cannot be sent to the caller."""
