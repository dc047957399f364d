"""M3-IPC: messages, copies and rings between the processes of a distributed container.

An echo server and its client::

    with m3ipc.Port() as port:
        print("endpoint", port.endpoint, flush=True)
        while True:
            request = port.rcvrqst()
            port.reply(request.source, request)

    with m3ipc.Port() as port:
        reply = port.sendrec(server, m3ipc.Message(1, data=b"hello"), timeout=10)

The program runs in a container: ``dvs run shop -- python3 /dc/server.py``. It needs libm3ipc.so.0, where the system looks for libraries
or where the variable M3IPC_LIBRARY says. What each call promises is said in the manual pages of the C library, m3ipc(7). Errors are exceptions, all of them `M3Error`.
"""

from . import errors
from ._library import Completion, Submission, lib
from .coordination import ABSENT, ANY, Change, ChangeKind, Contended, Coordination, Group, GroupMessage, Held, Holder, Level, Member, Node, View
from .errors import *  # noqa: F403
from .info import ChannelInfo, DcInfo, End, EndpointInfo, Kind, Link, ProxyInfo, Sent, State, Traffic
from .messages import Message, Notified, Place, RingClosed, RingOpened, RingReady, Woken
from .port import READ, WRITE, Grant, Port, Waker
from .privileges import Calls, Privileges
from .rings import Ring, RingServer

__all__ = [name for name, value in vars(errors).items() if isinstance(value, type)] + [
    "ABSENT",
    "ANY",
    "Calls",
    "Change",
    "ChangeKind",
    "Contended",
    "Coordination",
    "Group",
    "GroupMessage",
    "Held",
    "Holder",
    "Level",
    "Member",
    "Node",
    "View",
    "ChannelInfo",
    "Completion",
    "DcInfo",
    "End",
    "EndpointInfo",
    "Grant",
    "Kind",
    "Link",
    "Message",
    "Notified",
    "Place",
    "Port",
    "Privileges",
    "ProxyInfo",
    "READ",
    "Ring",
    "RingClosed",
    "RingOpened",
    "RingReady",
    "RingServer",
    "Sent",
    "State",
    "Submission",
    "Traffic",
    "WRITE",
    "Waker",
    "Woken",
]


def version():
    """Of the C library."""
    return lib.m3_version().decode()
