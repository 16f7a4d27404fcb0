"""Who meets, and what comes of it."""

import hashlib
from dataclasses import dataclass, field

from horovod.common.contract.secret import Secret
from horovod.common.handover.door import Door
from horovod.common.handover.handover import Handover
from horovod.common.launchers.place import Place
from horovod.common.security.auth import derive_key
from horovod.common.store.server import StoreServer


class MeetingError(RuntimeError):
    """This rank does not find rank 0's store; says where it looked."""


@dataclass
class Meeting:
    """Where the store is. In rank 0's process also the store itself."""

    address: str
    port: int
    key: bytes = field(repr=False)
    server: StoreServer | None = None
    door: Door | Handover | None = None

    def __post_init__(self) -> None:
        self.key = Secret(self.key)

    def formed(self) -> None:
        """All ranks have come into the store: nobody else needs the door."""
        if self.door is not None:
            self.door.close()


@dataclass(frozen=True)
class Group:
    """Who meets: the ranks of one ``init`` in a job, under the key that the user gave (None: one is made)."""

    place: Place
    members: tuple[int, ...]
    """World ranks, or empty for all."""
    given_key: bytes | None = field(repr=False)
    interface: str = ""
    """HOROVOD_GLOO_IFACE."""
    ports: range = range(1)
    """HOROVOD_PORT_RANGE; range(1): any."""

    @property
    def leader(self) -> int:
        """The rank whose process runs the store."""
        return self.members[0] if self.members else 0

    @property
    def size(self) -> int:
        """How many meet."""
        return len(self.members) or self.place.size

    @property
    def label(self) -> str:
        """Equal for its ranks only."""
        who = hashlib.sha256(str(self.members).encode()).hexdigest()[:16] if self.members else "all"
        return f"{self.place.job}/{who}"

    def job_key(self, fresh: bytes) -> bytes:
        """The given key bound to this group, so that jobs with one key do not meet, else ``fresh``."""
        return fresh if self.given_key is None else derive_key(self.given_key, f"group {self.label}")
