"""File work whose every effect is known. Usage: python3 -c ... DIRECTORY SEED, ends when standard input does.

Every operation must succeed, and what it did must be seen at once: an error, a mismatch, an effect that happened twice (a file that
exists already, a name that is gone) ends the program with a traceback. A line `ops N appended M` says that the first N
operations, M records in `log` among them, were acknowledged. In the end `summary` (below) must be what the program remembers.
"""
import hashlib
import os
import random
import select
import sys
import zlib

LINE_EVERY = 25
DATA_BYTES = 256 * 1024
DOCUMENTS = 6
NAMES_MAX = 40


def record(seq, seed):
    """The record `seq` of a log; its length varies from some bytes to some pages."""
    body = b"%d.%d:" % (seed, seq) * (1 + (seq * 2654435761 + seed) % (11 if seq % 16 else 900))
    return b"%08d %08x %s\n" % (seq, zlib.crc32(body), body)


def expect(what, seen, wanted):
    if seen != wanted:
        show = lambda value: "%d bytes, %s" % (len(value), value[:60]) if isinstance(value, (bytes, bytearray)) else repr(value)
        raise AssertionError("%s: %s instead of %s" % (what, show(seen), show(wanted)))


class Load:
    def __init__(self, root, seed):
        self.root, self.seed, self.random = root, seed, random.Random(seed)
        os.mkdir(root)
        os.mkdir(root + "/names")
        self.log = os.open(root + "/log", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self.data = os.open(root + "/data", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.offsets, self.log_bytes, self.log_hash = [], 0, hashlib.sha256()
        self.model = bytearray()
        self.documents, self.names, self.made = {}, {}, 0

    def append(self):
        seq = len(self.offsets)
        text = record(seq, self.seed)
        expect("append %d" % seq, os.write(self.log, text), len(text))
        self.offsets.append(self.log_bytes)
        self.log_bytes += len(text)
        self.log_hash.update(text)
        expect("size of the log", os.fstat(self.log).st_size, self.log_bytes)

    def read_log(self):
        if self.offsets:
            seq = self.random.randrange(max(0, len(self.offsets) - 50), len(self.offsets))
            if self.random.random() < 0.3:
                # From the server, not from the pages of this node.
                os.posix_fadvise(self.log, 0, 0, os.POSIX_FADV_DONTNEED)
            text = record(seq, self.seed)
            expect("record %d" % seq, os.pread(self.log, len(text), self.offsets[seq]), text)

    def overwrite(self):
        at, length = self.random.randrange(DATA_BYTES), self.random.choice([1, 100, 4096, 5000, 40000])
        text = self.random.randbytes(length)
        expect("write at %d" % at, os.pwrite(self.data, text, at), length)
        if at > len(self.model):
            self.model.extend(bytes(at - len(self.model)))
        self.model[at : at + length] = text

    def read_data(self):
        length = self.random.choice([100, 4096, 30000, DATA_BYTES])
        at = 0 if length == DATA_BYTES else self.random.randrange(DATA_BYTES)
        if self.random.random() < 0.3:
            os.posix_fadvise(self.data, 0, 0, os.POSIX_FADV_DONTNEED)
        expect("data at %d" % at, os.pread(self.data, length, at), bytes(self.model[at : at + length]))

    def truncate(self):
        length = self.random.randrange(DATA_BYTES)
        os.ftruncate(self.data, length)
        del self.model[length:]
        self.model.extend(bytes(length - len(self.model)))
        expect("size of the data", os.fstat(self.data).st_size, length)

    def rewrite(self):
        name = "document-%d" % self.random.randrange(DOCUMENTS)
        text = self.random.randbytes(self.random.choice([0, 10, 3000, 20000]))
        path = "%s/%s" % (self.root, name)
        with open(path + ".new", "xb") as file:
            file.write(text)
            if self.random.random() < 0.3:
                file.flush()
                os.fsync(file.fileno())
        os.rename(path + ".new", path)
        self.documents[name] = text

    def read_document(self):
        for name, text in self.random.sample(sorted(self.documents.items()), min(1, len(self.documents))):
            with open("%s/%s" % (self.root, name), "rb") as file:
                expect(name, file.read(), text)

    def make_name(self):
        self.made += 1
        name, kind = "n%d" % self.made, self.random.choice(["file", "directory", "link", "hard"])
        path = "%s/names/%s" % (self.root, name)
        if kind == "file":
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        elif kind == "directory":
            os.mkdir(path)
        elif kind == "link":
            os.symlink("../log", path)
        else:
            os.link(self.root + "/log", path)
        self.names[name] = kind
        self.count_links()

    def count_links(self):
        hard = sum(1 for kind in self.names.values() if kind == "hard")
        expect("links of the log", os.fstat(self.log).st_nlink, 1 + hard)

    def rename_name(self):
        if self.names:
            self.made += 1
            old, new = self.random.choice(sorted(self.names)), "n%d" % self.made
            os.rename("%s/names/%s" % (self.root, old), "%s/names/%s" % (self.root, new))
            self.names[new] = self.names.pop(old)

    def remove_name(self):
        if self.names:
            name = self.random.choice(sorted(self.names))
            path = "%s/names/%s" % (self.root, name)
            os.rmdir(path) if self.names[name] == "directory" else os.unlink(path)
            del self.names[name]
            self.count_links()

    def list_names(self):
        expect("names", sorted(os.listdir(self.root + "/names")), sorted(self.names))

    def sync(self):
        os.fsync(self.random.choice([self.log, self.data]))

    def step(self):
        ways = [self.append] * 6 + [self.overwrite] * 4 + [self.rewrite] * 2 + [self.read_log, self.read_data] * 2
        ways += [self.read_document, self.make_name, self.rename_name, self.list_names, self.truncate, self.sync]
        ways += [self.remove_name] * (1 if len(self.names) < NAMES_MAX else 5)
        self.random.choice(ways)()

    def wanted(self):
        """What `summary` must find."""
        lines = ["log %d %s" % (self.log_bytes, self.log_hash.hexdigest()), entry("data", self.model)]
        lines += [entry(name, text) for name, text in self.documents.items()]
        lines += ["names/%s %s" % (name, kind) for name, kind in self.names.items()]
        return sorted(lines)


def entry(name, text):
    return "%s %d %s" % (name, len(text), hashlib.sha256(text).hexdigest())


def summary(root):
    """The tree below `root`, one line for each name."""
    lines = []
    for name in os.listdir(root):
        if name != "names":
            with open("%s/%s" % (root, name), "rb") as file:
                lines.append(entry(name, file.read()))
    log = os.stat(root + "/log").st_ino
    for name in os.listdir(root + "/names"):
        path = "%s/names/%s" % (root, name)
        found = os.lstat(path)
        kind = "directory" if os.path.isdir(path) else "link" if os.path.islink(path) else "hard" if found.st_ino == log else "file"
        lines.append("names/%s %s" % (name, kind))
    return sorted(lines)


def records(root, seed):
    """How many whole records the log has: it must have nothing else but perhaps a part of one more."""
    with open(root + "/log", "rb") as file:
        text, at, seq = file.read(), 0, 0
    while at < len(text):
        wanted = record(seq, seed)
        seen = text[at : at + len(wanted)]
        if seen != wanted:
            expect("the log's end after record %d" % seq, seen, wanted[: len(seen)])
            break
        at, seq = at + len(wanted), seq + 1
    return seq


def run(root, seed):
    load, operations = Load(root, seed), 0
    while True:
        for _ in range(LINE_EVERY):
            load.step()
        operations += LINE_EVERY
        print("ops %d appended %d" % (operations, len(load.offsets)), flush=True)
        if select.select([sys.stdin], [], [], 0)[0] and not os.read(0, 4096):
            break
    expect("the tree", summary(root), load.wanted())
    print("\n".join(["summary"] + load.wanted()), flush=True)


def main(mode, root, seed):
    if mode == "run":
        run(root, seed)
    elif mode == "summary":
        print("\n".join(["summary"] + summary(root)))
    elif mode == "records":
        print(records(root, seed))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
