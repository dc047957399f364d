"""Ports in asyncio."""

import asyncio


async def events(port):
    """Everything that concerns the port, as it comes: `async for event in events(port)`.

    Other tasks of the same thread may use the port meanwhile, to reply later for instance.
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
