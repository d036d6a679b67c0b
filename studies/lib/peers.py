"""A robot's control loop beside bulk, with unmodified programs and libraries, for `coorp emu`.

    coorp emu team.toml -- python3 studies/lib/peers.py HOW [--bulk] [--shape MBPS] --duration S --folder SHARED

Once per period, each robot except the leader sends the leader a request and gets a reply; with `--bulk` each also sends
as much bulk as possible, by default to the leader. HOW is one of the following, with its carrier of bulk:

- `ping`, `ping-ef`: the system's `ping`, unmarked and marked EF; bulk is `iperf3` over TCP;
- `udp`: a datagram each way, marked EF; bulk is `iperf3`;
- `dds`: Cyclone DDS's own Python package. Poses and images of 1 MB have the same participant, so they share a pair of
  UDP ports. All topics have ROS 2's default profile: reliable, keep last 10. A robot sends its next image once the
  leader has the last one, because of Cyclone's limit on unacknowledged data;
- `ros2`: nodes of `ros2-client` (RustDDS, studies/ros2) with poses and images of 1 MB, which Cyclone DDS at the leader
  takes and answers by ROS 2's names of topics and types. The next image waits for the last one in the same way;
- `ros2-zenoh`: nodes of hiroz (studies/ros2-zenoh), which speaks rmw_zenoh's protocol, with poses and images of 1 MB.
  In addition, each robot calls a service of the leader and reads a parameter each second; a wrong or missing reply ends
  the run. Each robot has a Zenoh router like `rmw_zenohd`, unless an agent is the router;
- `rsync`: teleoperation, a small unmarked datagram each way; bulk is a folder of 1 GB for the leader's rsync daemon;
- `gloo`: messages of an MPC loop, as for `rsync`; bulk is torch's all-reduce of a model's gradients, 40 MB, among all
  robots, the leader included;
- `zenoh`: Zenoh's own Python package with its defaults, a topic for requests and one for replies; bulk is a topic of
  messages of 1 MB in the same session, which blocks while the network is full;
- `zenoh-rt`: the same with control at Zenoh's priority `REAL_TIME`, express, and bulk at `DATA_LOW`;
- `coorp`: `coorp.Node` under the policy `coorp`; bulk is its bulk stream.

Requests and replies of `udp`, `zenoh` and `coorp` have the sizes of a perception and a command of
`examples/navigation.toml`; the requests and replies of `dds`, `ros2`, `rsync` and `gloo` are small. `--shape` makes
`tc` send control first, at this rate at most.

Once all robots have had a reply, they start together. Bulk starts then; the measurement starts `SETTLE_S` later and
lasts for the given duration. Each robot writes a JSON file: the number of requests, their round trips in ms, and the
bulk that reached its programs during the measurement. All robots of an emulation share a clock and a folder.
"""

from __future__ import annotations

import argparse
import contextlib
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
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from cyclonedds import pub

PERIOD_S = 0.033
ASK_BYTES, ANSWER_BYTES = 12 << 10, 1 << 10
SMALL_BYTES = 128
"""Size of a pose, or of a message of teleoperation."""
MEET_S, NOTICE_S = 120.0, 0.5
"""Time for robots to find one another, and the time before the start at which all of them know it."""
SETTLE_S = 2.0
"""Time for connections to find their rate, and for a Coorp team to get its permits."""
PATIENCE_S = 1.0
"""Requests not answered within this time after the end count as lost."""
BULK_BYTES = 1_000_000
"""Size of a bulk message of Zenoh, and of an image."""
STREAM_BYTES = 16_000_000
"""Size of a Coorp bulk message."""
FILE_BYTES, FILES = 64 << 20, 16
"""Size and number of the files that rsync sends; more than the channel carries in a run."""
PARAMETERS = 10_000_000
"""Number of parameters of the model whose gradients are reduced, as in `examples/navigation.toml`."""
KEPT = 10
"""ROS 2's default depth of a topic's history."""
CARD = "wlan0"
PORT, IPERF_PORT, RSYNC_PORT, STORE_PORT = 7200, 5201, 873, 29500
TOS_EF = 46 << 2
NUMBER = struct.Struct("!Q")
REPLY = re.compile(rb"icmp_seq=(\d+) .*time=([\d.]+) ms")
ARRIVED = re.compile(rb"bytes_received:(\d+)")
MEMORY = Path("/dev/shm")
"""A folder in memory; each robot of an emulation has its own."""
ROS2 = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[1] / "ros2" / "target")) / "release" / "ros2-node"
"""The node of `ros2-client`, at cargo's path."""
ROS2_ZENOH = ROS2.with_name("ros2-zenoh-node")
if "CARGO_TARGET_DIR" not in os.environ:
    ROS2_ZENOH = Path(__file__).parents[1] / "ros2-zenoh" / "target" / "release" / "ros2-zenoh-node"
"""The node of hiroz."""


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
    """The start, known once all robots have met."""

    @classmethod
    def here(cls, duration: float, folder: Path, *, bulk: bool) -> Part:
        """Returns the part of the robot on which this process runs."""
        leader = os.environ["COORP_LEADER"]
        # Each is `name=address@interface,…`.
        names = [entry.split("=")[0] for entry in os.environ["COORP_NETWORK"].split()]
        others = [name for name in names if name != leader]
        return cls(os.environ["COORP_ROBOT"], leader, others, duration, bulk, folder)

    @property
    def begin(self) -> float:
        """The time at which the measurement starts."""
        return self.start + SETTLE_S

    @property
    def end(self) -> float:
        """The time at which the measurement ends."""
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
    """Runs `work` in a daemon thread."""
    threading.Thread(target=work, daemon=True).start()


class Asks:
    """A robot's requests and their replies."""

    def __init__(self, part: Part, size: int = ASK_BYTES) -> None:
        self._part, self._size = part, size
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
            send(NUMBER.pack(0).ljust(self._size, b"\0"))
            time.sleep(0.1)
        self._part.meet()

    def run(self, send: Callable[[bytes], object]) -> Found:
        """Sends requests from the start to the end, and waits for the last replies. Number 0 was for meeting.

        A round trip starts when the request is due, so a library that blocks its caller makes it late.
        """
        due = {number: self._part.start + number * PERIOD_S for number in range(1, self._part.asks + 1)}
        for number, at in due.items():
            sleep_until(at)
            send(NUMBER.pack(number).ljust(self._size, b"\0"))
        sleep_until(self._part.end + PATIENCE_S)
        counted = {number: at for number, at in due.items() if at >= self._part.begin}
        took = [self._answered[number] - at for number, at in counted.items() if number in self._answered]
        return Found(asked=len(counted), round_trips_ms=[1e3 * seconds for seconds in took])


# --- system programs ----------------------------------------------------------------------------------------------


class TcpBulk:
    """Bulk over TCP. Each robot counts what its programs can read."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._arrived, self._lasted = 0, True
        self._counting = threading.Thread(target=self._count, daemon=True)

    def begin(self) -> None:
        """Begins to send."""
        raise NotImplementedError

    def goes_on(self) -> bool:
        """Returns whether the bulk is still being sent or received."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts, once all robots have met."""
        if self._part.bulk:
            self.begin()
            self._counting.start()

    def _count(self) -> None:
        sleep_until(self._part.begin)
        before = tcp_received()
        sleep_until(self._part.end)
        self._arrived, self._lasted = tcp_received() - before, self.goes_on()

    def mbps(self) -> float | None:
        """Returns the rate at which bulk reached this robot, once all robots have counted."""
        sleep_until(self._part.end + PATIENCE_S)
        if not self._part.bulk:
            return None
        self._counting.join()
        if not self._lasted:
            sys.exit(f"the bulk of {self._part.robot} ended early")
        return self._arrived * 8e-6 / self._part.duration


def tcp_received() -> int:
    """Returns the number of bytes that this robot's TCP connections have delivered, in order and once each."""
    return sum(int(count) for count in ARRIVED.findall(subprocess.check_output(["ss", "-tinH"])))


class Programs(TcpBulk):
    """Bulk of programs that run beside this one; the emulator ends them."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._programs: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str) -> subprocess.Popen[bytes]:
        """Runs a program."""
        self._programs.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        return self._programs[-1]

    def goes_on(self) -> bool:
        return all(program.poll() is None for program in self._programs)


class Iperf3(Programs):
    """One server per robot at the leader, and a client at each other robot."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        if part.bulk and part.leads:
            for place in range(len(part.others)):
                server = self.run("iperf3", "--server", "--one-off", "--forceflush", "--port", str(IPERF_PORT + place))
                # Waits until the server listens; if it cannot, there is nothing more to read.
                for line in server.stdout or ():
                    if b"listening" in line:
                        break

    def begin(self) -> None:
        if not self._part.leads:
            lasts = str(int(SETTLE_S + self._part.duration + MEET_S))
            self.run(
                "iperf3", "--client", self._part.leader, "--port", str(IPERF_PORT + self._part.place), "--time", lasts
            )


class Rsync(Programs):
    """A daemon at the leader, to which each other robot sends a folder."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._folder = MEMORY / "maps"
        if not part.bulk:
            return
        if part.leads:
            config = MEMORY / "rsyncd.conf"
            config.write_text(f"use chroot = no\nuid = root\ngid = root\n[maps]\npath = {MEMORY}\nread only = no\n")
            daemon = self.run("rsync", "--daemon", "--no-detach", "--log-file=/dev/null", f"--config={config}")
            while daemon.poll() is None:
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", RSYNC_PORT)).close()
                    break
                time.sleep(0.02)
        else:
            # One file under many names, each of which is sent as a separate file.
            self._folder.mkdir()
            first = self._folder / "0"
            first.write_bytes(os.urandom(FILE_BYTES))
            for number in range(1, FILES):
                os.link(first, self._folder / str(number))

    def begin(self) -> None:
        if not self._part.leads:
            self.run("rsync", "--archive", f"{self._folder}/", f"rsync://{self._part.leader}/maps/{self._part.robot}/")


class AllReduce(TcpBulk):
    """Gradients that torch repeatedly sums over all robots by gloo."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        if not part.bulk:
            return
        import torch
        from torch import distributed

        os.environ["GLOO_SOCKET_IFNAME"] = CARD
        names = [part.leader, *part.others]
        store, rank = f"tcp://{part.leader}:{STORE_PORT}", names.index(part.robot)
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=len(names))
        gradients = torch.zeros(PARAMETERS)

        def work() -> None:
            while True:
                distributed.all_reduce(gradients)

        self._working = threading.Thread(target=work, daemon=True)

    def begin(self) -> None:
        self._working.start()

    def goes_on(self) -> bool:
        return self._working.is_alive()


def ping(part: Part, *, marked: bool) -> NoReturn:
    """Measures round trips answered by the kernel."""
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


def udp(part: Part, bulk: TcpBulk, *, tos: int = 0, size: int = SMALL_BYTES) -> NoReturn:
    """Measures round trips of one datagram each way."""
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    if part.leads:
        own.bind(("", PORT))

        def answer() -> None:
            while True:
                ask, robot = own.recvfrom(1 << 16)
                own.sendto(ask[:ANSWER_BYTES], robot)

        background(answer)
        part.meet()
        bulk.start()
        part.leave(Found(bulk_mbps=bulk.mbps()))
    asks = Asks(part, size)

    def listen() -> None:
        while True:
            asks.on_answer(own.recv(1 << 16))

    # Not connected, so that requests sent before the leader listens cause no errors.
    own.bind(("", 0))
    to = (socket.gethostbyname(part.leader), PORT)
    background(listen)
    asks.meet(lambda ask: own.sendto(ask, to))
    bulk.start()
    found = asks.run(lambda ask: own.sendto(ask, to))
    found.bulk_mbps = bulk.mbps()
    part.leave(found)


# --- libraries ----------------------------------------------------------------------------------------------------


class Received:
    """The bulk that a program at the leader takes during the measurement."""

    def __init__(self, part: Part) -> None:
        self._part, self._bytes = part, 0

    def add(self, count: int) -> None:
        """Counts a message."""
        if self._part.begin <= time.monotonic() < self._part.end:
            self._bytes += count

    def leave(self) -> NoReturn:
        """Meets the others, and leaves after the end."""
        self._part.meet()
        sleep_until(self._part.end + PATIENCE_S)
        self._part.leave(Found(bulk_mbps=self._bytes * 8e-6 / self._part.duration))


class Cyclone:
    """A participant of Cyclone DDS, whose topics have ROS 2's default profile."""

    def __init__(self) -> None:
        from cyclonedds import core, domain
        from cyclonedds.util import duration

        # As in rmw_cyclonedds: a writer waits without a limit.
        self.forever = duration(infinite=True)
        self._qos = core.Qos(core.Policy.Reliability.Reliable(self.forever), core.Policy.History.KeepLast(KEPT))
        self._participant = domain.DomainParticipant()

    def publish(self, name: str, kind: type) -> pub.DataWriter:
        """Returns a writer of a topic."""
        from cyclonedds import pub, topic

        about = topic.Topic(self._participant, name, kind, qos=self._qos)
        return pub.DataWriter(self._participant, about, qos=self._qos)

    def subscribe(self, name: str, kind: type, take: Callable[[Any], object]) -> None:
        """Calls back for each sample of a topic."""
        from cyclonedds import sub, topic

        about = topic.Topic(self._participant, name, kind, qos=self._qos)
        reader = sub.DataReader(self._participant, about, qos=self._qos)

        def listen() -> None:
            for sample in reader.take_iter():
                take(sample)

        background(listen)


def with_cyclone(part: Part) -> NoReturn:
    """Measures round trips over two topics of Cyclone DDS for each robot."""
    from cyclonedds.idl import make_idl_struct, types

    dds = Cyclone()
    # The binding carries an array as bytes, but a sequence as a list of numbers.
    pose: Any = make_idl_struct("Pose", "Pose", {"data": types.array[types.uint8, SMALL_BYTES]})
    image: Any = make_idl_struct("Image", "Image", {"data": types.array[types.uint8, BULK_BYTES]})
    if part.leads:
        received = Received(part)
        for place in range(len(part.others)):
            answers = dds.publish(f"answer_{place}", pose)
            dds.subscribe(f"ask_{place}", pose, answers.write)
            dds.subscribe(f"image_{place}", image, lambda image: received.add(len(image.data)))
        received.leave()
    asks = Asks(part, SMALL_BYTES)
    dds.subscribe(f"answer_{part.place}", pose, lambda answer: asks.on_answer(answer.data))
    asking, sending = dds.publish(f"ask_{part.place}", pose), dds.publish(f"image_{part.place}", image)

    def ask(message: bytes) -> None:
        asking.write(pose(data=message))

    def send() -> None:
        message = image(data=bytes(BULK_BYTES))
        while True:
            while not sending.get_matched_subscriptions():
                time.sleep(0.02)
            sending.write(message)
            # The next write would wait too, but while it holds Python's lock, so that control would wait as well.
            sending.wait_for_acks(dds.forever)

    asks.meet(ask)
    if part.bulk:
        background(send)
    part.leave(asks.run(ask))


def with_ros2(part: Part) -> NoReturn:
    """Measures round trips between a node of ros2-client and Cyclone DDS at the leader."""
    if part.leads:
        from cyclonedds.idl import make_idl_struct, types

        # Cyclone's default on a WiFi card. Otherwise RustDDS would send it all data by multicast.
        os.environ["CYCLONEDDS_URI"] = "<General><AllowMulticast>spdp</AllowMulticast></General>"
        # As in the IDL of ROS 2, but without nested structs, which are not visible in CDR.
        header = {"sec": types.int32, "nanosec": types.uint32, "frame_id": str}
        numbers = {"position": types.array[types.float64, 3], "orientation": types.array[types.float64, 4]}
        pose: Any = make_idl_struct("PoseStamped", "geometry_msgs.msg.dds_.PoseStamped_", {**header, **numbers})
        # A sequence is its length and an array. The binding carries an array as bytes.
        size = {"height": types.uint32, "width": types.uint32}
        form = {"encoding": str, "is_bigendian": types.uint8, "step": types.uint32}
        pixels = {"length": types.uint32, "data": types.array[types.uint8, BULK_BYTES]}
        image: Any = make_idl_struct("Image", "sensor_msgs.msg.dds_.Image_", {**header, **size, **form, **pixels})
        dds, received = Cyclone(), Received(part)
        for place in range(len(part.others)):
            goals = dds.publish(f"rt/robot_{place}/goal", pose)
            dds.subscribe(f"rt/robot_{place}/pose", pose, goals.write)
            dds.subscribe(f"rt/robot_{place}/image", image, lambda image: received.add(len(image.data)))
        received.leave()
    command = [str(ROS2), str(part.place), *(["--bulk"] if part.bulk else [])]
    node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    asks, numbers, answers = Asks(part, NUMBER.size), node.stdin, node.stdout
    assert numbers is not None and answers is not None

    def listen() -> None:
        while answer := answers.read(NUMBER.size):
            asks.on_answer(answer)

    background(listen)
    asks.meet(numbers.write)
    part.leave(asks.run(numbers.write))


def with_ros2_zenoh(part: Part) -> NoReturn:
    """Measures round trips between nodes of hiroz."""
    # The node and the router end with their input.
    to = [] if part.leads else [part.leader]
    router = subprocess.Popen([str(ROS2_ZENOH), "router", *to], stdin=subprocess.PIPE)
    what = ["leader", str(len(part.others))] if part.leads else ["robot", str(part.place)]
    what += ["--bulk"] if part.bulk and not part.leads else []
    node = subprocess.Popen([str(ROS2_ZENOH), *what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    numbers, answers = node.stdin, node.stdout
    assert numbers is not None and answers is not None
    if part.leads:
        received = Received(part)

        def count() -> None:
            while size := answers.read(NUMBER.size):
                received.add(NUMBER.unpack(size)[0])

        background(count)
        received.leave()
    asks = Asks(part, NUMBER.size)

    def listen() -> None:
        while answer := answers.read(NUMBER.size):
            asks.on_answer(answer)

    background(listen)
    asks.meet(numbers.write)
    found = asks.run(numbers.write)
    if node.poll() is not None or router.poll():
        sys.exit("a node or its router has ended")
    part.leave(found)


def with_zenoh(part: Part, *, real_time: bool) -> NoReturn:
    """Measures round trips over two Zenoh topics."""
    import zenoh

    # None is Zenoh's default.
    control, low, express = (zenoh.Priority.REAL_TIME, zenoh.Priority.DATA_LOW, True) if real_time else (None,) * 3
    session = zenoh.open(zenoh.Config())
    if part.leads:
        answers = {
            robot: session.declare_publisher(f"answer/{robot}", priority=control, express=express)
            for robot in part.others
        }
        received = Received(part)

        def answer(ask: zenoh.Sample) -> None:
            answers[str(ask.key_expr).split("/")[1]].put(ask.payload.to_bytes()[:ANSWER_BYTES])

        _asks = session.declare_subscriber("ask/*", answer)
        _bulk = session.declare_subscriber("bulk/*", lambda sample: received.add(len(sample.payload)))
        received.leave()
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
    """Measures round trips over two control topics of Coorp."""
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
            # There is no folder before the first message.
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
            # The next message is sent while this one is checked and written to disk.
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
    "udp": lambda part: udp(part, Iperf3(part), tos=TOS_EF, size=ASK_BYTES),
    "dds": with_cyclone,
    "ros2": with_ros2,
    "ros2-zenoh": with_ros2_zenoh,
    "rsync": lambda part: udp(part, Rsync(part)),
    "gloo": lambda part: udp(part, AllReduce(part)),
    "zenoh": lambda part: with_zenoh(part, real_time=False),
    "zenoh-rt": lambda part: with_zenoh(part, real_time=True),
    "coorp": with_coorp,
}


def shaper(card: str, mbps: float) -> str:
    """Returns the commands of the shaper, as lines for `tc -batch`.

    HTB sends at most at this rate, so that the queue is here and not in the card. Packets marked EF go first, and so do
    datagrams and pings of less than 512 bytes: DDS has the same ports for poses and images.
    """
    first = f"filter add dev {card} parent 1: protocol ip prio 1 u32"
    small = "match u16 0 0xfe00 at 2 flowid 1:2"
    share = f"rate {mbps / 2:.3f}mbit ceil {mbps:.3f}mbit quantum 1514"
    return f"""qdisc add dev {card} root handle 1: htb default 3
class add dev {card} parent 1: classid 1:1 htb rate {mbps:.3f}mbit quantum 1514
class add dev {card} parent 1:1 classid 1:2 htb {share} prio 0
class add dev {card} parent 1:1 classid 1:3 htb {share} prio 1
{first} match ip dsfield 0xb8 0xfc flowid 1:2
{first} match ip protocol {socket.IPPROTO_UDP} 0xff {small}
{first} match ip protocol {socket.IPPROTO_ICMP} 0xff {small}
"""


def main() -> None:
    """Runs this robot's part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=tuple(HOWS))
    parser.add_argument("--bulk", action="store_true")
    parser.add_argument("--shape", type=float)
    parser.add_argument("--duration", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.shape is not None:
        subprocess.run(["tc", "-batch", "-"], input=shaper(CARD, arguments.shape), text=True, check=True)
    HOWS[arguments.how](Part.here(arguments.duration, arguments.folder, bulk=arguments.bulk))


if __name__ == "__main__":
    main()
