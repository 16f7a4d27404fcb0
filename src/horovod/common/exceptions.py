"""Exceptions that a user of any frontend can catch.

The hierarchy is::

    RuntimeError
      HorovodInternalError         an operation failed: a peer was lost, ranks disagreed, the engine was shut down
        UnsupportedOpError         (also a ValueError) the operation does not support this reduction
        NotRunningError            (also a ValueError) Horovod has been shut down in this process
      HostsUpdatedInterrupt        elastic jobs: the set of hosts changed
      OutOfSyncError               check_in_sync found that ranks hold different values
    ValueError
      NoPlaceError                 elastic jobs: the launcher has no slot for this process
    ImportError
      HorovodVersionMismatchError  the installed framework does not have the required version

Invalid arguments, invalid settings and jobs that cannot be formed raise plain ValueErrors.
"""


class HorovodInternalError(RuntimeError):
    """Raised if an operation fails for an external reason, such as a lost peer. Elastic jobs recover from it."""


class RanksDisagreeError(HorovodInternalError):
    """Raised if ranks call an operation with different shapes, dtypes or arguments. The message names both values.

    This is a mistake in the program, so retrying does not help. No data was transferred, and the job continues.
    """


class UnsupportedOpError(HorovodInternalError, ValueError):
    """Raised if an operation does not support the given reduction, such as Max.

    Nothing was submitted to the engine. This is a ValueError because the argument is wrong, and a HorovodInternalError
    because programs written for the original Horovod catch RuntimeError.
    """


class NotRunningError(HorovodInternalError, ValueError):
    """Raised if a collective operation is called after ``shutdown``."""


class OutOfSyncError(RuntimeError):
    """Raised by ``check_in_sync`` if ranks differ. The job continues, and later operations work."""


class NoPlaceError(ValueError):
    """Raised by ``init`` if the launcher of an elastic job has no slot for this process.

    Losing a slot is not a failure, so an uncaught exception prints ``line`` to stderr instead of a traceback.
    """

    line = ""
    """Message for stderr that names the process that leaves, and the reason."""


class HostsUpdatedInterrupt(RuntimeError):
    """Raised if hosts were added to or removed from an elastic job.

    Attributes:
        skip_sync: True if no worker has lost its state, so the states need not be synchronized.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return the error message for framework ``name`` if its installed version differs from ``version``."""
    return (
        f"{name} {installed_version} is installed, but this job was started with {name} {version}; "
        f"install {name}=={version} or start the job again with {name} {installed_version}."
    )


class HorovodVersionMismatchError(ImportError):
    """Raised if a framework's installed version differs from the version that the job requires."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
