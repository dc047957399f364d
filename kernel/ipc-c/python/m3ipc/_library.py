"""The functions of libm3ipc, by ctypes. A call lets other threads run meanwhile."""

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_int32, c_size_t, c_uint16, c_uint32, c_uint64
from ctypes import c_ubyte, c_void_p
from operator import index

from .errors import error_of

PAYLOAD_BYTES = 56
DATA_BYTES_MAX = 2048
ANY = -1


CPayload = c_ubyte * PAYLOAD_BYTES


class CMessage(Structure):
    _fields_ = [("source", c_int32), ("type", c_int32), ("payload", CPayload)]


class CEvent(Structure):
    _fields_ = [
        ("kind", c_int32),
        ("source", c_int32),
        ("error", c_int32),
        ("reserved", c_int32),
        ("mask", c_uint64),
        ("ring_id", c_uint64),
        ("ring", c_void_p),
        ("spare", c_uint64 * 3),
        ("message", CMessage),
    ]


class CPlace(Structure):
    _fields_ = [("owner", c_int32), ("reserved", c_int32), ("grant", c_uint64), ("offset", c_uint64)]


class Submission(Structure):
    """A request of a ring; its data lies in the ring's arena from `arena_offset`."""

    _fields_ = [
        ("tag", c_uint32),
        ("op", c_uint16),
        ("flags", c_uint16),
        ("sequence", c_uint64),
        ("arena_offset", c_uint32),
        ("out_bytes", c_uint32),
        ("in_capacity", c_uint32),
        ("reserved", c_uint32),
        ("args", c_uint64 * 3),
    ]


class Completion(Structure):
    """The answer to a submission. `status` is 0, or an errno as a positive number."""

    _fields_ = [
        ("tag", c_uint32),
        ("status", c_uint32),
        ("sequence", c_uint64),
        ("in_bytes", c_uint32),
        ("reserved", c_uint32),
        ("epoch", c_uint64),
        ("results", c_uint64 * 4),
    ]


class CRange(Structure):
    _fields_ = [("first", c_uint16), ("last", c_uint16)]


class CPeers(Structure):
    _fields_ = [("count", c_uint32), ("ranges", CRange * 64)]


class CPrivileges(Structure):
    _fields_ = [("calls", c_uint32), ("to", CPeers), ("from_", CPeers), ("rings", CPeers)]


class CTraffic(Structure):
    _fields_ = [("messages", c_uint64), ("notifications", c_uint64), ("entries", c_uint64), ("copies", c_uint64)]


class CDc(Structure):
    _fields_ = [
        ("dc", c_uint32),
        ("node", c_uint32),
        ("endpoints_here", c_uint32),
        ("endpoints_elsewhere", c_uint32),
        ("nodes_elsewhere", c_uint32),
        ("channels", c_uint32),
        ("waiters", c_uint32),
        ("first_program", c_uint32),
        ("programs", c_uint32),
        ("endpoints_max", c_uint32),
        ("channels_max", c_uint32),
        ("reserved", c_uint32 * 5),
    ]


class CEndpoint(Structure):
    _fields_ = [
        ("endpoint", c_int),
        ("node", c_int),
        ("pid", c_int),
        ("state", c_int),
        ("waits_for", c_int),
        ("channels", c_uint32),
        ("epoch", c_uint64),
        ("sent_near", CTraffic),
        ("sent_far", CTraffic),
        ("reserved", c_uint64 * 2),
    ]


class CEnd(Structure):
    _fields_ = [
        ("endpoint", c_int),
        ("messages", c_uint32),
        ("last", c_int),
        ("taken", c_uint32),
        ("awaits_answer", c_int),
        ("notifications", c_uint32),
        ("entries", c_uint32),
        ("entries_taken", c_uint32),
    ]


class CChannel(Structure):
    _fields_ = [
        ("channel", c_uint64),
        ("lane", c_uint32),
        ("kind", c_int),
        ("ring_entries", c_uint32),
        ("arena_bytes", c_uint32),
        ("node", c_int),
        ("pair", c_int),
        ("is_counted", c_int),
        ("reserved", c_uint32 * 3),
        ("left", CEnd),
        ("right", CEnd),
    ]


class CProxy(Structure):
    _fields_ = [
        ("node", c_int),
        ("pair", c_int),
        ("state", c_int),
        ("endpoints", c_uint32),
        ("channels", c_uint32),
        ("reserved", c_uint32 * 3),
    ]


class CHolder(Structure):
    _fields_ = [("token", c_uint64), ("node", c_int), ("value_bytes", c_uint32), ("reserved", c_uint64 * 2)]


class CChange(Structure):
    _fields_ = [
        ("kind", c_int),
        ("value_bytes", c_uint32),
        ("revision", c_uint64),
        ("key", c_char_p),
        ("value", c_void_p),
        ("reserved", c_uint64 * 2),
    ]


class CNode(Structure):
    _fields_ = [
        ("node", c_int),
        ("answered", c_int),
        ("cpus", c_uint32),
        ("reserved", c_uint32),
        ("load", c_uint64),
        ("memory_bytes", c_uint64),
        ("available_bytes", c_uint64),
        ("round_trip_us", c_uint64),
        ("links", c_uint64),
        ("age_ms", c_uint64),
    ]


class CMember(Structure):
    _fields_ = [("id", c_uint64), ("name", c_char_p), ("node", c_int), ("reserved", c_int)]


class CGroupEvent(Structure):
    _fields_ = [
        ("kind", c_int),
        ("level", c_int),
        ("index", c_uint64),
        ("sender", c_uint64),
        ("number", c_uint64),
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("members", POINTER(CMember)),
        ("member_count", c_size_t),
        ("reserved", c_uint64 * 2),
    ]


_HANDLE = c_void_p
_MESSAGE = POINTER(CMessage)
_PLACE = POINTER(CPlace)


def fitting(value, kind):
    """The integer, if C has room for it: ctypes would cut it off, and it would be another endpoint or type."""
    number = index(value)
    if kind(number).value != number:
        raise OverflowError(f"{number} is out of range")
    return number


def _checked_as(kind):
    class Checked:
        @classmethod
        def from_param(cls, value):
            return kind(fitting(value, kind))

    return Checked


_INT, _UINT32, _UINT64, _SIZE = (_checked_as(kind) for kind in (c_int, c_uint32, c_uint64, c_size_t))

_ARGUMENTS = {
    "m3_connect": [c_char_p, _INT, POINTER(_HANDLE)],
    "m3_connect_when_bound": [c_char_p, _INT, POINTER(_HANDLE)],
    "m3_connect_fd": [_INT, _INT, POINTER(_HANDLE)],
    "m3_close": [_HANDLE],
    "m3_endpoint": [_HANDLE],
    "m3_epoch": [_HANDLE, POINTER(c_uint64)],
    "m3_set_wait_mode": [_HANDLE, _INT],
    "m3_getep": [_HANDLE, _INT],
    "m3_set_name": [_HANDLE, c_char_p],
    "m3_find": [_HANDLE, c_char_p, _INT],
    "m3_wait4bind": [_HANDLE, _INT, _INT],
    "m3_wait4unbind": [_HANDLE, _INT, _INT],
    "m3_send_data": [_HANDLE, _INT, _MESSAGE, c_char_p, _SIZE, _INT],
    "m3_sendrec_data": [_HANDLE, _INT, _MESSAGE, c_char_p, _SIZE, _INT],
    "m3_receive": [_HANDLE, _INT, _MESSAGE, _INT],
    "m3_rcvrqst": [_HANDLE, _MESSAGE, _INT],
    "m3_reply_data": [_HANDLE, _INT, _MESSAGE, c_char_p, _SIZE],
    "m3_notify": [_HANDLE, _INT, _UINT64],
    "m3_data": [_HANDLE, POINTER(c_void_p)],
    "m3_wait": [_HANDLE, POINTER(CEvent), _INT],
    "m3_wait_from": [_HANDLE, _INT, POINTER(CEvent), _INT],
    "m3_fd": [_HANDLE],
    "m3_waker_open": [_HANDLE, POINTER(_HANDLE)],
    "m3_wake": [_HANDLE],
    "m3_waker_close": [_HANDLE],
    "m3_grant": [_HANDLE, _INT, c_void_p, _SIZE, _INT, POINTER(c_uint64)],
    "m3_revoke": [_HANDLE, _UINT64],
    "m3_copy_from": [_HANDLE, _PLACE, c_void_p, _SIZE, _INT],
    "m3_copy_to": [_HANDLE, c_void_p, _SIZE, _PLACE, _INT],
    "m3_vcopy": [_HANDLE, _PLACE, _PLACE, _SIZE, _INT],
    "m3_ring_open": [_HANDLE, _INT, _UINT32, _UINT32, _INT, POINTER(_HANDLE)],
    "m3_ring_close": [_HANDLE],
    "m3_ring_submit": [_HANDLE, POINTER(Submission)],
    "m3_ring_publish": [_HANDLE],
    "m3_ring_poll": [_HANDLE, POINTER(Completion)],
    "m3_ring_wait": [_HANDLE, _INT],
    "m3_ring_fd": [_HANDLE],
    "m3_ring_arm": [_HANDLE],
    "m3_ring_disarm": [_HANDLE],
    "m3_ring_arena": [_HANDLE, POINTER(c_size_t)],
    "m3_ring_server_next": [_HANDLE, POINTER(Submission)],
    "m3_ring_server_complete": [_HANDLE, POINTER(Completion)],
    "m3_ring_server_publish": [_HANDLE],
    "m3_ring_server_arena": [_HANDLE, POINTER(c_size_t)],
    "m3_ring_server_close": [_HANDLE],
    "m3_relay_data": [_HANDLE, _INT, _INT, _MESSAGE, c_char_p, _SIZE],
    "m3_notify_for": [_HANDLE, _INT, _INT, _UINT64],
    "m3_bind_for": [_HANDLE, _INT, _INT],
    "m3_stand_by_fd": [_INT, _INT, _INT, POINTER(_HANDLE)],
    "m3_migration_start": [_HANDLE, _INT, _INT],
    "m3_migration_commit": [_HANDLE, _INT, _INT, _INT, _INT],
    "m3_migration_rollback": [_HANDLE, _INT],
    "m3_promote": [_HANDLE, _INT, _INT, _INT, _UINT64],
    "m3_wakeup": [_HANDLE, _INT],
    "m3_get_privileges": [_HANDLE, _INT, POINTER(CPrivileges)],
    "m3_set_privileges": [_HANDLE, _INT, POINTER(CPrivileges)],
    "m3_dc_info": [_HANDLE, POINTER(CDc)],
    "m3_endpoint_info": [_HANDLE, _INT, POINTER(CEndpoint)],
    "m3_endpoints_info": [_HANDLE, POINTER(c_uint64), POINTER(CEndpoint), _SIZE],
    "m3_channels_info": [_HANDLE, _INT, POINTER(c_uint64), POINTER(CChannel), _SIZE],
    "m3_proxies_info": [_HANDLE, POINTER(c_uint64), POINTER(CProxy), _SIZE],
    "m3_cs_open": [c_char_p, POINTER(_HANDLE)],
    "m3_cs_close": [_HANDLE],
    "m3_cs_lock": [_HANDLE, c_char_p, _INT, POINTER(c_uint64)],
    "m3_cs_unlock": [_HANDLE, c_char_p, _UINT64],
    "m3_cs_campaign": [_HANDLE, c_char_p, c_char_p, _SIZE, _INT, POINTER(c_uint64)],
    "m3_cs_resign": [_HANDLE, c_char_p, _UINT64],
    "m3_cs_confirm": [_HANDLE, _INT, c_char_p, _UINT64],
    "m3_cs_owner": [_HANDLE, _INT, c_char_p, _UINT64, _INT, POINTER(CHolder), c_void_p, _SIZE],
    "m3_cs_get": [_HANDLE, c_char_p, c_void_p, _SIZE, POINTER(c_uint64)],
    "m3_cs_put": [_HANDLE, c_char_p, c_char_p, _SIZE, _UINT64, POINTER(c_uint64)],
    "m3_cs_delete": [_HANDLE, c_char_p, _UINT64],
    "m3_cs_list": [_HANDLE, c_char_p, c_void_p, c_void_p, POINTER(c_uint64)],
    "m3_cs_watch": [_HANDLE, c_char_p, POINTER(c_uint64), _INT, c_void_p, c_void_p],
    "m3_cs_sense": [_HANDLE, _INT, POINTER(CNode), _SIZE],
    "m3_group_join": [_HANDLE, c_char_p, c_char_p, _INT, POINTER(_HANDLE)],
    "m3_group_leave": [_HANDLE],
    "m3_group_id": [_HANDLE, POINTER(c_uint64)],
    "m3_group_send": [_HANDLE, _INT, c_char_p, _SIZE],
    "m3_group_flush": [_HANDLE],
    "m3_group_receive": [_HANDLE, _INT, c_void_p, c_void_p],
    "m3_strerror": [_INT],
    "m3_version": [],
}
_RESULTS = {
    "m3_strerror": c_char_p,
    "m3_version": c_char_p,
    "m3_ring_arena": c_void_p,
    "m3_ring_server_arena": c_void_p,
}


def _load():
    name = os.environ.get("M3IPC_LIBRARY") or "libm3ipc.so.0"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(
            f"the C library of M3-IPC cannot be loaded ({error}): install it on this node (make install-lib, then ldconfig),"
            " or say where it lies by M3IPC_LIBRARY",
            name="m3ipc",
            path=name,
        ) from None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name, c_int)
    return library


lib = _load()


def checked(result):
    """The result of a function, which is no error."""
    if result < 0:
        raise error_of(result, lib.m3_strerror(result).decode())
    return result


def opened(function, *arguments):
    """The handle that a function makes."""
    handle = _HANDLE()
    checked(function(*arguments, byref(handle)))
    return handle


def milliseconds(seconds):
    """A time limit for C: `None` for ever, 0 for what can be done at once, else rounded up."""
    if seconds is None:
        return -1
    if seconds < 0:
        raise ValueError("a time limit is not negative")
    return min(-int(-seconds * 1000 // 1), 2**31 - 1)


def arena_of(function, handle):
    """The memory of a ring, used in place."""
    size = c_size_t()
    address = function(handle, byref(size))
    if not address:
        return memoryview(bytearray())
    return memoryview((c_char * size.value).from_address(address)).cast("B")
