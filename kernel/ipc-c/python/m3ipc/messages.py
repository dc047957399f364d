"""What is sent, and what a wait tells."""

import struct
from ctypes import c_int32
from dataclasses import dataclass, field
from typing import Any, Optional

from ._library import DATA_BYTES_MAX, PAYLOAD_BYTES, CMessage, CPayload, fitting


@dataclass
class Message:
    """64 bytes: a type and 56 bytes of payload (shorter ones are filled with zeroes), and up to 2048 bytes of data beside it.

    `source` is set on arrival, and ignored on sending.
    """

    type: int = 0
    payload: bytes = b""
    data: bytes = b""
    source: Optional[int] = None

    @classmethod
    def packed(cls, type, layout, *values, data=b""):
        """A message whose payload is written as `struct.pack` does."""
        return cls(type, struct.pack(layout, *values), data)

    def unpack(self, layout):
        """The payload, read as `struct.unpack` does; what the layout does not cover is left out."""
        return struct.unpack_from(layout, self.payload.ljust(PAYLOAD_BYTES, b"\0"))

    def to_c(self):
        if len(self.payload) > PAYLOAD_BYTES:
            raise ValueError(f"a payload has at most {PAYLOAD_BYTES} bytes")
        if len(self.data) > DATA_BYTES_MAX:
            raise ValueError(f"at most {DATA_BYTES_MAX} bytes of data go along: lend more with Port.grant")
        payload = bytes(self.payload).ljust(PAYLOAD_BYTES, b"\0")
        return CMessage(0, fitting(self.type, c_int32), CPayload.from_buffer_copy(payload))

    @classmethod
    def of_c(cls, message, data):
        return cls(message.type, bytes(message.payload), data, message.source)


@dataclass(frozen=True)
class Place:
    """A place in memory that `owner` lent by the grant with this number."""

    owner: int
    grant: int
    offset: int = 0


@dataclass(frozen=True)
class Notified:
    """`source` set these bits since the last such event."""

    source: int
    mask: int


@dataclass(frozen=True)
class RingOpened:
    """`source` opened a ring; `ring` is this end of it."""

    source: int
    ring: Any = field(repr=False)


@dataclass(frozen=True)
class RingReady:
    """The ring has submissions."""

    ring_id: int


@dataclass(frozen=True)
class RingClosed:
    """The client's end is gone; `error` says why. The last event of this ring."""

    ring_id: int
    error: Exception


@dataclass(frozen=True)
class Woken:
    """A waker of the port was used."""
