"""A robot's programs: TCP streams with a check of every byte, and requests by UDP.

    python3 studies/lib/streams.py --robot NAME --streams FILE

Both ends of a stream send numbered records, whose contents follow from the stream's name. The received bytes must be
the other end's records, whole and in order, up to the last byte: so a stream that is cut off is known to be a prefix.
Both ends also hash the bytes that they send and receive. At the end each sends its hash, and the other one confirms it
with its own.

`FILE` has the streams (`Stream`) and the robots' addresses, as JSON. Commands come by standard input, a line each:
`open NAME`, `mark` (note the time of the next record), `finish`, and `report`, which prints a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import hashlib
import itertools
import json
import random
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBER = struct.Struct("!Q")
END, CONFIRMED = 2**64 - 1, 2**64 - 2
"""Values in place of a record's number, before a hash of the sent or of the received bytes."""
BULK_BYTES, CONTROL_BYTES = 16_376, 120
BLOCK_BYTES = 1 << 18
STRIDE = 4_099
BUFFER_BYTES = 128 << 10
"""Size of a socket's buffers, which bounds the unsent data at the end."""
CONTROL_PERIOD_S = 0.02
REQUEST_PERIOD_S = 0.05
AGAIN_S = 0.05
UDP_PORT = 9_900


@dataclass(frozen=True)
class Stream:
    """A TCP connection, on which both ends send."""

    name: str
    opener: str
    answerer: str
    port: int
    is_bulk: bool


class Content:
    """The content that one end of a stream sends."""

    def __init__(self, stream: Stream, robot: str) -> None:
        self.block = random.Random(f"{stream.name} {robot}").randbytes(BLOCK_BYTES)
        self.body_bytes = BULK_BYTES if stream.is_bulk else CONTROL_BYTES

    def record(self, number: int) -> bytes:
        begin = number * STRIDE % (BLOCK_BYTES - self.body_bytes)
        return NUMBER.pack(number) + self.block[begin : begin + self.body_bytes]


class End:
    """One end of a stream."""

    def __init__(self, stream: Stream, own: str) -> None:
        self.stream = stream
        other = stream.answerer if own == stream.opener else stream.opener
        self.ours, self.theirs = Content(stream, own), Content(stream, other)
        self.told, self.heard = hashlib.sha256(), hashlib.sha256()
        self.sent = self.received = self.checked_bytes = 0
        self.left = bytearray()
        self.has_ended = self.is_heard = self.is_confirmed = False
        self.wrong: str | None = None
        self.broke: str | None = None
        self.marked_s, self.resumed_s = time.monotonic(), None

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, finish: asyncio.Event) -> None:
        """Sends and receives until both directions are confirmed."""
        sending = asyncio.create_task(self.send(writer, finish))
        try:
            while not (self.is_heard and self.is_confirmed):
                piece = await reader.read(1 << 16)
                if not piece:
                    self.broke = "it ended early"
                    return
                self.take(piece, writer)
                if self.wrong:
                    return
            await sending
            await writer.drain()
        except OSError as error:
            self.broke = str(error)
        finally:
            sending.cancel()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await sending
            writer.close()

    async def send(self, writer: asyncio.StreamWriter, finish: asyncio.Event) -> None:
        while not finish.is_set():
            record = self.ours.record(self.sent)
            self.told.update(record)
            self.sent += 1
            writer.write(record)
            await writer.drain()
            if not self.stream.is_bulk:
                await asyncio.sleep(CONTROL_PERIOD_S)
        self.has_ended = True
        writer.write(NUMBER.pack(END) + self.told.digest())
        await writer.drain()

    def take(self, piece: bytes, writer: asyncio.StreamWriter) -> None:
        """Checks the received bytes, up to the last one."""
        self.left += piece
        while len(self.left) >= NUMBER.size and not self.wrong:
            (number,) = NUMBER.unpack_from(self.left)
            if number in (END, CONFIRMED):
                taken = NUMBER.size + self.heard.digest_size
                if len(self.left) < taken:
                    return
                self.conclude(number, bytes(self.left[NUMBER.size : taken]), writer)
            else:
                record = self.theirs.record(self.received)
                taken = len(record)
                came = self.left[:taken]
                if came != record[: len(came)]:
                    self.wrong = f"record {self.received} is not what was sent: it begins as number {number}"
                    return
                if len(came) < taken:
                    return
                self.heard.update(came)
                self.received += 1
                self.checked_bytes += taken
                if self.resumed_s is None:
                    self.resumed_s = time.monotonic() - self.marked_s
            del self.left[:taken]

    def conclude(self, what: int, digest: bytes, writer: asyncio.StreamWriter) -> None:
        """Handles the other end's hash of the bytes that it sent or received."""
        if what == END:
            self.is_heard = digest == self.heard.digest()
            writer.write(NUMBER.pack(CONFIRMED) + self.heard.digest())
        else:
            self.is_confirmed = self.has_ended and digest == self.told.digest()
        if not (self.is_heard if what == END else self.is_confirmed):
            self.wrong = "the hash of what was sent is not that of what was received"

    def mark(self) -> None:
        self.marked_s, self.resumed_s = time.monotonic(), None

    def report(self) -> dict[str, Any]:
        return {
            "sent": [self.sent, self.told.hexdigest()],
            "received": [self.received, self.heard.hexdigest()],
            "bytes": self.checked_bytes,
            "done": self.is_heard and self.is_confirmed and not self.wrong,
            "wrong": self.wrong,
            "broke": self.broke,
            "resumed_s": self.resumed_s,
        }


class Requests(asyncio.DatagramProtocol):
    """Requests by UDP, and replies to others' requests. Lost datagrams are only counted."""

    def __init__(self) -> None:
        self.transport: asyncio.DatagramTransport | None = None
        self.asked = self.answered = self.wrong = 0

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.transport is None:
            return
        (number,) = NUMBER.unpack_from(data)
        if data != self.datagram(number, data[NUMBER.size :][:1]):
            self.wrong += 1
        elif data[NUMBER.size :][:1] == b"?":
            self.transport.sendto(self.datagram(number, b"!"), addr)
        else:
            self.answered += 1

    def error_received(self, exc: Exception) -> None:
        """Ignores the error; the request is lost."""

    async def ask(self, to: str, finish: asyncio.Event) -> None:
        assert self.transport is not None
        for number in itertools.count():
            if finish.is_set():
                return
            self.asked += 1
            self.transport.sendto(self.datagram(number, b"?"), (to, UDP_PORT))
            await asyncio.sleep(REQUEST_PERIOD_S)

    @staticmethod
    def datagram(number: int, kind: bytes) -> bytes:
        return NUMBER.pack(number) + kind + random.Random(number).randbytes(100)


class Programs:
    """The programs of one robot."""

    def __init__(self, own: str, addresses: dict[str, str], streams: list[Stream]) -> None:
        self.own, self.addresses = own, addresses
        self.streams = {stream.name: stream for stream in streams}
        self.ends: dict[str, End] = {}
        self.finish = asyncio.Event()
        self.requests = Requests()
        self.resets = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for stream in self.streams.values():
            if stream.answerer == self.own:
                listener = checked_socket()
                listener.bind(("", stream.port))
                await asyncio.start_server(self.answer(stream), sock=listener)
        await loop.create_datagram_endpoint(lambda: self.requests, local_addr=("0.0.0.0", UDP_PORT))
        robots = list(self.addresses)
        after = robots[(robots.index(self.own) + 1) % len(robots)]
        self.begin(self.requests.ask(self.addresses[after], self.finish))
        commands = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        print(json.dumps("ready"), flush=True)
        while line := await commands.readline():
            match line.decode().split():
                case ["open", name]:
                    self.begin(self.open(self.streams[name]))
                case ["mark"]:
                    for end in self.ends.values():
                        end.mark()
                case ["finish"]:
                    self.finish.set()
                case _:
                    print(json.dumps(self.report()), flush=True)

    def begin(self, work: Any) -> None:  # noqa: ANN401
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def open(self, stream: Stream) -> None:
        """Connects, however long there is no route, and again if the connection was reset before any byte arrived."""
        to = (self.addresses[stream.answerer], stream.port)
        while True:
            opened = checked_socket()
            opened.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(opened, to)
            except OSError:
                opened.close()
                await asyncio.sleep(AGAIN_S)
                continue
            reader, writer = await asyncio.open_connection(sock=opened)
            end = self.ends[stream.name] = End(stream, self.own)
            await end.run(reader, writer, self.finish)
            if not end.broke or end.received or end.left:
                return
            self.resets += 1

    def answer(self, stream: Stream) -> Any:  # noqa: ANN401
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            end = End(stream, self.own)
            known = self.ends.setdefault(stream.name, end)
            # Nothing arrived on the previous connection: the opener has opened another.
            if known is not end and not known.received:
                self.ends[stream.name] = end
            elif known is not end:
                known.wrong = "it was opened twice"
            await end.run(reader, writer, self.finish)

        return serve

    def report(self) -> dict[str, Any]:
        udp = {"asked": self.requests.asked, "answered": self.requests.answered, "wrong": self.requests.wrong}
        streams = {name: end.report() for name, end in self.ends.items()}
        return {"streams": streams, "udp": udp, "resets": self.resets}


def checked_socket() -> socket.socket:
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    return own


def describe(streams: list[Stream], addresses: dict[str, str]) -> str:
    """Returns the content of the file that the programs read."""
    return json.dumps({"addresses": addresses, "streams": [dataclasses.asdict(stream) for stream in streams]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robot", required=True)
    parser.add_argument("--streams", type=Path, required=True)
    arguments = parser.parse_args()
    given = json.loads(arguments.streams.read_text())
    streams = [Stream(**stream) for stream in given["streams"]]
    asyncio.run(Programs(arguments.robot, given["addresses"], streams).run())


if __name__ == "__main__":
    main()
