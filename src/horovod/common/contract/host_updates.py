"""Kinds of host updates in an elastic job."""

from enum import IntFlag


class HostUpdateResult(IntFlag):
    """Change of the hosts of an elastic job, as told by the launcher."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added
