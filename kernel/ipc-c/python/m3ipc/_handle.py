"""What belongs to a handle of the library and is closed once."""

from ._library import checked
from .errors import Busy, NotBound


class Handle:
    """A handle with its end, which is `_close`; `_closed` is what it says when it is used afterwards."""

    _closed = "it is closed"

    def __init__(self, handle):
        self._handle = handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _call(self, function, *arguments):
        if self._handle is None:
            raise NotBound(self._closed)
        return checked(function(self._handle, *arguments))

    def _forget(self):
        """What goes with the handle."""

    def close(self):
        """Ends it. Doing so again does nothing. After `Busy`, which says that another thread is in a call, all is as before."""
        if self._handle is not None:
            result = self._close(self._handle)
            if result != Busy.number:
                self._handle = None
                self._forget()
            checked(result)
