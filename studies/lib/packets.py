"""A robot that sends periodic control packets and continuous data over plain sockets, for `coorp emu`.

    coorp emu team.toml -- python3 studies/lib/packets.py HOW --duration S [--period S] [--no-data]

The leader receives, and prints one line of JSON: the arrival of each control packet in seconds since its program
started, and the bytes of data received by each second. HOW is one of

- `one`: TCP over the first interface;
- `mptcp`: the kernel's Multipath TCP, one connection for control and one for data;
- `shared`: Multipath TCP, control and data in one connection;
- `robin`: TCP over each interface, with packets of both kinds alternating between them.

Control's sockets are marked CS6, as in Coorp, and do not wait to fill segments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

PORT = 7300
"""Port of control; data uses the next one."""
IPPROTO_MPTCP = 262
CONTROL_TOS = 48 << 2
HEADER = struct.Struct("!BI")
"""A frame's kind, and the number of bytes that follow."""
CONTROL, DATA = 0, 1
CONTROL_BYTES = 64
DATA_BYTES = 16 << 10

BEGAN = time.monotonic()


def protocol(how: str) -> int:
    """Returns the protocol of a method's sockets."""
    return IPPROTO_MPTCP if how in ("mptcp", "shared") else socket.IPPROTO_TCP


def prepare(how: str, addresses: list[str], *, leader: bool) -> None:
    """Makes the kernel open a path over each interface."""
    if protocol(how) != IPPROTO_MPTCP:
        return
    commands = [["limits", "set", "subflow", "4", "add_addr_accepted", "4"]]
    if leader:
        commands += [["endpoint", "add", address, "signal"] for address in addresses[1:]]
    for command in commands:
        subprocess.run(["ip", "mptcp", *command], check=True)


class Receiver:
    """The received packets and data."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[float, int]] = []
        self.data_bytes = 0

    def read(self, stream: socket.socket, path: int) -> None:
        """Reads the frames of one connection until it ends."""
        file = stream.makefile("rb", buffering=1 << 16)
        while len(head := file.read(HEADER.size)) == HEADER.size:
            kind, length = HEADER.unpack(head)
            got = len(file.read(length))
            if kind == CONTROL:
                self.arrivals.append((time.monotonic() - BEGAN, path))
            else:
                self.data_bytes += got

    def accept(self, how: str, address: str, port: int, path: int) -> None:
        """Accepts connections to one address."""
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol(how))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Additional paths of MPTCP arrive at the other addresses.
        server.bind(("" if protocol(how) == IPPROTO_MPTCP else address, port))
        server.listen()
        while True:
            stream, _ = server.accept()
            threading.Thread(target=self.read, args=(stream, path), daemon=True).start()


def receive(how: str, addresses: list[str], end: float) -> None:
    """Runs the leader's part."""
    receiver = Receiver()
    for path, address in enumerate(addresses if how == "robin" else addresses[:1]):
        for port in (PORT, PORT + 1):
            threading.Thread(target=receiver.accept, args=(how, address, port, path), daemon=True).start()
    counts = []
    while time.monotonic() < end:
        counts.append((time.monotonic() - BEGAN, receiver.data_bytes))
        time.sleep(1.0)
    print(json.dumps({"arrivals": receiver.arrivals, "bytes": counts}), flush=True)


def connect(how: str, address: str, port: int) -> socket.socket:
    """Connects to the leader, once the leader is up."""
    while True:
        own = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol(how))
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if port == PORT:
            own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CONTROL_TOS)
        if own.connect_ex((address, port)) == 0:
            return own
        own.close()
        time.sleep(0.05)


def send_data(streams: list[socket.socket], lock: threading.Lock) -> None:
    """Sends continuous data, over several streams in turn."""
    frame = HEADER.pack(DATA, DATA_BYTES) + bytes(DATA_BYTES)
    while True:
        for stream in streams:
            with lock:
                stream.sendall(frame)


def send(how: str, leader: list[str], period_s: float, end: float, *, data_too: bool) -> None:
    """Runs the other robot's part."""
    addresses = leader if how == "robin" else leader[:1]
    data = [connect(how, address, PORT + 1) for address in addresses]
    control = data if how == "shared" else [connect(how, address, PORT) for address in addresses]
    # If control has its own sockets, it does not wait for data.
    lock = threading.Lock()
    if data_too:
        threading.Thread(target=send_data, args=(data, lock), daemon=True).start()
    frame = HEADER.pack(CONTROL, CONTROL_BYTES) + bytes(CONTROL_BYTES)
    due, count = time.monotonic(), 0
    while due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        stream = control[count % len(control)]
        if how == "shared":
            with lock:
                stream.sendall(frame)
        else:
            # If the queue is too full to accept it, it would be late anyway.
            with contextlib.suppress(BlockingIOError):
                stream.send(frame, socket.MSG_DONTWAIT)
        due, count = due + period_s, count + 1


def main() -> None:
    """Runs this robot's part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("one", "mptcp", "shared", "robin"))
    parser.add_argument("--duration", type=float, required=True)
    parser.add_argument("--period", type=float, default=0.5)
    parser.add_argument("--no-data", action="store_true")
    arguments = parser.parse_args()
    end = BEGAN + arguments.duration
    leads = os.environ["COORP_ROBOT"] == os.environ["COORP_LEADER"]
    own = os.environ["COORP_ADDRESSES"].split()
    prepare(arguments.how, own, leader=leads)
    if leads:
        receive(arguments.how, own, end)
    else:
        name = os.environ["COORP_LEADER"]
        leader = [socket.gethostbyname(name), *(socket.gethostbyname(f"{name}.wlan{n}") for n in range(1, len(own)))]
        sending = threading.Thread(
            target=send,
            args=(arguments.how, leader, arguments.period, end),
            kwargs={"data_too": not arguments.no_data},
            daemon=True,
        )
        sending.start()
        # If the network accepts no more data, it waits forever.
        sending.join(max(0.0, end - time.monotonic()))
    # Threads that wait for a connection do not keep the program alive.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
