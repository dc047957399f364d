"""A bound endpoint."""

import contextlib
import ctypes
import os
import socket
import threading
import time
from ctypes import byref, c_int32, c_uint64, c_void_p

from ._library import (
    ANY,
    CChannel,
    CDc,
    CEndpoint,
    CEvent,
    CMessage,
    CPlace,
    CPrivileges,
    CProxy,
    checked,
    fitting,
    lib,
    milliseconds,
    opened,
)
from .errors import Busy, M3Error, NoBroker, NotBound, TimedOut, error_of
from .info import ChannelInfo, DcInfo, EndpointInfo, ProxyInfo
from .messages import Message, Notified, Place, RingClosed, RingOpened, RingReady, Woken
from .privileges import Privileges
from .rings import Ring, RingServer

READ = 1
WRITE = 2

_MODES = {"adaptive": 0, "park": 1, "spin": 2}
# A wait in the library does not end for a signal, so that Ctrl-C would wait with it: it is looked for between pieces.
_PIECE_SECONDS = 1.0
# As in the C library.
_BROKER = "/run/dvs/broker"
_BROKER_VARIABLE = "M3IPC_BROKER"
# Records of a list that are asked for at once.
_PART = 16


class Port:
    """Binds an endpoint of the container the program runs in; unbound at the end of a `with` block.

    `endpoint` is a number, or `None` for one that the broker chooses; `path` the broker's socket, or `None` for the container's.
    One thread uses a port at a time. Time limits are seconds; `None` waits for ever, 0 not at all.
    """

    def __init__(self, endpoint=None, path=None):
        self._handle, self._lent = None, {}
        name = None if path is None else os.fsencode(path)
        self._handle = opened(lib.m3_connect, name, ANY if endpoint is None else endpoint)

    @classmethod
    def when_bound(cls, timeout=None, path=None):
        """Binds as soon as a manager has bound this process: `bind_for`."""
        port = cls.__new__(cls)
        port._handle, port._lent = None, {}
        name = None if path is None else os.fsencode(path)

        def bound(milliseconds):
            port._handle = opened(lib.m3_connect_when_bound, name, milliseconds)

        _in_pieces(timeout, bound)
        return port

    @classmethod
    def stand_by(cls, endpoint, timeout=None, path=None):
        """Waits as a backup of `endpoint` until it is handed over to this process."""
        port = cls.__new__(cls)
        port._handle, port._lent = None, {}
        limit = milliseconds(timeout)
        with _connected(path) as broker:

            def bound():
                fd = os.dup(broker.fileno())
                try:
                    return opened(lib.m3_stand_by_fd, fd, endpoint, limit)
                except ctypes.ArgumentError:
                    # The library was not called, whose the descriptor would be.
                    os.close(fd)
                    raise

            # Cut in pieces, it would be no backup in between.
            port._handle = _in_a_thread(bound, lambda: broker.shutdown(socket.SHUT_RDWR), lib.m3_close)
        return port

    @classmethod
    def from_fd(cls, fd, endpoint=None):
        """Binds over a socket that the node daemon handed to this process; the descriptor is the port's from then on."""
        port = cls.__new__(cls)
        port._handle, port._lent = None, {}
        port._handle = opened(lib.m3_connect_fd, fd, ANY if endpoint is None else endpoint)
        return port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        with contextlib.suppress(M3Error):
            self.close()

    def __repr__(self):
        return "<m3ipc.Port, closed>" if self._handle is None else f"<m3ipc.Port, endpoint {self.endpoint}>"

    def close(self):
        """Gives the endpoint up. Doing so again does nothing."""
        if self._handle is not None:
            result = lib.m3_close(self._handle)
            if result != Busy.number:
                self._handle = None
                self._lent.clear()
            checked(result)

    @property
    def endpoint(self):
        return self._call(lib.m3_endpoint)

    @property
    def epoch(self):
        """Higher than that of every earlier owner of the number."""
        epoch = c_uint64()
        self._call(lib.m3_epoch, byref(epoch))
        return epoch.value

    def set_wait_mode(self, mode):
        """`adaptive`, `park` or `spin`."""
        self._call(lib.m3_set_wait_mode, _MODES[mode])

    def getep(self, pid):
        """The endpoint of a process of the container."""
        return self._call(lib.m3_getep, pid)

    def set_name(self, name):
        """Calls this endpoint something, in all of the container, until it ends."""
        self._call(lib.m3_set_name, _name(name))

    def find(self, name, timeout=None):
        """The endpoint that is called so, on any node; waits until there is one."""
        return self._call(lib.m3_find, _name(name), milliseconds(timeout))

    def wait4bind(self, endpoint, timeout=None):
        """Waits until somebody is bound to `endpoint`."""
        self._call(lib.m3_wait4bind, endpoint, milliseconds(timeout))

    def wait4unbind(self, endpoint, timeout=None):
        """Waits until nobody is."""
        self._call(lib.m3_wait4unbind, endpoint, milliseconds(timeout))

    # Messages

    def send(self, to, message, timeout=None):
        """Sends and waits until the peer has taken the message."""
        self._call(lib.m3_send_data, to, byref(message.to_c()), *_data(message), milliseconds(timeout))

    def sendrec(self, to, message, timeout=None):
        """Sends a request and returns its reply."""
        both = message.to_c()
        self._call(lib.m3_sendrec_data, to, byref(both), *_data(message), milliseconds(timeout))
        return Message.of_c(both, self._data())

    def receive(self, source=None, timeout=None):
        """Takes a message, of one or of anybody. Notifications stay for `wait`."""
        return self._take(timeout, lib.m3_receive, ANY if source is None else source)

    def rcvrqst(self, timeout=None):
        """Takes the next request; messages that want no reply stay."""
        return self._take(timeout, lib.m3_rcvrqst)

    def reply(self, to, message):
        """Answers the request that was taken from `to` last. Never waits."""
        self._call(lib.m3_reply_data, to, byref(message.to_c()), *_data(message))

    def notify(self, to, mask=1):
        """Sets bits at `to`. Never waits."""
        self._call(lib.m3_notify, to, mask)

    # Waiting for anything

    def wait(self, timeout=None):
        """The next message or event, notifications first."""
        return self._event(timeout, lib.m3_wait)

    def wait_from(self, source, timeout=None):
        """The next message or notification of one peer."""
        return self._event(timeout, lib.m3_wait_from, source)

    def poll(self):
        """What `wait` would return at once, else `None`. For event loops: from `None` on `fileno()` rings."""
        try:
            return self.wait(0)
        except TimedOut:
            return None

    def fileno(self):
        """Readable when `poll` has something, from when it returned `None` until the next one; sometimes for nothing."""
        return self._call(lib.m3_fd)

    def waker(self):
        """What ends a `wait` from any thread."""
        return Waker(self._live())

    # Copies

    def grant(self, to, buffer, access):
        """Lends a buffer to an endpoint: `READ`, `WRITE` or both. What may be written is a writable buffer."""
        return Grant(self, to, buffer, access)

    def copy_from(self, place, into, timeout=None):
        """Copies from a peer's memory: `into` is a writable buffer, or how many bytes to return."""
        target = bytearray(into) if isinstance(into, int) else into
        address, size, _kept = _address(target, WRITE)
        self._call(lib.m3_copy_from, _c(place), address, size, milliseconds(timeout))
        return bytes(target) if isinstance(into, int) else None

    def copy_to(self, data, place, timeout=None):
        """Copies into a peer's memory."""
        address, size, _kept = _address(data, READ)
        self._call(lib.m3_copy_to, address, size, _c(place), milliseconds(timeout))

    def vcopy(self, source, target, size, timeout=None):
        """Copies between two grants, of which one may be this port's."""
        self._call(lib.m3_vcopy, _c(source), _c(target), size, milliseconds(timeout))

    # Rings

    def open_ring(self, to, entries, arena_bytes=0, timeout=None):
        """Opens a ring to `to`, waiting until it is bound."""
        limit = milliseconds(timeout)
        return Ring(opened(lib.m3_ring_open, self._live(), to, entries, arena_bytes, limit))

    # Delegation

    def relay(self, of, to, message):
        """Passes the request that was taken from `of` last on to `to`, which answers it. Never waits for `to`."""
        self._call(lib.m3_relay_data, of, to, byref(message.to_c()), *_data(message))

    def notify_for(self, source, to, mask=1):
        """Sets bits at `to` in the name of `source`. Never waits for `to`."""
        self._call(lib.m3_notify_for, source, to, mask)

    # Managers

    def bind_for(self, pid, endpoint=None):
        """Binds another process of this node, which has the endpoint when it binds next. Returns it."""
        return self._call(lib.m3_bind_for, pid, ANY if endpoint is None else endpoint)

    def migration_start(self, endpoint, timeout=None):
        """Of the owner or a manager: from now on the owner takes no new message. Returns when it owes no answer either."""
        self._call(lib.m3_migration_start, endpoint, milliseconds(timeout))

    def migration_commit(self, endpoint, node, pid, timeout=None):
        """Hands `endpoint`, which is held, over to the process `pid` of `node` that stands by for it."""
        self._call(lib.m3_migration_commit, endpoint, node, pid, milliseconds(timeout))

    def migration_rollback(self, endpoint):
        """Lets the owner of `endpoint` go on."""
        self._call(lib.m3_migration_rollback, endpoint)

    def promote(self, endpoint, node, pid, epoch):
        """Of a manager: who stands by there is the owner, whoever was before. `epoch` is higher than any before."""
        self._call(lib.m3_promote, endpoint, node, pid, epoch)

    def wakeup(self, endpoint):
        """Ends a wait of `endpoint` with `WokenUp`."""
        self._call(lib.m3_wakeup, endpoint)

    def privileges(self, endpoint):
        """What `endpoint` may do, and who may call it."""
        found = CPrivileges()
        self._call(lib.m3_get_privileges, endpoint, byref(found))
        return Privileges.of_c(found)

    def set_privileges(self, endpoint, privileges):
        """What it may do from now on; what that forbids ends at once."""
        self._call(lib.m3_set_privileges, endpoint, byref(privileges.to_c()))

    # What there is

    def dc_info(self):
        """How much there is in the container, and its limits."""
        found = CDc()
        self._call(lib.m3_dc_info, byref(found))
        return DcInfo.of_c(found)

    def endpoint_info(self, endpoint):
        """Where an endpoint is, what it sent and for whom it waits."""
        found = CEndpoint()
        self._call(lib.m3_endpoint_info, endpoint, byref(found))
        return EndpointInfo.of_c(found)

    def endpoints(self):
        """Every endpoint that this node knows, one after the other."""
        return self._list(EndpointInfo, CEndpoint, lib.m3_endpoints_info)

    def channels(self, endpoint=None):
        """The channels of an endpoint on this node, or of everybody, one after the other."""
        return self._list(ChannelInfo, CChannel, lib.m3_channels_info, -1 if endpoint is None else endpoint)

    def proxies(self):
        """The pairs of proxies to the other nodes, one after the other."""
        return self._list(ProxyInfo, CProxy, lib.m3_proxies_info)

    def _list(self, made, of_c, function, *which):
        cursor = c_uint64(0)
        part = (of_c * _PART)()
        while True:
            count = self._call(function, *which, byref(cursor), part, _PART)
            yield from [made.of_c(one) for one in part[:count]]
            if cursor.value == 0:
                return

    def _live(self):
        if self._handle is None:
            raise NotBound("the port is closed")
        return self._handle

    def _call(self, function, *arguments):
        return checked(function(self._live(), *arguments))

    def _data(self):
        first = c_void_p()
        size = self._call(lib.m3_data, byref(first))
        return ctypes.string_at(first.value, size) if size else b""

    def _take(self, timeout, function, *arguments):
        message = CMessage()
        self._in_pieces(timeout, function, *arguments, byref(message))
        return Message.of_c(message, self._data())

    def _event(self, timeout, function, *arguments):
        event = CEvent()
        self._in_pieces(timeout, function, *arguments, byref(event))
        if event.kind == 1:
            return Message.of_c(event.message, self._data())
        if event.kind == 2:
            return Notified(event.source, event.mask)
        if event.kind == 3:
            return RingOpened(event.source, RingServer(c_void_p(event.ring), event.ring_id))
        if event.kind == 4:
            return RingReady(event.ring_id)
        if event.kind == 5:
            return RingClosed(event.ring_id, error_of(event.error, lib.m3_strerror(event.error).decode()))
        return Woken()

    def _in_pieces(self, timeout, function, *arguments):
        return _in_pieces(timeout, lambda limit: self._call(function, *arguments, limit))


class Grant:
    """Memory lent to one endpoint; taken back at the end of a `with` block. Its `number` is what the peer is told."""

    def __init__(self, port, to, buffer, access):
        address, size, kept = _address(buffer, access)
        number = c_uint64()
        port._call(lib.m3_grant, to, address, size, access, byref(number))
        self._port, self.number = port, number.value
        # As long as the port may touch it, also when nobody holds this object.
        port._lent[self.number] = kept

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.revoke()

    def revoke(self):
        """Nobody touches the memory after this. Doing so again does nothing."""
        if self._port._handle is not None and self.number in self._port._lent:
            self._port._call(lib.m3_revoke, self.number)
            del self._port._lent[self.number]


class Waker:
    """Ends a wait of the port it came from. May outlive it; any thread may use it."""

    def __init__(self, port):
        self._handle = opened(lib.m3_waker_open, port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def wake(self):
        if self._handle is None:
            raise NotBound("the waker is closed")
        checked(lib.m3_wake(self._handle))

    def close(self):
        if self._handle is not None:
            result = lib.m3_waker_close(self._handle)
            if result != Busy.number:
                self._handle = None
            checked(result)


def _in_pieces(timeout, call):
    """Makes a call with a limit of milliseconds, again and again until its time is over."""
    milliseconds(timeout)  # whether it is one
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _PIECE_SECONDS if end is None else min(_PIECE_SECONDS, max(0.0, end - time.monotonic()))
        try:
            return call(milliseconds(left))
        except TimedOut:
            if end is not None and time.monotonic() >= end:
                raise


def _in_a_thread(call, give_up, undo):
    """Makes a call that must not be made in pieces. Who is interrupted ends it by `give_up`; what it made all the same is undone."""
    ended = []

    def run():
        try:
            ended.append((call(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_PIECE_SECONDS)
    except BaseException:
        with contextlib.suppress(OSError):
            give_up()
        thread.join()
        if ended and ended[0][1] is None:
            undo(ended[0][0])
        raise
    made, error = ended[0]
    if error is not None:
        raise error
    return made


def _connected(path):
    """A connection to the broker."""
    name = path or os.environ.get(_BROKER_VARIABLE) or _BROKER
    broker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        broker.connect(os.fsencode(name))
    except OSError as error:
        broker.close()
        raise error_of(NoBroker.number, lib.m3_strerror(NoBroker.number).decode()) from error
    return broker


def _data(message):
    return bytes(message.data), len(message.data)


def _name(name):
    if "\0" in name:
        raise ValueError("a name has no zero in it")
    return name.encode()


def _c(place):
    if not isinstance(place, Place):
        raise TypeError("a Place is wanted")
    owner = fitting(place.owner, c_int32)
    return byref(CPlace(owner, 0, fitting(place.grant, c_uint64), fitting(place.offset, c_uint64)))


def _address(buffer, access):
    """Where a buffer lies, its length, and what keeps it there."""
    view = memoryview(buffer)
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous")
    if not view.readonly:
        kept = (ctypes.c_char * view.nbytes).from_buffer(view)
        return ctypes.addressof(kept), view.nbytes, kept
    if access & WRITE:
        raise ValueError("the buffer cannot be written")
    # Bytes stay where they are as long as they are referred to; other buffers that cannot be written are copied.
    kept = buffer if isinstance(buffer, bytes) else view.tobytes()
    return ctypes.cast(ctypes.c_char_p(kept), c_void_p).value, len(kept), kept
