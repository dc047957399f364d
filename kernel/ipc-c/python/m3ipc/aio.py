"""Ports in asyncio."""

import asyncio


async def events(port):
    """Everything that concerns the port, as it comes: `async for event in events(port)`.

    The port rings only when its last call was a `poll` without a result, as `m3_fd` says. So use it between two events; a task that
    uses it at another time, to reply later for instance, calls `wake()` of a waker of the port afterwards.
    """
    loop = asyncio.get_running_loop()
    rings = asyncio.Event()
    descriptor = port.fileno()
    loop.add_reader(descriptor, rings.set)
    try:
        while True:
            rings.clear()
            event = port.poll()
            if event is None:
                await rings.wait()
            else:
                yield event
                # A port with much to tell leaves others their turn.
                await asyncio.sleep(0)
    finally:
        loop.remove_reader(descriptor)
