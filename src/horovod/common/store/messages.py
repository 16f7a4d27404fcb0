"""Messages between store clients and the server, and their keys."""

import zlib
from typing import Annotated

import msgspec
import zmq
import zmq.utils.z85

from horovod.common.contract.private_files import Secret
from horovod.common.security.auth import derive_key

# Maximum bytes of a ZeroMQ frame on both sides. ZeroMQ checks the length before the keys, so this is what an
# unauthenticated connection can make a process hold; hence messages are split into frames.
MAX_FRAME_BYTES = 8192
_ENCRYPTION = 64  # maximum overhead of encryption per frame (CurveZMQ, RFC 26: 33)
MAX_VALUE_BYTES = 1 << 20
MAX_NAMES = 65536
MAX_RANKS = 65536
# A request has at most one value and its name, or as many names as fit.
MAX_REQUEST_BYTES = MAX_VALUE_BYTES + 4096
# All values of one reply; an exchange's reply has one per rank.
MAX_REPLY_BYTES = 256 << 20

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Value = Annotated[bytes, msgspec.Meta(max_length=MAX_VALUE_BYTES)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]


class Set(msgspec.Struct, tag="set", array_like=True):
    """Request to store a value under a name.

    Replaces an earlier value, unless ``first`` is set. The reply then has the value that the name has afterwards.
    """

    id: int
    name: _Name
    value: _Value
    first: bool = False


class Get(msgspec.Struct, tag="get", array_like=True):
    """Request for values, answered when all names have one, or with an error after ``timeout`` seconds (0: at once)."""

    id: int
    names: Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=MAX_NAMES)]
    timeout: _Seconds


class Exchange(msgspec.Struct, tag="exchange", array_like=True):
    """Request to exchange values, answered when all ranks of a group have called, or with an error after ``timeout``.

    A later call for the same group begins a new round. A rank that timed out has left the round. Of the ranks with the
    same ``node`` only the first gets all values, to pass them on; the others get only its value.
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


class Come(msgspec.Struct, tag="come", array_like=True):
    """Request of an elastic job's worker for a place, answered with the place or a refusal once decided (``desk``).

    Attributes:
        id: Number of the request.
        worker: Number of the worker.
        epoch: Its previous epoch; 0: none.
        lost: Workers that it has lost.
        facts: Encoded properties of the worker.
        in_sync: True if its state has missed nothing since the last sync.
        holds: True if its state has been synchronized once, so that it is the state of the training; None: unknown.
    """

    id: int
    worker: _Worker
    epoch: _Epoch
    lost: _Lost = []
    facts: _Value = b""
    in_sync: bool = False
    holds: bool | None = None


class Heard(msgspec.Struct, tag="heard", array_like=True):
    """Report that the worker has noticed the end of the epoch; answered at once.

    ``blame``: what its program does wrong, if it will not come back.
    """

    id: int
    worker: _Worker
    epoch: _Epoch
    lost: _Lost = []
    blame: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class News(msgspec.Struct, tag="news", array_like=True):
    """Request for news after the given number, answered with all of them when there are any.

    ``round`` of the reply is the number of the last news. A later request replaces an earlier one, which is not
    answered.
    """

    id: int
    worker: _Worker
    after: _Epoch


Request = Set | Get | Exchange | Come | Heard | News


class Reply(msgspec.Struct, array_like=True):
    """Reply to the request with this id."""

    id: int
    values: list[bytes] = []
    round: int = 0
    """For an exchange: number of the round, which this server never uses again."""
    error: str = ""
    missing: list[str] = []
    """With an error: the names or ranks that did not come."""
    packed: bytes = b""
    """For an exchange: all values, encoded by ``pack``; ``values`` is empty then."""
    holder: int = -1
    """For an exchange: the rank that gets all values; -1: the requesting rank."""
    gave_up: list[str] = []
    """With an error of an exchange: ranks that had come but timed out."""


def frames(message: bytes) -> list[memoryview]:
    """Split a message into frames."""
    step = MAX_FRAME_BYTES - _ENCRYPTION
    view = memoryview(message)
    return [view[begin : begin + step] for begin in range(0, max(1, len(view)), step)]


def pack(values: list[bytes]) -> bytes:
    """Encode and compress values. Records of many ranks are similar, so they compress well."""
    return zlib.compress(msgspec.msgpack.encode(values))


def unpack(packed: bytes) -> list[bytes]:
    """Return the values encoded by ``pack``. Raises ValueError for other data, or if it is larger than a reply."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, MAX_REPLY_BYTES)
        if not stream.eof:
            raise ValueError(f"packed values are cut off, or have more than the accepted {MAX_REPLY_BYTES} bytes")
        return msgspec.msgpack.decode(data, type=list[bytes])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"packed values are not understood: {error}") from None


def curve_pair(job_key: bytes, side: str) -> tuple[bytes, bytes]:
    """Return the (public, secret) CURVE keys, in Z85, of one side: "server" or "client"."""
    # Any 32 bytes are a valid CURVE secret, because the curve's arithmetic sets the bits that matter.
    secret = Secret(zmq.utils.z85.encode(derive_key(job_key, f"store {side}")))
    return zmq.curve_public(secret), secret
