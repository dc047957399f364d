"""What a call can raise instead of returning: a class for each situation a caller can act on."""

import os


class M3Error(Exception):
    """Base of all errors of M3-IPC. `number` is that of the C library, `name` its constant without `M3_`."""

    number = 0
    name = ""

    def __init__(self, text, number=None):
        super().__init__(text)
        if number is not None:
            self.number = number


class NotBound(M3Error):
    """The port was closed or inherited by fork, or its binding ended."""


class BadEndpoint(M3Error, ValueError):
    """Not a valid endpoint for this call."""


class NoSuchEndpoint(M3Error, LookupError):
    """Nobody is bound to the endpoint. A retry after `Port.wait4bind` is safe."""


class EndpointInUse(M3Error):
    """The number or the name is already somebody else's."""


class TableFull(M3Error):
    """A table is full."""


class DestinationDied(M3Error, ConnectionError):
    """The peer died before it took the message: nothing happened there."""


class SourceDied(M3Error, ConnectionError):
    """The peer died before it answered. Whether it acted is unknown."""


class TimedOut(M3Error, TimeoutError):
    """The time limit passed; the message was withdrawn and will not be delivered."""


class WokenUp(M3Error):
    """A manager ended the wait."""


class NotWaiting(M3Error):
    """The destination does not wait for this reply."""


class Deadlock(M3Error):
    """Calls would have waited for each other for ever; this one was refused."""


class Denied(M3Error, PermissionError):
    """Privileges do not allow this call or this peer."""


class OutOfGrant(M3Error, IndexError):
    """The copy lies outside the granted memory."""


class BadArgument(M3Error, ValueError):
    """A length or argument is out of range."""


class NoLink(M3Error, ConnectionError):
    """No link to the node of the peer. Whether it acted is unknown when the message had been sent."""


class Fenced(M3Error):
    """Another owner of the endpoint was promoted."""


class Corrupt(M3Error, ConnectionError):
    """The peer wrote garbage into the channel, which is closed."""


class NoBroker(M3Error, ConnectionError):
    """The node daemon cannot be reached. A retry is safe."""


class NotRunning(M3Error):
    """The container is not running on this node."""


class UnknownGrant(M3Error, LookupError):
    """Nobody ever gave a grant with this number."""


class Revoked(M3Error):
    """The grant was taken back, or given to an earlier owner of the copier's number."""


class WrongDirection(M3Error, PermissionError):
    """The grant is for reading and the copy writes, or the reverse."""


class Pending(M3Error):
    """The endpoint owes answers or is being handed over. A retry is safe."""


class Moved(M3Error):
    """The endpoint was handed over to another owner."""


class Busy(M3Error):
    """In use by a call of another thread, or the ring is full."""


class LibraryError(M3Error):
    """An error inside the library; what it happened on is closed."""


class KernelError(M3Error, OSError):
    """The kernel refused; `errno` says why."""

    def __init__(self, text, number):
        M3Error.__init__(self, text, number)
        self.errno = -1000 - number
        self.strerror = os.strerror(self.errno)


_CLASSES = {
    "EACCESS": (-13, WrongDirection),
    "EGRANT": (-14, UnknownGrant),
    "EBUSY": (-16, Busy),
    "ERANGE": (-34, OutOfGrant),
    "ECORRUPT": (-60, Corrupt),
    "ETIMEDOUT": (-61, TimedOut),
    "EDEADLOCK": (-101, Deadlock),
    "ESRCDIED": (-108, SourceDied),
    "EDSTDIED": (-109, DestinationDied),
    "ENOTRUNNING": (-303, NotRunning),
    "ENOENDPOINT": (-304, NoSuchEndpoint),
    "EENDPOINT": (-306, BadEndpoint),
    "ENOLINK": (-307, NoLink),
    "ENOTBOUND": (-310, NotBound),
    "EPENDING": (-317, Pending),
    "ENOBROKER": (-318, NoBroker),
    "ENOTWAITING": (-324, NotWaiting),
    "EREVOKED": (-331, Revoked),
    "EMOVED": (-332, Moved),
    "EDENIED": (-335, Denied),
    "EINUSE": (-337, EndpointInUse),
    "EFULL": (-338, TableFull),
    "EINVALID": (-339, BadArgument),
    "EWOKENUP": (-348, WokenUp),
    "EFENCED": (-401, Fenced),
    "ELIBRARY": (-999, LibraryError),
}

BY_NUMBER = {}
for _name, (_number, _class) in _CLASSES.items():
    _class.name, _class.number = _name, _number
    BY_NUMBER[_number] = _class


def error_of(number, text):
    """The exception for a number that a function of the C library returned."""
    if -5095 <= number <= -1000:
        return KernelError(text, number)
    return BY_NUMBER.get(number, M3Error)(text, number)
