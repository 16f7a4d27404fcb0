"""Place of a process in a job started by another launcher, and helpers to read its variables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_INTEGER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Place:
    """Place described by a launcher's variables; None where they contain no information."""

    launcher: str
    """Name for messages, such as "Open MPI"."""
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    job: str = ""
    """Equal for all processes of the job, and different for every other job of this user; empty if unknown."""
    hostname: str = ""
    """Launcher's name of this host; empty: use the system's name."""
    leads: tuple[str, ...] = ()
    """Hosts where rank 0 may run, most likely first."""
    port: int = 0
    """Start of a range of ports that are free for our use on rank 0's host; 0 if unknown."""
    mpi: bool = False
    """True for an MPI launcher."""
    tells: str = ""
    """Name of the launcher's variable that contains the rank; without it the process has no place."""

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ValueError(
                f"the rank given by {self.launcher} must be from 0 to the number of processes minus 1, got "
                f"{self.rank} of {self.size}"
            )
        if self.local_rank is not None and self.local_size is not None and not self.local_rank < self.local_size:
            raise ValueError(
                f"the local rank given by {self.launcher} must be below the number of processes on the host, got "
                f"{self.local_rank} of {self.local_size}"
            )

    @property
    def alone(self) -> str:
        """Clause that tells a user how to run the process alone; may be empty."""
        if not self.tells:
            return ""
        return (
            f"{self.tells} makes this process one of {self.size} ({self.launcher}); where it is to run alone, unset "
            f"{self.tells}"
        )

    @property
    def one_host(self) -> bool:
        """True if all processes of the job run on this host."""
        return self.local_size == self.size


def integer(env: Mapping[str, str], name: str) -> int | None:
    """Return the number in a variable; None if it is not set. Raises ValueError naming variable and value."""
    text = env.get(name, "").strip()
    if not text:
        return None
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{name} must be an integer of 0 or more, got {text!r}")
    return int(text)


def first_integer(env: Mapping[str, str], *names: str) -> int | None:
    """Return the number in the first of the variables that is set, or None."""
    for name in names:
        value = integer(env, name)
        if value is not None:
            return value
    return None


def both(env: Mapping[str, str], rank: str, size: str) -> tuple[int, int] | None:
    """Return the numbers in two variables that only have a meaning together; None unless both are set."""
    numbers = integer(env, rank), integer(env, size)
    return (numbers[0], numbers[1]) if numbers[0] is not None and numbers[1] is not None else None
