"""What the programs of a container agree on: locks, elections, values, groups; and what its nodes are like."""

import collections
import enum
from ctypes import CFUNCTYPE, POINTER, byref, c_void_p, create_string_buffer, string_at

from ._handle import Handle
from ._library import CChange, CGroupEvent, CHolder, CNode, c_uint64, checked, lib, milliseconds, opened
from .errors import NotBound

ANY = 2**64 - 1
"""Condition of a change: whatever is there."""
ABSENT = 0
"""Condition of a change: the key must not be there."""

_VALUE_BYTES_MAX = 4096
_CANDIDATE_BYTES_MAX = 256
_NODES_MAX = 63
_ON_CHANGE = CFUNCTYPE(None, c_void_p, POINTER(CChange))
_ON_EVENT = CFUNCTYPE(None, c_void_p, POINTER(CGroupEvent))

Holder = collections.namedtuple("Holder", "token node value")
Change = collections.namedtuple("Change", "kind key value revision")
Node = collections.namedtuple(
    "Node", "node answered cpus load memory_bytes available_bytes round_trip_us links age_ms"
)
Member = collections.namedtuple("Member", "id name node")
View = collections.namedtuple("View", "index number members")
GroupMessage = collections.namedtuple("GroupMessage", "index level sender number data")


class Contended(enum.IntEnum):
    LOCK = 1
    ELECTION = 2


class ChangeKind(enum.IntEnum):
    PUT = 1
    DELETE = 2
    LOST = 3


class Level(enum.IntEnum):
    """When a member is given a message: `AGREED` when its server has it, `SAFE` when those of all members have it."""

    AGREED = 1
    SAFE = 2


class Held:
    """A lock, or the lead; `token` rises from owner to owner. Given up at the end of a `with`."""

    def __init__(self, session, kind, name, token):
        self.session, self.kind, self.name, self.token = session, kind, name, token

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def release(self):
        function = lib.m3_cs_unlock if self.kind == Contended.LOCK else lib.m3_cs_resign
        self.session._call(function, self.name.encode(), self.token)

    def confirm(self):
        """Asks the cluster whether it is still held: raises an error with the number of `ENOENT` if not."""
        self.session._call(lib.m3_cs_confirm, self.kind, self.name.encode(), self.token)


class Coordination(Handle):
    """A session with the coordination server of this node. With it everything ends that it holds. Threads may share it.

    Time limits are seconds, `None` for ever. What the server refuses is `OsError`, whose `errno` says why.
    """

    _close = staticmethod(lib.m3_cs_close)

    def __init__(self, path=None):
        super().__init__(opened(lib.m3_cs_open, None if path is None else str(path).encode()))

    def lock(self, name, timeout=None):
        token = c_uint64()
        self._call(lib.m3_cs_lock, name.encode(), milliseconds(timeout), byref(token))
        return Held(self, Contended.LOCK, name, token.value)

    def campaign(self, name, value=b"", timeout=None):
        """Waits until this session leads."""
        token = c_uint64()
        self._call(lib.m3_cs_campaign, name.encode(), value, len(value), milliseconds(timeout), byref(token))
        return Held(self, Contended.ELECTION, name, token.value)

    def holder(self, kind, name, seen=ANY, timeout=0):
        """Who has it, once that is another one than `seen`; `None` for nobody."""
        holder, value = CHolder(), create_string_buffer(_CANDIDATE_BYTES_MAX)
        limit = milliseconds(timeout)
        self._call(lib.m3_cs_owner, kind, name.encode(), seen, limit, byref(holder), value, len(value))
        return Holder(holder.token, holder.node, value.raw[: holder.value_bytes]) if holder.token else None

    def get(self, key):
        """The value and its revision."""
        value, revision = create_string_buffer(_VALUE_BYTES_MAX), c_uint64()
        count = self._call(lib.m3_cs_get, key.encode(), value, len(value), byref(revision))
        return value.raw[:count], revision.value

    def put(self, key, value, condition=ANY):
        """Answers the new revision."""
        revision = c_uint64()
        self._call(lib.m3_cs_put, key.encode(), value, len(value), condition, byref(revision))
        return revision.value

    def delete(self, key, condition=ANY):
        self._call(lib.m3_cs_delete, key.encode(), condition)

    def list(self, prefix=""):
        """Keys that begin with `prefix`, and after which revision `watch` goes on."""
        changes, seen = [], c_uint64()
        self._call(lib.m3_cs_list, prefix.encode(), _collector(changes), None, byref(seen))
        return changes, seen.value

    def watch(self, prefix, seen, timeout=None):
        """Changes after `seen`, and what to pass as `seen` next."""
        changes, seen = [], c_uint64(seen)
        limit = milliseconds(timeout)
        self._call(lib.m3_cs_watch, prefix.encode(), byref(seen), limit, _collector(changes), None)
        return changes, seen.value

    def sense(self, timeout=1.0):
        """What the container's nodes are like."""
        nodes = (CNode * _NODES_MAX)()
        count = self._call(lib.m3_cs_sense, milliseconds(timeout), nodes, _NODES_MAX)
        fields = Node._fields
        return [Node(*(getattr(node, field) for field in fields)) for node in nodes[: min(count, _NODES_MAX)]]

    def join(self, group, name, timeout=None):
        arguments = (group.encode(), name.encode(), milliseconds(timeout))
        if self._handle is None:
            raise NotBound("it is closed")
        return Group(opened(lib.m3_group_join, self._handle, *arguments))


class Group(Handle):
    """Membership of a group: the same views and messages in the same order for all. `close` leaves it."""

    _close = staticmethod(lib.m3_group_leave)

    @property
    def id(self):
        number = c_uint64()
        self._call(lib.m3_group_id, byref(number))
        return number.value

    def send(self, data, level=Level.AGREED):
        """Returns when it is on its way; an error may be of an earlier message."""
        self._call(lib.m3_group_send, level, data, len(data))

    def flush(self):
        self._call(lib.m3_group_flush)

    def receive(self, timeout=None):
        """What this member was not given yet: `View` and `GroupMessage`. Waits in pieces, so that Ctrl-C is heard."""
        events, left = [], timeout
        collect = _ON_EVENT(lambda _, event: events.append(_event(event.contents)))
        while not events:
            piece = 1.0 if left is None else min(left, 1.0)
            self._call(lib.m3_group_receive, milliseconds(piece), collect, None)
            if left is not None:
                left -= piece
                if left <= 0:
                    break
        return events


def _collector(changes):
    def told(_, change):
        change = change.contents
        value = string_at(change.value, change.value_bytes) if change.value_bytes else b""
        changes.append(Change(ChangeKind(change.kind), change.key.decode(), value, change.revision))

    return _ON_CHANGE(told)


def _event(event):
    if event.kind == 1:
        members = tuple(Member(one.id, one.name.decode(), one.node) for one in event.members[: event.member_count])
        return View(event.index, event.number, members)
    data = string_at(event.data, event.bytes) if event.bytes else b""
    return GroupMessage(event.index, Level(event.level), event.sender, event.number, data)
