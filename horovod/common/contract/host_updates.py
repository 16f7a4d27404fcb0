"""What the launcher of an elastic job tells its workers of changes."""

from enum import IntFlag


class HostUpdateResult(IntFlag):
    """What has happened to the hosts of an elastic job."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added
