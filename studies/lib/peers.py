"""A robot's control loop beside bulk, with unmodified programs and libraries, for `coorp emu`.

    coorp emu team.toml -- python3 studies/lib/peers.py HOW [--bulk] --duration S --folder SHARED

Once per period, each robot except the leader sends the leader a request and gets a reply; with `--bulk` each also sends
it as much bulk as possible. Request and reply have the sizes of a perception and a command of
`examples/navigation.toml`, except for `ping`. HOW, and what carries bulk beside it, is one of

- `ping`, `ping-ef`: the system's `ping`, unmarked and marked EF; bulk is `iperf3` over TCP;
- `udp`: a datagram each way, marked EF; bulk is `iperf3`;
- `zenoh`: Zenoh's own Python package with its defaults, a topic for requests and one for replies; bulk is a topic of
  messages of 1 MB in the same session, which blocks while the network is full;
- `zenoh-rt`: the same with control at Zenoh's priority `REAL_TIME`, express, and bulk at `DATA_LOW`;
- `coorp`: `coorp.Node` under the policy `coorp`; bulk is its bulk stream.

Once all robots have had a reply, they start together. Bulk starts then; the measurement starts `SETTLE_S` later and
lasts for the given duration. Each robot writes a JSON file: the number of requests, their round trips in ms, and the
bulk throughput if it knows it. All robots of an emulation share a clock and a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

PERIOD_S = 0.033
ASK_BYTES, ANSWER_BYTES = 12 << 10, 1 << 10
MEET_S, NOTICE_S = 120.0, 0.5
"""How long robots look for one another, and how long before the start all of them know it."""
SETTLE_S = 2.0
"""Time for connections to find their rate, and for a Coorp team to get its permits."""
PATIENCE_S = 1.0
"""Requests not answered within this time after the end count as lost."""
BULK_BYTES = 1_000_000
"""Size of a Zenoh bulk message."""
STREAM_BYTES = 16_000_000
"""Size of a Coorp bulk message."""
PORT, IPERF_PORT = 7200, 5201
IPERF_END_S = 60.0
"""Time for a client and its server to agree on what has arrived."""
TOS_EF = 46 << 2
NUMBER = struct.Struct("!Q")
REPLY = re.compile(rb"icmp_seq=(\d+) .*time=([\d.]+) ms")


@dataclass
class Found:
    """The findings of one robot."""

    asked: int = 0
    round_trips_ms: list[float] = field(default_factory=list)
    """Round trips of answered requests."""
    bulk_mbps: float | None = None


def sleep_until(at: float) -> None:
    """Waits for a point of the monotonic clock."""
    time.sleep(max(0.0, at - time.monotonic()))


@dataclass
class Part:
    """This robot's identity and schedule."""

    robot: str
    leader: str
    others: list[str]
    """All robots except the leader."""
    duration: float
    bulk: bool
    folder: Path
    start: float = 0.0
    """Known once all robots have met."""

    @classmethod
    def here(cls, duration: float, folder: Path, *, bulk: bool) -> Part:
        """The part of the robot that this process runs on."""
        leader = os.environ["COORP_LEADER"]
        # Each is `name=address@interface,…`.
        names = [entry.split("=")[0] for entry in os.environ["COORP_NETWORK"].split()]
        others = [name for name in names if name != leader]
        return cls(os.environ["COORP_ROBOT"], leader, others, duration, bulk, folder)

    @property
    def begin(self) -> float:
        """When the measurement starts."""
        return self.start + SETTLE_S

    @property
    def end(self) -> float:
        """When the measurement ends."""
        return self.begin + self.duration

    @property
    def leads(self) -> bool:
        """Whether this robot is the leader."""
        return self.robot == self.leader

    @property
    def place(self) -> int:
        """This robot's index among the robots other than the leader."""
        return self.others.index(self.robot)

    @property
    def asks(self) -> int:
        """The number of periods from the start to the end."""
        return int((self.end - self.start) / PERIOD_S)

    def meet(self) -> None:
        """Waits until all robots are ready, and for the start."""
        ready, word, late = self.folder / "ready", self.folder / "start", time.monotonic() + MEET_S
        ready.mkdir(exist_ok=True)
        (ready / self.robot).touch()
        while not word.exists():
            there = {path.name for path in ready.iterdir()}
            if self.leads and there.issuperset(self.others):
                # Renamed, so that no reader sees a partial file.
                draft = word.with_suffix(".draft")
                draft.write_text(repr(time.monotonic() + NOTICE_S))
                draft.rename(word)
            elif time.monotonic() > late:
                missing = ", ".join(sorted({self.leader, *self.others} - there))
                sys.exit(f"{missing or self.leader}: not ready after {MEET_S:.0f} s")
            else:
                time.sleep(0.02)
        self.start = float(word.read_text())
        sleep_until(self.start)

    def leave(self, found: Found) -> NoReturn:
        """Writes the findings and exits at once, without joining waiting threads or closing sessions."""
        (self.folder / f"{self.robot}.json").write_text(json.dumps(asdict(found)))
        os._exit(0)


def background(work: Callable[[], object]) -> None:
    """Runs it in a daemon thread."""
    threading.Thread(target=work, daemon=True).start()


class Asks:
    """A robot's requests and their replies."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._answered: dict[int, float] = {}

    def on_answer(self, message: bytes) -> None:
        """Records a reply, which starts with the number of its request."""
        (number,) = NUMBER.unpack_from(message)
        self._answered.setdefault(number, time.monotonic())

    def meet(self, send: Callable[[bytes], object]) -> None:
        """Sends requests until the leader replies, then waits for the start."""
        late = time.monotonic() + MEET_S
        while not self._answered:
            if time.monotonic() > late:
                sys.exit(f"{self._part.leader} does not answer {self._part.robot}")
            send(NUMBER.pack(0).ljust(ASK_BYTES, b"\0"))
            time.sleep(0.1)
        self._part.meet()

    def run(self, send: Callable[[bytes], object]) -> Found:
        """Sends requests from the start to the end, and waits for the last replies. Number 0 was for meeting.

        A round trip starts when the request is due, so a library that blocks its caller makes it late.
        """
        due = {number: self._part.start + number * PERIOD_S for number in range(1, self._part.asks + 1)}
        for number, at in due.items():
            sleep_until(at)
            send(NUMBER.pack(number).ljust(ASK_BYTES, b"\0"))
        sleep_until(self._part.end + PATIENCE_S)
        counted = {number: at for number, at in due.items() if at >= self._part.begin}
        took = [self._answered[number] - at for number, at in counted.items() if number in self._answered]
        return Found(asked=len(counted), round_trips_ms=[1e3 * seconds for seconds in took])


# --- system programs ----------------------------------------------------------------------------------------------


class Iperf3:
    """Bulk over TCP: one server per robot at the leader, and a client at each other robot."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._programs: list[subprocess.Popen[bytes]] = []
        if part.bulk and part.leads:
            for place in range(len(part.others)):
                server = ["iperf3", "--server", "--one-off", "--forceflush", "--port", str(IPERF_PORT + place)]
                program = subprocess.Popen(server, stdout=subprocess.PIPE)
                self._programs.append(program)
                # Until it listens; if it cannot, there is nothing more to read.
                for line in program.stdout or ():
                    if b"listening" in line:
                        break

    def start(self) -> None:
        """Starts the client, once all robots have met."""
        if self._part.bulk and not self._part.leads:
            client = ["iperf3", "--json", "--client", self._part.leader, "--port", str(IPERF_PORT + self._part.place)]
            client += ["--omit", f"{SETTLE_S:.0f}", "--time", f"{self._part.duration:.0f}"]
            self._programs.append(subprocess.Popen(client, stdout=subprocess.PIPE))

    def mbps(self) -> float | None:
        """The amount that this robot's server received, at the end."""
        sleep_until(self._part.end)
        reports = [self._report(program) for program in self._programs]
        if self._part.leads or not reports:
            return None
        report = json.loads(reports[0])
        if "error" in report:
            sys.exit(f"iperf3 of {self._part.robot}: {report['error']}")
        return report["end"]["sum_received"]["bits_per_second"] / 1e6

    def _report(self, program: subprocess.Popen[bytes]) -> bytes:
        try:
            return program.communicate(timeout=IPERF_END_S)[0]
        except subprocess.TimeoutExpired:
            program.kill()
            sys.exit(f"iperf3 of {self._part.robot} does not end")


def ping(part: Part, *, marked: bool) -> NoReturn:
    """Round trips answered by the kernel."""
    iperf3 = Iperf3(part)
    part.meet()
    iperf3.start()
    found = Found()
    if not part.leads:
        first = int(SETTLE_S / PERIOD_S)
        mark = ["-Q", hex(TOS_EF)] if marked else []
        command = ["ping", "-n", "-i", str(PERIOD_S), "-c", str(part.asks), "-W", str(PATIENCE_S), *mark, part.leader]
        # It exits with a failure if a reply is missing, which is a finding.
        said = subprocess.run(command, capture_output=True, check=False)
        if b"packets transmitted" not in said.stdout:
            sys.exit(f"ping failed: {said.stdout.decode()}{said.stderr.decode()}")
        replies = {int(number): float(took) for number, took in REPLY.findall(said.stdout)}
        found = Found(part.asks - first, [took for number, took in replies.items() if number > first])
    found.bulk_mbps = iperf3.mbps()
    part.leave(found)


def udp(part: Part) -> NoReturn:
    """Round trips of one datagram each way."""
    iperf3 = Iperf3(part)
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_EF)
    if part.leads:
        own.bind(("", PORT))

        def answer() -> None:
            while True:
                ask, robot = own.recvfrom(1 << 16)
                own.sendto(ask[:ANSWER_BYTES], robot)

        background(answer)
        part.meet()
        sleep_until(part.end + PATIENCE_S)
        iperf3.mbps()
        part.leave(Found())
    asks = Asks(part)

    def listen() -> None:
        while True:
            asks.on_answer(own.recv(1 << 16))

    # Not connected, so that requests sent before the leader listens cause no errors.
    own.bind(("", 0))
    to = (socket.gethostbyname(part.leader), PORT)
    background(listen)
    asks.meet(lambda ask: own.sendto(ask, to))
    iperf3.start()
    found = asks.run(lambda ask: own.sendto(ask, to))
    found.bulk_mbps = iperf3.mbps()
    part.leave(found)


# --- libraries ----------------------------------------------------------------------------------------------------


def with_zenoh(part: Part, *, real_time: bool) -> NoReturn:
    """Round trips over two Zenoh topics."""
    import zenoh

    # None is Zenoh's default.
    control, low, express = (zenoh.Priority.REAL_TIME, zenoh.Priority.DATA_LOW, True) if real_time else (None,) * 3
    session = zenoh.open(zenoh.Config())
    if part.leads:
        answers = {
            robot: session.declare_publisher(f"answer/{robot}", priority=control, express=express)
            for robot in part.others
        }
        received = 0

        def answer(ask: zenoh.Sample) -> None:
            answers[str(ask.key_expr).split("/")[1]].put(ask.payload.to_bytes()[:ANSWER_BYTES])

        def receive(sample: zenoh.Sample) -> None:
            nonlocal received
            if part.begin <= time.monotonic() < part.end:
                received += len(sample.payload)

        _asks = session.declare_subscriber("ask/*", answer)
        _bulk = session.declare_subscriber("bulk/*", receive)
        part.meet()
        sleep_until(part.end + PATIENCE_S)
        part.leave(Found(bulk_mbps=received * 8e-6 / part.duration))
    asks = Asks(part)
    _answers = session.declare_subscriber(
        f"answer/{part.robot}", lambda sample: asks.on_answer(sample.payload.to_bytes())
    )
    asking = session.declare_publisher(f"ask/{part.robot}", priority=control, express=express)
    # By default a publisher drops messages that the network does not accept at once.
    block = zenoh.CongestionControl.BLOCK
    sending = session.declare_publisher(f"bulk/{part.robot}", priority=low, congestion_control=block)

    def send() -> None:
        message = bytes(BULK_BYTES)
        while True:
            sending.put(message)

    asks.meet(asking.put)
    if part.bulk:
        background(send)
    part.leave(asks.run(asking.put))


def with_coorp(part: Part) -> NoReturn:
    """Round trips over two control topics of Coorp."""
    import coorp

    state = part.folder / "state" / part.robot
    node = coorp.Node(os.environ["COORP_TEAM"], robot=part.robot, policy="coorp", state=state)
    if part.leads:
        listener = node.control_subscriber("ask")
        answers = {robot: node.control_publisher(f"answer-{robot}") for robot in part.others}
        receiver = node.bulk_receiver()

        def answer() -> None:
            while True:
                ask = listener.recv()
                answers[ask.sender].put(ask.data[:ANSWER_BYTES])

        def take() -> None:
            while True:
                receiver.recv().take()

        def received() -> int:
            # There is none before the first message.
            return (node.status()["bulk"] or {}).get("received_bytes", 0)

        background(answer)
        background(take)
        part.meet()
        sleep_until(part.begin)
        before = received()
        sleep_until(part.end)
        after = received()
        sleep_until(part.end + PATIENCE_S)
        part.leave(Found(bulk_mbps=(after - before) * 8e-6 / part.duration))
    asks = Asks(part)
    subscriber = node.control_subscriber(f"answer-{part.robot}")
    publisher = node.control_publisher("ask", period=PERIOD_S)

    def listen() -> None:
        while True:
            asks.on_answer(subscriber.recv().data)

    def send() -> None:
        message, before = bytes(STREAM_BYTES), None
        while True:
            stream = node.bulk_stream(to="leader", name="bulk")
            stream.write(message)
            # The next one is sent while this one is checked and written to disk.
            delivery = stream.finish()
            if before is not None:
                before.wait()
            before = delivery

    background(listen)
    asks.meet(publisher.put)
    if part.bulk:
        background(send)
    part.leave(asks.run(publisher.put))


HOWS: dict[str, Callable[[Part], NoReturn]] = {
    "ping": lambda part: ping(part, marked=False),
    "ping-ef": lambda part: ping(part, marked=True),
    "udp": udp,
    "zenoh": lambda part: with_zenoh(part, real_time=False),
    "zenoh-rt": lambda part: with_zenoh(part, real_time=True),
    "coorp": with_coorp,
}


def main() -> None:
    """Runs this robot's part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=tuple(HOWS))
    parser.add_argument("--bulk", action="store_true")
    parser.add_argument("--duration", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    HOWS[arguments.how](Part.here(arguments.duration, arguments.folder, bulk=arguments.bulk))


if __name__ == "__main__":
    main()
