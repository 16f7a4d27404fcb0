"""Ranks that form a job, and the result of their meeting."""

import hashlib
from dataclasses import dataclass, field

from horovod.common.contract.private_files import Secret
from horovod.common.handover.door import Door
from horovod.common.handover.handover import Handover
from horovod.common.launchers import Place
from horovod.common.security.auth import derive_key
from horovod.common.store.server import StoreServer


class MeetingError(RuntimeError):
    """This rank cannot find rank 0's store; the message says where it looked."""


@dataclass
class Meeting:
    """Address and key of the store. In rank 0's process also the store itself."""

    address: str
    port: int
    key: bytes = field(repr=False)
    server: StoreServer | None = None
    door: Door | Handover | None = None

    def __post_init__(self) -> None:
        self.key = Secret(self.key)

    def formed(self) -> None:
        """Close the key server after all ranks have reached the store."""
        if self.door is not None:
            self.door.close()


@dataclass(frozen=True)
class Group:
    """Ranks of one ``init`` that form a job, and the key that the user gave (None: create one)."""

    place: Place
    members: tuple[int, ...]
    """World ranks; empty for all."""
    given_key: bytes | None = field(repr=False)
    interface: str = ""
    """Value of HOROVOD_GLOO_IFACE."""
    ports: range = range(1)
    """Value of HOROVOD_PORT_RANGE; range(1): any port."""

    @property
    def leader(self) -> int:
        """Rank whose process runs the store."""
        return self.members[0] if self.members else 0

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.members) or self.place.size

    @property
    def label(self) -> str:
        """Identity of the group: equal for its ranks only."""
        who = hashlib.sha256(str(self.members).encode()).hexdigest()[:16] if self.members else "all"
        return f"{self.place.job}/{who}"

    def job_key(self, fresh: bytes) -> bytes:
        """Return the given key bound to this group, so that jobs with the same key stay apart; otherwise ``fresh``."""
        return fresh if self.given_key is None else derive_key(self.given_key, f"group {self.label}")
