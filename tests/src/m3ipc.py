# What root of a container can try with M3-IPC: speaks to the broker by hand, in its own packets. Prints one line for each attempt.
import array, ctypes, errno, mmap, os, signal, socket, struct, sys

BIND, OPEN, GETEP = 1, 3, 7
NONE = 0xffffffff
NAMES = {100: "bound", 101: "opened", 103: "found", 104: "failed", 110: "accepted"}
# A packet of broker_api.
LAYOUT = struct.Struct("<HHIIIIHHQQIIIQQI")
NUMBER = 1


def packet(op, own=NONE, peer=NONE, dc=0, lane=0, entries=0, arena=0, value=0):
    global NUMBER
    NUMBER += 1
    return LAYOUT.pack(op, 0, NUMBER, dc, own, peer, 0, lane, 0, 0, entries, arena, value, 0, 0, 0)


def call(broker, *arguments, **named):
    broker.send(packet(*arguments, **named))
    data, more, _, _ = broker.recvmsg(LAYOUT.size + 1, socket.CMSG_SPACE(4 * 6))
    fds = array.array("i")
    for _, _, payload in more:
        fds.frombytes(payload[: len(payload) // 4 * 4])
    if not data:
        # The end of the connection: the broker does not answer what nobody of ours sends.
        return "dropped", (), []
    fields = LAYOUT.unpack(data)
    return NAMES.get(fields[0], fields[0]), fields, list(fds)


def connect():
    broker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    broker.settimeout(5)
    broker.connect("/run/dvs/broker")
    return broker


def told(name, answer):
    what, fields, fds = answer
    print(name, what, fields[12] if what == "failed" else "", flush=True)
    return fields, fds


def bind(number=NONE, dc=0):
    broker = connect()
    return broker, call(broker, BIND, own=number, dc=dc)


def refused(name, attempt):
    try:
        attempt()
        print(name, "DONE", flush=True)
    except OSError as error:
        print(name, errno.errorcode[error.errno], flush=True)


def write_mapping(fd):
    mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def traced(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    # All of register width: the last one lies on the stack.
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    if libc.syscall(ctypes.c_long(number), *wide) < 0:
        raise OSError(ctypes.get_errno(), "")


def descriptors():
    broker, answer = bind()
    told("bind", answer)
    _, fds = told("open", call(broker, OPEN, peer=2))
    own, peer, shared, bell_in, bell_out, page = fds
    for name, fd in (("peer", peer), ("page", page)):
        refused(name + "-write", lambda: os.write(fd, b"x"))
        refused(name + "-map", lambda: write_mapping(fd))
        refused(name + "-reopen", lambda: os.open("/proc/self/fd/%d" % fd, os.O_RDWR))
        refused(name + "-chmod", lambda: os.fchmod(fd, 0o666))
    for name, fd in (("own", own), ("shared", shared)):
        refused(name + "-shrink", lambda: os.ftruncate(fd, 0))
        refused(name + "-grow", lambda: os.ftruncate(fd, 1 << 20))


def processes(pids):
    buffer = ctypes.create_string_buffer(8)
    vector = struct.pack("QQ", ctypes.addressof(buffer), 8)
    local = ctypes.create_string_buffer(vector)
    for pid in pids:
        refused("kill", lambda: os.kill(pid, 9))
        refused("ptrace", lambda: traced(101, 16, pid, 0, 0))
        refused("seize", lambda: traced(101, 0x4206, pid, 0, 0))
        refused("readv", lambda: traced(310, pid, local, 1, local, 1, 0))
        refused("writev", lambda: traced(311, pid, local, 1, local, 1, 0))
        refused("pidfd", lambda: traced(434, pid, 0))
        refused("fd", lambda: os.listdir("/proc/%d/fd" % pid))
        refused("mem", lambda: os.open("/proc/%d/mem" % pid, os.O_RDWR))


def main():
    what = sys.argv[1]
    if what == "hold":
        # Two, as the first number is that of every container's first program.
        first, _ = bind()
        second, (_, fields, _) = bind()
        print("endpoint", fields[4], flush=True)
        signal.pause()
    elif what == "numbers":
        number, foreign_dc = int(sys.argv[2]), int(sys.argv[3])
        told("bind-in-foreign", bind(dc=foreign_dc)[1])
        broker, answer = bind()
        fields, _ = told("bind-any", answer)
        told("open-foreign", call(broker, OPEN, peer=number))
        told("ring-foreign", call(broker, OPEN, peer=number, entries=8, arena=4096))
        told("copy-foreign", call(broker, OPEN, peer=number, lane=15, entries=16, arena=1 << 20))
        told("ring-fs", call(broker, OPEN, peer=1, entries=8, arena=4096))
        told("ring-disk", call(broker, OPEN, peer=16, entries=8, arena=4096))
        told("other-program", call(broker, OPEN, peer=fields[4] + 1))
        for name, server in (("fs", 1), ("ds", 2), ("disk", 16), ("gate", 64)):
            told("bind-" + name, bind(server)[1])
        for pid in (1, 2, int(sys.argv[4])):
            told("getep", call(broker, GETEP, value=pid))
        told("bind-same-number", bind(number)[1])
        told("open-in-foreign", call(broker, OPEN, peer=number, dc=foreign_dc))
    elif what == "descriptors":
        descriptors()
    elif what == "processes":
        processes([int(pid) for pid in sys.argv[2:]])


main()
