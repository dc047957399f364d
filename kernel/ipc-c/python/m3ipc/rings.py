"""The two ends of a ring."""

from ctypes import byref

from ._handle import Handle
from ._library import Completion, Submission, arena_of, checked, lib, milliseconds


class _End(Handle):
    _closed = "the ring is closed"

    def __init__(self, handle, arena):
        super().__init__(handle)
        self.arena = arena_of(arena, handle)

    def _forget(self):
        self.arena.release()

    def close(self):
        """Closes this end; what refers to the arena must not be used any more. Doing so again does nothing. After `Busy`, which says that
        another thread is in a call, all is as before."""
        super().close()


class Ring(_End):
    """The end that submits. `arena` is the memory both ends share."""

    _close = staticmethod(lib.m3_ring_close)

    def __init__(self, handle):
        super().__init__(handle, lib.m3_ring_arena)

    def submit(self, submission):
        """Writes a request, which the server sees after `publish`. `Busy` when the ring is full."""
        self._call(lib.m3_ring_submit, byref(submission))

    def publish(self):
        self._call(lib.m3_ring_publish)

    def poll(self):
        """The next completion, or `None`. An error is final."""
        completion = Completion()
        return completion if self._call(lib.m3_ring_poll, byref(completion)) else None

    def wait(self, timeout=None):
        """Waits until `poll` has something to say."""
        self._call(lib.m3_ring_wait, milliseconds(timeout))

    def fileno(self):
        return self._call(lib.m3_ring_fd)

    def arm(self):
        """Before an event loop sleeps on `fileno()`: whether it must not, because something is there already."""
        return bool(self._call(lib.m3_ring_arm))

    def disarm(self):
        """After it slept, before `poll`."""
        self._call(lib.m3_ring_disarm)


class RingServer(_End):
    """The end that completes, from `RingOpened`."""

    _close = staticmethod(lib.m3_ring_server_close)

    def __init__(self, handle, ring_id):
        super().__init__(handle, lib.m3_ring_server_arena)
        self.ring_id = ring_id

    def next(self):
        """The next request, or `None`."""
        submission = Submission()
        return submission if self._call(lib.m3_ring_server_next, byref(submission)) else None

    def complete(self, completion):
        """One completion for each request; the client sees it after `publish`."""
        self._call(lib.m3_ring_server_complete, byref(completion))

    def publish(self):
        self._call(lib.m3_ring_server_publish)
