"""Exceptions that users of any face may catch::

    RuntimeError
      HorovodInternalError         an operation failed: a peer was lost, ranks disagreed, the engine was shut down
        UnsupportedOpError         (also a ValueError) the operation does not have this reduction
        NotRunningError            (also a ValueError) Horovod has been shut down in this process
      HostsUpdatedInterrupt        elastic jobs: the set of hosts changed
      OutOfSyncError               check_in_sync: the ranks do not hold the same
    ValueError
      NoPlaceError                 elastic jobs: the launcher has no place for this process, or no more
    ImportError
      HorovodVersionMismatchError  a framework of another version than asked for is installed

Wrong arguments, wrong settings and a job that cannot be formed are plain ValueErrors.
"""


class HorovodInternalError(RuntimeError):
    """An operation failed for a reason outside this call, for example because a peer died. Elastic jobs recover from
    it.
    """


class RanksDisagreeError(HorovodInternalError):
    """Ranks have called one operation with different shapes, dtypes or arguments; the message names both values.

    A mistake in the program, which no recovery mends. Nothing was moved, and the job goes on.
    """


class UnsupportedOpError(HorovodInternalError, ValueError):
    """An operation was called with a reduction, such as Max, that it does not have. Nothing was submitted.

    A wrong argument, so a ValueError; programs written for the Horovod of old catch a RuntimeError.
    """


class NotRunningError(HorovodInternalError, ValueError):
    """A collective after ``shutdown``."""


class OutOfSyncError(RuntimeError):
    """``check_in_sync`` has found a difference between the ranks. Nothing is lost, and the next operation works."""


class NoPlaceError(ValueError):
    """``init`` in an elastic job whose launcher has no place for this process (any more). A program that lets it pass
    ends with ``line`` on its stderr, without a traceback: nothing has gone wrong in it.
    """

    line = ""
    """Who leaves, and why."""


class HostsUpdatedInterrupt(RuntimeError):
    """Raised inside an elastic job when hosts were added or removed.

    ``skip_sync``: no state was lost, so the surviving workers need not synchronise theirs.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """One sentence about package ``name``, wanted in ``version`` and found in ``installed_version``."""
    return (
        f"{name} {installed_version} is installed, but this job was started with {name} {version}; "
        f"install {name}=={version} or start the job again with {name} {installed_version}."
    )


class HorovodVersionMismatchError(ImportError):
    """A framework is installed in another version than the one the job was set up with."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
