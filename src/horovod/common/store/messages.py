"""Messages between the store's clients and its server, and the CURVE keys of both sides."""

import zlib
from typing import Annotated

import msgspec
import zmq
import zmq.utils.z85

from horovod.common.contract.private_files import Secret
from horovod.common.security.auth import derive_key

# Maximum size of a ZeroMQ frame in bytes. An unauthenticated connection can make a process buffer one frame, because
# ZeroMQ checks keys later. Long messages are split, so that this limit can be small.
MAX_FRAME_BYTES = 8192
_ENCRYPTION = 64  # maximum overhead of encryption per frame in bytes (33 in CurveZMQ, RFC 26)
MAX_VALUE_BYTES = 1 << 20
MAX_NAMES = 65536
MAX_RANKS = 65536
# Maximum size of a request in bytes. A request contains one name and its value, or as many names as fit.
MAX_REQUEST_BYTES = MAX_VALUE_BYTES + 4096
# Maximum size of all values in a reply in bytes. The reply to an exchange has one value per rank.
MAX_REPLY_BYTES = 256 << 20

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Value = Annotated[bytes, msgspec.Meta(max_length=MAX_VALUE_BYTES)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]


class Set(msgspec.Struct, tag="set", array_like=True):
    """Request to store a value under a name.

    The value replaces any earlier one unless ``first`` is set. The reply contains the resulting value of the name.
    """

    id: int
    name: _Name
    value: _Value
    first: bool = False


class Get(msgspec.Struct, tag="get", array_like=True):
    """Request for values by name. The reply follows once all names have values, or after ``timeout`` s (an error)."""

    id: int
    names: Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=MAX_NAMES)]
    timeout: _Seconds


class Exchange(msgspec.Struct, tag="exchange", array_like=True):
    """Request to exchange values with the other ranks of a group.

    The reply is sent when all ranks of the group have sent their requests, or with an error after ``timeout``. A later
    request for the same group begins a new exchange. A rank that timed out no longer takes part. Of the ranks with the
    same ``node``, only the first one gets all values, and passes them on. The other ones get only the first rank's
    value.
    """

    id: int
    group: _Name
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    value: _Value
    timeout: _Seconds
    node: Annotated[str, msgspec.Meta(max_length=512)] = ""


_Worker = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Epoch = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Lost = Annotated[list[_Worker], msgspec.Meta(max_length=MAX_RANKS)]


class Join(msgspec.Struct, tag="come", array_like=True):
    """Request of an elastic job's worker for a rank in the next epoch.

    The request is answered when the launcher has decided (``membership``).

    Attributes:
        id: Number of the request.
        worker: Number of the worker.
        epoch: Previous epoch of the worker, or 0 if there is none.
        lost: Workers of the previous epoch that this worker has lost.
        facts: Encoded properties of the worker.
        in_sync: True if the worker's state includes all changes since the last sync.
        holds: True if the worker's state has been synchronized at least once and so contains the progress of training.
            None means unknown.
    """

    id: int
    worker: _Worker
    epoch: _Epoch
    lost: _Lost = []
    facts: _Value = b""
    in_sync: bool = False
    holds: bool | None = None


class Leave(msgspec.Struct, tag="heard", array_like=True):
    """Report that a worker has noticed the end of its epoch. The store replies immediately.

    If the worker will not join again, ``blame`` describes the mistake in its program.
    """

    id: int
    worker: _Worker
    epoch: _Epoch
    lost: _Lost = []
    blame: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class News(msgspec.Struct, tag="news", array_like=True):
    """Request for all events after a given number. The reply is sent as soon as there is such an event.

    The reply contains these events, and ``round`` is the number of the last one. A later request replaces an
    earlier one, which is then not answered.
    """

    id: int
    worker: _Worker
    after: _Epoch


Request = Set | Get | Exchange | Join | Leave | News


class Reply(msgspec.Struct, array_like=True):
    """Reply to the request that has the same id."""

    id: int
    values: list[bytes] = []
    round: int = 0
    """For an exchange: number of the round, which this server never uses again."""
    error: str = ""
    missing: list[str] = []
    """For an error: missing names, or ranks that have not called."""
    packed: bytes = b""
    """For an exchange: all values, encoded by ``pack``. ``values`` is then empty."""
    holder: int = -1
    """For an exchange: the rank that gets all values, or -1 for the requesting rank."""
    gave_up: list[str] = []
    """For an error of an exchange: ranks that called earlier but timed out."""


def frames(message: bytes) -> list[memoryview]:
    """Split a message into frames of limited size."""
    step = MAX_FRAME_BYTES - _ENCRYPTION
    view = memoryview(message)
    return [view[begin : begin + step] for begin in range(0, max(1, len(view)), step)]


def pack(values: list[bytes]) -> bytes:
    """Encode and compress values. Ranks' records are similar, so they compress well."""
    return zlib.compress(msgspec.msgpack.encode(values))


def unpack(packed: bytes) -> list[bytes]:
    """Decode values encoded by ``pack``. Raises ValueError if the data is invalid or too large for a reply."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, MAX_REPLY_BYTES)
        if not stream.eof:
            raise ValueError(f"packed values are cut off, or have more than the accepted {MAX_REPLY_BYTES} bytes")
        return msgspec.msgpack.decode(data, type=list[bytes])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"packed values are not understood: {error}") from None


def curve_pair(job_key: bytes, side: str) -> tuple[bytes, bytes]:
    """Derive the CURVE keys of one side, "server" or "client", as (public, secret) in Z85."""
    # Any 32 bytes are a valid CURVE secret, because Curve25519 clamps the key.
    secret = Secret(zmq.utils.z85.encode(derive_key(job_key, f"store {side}")))
    return zmq.curve_public(secret), secret
