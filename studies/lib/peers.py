"""A robot's control loop beside bulk, by programs and libraries as they are, for `coorp emu`.

    coorp emu team.toml -- python3 studies/lib/peers.py HOW [--bulk] --duration S --folder SHARED

Each robot but the leader asks the leader once a period and is answered; with `--bulk` each also sends it as much as
goes. An ask and an answer have the sizes of a perception and a command of `examples/navigation.toml`, but for `ping`'s.
HOW, and what carries bulk beside it, is one of

- `ping`, `ping-ef`: the system's `ping`, without a mark and marked EF; bulk is `iperf3` over TCP;
- `udp`: a datagram each way, marked EF; bulk is `iperf3`;
- `zenoh`: Zenoh's own Python package as it comes, a topic for asks and one for answers; bulk is a topic of messages of
  1 MB in the same session, which waits where the network takes no more;
- `zenoh-rt`: the same with control at Zenoh's priority `REAL_TIME`, express, and bulk at `DATA_LOW`;
- `coorp`: `coorp.Node` under the policy `coorp`; bulk is its bulk stream.

Once all robots have been answered they start together. Bulk begins then, and what counts begins `SETTLE_S` later, for
so long as the duration says. Each robot leaves a file of JSON: how many asks counted, their round trips in ms, and what
bulk came to, where it knows. All robots of an emulation have one clock and share a folder.
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
MEET_S, NOTICE_S = 30.0, 0.5
"""How long robots look for one another, and how long before the start all know of it."""
SETTLE_S = 2.0
"""For connections to find their rate, and a Coorp team its permits."""
PATIENCE_S = 1.0
"""What is not answered by then after the end is lost."""
BULK_BYTES = 1_000_000
"""Of a message of Zenoh's."""
STREAM_BYTES = 16_000_000
"""Of a message of Coorp's."""
PORT, IPERF_PORT = 7200, 5201
IPERF_END_S = 10.0
"""For a client and its server to agree on what has come."""
TOS_EF = 46 << 2
NUMBER = struct.Struct("!Q")
REPLY = re.compile(rb"icmp_seq=(\d+) .*time=([\d.]+) ms")


@dataclass
class Found:
    """What one robot found."""

    asked: int = 0
    round_trips_ms: list[float] = field(default_factory=list)
    """Of those that were answered."""
    bulk_mbps: float | None = None


def sleep_until(at: float) -> None:
    """Waits for a point of the monotonic clock."""
    time.sleep(max(0.0, at - time.monotonic()))


@dataclass
class Part:
    """Who this robot is, and when it does its part."""

    robot: str
    leader: str
    others: list[str]
    """All robots but the leader."""
    duration: float
    bulk: bool
    folder: Path
    start: float = 0.0
    """Known once all have met."""

    @property
    def begin(self) -> float:
        """From when on it counts."""
        return self.start + SETTLE_S

    @property
    def end(self) -> float:
        """Until when it counts."""
        return self.begin + self.duration

    @property
    def leads(self) -> bool:
        """Whether this robot is the leader."""
        return self.robot == self.leader

    @property
    def place(self) -> int:
        """This robot's among those that are not the leader."""
        return self.others.index(self.robot)

    @property
    def asks(self) -> int:
        """How many there are from the start to the end."""
        return int((self.end - self.start) / PERIOD_S)

    def meet(self) -> None:
        """Waits until all robots are ready, and for the start."""
        ready, word, late = self.folder / "ready", self.folder / "start", time.monotonic() + MEET_S
        ready.mkdir(exist_ok=True)
        (ready / self.robot).touch()
        while not word.exists():
            there = {path.name for path in ready.iterdir()}
            if self.leads and there.issuperset(self.others):
                # Renamed, so that nobody reads half of it.
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
        """Leaves what was found. No thread that waits, and no session that would be closed, keeps the program."""
        (self.folder / f"{self.robot}.json").write_text(json.dumps(asdict(found)))
        os._exit(0)


def background(work: Callable[[], object]) -> None:
    """Does it in a thread that keeps nobody."""
    threading.Thread(target=work, daemon=True).start()


class Asks:
    """A robot's asks, and their answers."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._answered: dict[int, float] = {}

    def on_answer(self, message: bytes) -> None:
        """An answer came. It begins with the number of its ask."""
        (number,) = NUMBER.unpack_from(message)
        self._answered.setdefault(number, time.monotonic())

    def meet(self, send: Callable[[bytes], object]) -> None:
        """Asks until the leader answers, then waits for the start."""
        late = time.monotonic() + MEET_S
        while not self._answered:
            if time.monotonic() > late:
                sys.exit(f"{self._part.leader} does not answer {self._part.robot}")
            send(NUMBER.pack(0).ljust(ASK_BYTES, b"\0"))
            time.sleep(0.1)
        self._part.meet()

    def run(self, send: Callable[[bytes], object]) -> Found:
        """Asks from the start to the end, and waits for the last answers. Number 0 was for meeting.

        A round trip begins when the ask is due: a library that makes its caller wait makes it late.
        """
        due = {number: self._part.start + number * PERIOD_S for number in range(1, self._part.asks + 1)}
        for number, at in due.items():
            sleep_until(at)
            send(NUMBER.pack(number).ljust(ASK_BYTES, b"\0"))
        sleep_until(self._part.end + PATIENCE_S)
        counted = {number: at for number, at in due.items() if at >= self._part.begin}
        took = [self._answered[number] - at for number, at in counted.items() if number in self._answered]
        return Found(asked=len(counted), round_trips_ms=[1e3 * seconds for seconds in took])


# --- the system's own programs ------------------------------------------------------------------------------------


class Iperf3:
    """Bulk over TCP: a server a robot at the leader, and a client at each other robot."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._programs: list[subprocess.Popen[bytes]] = []
        if part.bulk and part.leads:
            for place in range(len(part.others)):
                server = ["iperf3", "--server", "--one-off", "--forceflush", "--port", str(IPERF_PORT + place)]
                program = subprocess.Popen(server, stdout=subprocess.PIPE)
                self._programs.append(program)
                # Until it listens; there is nothing more to read where it cannot.
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
        """What this robot's server has got, once all is over."""
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
    """Round trips of the kernels' own."""
    iperf3 = Iperf3(part)
    part.meet()
    iperf3.start()
    found = Found()
    if not part.leads:
        first = int(SETTLE_S / PERIOD_S)
        mark = ["-Q", hex(TOS_EF)] if marked else []
        command = ["ping", "-n", "-i", str(PERIOD_S), "-c", str(part.asks), "-W", str(PATIENCE_S), *mark, part.leader]
        # It ends with a failure where an answer is missing, which is a finding.
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

    # Not connected, so that asks of before the leader listens are no errors.
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
    """Round trips by two topics of Zenoh's."""
    import zenoh

    # Nothing is Zenoh's default.
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
    # By default a publisher drops what the network does not take at once.
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
    """Round trips by two control topics of Coorp's."""
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
            # There is none before any has come.
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
            # The next one goes while this one is checked and written to the disk.
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
    """Plays the part of the robot that this is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=tuple(HOWS))
    parser.add_argument("--bulk", action="store_true")
    parser.add_argument("--duration", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    leader = os.environ["COORP_LEADER"]
    # Each is `name=address@interface,…`.
    names = [entry.split("=")[0] for entry in os.environ["COORP_NETWORK"].split()]
    HOWS[arguments.how](
        Part(
            robot=os.environ["COORP_ROBOT"],
            leader=leader,
            others=[name for name in names if name != leader],
            duration=arguments.duration,
            bulk=arguments.bulk,
            folder=arguments.folder,
        )
    )


if __name__ == "__main__":
    main()
