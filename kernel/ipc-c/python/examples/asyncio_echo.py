"""An echo server in asyncio: answers requests while it does something else. Ends at a request of type 0."""

import asyncio

import m3ipc
from m3ipc.aio import events


async def tick(counts):
    while True:
        await asyncio.sleep(0.01)
        counts["ticks"] += 1


async def serve(port):
    counts = {"ticks": 0, "notified": 0}
    ticking = asyncio.create_task(tick(counts))
    async for event in events(port):
        if isinstance(event, m3ipc.Notified):
            counts["notified"] += 1
        elif isinstance(event, m3ipc.Message):
            try:
                port.reply(event.source, m3ipc.Message.packed(event.type, "qq", *counts.values(), data=event.data))
            except (m3ipc.NotWaiting, m3ipc.DestinationDied, m3ipc.SourceDied):
                pass  # it gave up, or is gone, or wanted no reply
            if event.type == 0:
                break
    ticking.cancel()


if __name__ == "__main__":
    with m3ipc.Port() as port:
        print("endpoint", port.endpoint, flush=True)
        asyncio.run(serve(port))
