"""A client outside of a container: asks URLs over and over, and says how that went.

Arguments: URLs. Each is asked over connections that stay and over new ones, in turn, by a thread of its own. Ends when
standard input does; the last line is JSON: requests that were answered, what failed, and the longest of those answered,
in milliseconds.
"""

import http.client
import json
import sys
import threading
import time
import urllib.parse

over = threading.Event()
lock = threading.Lock()
told = {"answered": 0, "failed": [], "longest_ms": 0, "bodies": {}}


def ask(connection, path):
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}")
    return body


def note(began, body=None, failure=None):
    took = (time.monotonic() - began) * 1000
    with lock:
        if failure is None:
            told["answered"] += 1
            told["longest_ms"] = max(told["longest_ms"], took)
            told["bodies"][body] = told["bodies"].get(body, 0) + 1
        else:
            told["failed"].append(f"{failure!r} after {took:.0f} ms")


def run(url):
    parts = urllib.parse.urlsplit(url)

    def connect():
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)

    kept = connect()
    turn = 0
    while not over.is_set():
        turn += 1
        connection = kept if turn % 2 else connect()
        began = time.monotonic()
        try:
            note(began, body=ask(connection, parts.path or "/"))
        except (OSError, http.client.HTTPException, RuntimeError) as failure:
            note(began, failure=failure)
            if connection is kept:
                kept.close()
                kept = connect()
        if connection is not kept:
            connection.close()
        time.sleep(0.01)
    kept.close()


threads = [threading.Thread(target=run, args=(url,)) for url in sys.argv[1:]]
for thread in threads:
    thread.start()
print("begun", flush=True)
sys.stdin.read()
over.set()
for thread in threads:
    thread.join()
print(json.dumps(told))
