"""Checks that forged errors and resets do nothing to a permit, and measures how soon a dead robot's permit is free.

    sudo python studies/forged.py [--quick] [--markdown]

Three robots, a process and a network namespace each, on one bridge. `one` holds the team's permit, sends `lead` bulk
without end, and control 30 times a second; `two` waits for the permit. A stranger on the bridge sees all datagrams, and
forges for each flow that it sees, up to 50 times a second and in the name of the robot at the other end:

- ICMP errors that quote the flow: network, host, protocol and port unreachable, and a path MTU of 68 bytes
- TCP resets with the flow's ports
- QUIC's stateless resets, with and without the flow's connection ID, with random tokens

`lead` looks at its status every 10 ms: who holds the permit, who waits, and who is alive. A permit that is freed once
goes to `two` for good, because it lasts for an hour. As a check of the stranger, a connected UDP socket beside `one`
must get an error. At the end, `one` is killed, and the time until `two` holds the permit is measured.

A robot whose program stands still for longer than half a lease may lose its permit without any attack, and another
robot than `lead` may win the first election. Runs with a problem and a standstill, and runs with another leader, are
printed and repeated.

Needs root for the namespaces, and says so without. Exits with 1 if anything changed during the attack, if control fell
silent, or if a dead robot's permit was not free soon after its lease of 300 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.lan import HUB, Lan, Robots, address, ask, card, end, hardware, is_possible
from lib.simulator import binary
from lib.table import number, show

ROBOTS = ("lead", "one", "two")
LEAD, ONE, TWO = range(3)
POLICY = '[policy]\nslice = "3600s"\n'
PERIOD_S = 1 / 30
BULK = bytes(8_000_000)
QUICK_S = 5.0
FULL_S = 30.0
UP_S = 30.0
POLL_S = 0.01
FREE_MAX_S = 1.0
"""Maximum time until a dead robot's permit is free: its lease, 300 ms, and the delay of a busy machine."""
GAP_MAX_S = 0.5
"""Maximum time without control."""
STALL_MAX_S = 0.15
"""Half a lease. A program that stands still for longer may lose its permit."""
TRIES = 10
WAITING = 3
"""Bulk messages that always wait, so that the permit is needed all the time."""
CANARY_PORT = 7_000
ROUND_S = 0.02
FLOWS_MAX = 64


class Seen:
    """The observations of a robot's program: the permit and the living robots, at each change, the times at which
    control arrived, and how long the program stood still."""

    def __init__(self) -> None:
        self.lock, self.changes, self.gap_s, self.count, self.last_s = threading.Lock(), [], 0.0, 0, 0.0
        self.stall_s, self.looked_s = 0.0, time.monotonic()

    def look(self, status: dict[str, Any]) -> None:
        now = [status["holders"], status["queue"], status["alive"]]
        with self.lock:
            now_s = time.monotonic()
            self.stall_s, self.looked_s = max(self.stall_s, now_s - self.looked_s - POLL_S), now_s
            if not self.changes or self.changes[-1][1] != now:
                self.changes.append((time.time(), now))

    def hear(self) -> None:
        with self.lock:
            now_s = time.monotonic()
            self.gap_s = max(self.gap_s, now_s - self.last_s) if self.last_s else 0.0
            self.count, self.last_s = self.count + 1, now_s

    def take(self) -> dict[str, Any]:
        """Returns the observations since the last call. The next ones begin with the current state."""
        with self.lock:
            taken = {"changes": self.changes, "gap_ms": 1e3 * self.gap_s, "control": self.count}
            taken["stall_s"] = self.stall_s
            self.changes, self.gap_s, self.count, self.stall_s = self.changes[-1:], 0.0, 0, 0.0
            return taken


def be_robot(name: str, folder: Path) -> None:
    """Runs a robot's program, which answers commands, one per line."""
    import coorp

    node = coorp.Node(folder / "team.toml", robot=name, state=folder / "state" / name)
    seen, received = Seen(), [0]

    def look() -> None:
        while True:
            seen.look(node.status())
            time.sleep(POLL_S)

    def hear() -> None:
        states = node.control_subscriber("state")
        while True:
            if states.recv().sender == "one":
                seen.hear()

    def take() -> None:
        receiver = node.bulk_receiver()
        while True:
            received[0] += len(receiver.recv().take())

    def tell() -> None:
        publisher = node.control_publisher("state", period=PERIOD_S)
        while True:
            publisher.put(bytes(64))
            time.sleep(PERIOD_S)

    def send() -> None:
        sent = deque()
        while True:
            with contextlib.suppress(coorp.NodeError):
                stream = node.bulk_stream("lead", "map")
                stream.write(BULK)
                sent.append(stream.finish())
                if len(sent) > WAITING:
                    sent.popleft().wait()

    for target in (look, hear, take) if name == "lead" else (look, tell):
        threading.Thread(target=target, daemon=True).start()
    for line in sys.stdin:
        if line == "bulk\n":
            threading.Thread(target=send, daemon=True).start()
        status = node.status()
        found = status["found"]
        marks = {"bytes": received[0], "links": [found["attempts"], found["connected"]], "leader": status["leader"]}
        print(json.dumps({**seen.take(), **marks}), flush=True)
    os._exit(0)


# The stranger.


@dataclass(frozen=True)
class Flow:
    """A flow of UDP from one robot to another."""

    source: int
    to: int
    source_port: int
    port: int


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def inet(place: int) -> bytes:
    return socket.inet_aton(address(place))


def packet(source: int, to: int, protocol: int, body: bytes) -> bytes:
    """Returns an IPv4 packet."""
    parts = struct.pack("!BBHHHBB", 0x45, 0, 20 + len(body), 0, 0x4000, 64, protocol), inet(source) + inet(to)
    return parts[0] + struct.pack("!H", checksum(parts[0] + bytes(2) + parts[1])) + parts[1] + body


def udp(flow: Flow, body: bytes) -> bytes:
    # Zero: no checksum.
    header = struct.pack("!HHHH", flow.source_port, flow.port, 8 + len(body), 0)
    return packet(flow.source, flow.to, socket.IPPROTO_UDP, header + body)


def errors(flow: Flow) -> Iterator[bytes]:
    """Yields ICMP errors about a flow's datagrams, for the flow's source."""
    quoted = udp(flow, bytes(1_200))[:28]
    for code in range(5):
        mtu = 68 if code == 4 else 0
        body = struct.pack("!HH", 0, mtu) + quoted
        sum_of = checksum(struct.pack("!BBH", 3, code, 0) + body)
        yield packet(flow.to, flow.source, socket.IPPROTO_ICMP, struct.pack("!BBH", 3, code, sum_of) + body)


def tcp_reset(flow: Flow) -> bytes:
    header = struct.pack("!HHIIBBH", flow.source_port, flow.port, random.getrandbits(32), 0, 0x50, 0x04, 0)
    pseudo = inet(flow.source) + inet(flow.to) + struct.pack("!HH", socket.IPPROTO_TCP, 20)
    return packet(
        flow.source, flow.to, socket.IPPROTO_TCP, header + struct.pack("!HH", checksum(pseudo + header + bytes(4)), 0)
    )


def quic_resets(flow: Flow, connection: bytes) -> Iterator[bytes]:
    """Yields stateless resets: a short header and random bytes, of which the last 16 are the token."""
    for begin in (connection, b""):
        yield udp(flow, bytes((0x40 | random.getrandbits(6),)) + begin + random.randbytes(random.randrange(36, 80)))


def forge() -> None:
    """Forges packets until standard input ends, and prints how many."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    places = {hardware(place): place for place in range(len(ROBOTS))}
    flows: dict[Flow, bytes] = {}
    canary = Flow(ONE, LEAD, CANARY_PORT, CANARY_PORT)

    def see() -> None:
        while True:
            frame, (_, _, kind, _, _) = wire.recvfrom(64)
            source, to = places.get(frame[6:12]), places.get(frame[:6])
            is_udp = frame[12:15] == b"\x08\x00\x45" and frame[23] == socket.IPPROTO_UDP
            if kind == socket.PACKET_OUTGOING or source is None or to is None or not is_udp:
                continue
            flow = Flow(source, to, *struct.unpack("!HH", frame[34:38]))
            # The stranger's own packets have no checksum, and it must not learn from them.
            if frame[40:42] != b"\0\0" and (flow in flows or len(flows) < FLOWS_MAX):
                flows[flow] = frame[43:51]

    threading.Thread(target=see, daemon=True).start()
    ended, sent = threading.Event(), 0
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.wait(ROUND_S):
        for flow, connection in [(canary, b""), *flows.items()]:
            forged = [(flow.source, error) for error in errors(flow)]
            forged += [(flow.to, reset) for reset in (tcp_reset(flow), *quic_resets(flow, connection))]
            for to, content in forged:
                sender = flow.to if to == flow.source else flow.source
                frame = hardware(to) + hardware(sender) + b"\x08\x00" + content
                with contextlib.suppress(OSError):
                    wire.sendto(frame, (card(to), 0))
                    sent += 1
    print(json.dumps([len(flows), sent]), flush=True)
    os._exit(0)


def be_canary() -> None:
    """Reports whether a connected UDP socket gets an error."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as canary:
        canary.bind((address(ONE), CANARY_PORT))
        canary.connect((address(LEAD), CANARY_PORT))
        canary.settimeout(UP_S)
        try:
            canary.recv(1)
            told = False
        except TimeoutError:
            told = False
        except OSError:
            told = True
    print(json.dumps(told), flush=True)


STANDING = [[ONE], [TWO], [LEAD, ONE, TWO]]
"""The expected state throughout: who holds the permit, who waits and who is alive."""


def wait_for(team: Robots, state: list[list[int]]) -> float:
    """Returns the time at which `lead` first saw this state; NaN if it did not."""
    until_s = time.monotonic() + UP_S
    while time.monotonic() < until_s:
        for at_s, seen in ask(team.running["lead"], "marks")["changes"]:
            if seen[: len(state)] == state:
                return at_s
        time.sleep(0.05)
    return float("nan")


class Unfit(Exception):
    """Why a run shows nothing about the attack."""


def measure(folder: Path, program: Path, span_s: float) -> tuple[list[str], list[str]]:
    """Returns the row of the table, and the problems. Raises Unfit if the run has to be repeated."""
    own = [sys.executable, str(Path(__file__).resolve())]
    names = {name: name for name in ROBOTS}
    with Lan(list(ROBOTS)) as lan, Robots(lan, folder / "team", program, names, POLICY) as team:
        for name in ROBOTS:
            team.start(name)
        wait_for(team, [[], [], [LEAD, ONE, TWO]])
        leader = None
        until_s = time.monotonic() + UP_S
        while leader is None and time.monotonic() < until_s:
            leader = ask(team.running["lead"], "marks")["leader"]
        if leader != LEAD:
            raise Unfit(f"{'no robot' if leader is None else ROBOTS[leader]} leads")
        ask(team.running["one"], "bulk")
        wait_for(team, [[ONE]])
        ask(team.running["two"], "bulk")
        if math.isnan(wait_for(team, STANDING)):
            return [], ["the team is not up"]
        time.sleep(1.0)
        before = {name: ask(team.running[name], "marks") for name in ROBOTS}
        canary = team.enter_context(contextlib.ExitStack())
        told = lan.run("one", *own, "--canary")
        canary.callback(end, told)
        time.sleep(0.5)
        stranger = lan.run(HUB, *own, "--forge")
        canary.callback(end, stranger)
        time.sleep(span_s)
        after = {name: ask(team.running[name], "marks") for name in ROBOTS}
        said, _ = stranger.communicate(timeout=UP_S)
        flows, sent = json.loads(said)
        is_told = json.loads(told.communicate(timeout=2 * UP_S)[0])
        killed_s = time.time()
        team.kill("one")
        free_s = wait_for(team, [[TWO]]) - killed_s
    lead = after["lead"]
    bulk = (lead["bytes"] - before["lead"]["bytes"]) / 1e6
    row = [f"{flows}", f"{sent:,}", f"{lead['control']:,}", number(lead["gap_ms"], 0), number(bulk, 0)]
    row += [f"{len(lead['changes']) - 1}", number(1e3 * free_s, 0)]
    problems = []
    odd = [seen for _, seen in lead["changes"] if seen != STANDING]
    if odd:
        problems.append(f"holders, queue or alive changed {len(odd)} times, first to {odd[0]}")
    if any(before[name]["links"] != after[name]["links"] for name in ROBOTS):
        links = {name: (before[name]["links"], after[name]["links"]) for name in ROBOTS}
        problems.append(f"links were opened again (attempts, connected): {links}")
    if not lead["control"] or lead["gap_ms"] > 1e3 * GAP_MAX_S:
        problems.append(f"control was silent for {number(lead['gap_ms'], 0)} ms")
    if not bulk:
        problems.append("no bulk arrived")
    if not is_told or flows < 2:
        problems.append(f"the stranger does not reach anybody: {flows} flows, the socket beside was told: {is_told}")
    if not free_s <= FREE_MAX_S:
        problems.append(f"a dead robot's permit was free after {number(free_s, 2)} s, not within {FREE_MAX_S:g} s")
    stall_s = max(robot["stall_s"] for robot in after.values())
    if problems and stall_s > STALL_MAX_S:
        raise Unfit(f"a program stood still for {number(1e3 * stall_s, 0)} ms, and {problems[0]}")
    return row, problems


TITLES = ["flows", "forged", "control heard", "longest gap, ms", "bulk, MB", "changes", "freed after kill -9, ms"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short span, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--robot", help=argparse.SUPPRESS)
    parser.add_argument("--forge", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--canary", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.robot:
        be_robot(arguments.robot, arguments.folder)
    if arguments.forge:
        forge()
    if arguments.canary:
        be_canary()
        return 0
    program = binary()
    if program is None or not is_possible():
        return 0
    span_s = QUICK_S if arguments.quick else FULL_S
    print(f"Three robots and a stranger that forges on their bridge, {span_s:g} s.\n")
    row, problems = [], [f"none of {TRIES} runs can be used"]
    for _ in range(TRIES):
        try:
            with tempfile.TemporaryDirectory() as folder:
                row, problems = measure(Path(folder), program, span_s)
            break
        except Unfit as why:
            print(f"Repeated: {why}.", flush=True)
    show(TITLES, [row] if row else [], markdown=arguments.markdown)
    for problem in problems:
        print(f"FAIL: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
