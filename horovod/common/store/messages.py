"""What store clients and the server say to each other, and the keys they do it with."""

import zlib
from typing import Annotated

import msgspec
import zmq
import zmq.utils.z85

from horovod.common.contract.secret import Secret
from horovod.common.security.auth import derive_key

# ZeroMQ's limit of a frame, at both ends. It looks at lengths before it looks at keys, so this is what a stranger can
# make a process hold for one connection; hence messages travel in frames.
MAX_FRAME_BYTES = 8192
_ENCRYPTION = 64  # bytes of a frame that are not the message's, at most (CurveZMQ, RFC 26: 33)
MAX_VALUE_BYTES = 1 << 20
MAX_NAMES = 65536
MAX_RANKS = 65536
# A request is at most one value and its name, or as many names as fit.
MAX_REQUEST_BYTES = MAX_VALUE_BYTES + 4096
# Values of one reply; an exchange's has one of every rank.
MAX_REPLY_BYTES = 256 << 20

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Value = Annotated[bytes, msgspec.Meta(max_length=MAX_VALUE_BYTES)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]


class Set(msgspec.Struct, tag="set", array_like=True):
    """Stores a value under a name, in place of an earlier one, or with ``first`` only if there is none; answered with
    the value that is there then."""

    id: int
    name: _Name
    value: _Value
    first: bool = False


class Get(msgspec.Struct, tag="get", array_like=True):
    """Answered as soon as all names are there, or with an error after ``timeout`` seconds (0: at once)."""

    id: int
    names: Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=MAX_NAMES)]
    timeout: _Seconds


class Exchange(msgspec.Struct, tag="exchange", array_like=True):
    """Answered when all ranks of a group have called, with everybody's values, or with an error after ``timeout``
    seconds.

    A later call for the same group begins a new round. A rank that timed out has left the round. Of the ranks that say
    the same ``node`` only the first one gets everybody's values, to pass them on, and the others get its value alone.
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
    """Of an elastic job's worker that waits for a place; answered with it, or with a refusal, whenever that is decided
    (``desk``). ``epoch``: the one it was in, 0: none. ``lost``: workers that it has lost. ``in_sync``: its state has
    missed nothing of what the others' has got since they were brought together. ``holds``: it has been brought together
    with those of others once, so it is the state of the training; None: the program does not say."""

    id: int
    worker: _Worker
    epoch: _Epoch
    lost: _Lost = []
    facts: _Value = b""
    in_sync: bool = False
    holds: bool | None = None


class Heard(msgspec.Struct, tag="heard", array_like=True):
    """The worker has noticed that the epoch is over; answered at once. ``blame``: what its program does wrong, if it
    does: it will not come back."""

    id: int
    worker: _Worker
    epoch: _Epoch
    lost: _Lost = []
    blame: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class News(msgspec.Struct, tag="news", array_like=True):
    """Answered when there are news for the worker after those of this number, with all of them; ``round`` is the number
    of the last. A later one takes the place of an earlier one, which is not answered any more."""

    id: int
    worker: _Worker
    after: _Epoch


Request = Set | Get | Exchange | Come | Heard | News


class Reply(msgspec.Struct, array_like=True):
    """Answer to the request with this id."""

    id: int
    values: list[bytes] = []
    round: int = 0
    """Exchange: number of the round, never used again by this server."""
    error: str = ""
    missing: list[str] = []
    """With an error: the names, or the ranks, that did not come."""
    packed: bytes = b""
    """Exchange: the values, if there are any, by ``pack``; then ``values`` is empty."""
    holder: int = -1
    """Exchange: the rank that gets everybody's values; -1: the one that asks."""
    gave_up: list[str] = []
    """With an error of an exchange: the ranks that had come and waited in vain."""


def frames(message: bytes) -> list[memoryview]:
    """The parts in which a message travels."""
    step = MAX_FRAME_BYTES - _ENCRYPTION
    view = memoryview(message)
    return [view[begin : begin + step] for begin in range(0, max(1, len(view)), step)]


def pack(values: list[bytes]) -> bytes:
    """What many ranks say of themselves is alike, so it compresses well."""
    return zlib.compress(msgspec.msgpack.encode(values))


def unpack(packed: bytes) -> list[bytes]:
    """The values that ``pack`` was given. Raises ValueError for what is not of its making, or larger than a reply."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, MAX_REPLY_BYTES)
        if not stream.eof:
            raise ValueError(f"packed values are cut off, or have more than the accepted {MAX_REPLY_BYTES} bytes")
        return msgspec.msgpack.decode(data, type=list[bytes])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"packed values are not understood: {error}") from None


def curve_pair(job_key: bytes, side: str) -> tuple[bytes, bytes]:
    """(public, secret) CURVE keys, in Z85, of one side: "server" or "client"."""
    # Any 32 bytes are a CURVE secret: the curve's arithmetic fixes the few bits that matter.
    secret = Secret(zmq.utils.z85.encode(derive_key(job_key, f"store {side}")))
    return zmq.curve_public(secret), secret
