"""Counts under a lock, and talks in a group, on as many nodes as you like:

    dvs run -it --env PYTHONPATH=/dc/pylib shop --node n1 -- python3 /dc/coordination.py n1
"""

import sys

import m3ipc


def count(session):
    with session.lock("counter"):
        try:
            number = int(session.get("counter")[0])
        except m3ipc.M3Error:
            number = 0
        session.put("counter", str(number + 1).encode())
        return number + 1


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "somebody"
    left = int(sys.argv[2]) if len(sys.argv) > 2 else None
    with m3ipc.Coordination() as session, session.join("example", name) as group:
        for _ in range(3):
            group.send(f"{name} counts {count(session)}".encode(), m3ipc.Level.SAFE)
        while left is None or left > 0:
            for event in group.receive():
                if isinstance(event, m3ipc.View):
                    print("view", event.number, *(member.name for member in event.members), flush=True)
                else:
                    print(event.data.decode(), flush=True)
                    left = None if left is None else left - 1


main()
