"""The module as a program sees it. Wants a broker: $M3IPC_BROKER; and the library: $M3IPC_LIBRARY."""

import asyncio
import contextlib
import ctypes
import gc
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest
import zipfile
from tempfile import TemporaryDirectory
from unittest import mock

import m3ipc
from m3ipc import Message, Place, Port
from m3ipc.aio import events

SOON = 10
NEVER_MIND = 0.03
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Beside(threading.Thread):
    """Runs something beside the test, and says how it ended."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self._work, self._result, self._error = work, None, None
        self.start()

    def run(self):
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def result(self):
        self.join(SOON)
        assert not self.is_alive(), "it hangs"
        if self._error:
            raise self._error
        return self._result


class Messages(unittest.TestCase):
    def setUp(self):
        self.server, self.client = Port(), Port()
        self.addCleanup(self.server.close)
        self.addCleanup(self.client.close)
        self.to = self.server.endpoint

    def test_request_is_answered_with_data(self):
        calling = Beside(lambda: self.client.sendrec(self.to, Message.packed(7, "qi", -5, 9, data=b"hello"), SOON))
        request = self.server.rcvrqst(SOON)
        self.assertEqual((request.type, request.unpack("qi"), request.data), (7, (-5, 9), b"hello"))
        self.assertEqual(len(request.payload), 56)
        self.server.reply(request.source, Message(8, b"abc", request.data[::-1]))
        reply = calling.result()
        self.assertEqual((reply.type, reply.payload[:4], reply.data, reply.source), (8, b"abc\0", b"olleh", self.to))
        with self.assertRaises(m3ipc.NotWaiting):
            self.server.reply(request.source, Message(9))

    def test_message_is_taken_of_whom_it_is_wanted(self):
        own = self.client.endpoint
        sending = Beside(lambda: self.client.send(self.to, Message(3), SOON))
        self.assertEqual(self.server.receive(own, SOON).type, 3)
        sending.result()
        with self.assertRaises(m3ipc.TimedOut):
            self.server.receive(own, NEVER_MIND)

    def test_every_wait_ends_at_its_limit(self):
        for limit in (0, NEVER_MIND):
            for call in (
                lambda: self.client.send(self.to, Message(1), limit),
                lambda: self.client.sendrec(self.to, Message(1), limit),
                lambda: self.client.receive(timeout=limit),
                lambda: self.client.rcvrqst(limit),
                lambda: self.client.wait(limit),
                lambda: self.client.wait_from(self.to, limit),
                lambda: self.client.wait4bind(7000, limit),
                lambda: self.client.wait4unbind(self.to, limit),
                lambda: self.client.find("nobody", limit or NEVER_MIND),
            ):
                with self.assertRaises(TimeoutError):
                    call()
        self.assertIsNone(self.client.poll())
        with self.assertRaises(ValueError):
            self.client.wait(-1)

    def test_numbers_that_do_not_fit_are_refused_and_not_cut_off(self):
        for number in [2**32 + self.to, -(2**31) - 1]:
            with self.assertRaisesRegex(ctypes.ArgumentError, "out of range"):
                self.client.sendrec(number, Message(1), NEVER_MIND)
            with self.assertRaisesRegex(OverflowError, "out of range"):
                self.client.send(self.to, Message(number), NEVER_MIND)
            with self.assertRaisesRegex(OverflowError, "out of range"):
                self.client.copy_from(Place(number, 1), bytearray(1), NEVER_MIND)
        with self.assertRaisesRegex(ctypes.ArgumentError, "out of range"):
            self.client.notify(self.to, 2**64)
        with self.assertRaisesRegex(ctypes.ArgumentError, "NoneType"):
            self.client.sendrec(None, Message(1), NEVER_MIND)
        open_before = len(os.listdir("/proc/self/fd"))
        with self.assertRaisesRegex(ctypes.ArgumentError, "out of range"):
            Port.stand_by(2**32 + self.to, NEVER_MIND)
        self.assertEqual(len(os.listdir("/proc/self/fd")), open_before)

    def test_notifications_merge_and_come_first(self):
        self.client.notify(self.to, 1)
        self.client.notify(self.to, 1 << 63)
        sending = Beside(lambda: self.client.send(self.to, Message(5), SOON))
        event = self.server.wait(SOON)
        self.assertIsInstance(event, m3ipc.Notified)
        self.assertEqual(event.mask, 1 | 1 << 63)
        self.assertEqual(self.server.wait_from(event.source, SOON).type, 5)
        sending.result()

    def test_errors_are_typed(self):
        for error, call in (
            (m3ipc.BadEndpoint, lambda: self.client.send(self.client.endpoint, Message(1))),
            (m3ipc.BadEndpoint, lambda: self.client.send(8192, Message(1))),
            (m3ipc.NoSuchEndpoint, lambda: self.client.send(7000, Message(1))),
            (m3ipc.NoSuchEndpoint, lambda: self.client.getep(2**31 - 1)),
            (m3ipc.EndpointInUse, lambda: Port(self.to)),
            (m3ipc.Denied, lambda: Port(3)),
            (m3ipc.NoBroker, lambda: Port(path="/nonexistent")),
            (ValueError, lambda: self.client.send(self.to, Message(1, bytes(57)))),
            (ValueError, lambda: self.client.send(self.to, Message(1, data=bytes(2049)))),
            (KeyError, lambda: self.client.set_wait_mode("fast")),
        ):
            with self.assertRaises(error):
                call()
        self.assertEqual((m3ipc.TimedOut.number, m3ipc.TimedOut.name), (-61, "ETIMEDOUT"))

    def test_number_of_an_error_is_that_of_the_c_library(self):
        header = (ROOT.parent / "include" / "m3ipc.h").read_text()
        lines = [line.split() for line in header.splitlines() if line.startswith("#define M3_E")]
        defined = {words[1][3:]: int(words[2].strip("()")) for words in lines if words[2].startswith("(-")}
        self.assertEqual(defined, {kind.name: kind.number for kind in m3ipc.errors.BY_NUMBER.values()})
        kernel = m3ipc.errors.error_of(-1013, "refused")
        self.assertIsInstance(kernel, OSError)
        self.assertEqual((kernel.errno, kernel.number), (13, -1013))

    def test_endpoint_is_found_by_its_name(self):
        finding = Beside(lambda: self.client.find("the-server", SOON))
        self.server.set_name("the-server")
        self.assertEqual(finding.result(), self.to)
        self.assertEqual(self.server.find("the-server", 0), self.to)
        for error, call in (
            (m3ipc.EndpointInUse, lambda: self.client.set_name("the-server")),
            (m3ipc.TableFull, lambda: self.server.set_name("another")),
            (m3ipc.BadArgument, lambda: self.client.set_name("a/b")),
            (m3ipc.BadArgument, lambda: self.client.find("\u00e9")),
            (ValueError, lambda: self.client.set_name("a\0b")),
            (m3ipc.NoSuchEndpoint, lambda: self.client.find("nobody", 0)),
        ):
            with self.assertRaises(error):
                call()

    def test_waker_ends_a_wait(self):
        with self.server.waker() as waker:
            waiting = Beside(lambda: self.server.wait(SOON))
            waker.wake()
            self.assertEqual(waiting.result(), m3ipc.Woken())
            self.server.close()
            waker.wake()
        with self.assertRaises(m3ipc.NotBound):
            waker.wake()

    def test_closed_port_and_inherited_port_are_not_bound(self):
        self.client.close()
        self.client.close()
        with self.assertRaises(m3ipc.NotBound):
            self.client.notify(self.to)
        self.assertIn("closed", repr(self.client))
        pid = os.fork()
        if pid == 0:
            try:
                self.server.notify(300)
            except m3ipc.NotBound:
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(self.server.endpoint, self.to)

    def test_ports_know_who_and_what_they_are(self):
        self.server.set_wait_mode("park")
        self.assertGreaterEqual(self.server.endpoint, 256)
        self.assertIn(str(self.to), repr(self.server))
        self.assertGreater(self.server.epoch, 0)
        self.assertGreaterEqual(self.client.getep(os.getpid()), 256)
        self.client.wait4bind(self.to, SOON)
        self.server.close()
        self.client.wait4unbind(self.to, SOON)
        self.assertRegex(m3ipc.version(), r"^\d+\.\d+\.\d+$")


class Copies(unittest.TestCase):
    def test_server_copies_from_and_to_what_its_caller_lent(self):
        with Port() as server, Port() as client:
            to, own = server.endpoint, client.endpoint
            text, room = bytes(range(256)) * 1000, bytearray(100)
            with client.grant(to, text, m3ipc.READ) as readable, client.grant(to, room, m3ipc.WRITE) as writable:
                request = Message.packed(1, "QQ", readable.number, writable.number)
                calling = Beside(lambda: client.sendrec(to, request, SOON))
                first, second = server.rcvrqst(SOON).unpack("QQ")
                self.assertEqual(server.copy_from(Place(own, first, 10), 70000, SOON), text[10:70010])
                into = bytearray(5)
                server.copy_from(Place(own, first), into, SOON)
                self.assertEqual(into, text[:5])
                server.copy_to(b"written", Place(own, second, 3), SOON)
                with self.assertRaises(m3ipc.OutOfGrant):
                    server.copy_to(bytes(101), Place(own, second), SOON)
                with self.assertRaises(m3ipc.WrongDirection):
                    server.copy_from(Place(own, second), 1, SOON)
                server.reply(own, Message(0))
                calling.result()
            self.assertEqual(room[3:10], b"written")
            room.extend(b"free again")
            with self.assertRaises(ValueError):
                client.grant(to, b"fixed", m3ipc.WRITE)
            with self.assertRaises(TypeError):
                server.copy_to(b"", (own, second), SOON)
            readable.revoke()

    def test_buffer_that_nobody_else_holds_stays_as_long_as_it_is_lent(self):
        with Port() as server, Port() as client:
            to, own = server.endpoint, client.endpoint
            number = client.grant(to, bytearray(b"kept" * 100), m3ipc.READ).number
            gc.collect()
            calling = Beside(lambda: client.sendrec(to, Message(1), SOON))
            server.rcvrqst(SOON)
            self.assertEqual(server.copy_from(Place(own, number), 400, SOON), b"kept" * 100)
            server.reply(own, Message(0))
            calling.result()

    def test_third_party_copies_between_two_owners(self):
        with Port() as third, Port() as one, Port() as other:
            to = third.endpoint
            room = bytearray(8)
            source = Place(one.endpoint, one.grant(to, b"12345678", m3ipc.READ).number)
            target = Place(other.endpoint, other.grant(to, room, m3ipc.WRITE).number)
            calling = [Beside(lambda port=port: port.sendrec(to, Message(1), SOON)) for port in (one, other)]
            callers = [third.rcvrqst(SOON).source for _ in calling]
            third.vcopy(source, target, 8, SOON)
            for caller in callers:
                third.reply(caller, Message(0))
            for call in calling:
                call.result()
            self.assertEqual(room, b"12345678")


class Rings(unittest.TestCase):
    def serve(self, port):
        ring = None
        while True:
            event = port.wait(SOON)
            if isinstance(event, m3ipc.RingOpened):
                ring = event.ring
            elif isinstance(event, m3ipc.RingReady):
                while (asked := ring.next()) is not None:
                    first, last = asked.arena_offset, asked.arena_offset + asked.out_bytes
                    ring.arena[first:last] = bytes(ring.arena[first:last]).upper()
                    ring.complete(m3ipc.Completion(tag=asked.tag, in_bytes=asked.out_bytes))
                ring.publish()
            elif isinstance(event, m3ipc.RingClosed):
                ring.close()
                return event.error

    def test_ring_carries_requests_with_data(self):
        with Port() as server, Port() as client:
            to = server.endpoint
            serving = Beside(lambda: self.serve(server))
            with client.open_ring(to, 4, 16384, SOON) as ring:
                self.assertIsNone(ring.poll())
                for round in range(20):
                    for tag in range(4):
                        ring.arena[tag * 4096 : tag * 4096 + 5] = b"hello"
                        ring.submit(m3ipc.Submission(tag=tag, arena_offset=tag * 4096, out_bytes=5, in_capacity=5))
                    with self.assertRaises(m3ipc.Busy):
                        ring.submit(m3ipc.Submission(tag=9))
                    ring.publish()
                    taken = set()
                    while len(taken) < 4:
                        ring.wait(SOON)
                        while (completion := ring.poll()) is not None:
                            taken.add(completion.tag)
                            self.assertEqual(bytes(ring.arena[completion.tag * 4096 :][:5]), b"HELLO")
                    self.assertEqual(taken, {0, 1, 2, 3})
                self.assertFalse(ring.arm())
                ring.disarm()
                self.assertGreaterEqual(ring.fileno(), 0)
            with self.assertRaises(m3ipc.NotBound):
                ring.publish()
            with self.assertRaises(ValueError):
                ring.arena[0] = 1
            self.assertIsInstance(serving.result(), m3ipc.SourceDied)

    def test_ring_that_is_in_use_keeps_its_arena(self):
        with Port() as server, Port() as client, client.open_ring(server.endpoint, 4, 4096, SOON) as ring:
            arena = ring.arena
            with mock.patch.object(ring, "_close", lambda _: m3ipc.Busy.number), self.assertRaises(m3ipc.Busy):
                ring.close()
            arena[0] = 7
            self.assertEqual(ring.arena[0], 7)
            ring.close()
            with self.assertRaises(ValueError):
                arena[0] = 1


class EventLoop(unittest.TestCase):
    def test_asyncio_example_answers_while_it_does_something_else(self):
        spec = importlib.util.spec_from_file_location("asyncio_echo", ROOT / "examples" / "asyncio_echo.py")
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        with Port() as server, Port() as client:
            to = server.endpoint
            serving = Beside(lambda: asyncio.run(example.serve(server)))
            client.notify(to)
            ticks = 0
            while ticks < 3:
                reply = client.sendrec(to, Message(1, data=b"echo"), SOON)
                self.assertEqual(reply.data, b"echo")
                ticks, notified = reply.unpack("qq")
            self.assertEqual(notified, 1)
            client.sendrec(to, Message(0), SOON)
            serving.result()

    def test_task_that_replies_later_leaves_the_loop_ringing(self):
        async def serve(port, rounds):
            async def later(request):
                await asyncio.sleep(0.005)
                port.reply(request.source, Message(request.type + 1))

            tasks = []
            async for event in events(port):
                if isinstance(event, Message):
                    tasks.append(asyncio.create_task(later(event)))
                if len(tasks) == rounds:
                    break
            await asyncio.gather(*tasks)

        with Port() as server, Port() as client:
            to = server.endpoint
            serving = Beside(lambda: asyncio.run(serve(server, 30)))
            for number in range(30):
                self.assertEqual(client.sendrec(to, Message(number), SOON).type, number + 1)
            serving.result()


class Info(unittest.TestCase):
    def test_members_see_each_other_and_what_their_channels_count(self):
        with Port() as server, Port() as client:
            to, own = server.endpoint, client.endpoint
            for _ in range(3):
                serving = Beside(lambda: server.reply(own, server.rcvrqst(SOON)))
                client.sendrec(to, Message(1), SOON)
                serving.result()
            client.notify(to, 1)
            me = client.endpoint_info(own)
            self.assertEqual((me.pid, me.state, me.waits_for), (os.getpid(), m3ipc.State.BOUND, None))
            self.assertEqual((me.sent_near.messages, me.sent_near.notifications), (3, 1))
            self.assertLessEqual({to, own}, {one.endpoint for one in client.endpoints()})
            (channel,) = client.channels(own)
            self.assertEqual((channel.left.endpoint, channel.right.endpoint, channel.node), (own, to, None))
            self.assertTrue(channel.is_counted)
            self.assertEqual((channel.kind, channel.left.messages), (m3ipc.Kind.MESSAGES, 3))
            self.assertEqual(channel.right.last, m3ipc.Sent.REPLY)
            self.assertIn(channel.channel, [one.channel for one in client.channels()])
            self.assertEqual(list(client.proxies()), [])
            dc = client.dc_info()
            self.assertGreaterEqual(dc.endpoints_here, 2)
            self.assertEqual(dc.endpoints_max, 8192)
            with self.assertRaises(m3ipc.NoSuchEndpoint):
                client.endpoint_info(7000)


class Managers(unittest.TestCase):
    def test_program_sees_privileges_and_changes_none(self):
        with Port() as one, Port() as other:
            found = one.privileges(other.endpoint)
            self.assertIn(m3ipc.Calls.SENDREC, found.calls)
            self.assertEqual((found.to, found.from_), (((0, 8191),), ((0, 8191),)))
            with self.assertRaises(m3ipc.Denied):
                one.set_privileges(other.endpoint, found)
            with self.assertRaises(m3ipc.Denied):
                one.wakeup(other.endpoint)
            with self.assertRaises(m3ipc.BadArgument):
                one.set_privileges(other.endpoint, m3ipc.Privileges(m3ipc.Calls(0), ((5, 4),), (), ()))

    @unittest.skipUnless("M3IPC_SERVER_FD" in os.environ, "nobody handed over a server's socket")
    def test_server_confines_a_program(self):
        with Port.from_fd(int(os.environ["M3IPC_SERVER_FD"])) as manager, Port() as program, Port() as other:
            had = manager.privileges(program.endpoint)
            few = m3ipc.Privileges(had.calls, ((0, 255),), had.from_, ())
            manager.set_privileges(program.endpoint, few)
            self.assertEqual(manager.privileges(program.endpoint), few)
            with self.assertRaises(m3ipc.Denied):
                program.notify(other.endpoint)
            manager.set_privileges(program.endpoint, had)
            program.notify(other.endpoint)
            manager.wakeup(other.endpoint)
            self._server_speaks_for_others(manager, program, other)
            self._manager_binds_a_process(manager)
            self._endpoint_is_handed_over(manager, program, other)

    def _endpoint_is_handed_over(self, manager, client, owner):
        endpoint = owner.endpoint
        waiting = Beside(lambda: Port.stand_by(endpoint, SOON))
        calling = Beside(lambda: client.sendrec(endpoint, Message(1), SOON))
        request = owner.rcvrqst(SOON)
        with self.assertRaises(m3ipc.TimedOut):
            manager.migration_start(endpoint, NEVER_MIND)
        owner.reply(request.source, Message(2))
        self.assertEqual(calling.result().type, 2)
        with self.assertRaises(m3ipc.M3Error):
            manager.migration_commit(endpoint, 1, os.getpid() + 1, SOON)
        owner.migration_start(endpoint, SOON)
        with self.assertRaises(m3ipc.Pending):
            manager.migration_start(endpoint, SOON)
        self._commit(owner)
        with waiting.result() as successor:
            calling = Beside(lambda: client.sendrec(endpoint, Message(3), SOON))
            successor.reply(successor.rcvrqst(SOON).source, Message(4))
            self.assertEqual(calling.result().type, 4)
            with self.assertRaises(m3ipc.Moved):
                owner.receive(timeout=0)

    def _commit(self, owner):
        committed = False
        while not committed:
            # The backup may not have said yet that it is there.
            with contextlib.suppress(m3ipc.NoSuchEndpoint):
                owner.migration_commit(owner.endpoint, 1, os.getpid(), SOON)
                committed = True

    def test_backup_is_there_as_long_as_it_stands_by(self):
        calls = []

        def opened(*arguments):
            calls.append(arguments)
            return made(*arguments)

        made = m3ipc.port.opened
        owner = Port()
        endpoint = owner.endpoint
        pieces = mock.patch.object(m3ipc.port, "_PIECE_SECONDS", 0.001)
        with pieces, mock.patch.object(m3ipc.port, "opened", opened):
            for turn in range(50):
                waiting = Beside(lambda: Port.stand_by(endpoint, SOON))
                owner.migration_start(endpoint, SOON)
                time.sleep(0.005)
                self._commit(owner)
                owner.close()
                owner = waiting.result()
                self.assertEqual(owner.endpoint, endpoint)
                # Between two calls nobody would stand by.
                self.assertEqual(len(calls), turn + 1)
        owner.close()

    def test_backup_that_is_interrupted_stands_by_no_more(self):
        had = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, had)
        with Port() as owner:
            with self.assertRaises(m3ipc.TimedOut):
                Port.stand_by(owner.endpoint, NEVER_MIND)
            with self.assertRaises(m3ipc.NoBroker):
                Port.stand_by(owner.endpoint, SOON, path="/nowhere")
            owner.migration_start(owner.endpoint, SOON)
            main = threading.main_thread().ident
            interrupting = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
            interrupting.start()
            with self.assertRaises(KeyboardInterrupt):
                Port.stand_by(owner.endpoint, SOON)
            with self.assertRaises(m3ipc.NoSuchEndpoint):
                owner.migration_commit(owner.endpoint, 1, os.getpid(), SOON)
            owner.migration_rollback(owner.endpoint)

    def _server_speaks_for_others(self, server, client, target):
        # While a call runs nobody else uses its port.
        own, to = client.endpoint, server.endpoint
        calling = Beside(lambda: client.sendrec(to, Message(7, data=b"hello"), SOON))
        request = server.rcvrqst(SOON)
        server.relay(request.source, target.endpoint, request)
        with self.assertRaises(m3ipc.NotWaiting):
            server.relay(request.source, target.endpoint, request)
        passed = target.rcvrqst(SOON)
        self.assertEqual((passed.source, passed.type, passed.data), (own, 7, b"hello"))
        target.reply(passed.source, Message(8, data=b"olleh"))
        with self.assertRaises(m3ipc.TimedOut):
            server.receive(timeout=10 * NEVER_MIND)
        reply = calling.result()
        self.assertEqual((reply.type, reply.data, reply.source), (8, b"olleh", server.endpoint))
        server.notify_for(client.endpoint, target.endpoint, 6)
        # Beside the bit that the client posted itself before.
        bits = 0
        while bits != 7:
            notified = target.wait_from(own, SOON)
            self.assertEqual((notified.source, notified.mask & bits), (own, 0))
            bits |= notified.mask
        with self.assertRaises(m3ipc.Denied):
            client.notify_for(server.endpoint, target.endpoint)

    def _manager_binds_a_process(self, manager):
        with self.assertRaises(m3ipc.TimedOut):
            Port.when_bound(NEVER_MIND)
        waiting = Beside(lambda: Port.when_bound(SOON))
        self.assertEqual(manager.bind_for(os.getpid(), 700), 700)
        with waiting.result() as bound:
            self.assertEqual(bound.endpoint, 700)
        with self.assertRaises(m3ipc.NoBroker):
            Port.when_bound(SOON, "/nonexistent")


class Installation(unittest.TestCase):
    def test_wheel_is_built_without_anything_else_and_can_be_imported(self):
        with TemporaryDirectory() as directory:
            build = f"import m3ipc_build; print(m3ipc_build.build_wheel({directory!r}))"
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "build_backend")}
            run = subprocess.run([sys.executable, "-c", build], env=environment, check=True, capture_output=True, text=True)
            with zipfile.ZipFile(os.path.join(directory, run.stdout.strip())) as wheel:
                self.assertIsNone(wheel.testzip())
                wheel.extractall(directory)
            self._imports(directory)

    def test_pip_installs_it_without_the_network(self):
        command = [sys.executable, "-m", "pip"]
        if subprocess.run([*command, "--version"], capture_output=True).returncode != 0:
            self.skipTest("pip is not installed")
        with TemporaryDirectory() as directory:
            options = ["--quiet", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--no-cache-dir"]
            done = subprocess.run(
                [*command, "install", *options, "--target", directory, str(ROOT)], capture_output=True, text=True
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self._imports(directory)

    def _imports(self, directory):
        show = "import m3ipc, m3ipc.aio; print(m3ipc.__file__)"
        environment = {**os.environ, "PYTHONPATH": directory}
        run = subprocess.run([sys.executable, "-c", show], env=environment, check=True, capture_output=True, text=True)
        self.assertTrue(run.stdout.startswith(directory), run.stdout)


class Library(unittest.TestCase):
    def test_library_that_is_not_there_is_named_with_what_to_try(self):
        environment = {**os.environ, "M3IPC_LIBRARY": "/nonexistent/libm3ipc.so.0"}
        run = subprocess.run([sys.executable, "-c", "import m3ipc"], env=environment, capture_output=True, text=True)
        said = run.stderr.splitlines()[-1]
        self.assertRegex(said, "^ImportError: .*/nonexistent/libm3ipc.so.0.*make install-lib.*M3IPC_LIBRARY")


class Layout(unittest.TestCase):
    def test_structures_have_the_sizes_of_the_c_library(self):
        from m3ipc import _library

        kinds = (_library.CMessage, _library.CEvent, _library.CPlace, _library.CPrivileges, m3ipc.Submission, m3ipc.Completion)
        self.assertEqual([ctypes.sizeof(kind) for kind in kinds], [64, 128, 24, 784, 56, 64])


if __name__ == "__main__":
    unittest.main()
