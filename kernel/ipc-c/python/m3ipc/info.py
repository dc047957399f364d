"""Who and what else is in the container, as the node of the caller knows it: see m3_dc_info(3)."""

import enum
from dataclasses import dataclass
from typing import Optional


class State(enum.IntEnum):
    """How an endpoint is."""

    BOUND = 0
    HELD = 1
    LEAVING = 2


class Kind(enum.IntEnum):
    """What a channel is for."""

    MESSAGES = 0
    RING = 1
    DELEGATION = 2
    COPIES = 3


class Sent(enum.IntEnum):
    """What an end of a channel sent last."""

    NOTHING = 0
    MESSAGE = 1
    REQUEST = 2
    REPLY = 3


class Link(enum.IntEnum):
    """Whether a pair of proxies can carry anything."""

    UP = 0
    DOWN = 1
    UNKNOWN = 2


@dataclass(frozen=True)
class Traffic:
    """What an endpoint sent since it was bound."""

    messages: int
    notifications: int
    entries: int
    copies: int


@dataclass(frozen=True)
class DcInfo:
    """The container."""

    dc: int
    node: int
    endpoints_here: int
    endpoints_elsewhere: int
    nodes_elsewhere: int
    channels: int
    waiters: int
    first_program: int
    programs: int
    endpoints_max: int
    channels_max: int

    @classmethod
    def of_c(cls, found):
        return cls(**_named(found, cls))


@dataclass(frozen=True)
class EndpointInfo:
    """One endpoint. `pid` is `None` for servers and on other nodes, `waits_for` when it waits for nobody."""

    endpoint: int
    node: int
    pid: Optional[int]
    state: State
    waits_for: Optional[int]
    channels: int
    epoch: int
    sent_near: Traffic
    sent_far: Traffic

    @classmethod
    def of_c(cls, found):
        fields = _named(found, cls)
        fields["pid"] = found.pid or None
        fields["state"] = State(found.state)
        fields["waits_for"] = None if found.waits_for < 0 else found.waits_for
        fields["sent_near"] = Traffic(**_named(found.sent_near, Traffic))
        fields["sent_far"] = Traffic(**_named(found.sent_far, Traffic))
        return cls(**fields)


@dataclass(frozen=True)
class End:
    """What one end of a channel counted, as it says itself."""

    endpoint: int
    messages: int
    last: Sent
    taken: int
    awaits_answer: bool
    notifications: int
    entries: int
    entries_taken: int

    @classmethod
    def of_c(cls, found):
        fields = _named(found, cls)
        fields["last"] = Sent(found.last)
        fields["awaits_answer"] = bool(found.awaits_answer)
        return cls(**fields)


@dataclass(frozen=True)
class ChannelInfo:
    """One channel; `left` opened it. `node` is `None` when both ends are of this node. The counts mean nothing unless `is_counted`."""

    channel: int
    lane: int
    kind: Kind
    ring_entries: int
    arena_bytes: int
    node: Optional[int]
    pair: int
    is_counted: bool
    left: End
    right: End

    @classmethod
    def of_c(cls, found):
        fields = _named(found, cls)
        fields["kind"] = Kind(found.kind)
        fields["node"] = found.node or None
        fields["is_counted"] = bool(found.is_counted)
        fields["left"] = End.of_c(found.left)
        fields["right"] = End.of_c(found.right)
        return cls(**fields)


@dataclass(frozen=True)
class ProxyInfo:
    """One pair of proxies to a node on which the container has endpoints."""

    node: int
    pair: int
    state: Link
    endpoints: int
    channels: int

    @classmethod
    def of_c(cls, found):
        fields = _named(found, cls)
        fields["state"] = Link(found.state)
        return cls(**fields)


def _named(found, cls):
    return {name: getattr(found, name) for name in cls.__dataclass_fields__}
