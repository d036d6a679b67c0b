"""One process of a fleet, for studies/fleet.py: some of the robots, or the process that gathers their states.

Each robot is a separate participant on the network (a node, a session, a domain participant), like a separate machine;
robots that share a process share its core and its GIL. Their phases are spread evenly over the period, because robots
do not start in the same microsecond. Their clocks run slightly fast, so that their phases drift against the lists
during a measurement, and no system is favoured by chance. A state contains its robot, its number, its creation time on
the machine's only clock (T1), and padding.

Commands arrive as lines on stdin, `go` and `count`, then any other; the findings are printed as the last line.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

STATE = struct.Struct("<HQQ")
STATE_BYTES = 128
"""Bytes of a state: position, speed, battery and load, as for Dust's robots."""
FIND_S = 120.0
"""Maximum time for robots to find the gathering process."""
WARM_S = 1.0
SLACK_NS = 1_000
"""Timer slack in the kernel; its default of 50 us would be noise on each figure."""
FAST = 1.0001
"""Drift by which robots' clocks run fast: over 1000 lists, the distance between ten robots' phases."""


class System(Protocol):
    """A way to gather states."""

    def publish(self, robot: int) -> Callable[[bytes], Any]:
        """Creates a robot, and returns the function that sends its state."""
        ...

    def gather(self, robots: int, period_s: float) -> Callable[[], list[bytes]]:
        """Starts gathering, and returns the function that waits for the next list."""
        ...

    def waits_ns(self) -> list[tuple[int, int]]:
        """For each state of the last list: the time from arrival to listing (T2 to T3), and from then to now."""
        ...


class Table:
    """Puts the newest states on a list once per period, as a program does itself over a plain middleware."""

    def __init__(self, period_s: float) -> None:
        self.newest: dict[int, tuple[bytes, int]] = {}
        """Each robot's newest state, and when it came."""
        self.listed: tuple[list[tuple[bytes, int]], int] = ([], 0)
        self.period_s, self.due_s = period_s, time.monotonic()

    def came(self, state: bytes) -> None:
        robot, number, _ = STATE.unpack_from(state)
        known = self.newest.get(robot)
        if known is None or STATE.unpack_from(known[0])[1] < number:
            self.newest[robot] = (state, time.monotonic_ns())

    def next(self) -> list[bytes]:
        # Lists keep their phase; missed ones are skipped.
        now = time.monotonic()
        self.due_s += self.period_s * (1 + max(0.0, now - self.due_s) // self.period_s)
        time.sleep(max(0.0, self.due_s - now))
        self.listed = (list(self.newest.copy().values()), time.monotonic_ns())
        return [state for state, _ in self.listed[0]]

    def waits_ns(self) -> list[tuple[int, int]]:
        states, at_ns = self.listed
        used_ns = time.monotonic_ns() - at_ns
        return [(at_ns - came_ns, used_ns) for _, came_ns in states]


class Coorp:
    insecure = True

    def __init__(self, folder: Path, many_to_one: bool) -> None:
        import coorp

        # Coorp is measured with and without keys on purpose, so the warning is not needed.
        warnings.filterwarnings("ignore", ".* is insecure", RuntimeWarning)
        self.coorp, self.folder, self.many_to_one = coorp, folder, many_to_one
        self.kept: list[Any] = []
        self.last: list[Any] = []

    def node(self, name: str) -> Any:  # noqa: ANN401
        team, state = self.folder / "team.toml", self.folder / name
        self.kept.append(self.coorp.Node(team, robot=name, insecure=self.insecure, state=state))
        return self.kept[-1]

    def publish(self, robot: int) -> Callable[[bytes], Any]:
        return self.node(f"r-{robot + 1}").control_publisher("state").put

    def gather(self, robots: int, period_s: float) -> Callable[[], list[bytes]]:
        table = self.node("base").gather("state", period_s, many_to_one=self.many_to_one)

        def following() -> list[bytes]:
            self.last = list(table.recv().values())
            return [state.data for state in self.last]

        return following

    def waits_ns(self) -> list[tuple[int, int]]:
        stamps = (state.stamps_ns for state in self.last)
        return [(listed - received, taken - listed) for _, received, listed, taken in stamps]


class CoorpKeys(Coorp):
    insecure = False


class Zenoh:
    def __init__(self, folder: Path, many_to_one: bool) -> None:
        import zenoh

        self.zenoh, self.many_to_one = zenoh, many_to_one
        self.kept: list[Any] = []

    def session(self) -> Any:  # noqa: ANN401
        self.kept.append(self.zenoh.open(self.zenoh.Config()))
        return self.kept[-1]

    def key(self, robot: int) -> str:
        return "fleet/state" if self.many_to_one else f"fleet/{robot}/state"

    def publish(self, robot: int) -> Callable[[bytes], Any]:
        self.kept.append(self.session().declare_publisher(self.key(robot)))
        return self.kept[-1].put

    def gather(self, robots: int, period_s: float) -> Callable[[], list[bytes]]:
        table, session = Table(period_s), self.session()
        self.waits_ns = table.waits_ns
        for key in sorted({self.key(robot) for robot in range(robots)}):
            self.kept.append(session.declare_subscriber(key, lambda sample: table.came(sample.payload.to_bytes())))
        return table.next


class Cyclone:
    def __init__(self, folder: Path, many_to_one: bool) -> None:
        from cyclonedds import core, domain, pub, sub, topic
        from cyclonedds.idl import make_idl_struct, types

        self.core, self.domain, self.pub, self.sub, self.topic = core, domain, pub, sub, topic
        self.state: Any = make_idl_struct("RobotState", "RobotState", {"data": types.sequence[types.uint8]})
        self.many_to_one = many_to_one
        # ROS 2's default.
        second = core.Policy.Reliability.Reliable(max_blocking_time=1_000_000_000)
        self.qos = core.Qos(second, core.Policy.History.KeepLast(10))
        self.kept: list[Any] = []

    def named(self, participant: Any, robot: int) -> Any:  # noqa: ANN401
        name = "state" if self.many_to_one else f"state_{robot}"
        return self.topic.Topic(participant, name, self.state, qos=self.qos)

    def publish(self, robot: int) -> Callable[[bytes], Any]:
        participant = self.domain.DomainParticipant(0)
        writer = self.pub.DataWriter(participant, self.named(participant, robot), qos=self.qos)
        self.kept.append((participant, writer))
        return lambda state: writer.write(self.state(state))

    def gather(self, robots: int, period_s: float) -> Callable[[], list[bytes]]:
        table, participant = Table(period_s), self.domain.DomainParticipant(0)
        self.waits_ns = table.waits_ns

        class Listener(self.core.Listener):
            def on_data_available(self, reader: Any) -> None:  # noqa: ANN401
                for sample in reader.take(N=100):
                    table.came(bytes(sample.data))

        listener = Listener()
        for robot in range(1 if self.many_to_one else robots):
            self.kept.append(self.sub.DataReader(participant, self.named(participant, robot), self.qos, listener))
        self.kept.append((participant, listener))
        return table.next


class CycloneInTurn(Cyclone):
    """The same as an executor of ROS 2 takes messages that is never idle: for each list one of each subscription."""

    def gather(self, robots: int, period_s: float) -> Callable[[], list[bytes]]:
        table, participant = Table(period_s), self.domain.DomainParticipant(0)
        self.waits_ns = table.waits_ns
        topics = range(1 if self.many_to_one else robots)
        readers = [self.sub.DataReader(participant, self.named(participant, robot), self.qos) for robot in topics]
        self.kept.append((participant, readers))

        def following() -> list[bytes]:
            for reader in readers:
                for sample in reader.take(N=1):
                    table.came(bytes(sample.data))
            return table.next()

        return following


class FastDds:
    """Fast DDS over studies/fastdds/fastdds.cpp, whose library the environment names, as it has no binding that pip
    installs."""

    CAME = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint8), ctypes.c_uint32)

    def __init__(self, folder: Path, many_to_one: bool) -> None:
        self.dds, self.many_to_one = ctypes.CDLL(os.environ["FASTDDS_LIBRARY"]), many_to_one
        for create in (self.dds.fastdds_participant, self.dds.fastdds_writer, self.dds.fastdds_reader):
            create.restype = ctypes.c_void_p
        self.dds.fastdds_writer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self.dds.fastdds_reader.argtypes = [ctypes.c_void_p, ctypes.c_char_p, self.CAME]
        self.dds.fastdds_write.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32]
        self.dds.fastdds_write.restype = ctypes.c_bool
        self.kept: list[Any] = []

    def made(self, handle: int | None) -> int:
        if handle is None:
            sys.exit("Fast DDS does not create a participant, a writer or a reader")
        return handle

    def named(self, robot: int) -> bytes:
        return b"state" if self.many_to_one else b"state_%d" % robot

    def publish(self, robot: int) -> Callable[[bytes], Any]:
        participant = self.made(self.dds.fastdds_participant())
        writer = self.made(self.dds.fastdds_writer(participant, self.named(robot)))
        return lambda state: self.dds.fastdds_write(writer, state, len(state))

    def gather(self, robots: int, period_s: float) -> Callable[[], list[bytes]]:
        table, participant = Table(period_s), self.made(self.dds.fastdds_participant())
        self.waits_ns = table.waits_ns
        came = self.CAME(lambda data, length: table.came(ctypes.string_at(data, length)))
        self.kept.append(came)
        for robot in range(1 if self.many_to_one else robots):
            self.made(self.dds.fastdds_reader(participant, self.named(robot), came))
        return table.next


SYSTEMS: dict[str, Callable[[Path, bool], System]] = {
    "coorp": Coorp,
    "coorp-keys": CoorpKeys,
    "CycloneDDS": Cyclone,
    "CycloneDDS-in-turn": CycloneInTurn,
    "Fast DDS": FastDds,
    "Zenoh": Zenoh,
}


class Orders(threading.Thread):
    """The lines read so far from stdin."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.heard, self.came = 0, threading.Condition()
        self.start()

    def run(self) -> None:
        for _ in sys.stdin:
            self.hear(1)
        # The controlling process is gone.
        self.hear(3)

    def hear(self, more: int) -> None:
        with self.came:
            self.heard += more
            self.came.notify_all()

    def wait_for(self, orders: int) -> None:
        with self.came:
            self.came.wait_for(lambda: self.heard >= orders)


def be_robots(system: System, own: range, robots: int, period_s: float) -> dict[str, Any]:
    """Publishes each robot's state once per period, and counts between two commands."""
    period_s /= FAST
    puts = [(robot, period_s * robot / robots, system.publish(robot)) for robot in own]
    padding, orders = bytes(STATE_BYTES - STATE.size), Orders()
    print("ready", flush=True)
    orders.wait_for(1)
    number, counted_from, began_s, cpu_s = 0, 0, 0.0, 0.0
    next_s = time.monotonic() // period_s * period_s + period_s
    while orders.heard < 3:
        if orders.heard == 2 and not began_s:
            counted_from, began_s, cpu_s = number, time.monotonic(), time.process_time()
        for robot, phase_s, put in puts:
            ahead_s = next_s + phase_s - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)
            put(STATE.pack(robot, number, time.monotonic_ns()) + padding)
        number += 1
        next_s += period_s
        # States late by more than a period are skipped.
        late_s = time.monotonic() - next_s
        if late_s > period_s:
            next_s += period_s * (late_s // period_s)
    spent_s = time.monotonic() - began_s
    made = min(1.0, (number - counted_from) * period_s / spent_s)
    return {"cores": (time.process_time() - cpu_s) / spent_s, "made": made}


def be_tracker(system: System, robots: int, period_s: float, lists: int, *, parts: bool) -> dict[str, Any]:
    """Waits for all robots, and measures this many lists; `parts` also takes the parts of the age, which costs time."""
    following, orders = system.gather(robots, period_s), Orders()
    print("ready", flush=True)
    orders.wait_for(1)
    until = time.monotonic() + FIND_S
    seen: set[int] = set()
    while len(seen) < robots and time.monotonic() < until:
        seen |= {STATE.unpack_from(state)[0] for state in following()}
    until = time.monotonic() + WARM_S
    while time.monotonic() < until:
        following()
    print("counts", flush=True)
    gc.collect()
    gc.disable()
    began_s, cpu_s = time.monotonic(), time.process_time()
    taken, waits_ns = [], []
    for _ in range(lists):
        states = following()
        taken.append((time.monotonic_ns(), states))
        if parts:
            waits_ns.append(system.waits_ns())
    spent_s = time.monotonic() - began_s
    cores = (time.process_time() - cpu_s) / spent_s
    found = {"found": len(seen), **figures(taken), "cores": cores, "listed": min(1.0, lists * period_s / spent_s)}
    if parts:
        all_ns = [pair for one in waits_ns for pair in one]
        listed_ms, used_ms = (1e-6 * sum(pair[part] for pair in all_ns) / max(1, len(all_ns)) for part in (0, 1))
        found |= {"received_ms": found["age_ms"] - listed_ms - used_ms, "listed_ms": listed_ms, "used_ms": used_ms}
    return found


def figures(taken: list[tuple[int, list[bytes]]]) -> dict[str, float]:
    """Returns, from lists with the times at which they were taken, the ages of states and the number that were not
    new."""
    known: dict[int, int] = {}
    ages_ns, fresh, due = [], 0, 0
    for taken_ns, states in taken:
        for robot, number, made_ns in map(STATE.unpack_from, states):
            ages_ns.append(taken_ns - made_ns)
            due += robot in known
            fresh += robot in known and number > known[robot]
            known[robot] = number
    ages_ns.sort()
    count = max(1, len(ages_ns))
    at = [1e-6 * ages_ns[int(share * (count - 1))] if ages_ns else 0.0 for share in (0.5, 0.99)]
    mean_ms, missed = 1e-6 * sum(ages_ns) / count, 1.0 - fresh / max(1, due)
    return {"age_ms": mean_ms, "p50_ms": at[0], "p99_ms": at[1], "missed": missed}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--many-to-one", action="store_true")
    parser.add_argument("--robots", type=int, required=True)
    parser.add_argument(
        "--some",
        type=int,
        nargs=2,
        help="act as robots instead of gathering: the first robot, and the step between robots",
    )
    parser.add_argument("--period", type=float, required=True)
    parser.add_argument("--lists", type=int, default=500)
    parser.add_argument("--parts", action="store_true", help="also the means of T1 to T2, T2 to T3 and T3 to T4")
    asked = parser.parse_args()
    # Before other threads start, because they inherit it.
    Path("/proc/self/timerslack_ns").write_text(str(SLACK_NS))
    system = SYSTEMS[asked.system](asked.folder, asked.many_to_one)
    if asked.some:
        first, step = asked.some
        outcome = be_robots(system, range(first, asked.robots, step), asked.robots, asked.period)
    else:
        outcome = be_tracker(system, asked.robots, asked.period, asked.lists, parts=asked.parts)
    print(json.dumps(outcome), flush=True)
    # Do not wait for links to close: the next system needs the machine.
    os._exit(0)


if __name__ == "__main__":
    main()
