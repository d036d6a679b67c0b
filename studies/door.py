"""Measures what strangers can do to a team on the same LAN: control, bulk and a restart under each attack.

    cargo build --release -p coorp-cli && cargo build --release -p coorp-node --example stranger
    sudo python studies/door.py [--quick] [--markdown]

Three robots, each in its own network namespace, and a stranger in a fourth, all on one bridge. The robots have no
`addresses`, so they find each other by multicast. `one` sends `lead` control 30 times a second, and bulk without end;
`two` sends control. Before each attack and during it, the study measures for the same time how long control takes, and
how much bulk arrives. Then `two` is killed and started again during the attack: the study measures the time from its
start until `lead` hears it. Ten seconds after the attack, it compares `lead`'s descriptors and memory with those
before.

- `connections`: 1,500 TCP connections to each of the team's ports, kept if they are accepted.
- `garbage`: 2,000 UDP datagrams of random bytes a second to each port, and 20 that look like the first of a handshake.
- `handshakes`: 150 QUIC handshakes a second that prove their address and are never finished.
- `operators`: 26 sessions with the operator's key (which is a member's; it was stolen).
- `names`: multicast replies with 1,024 addresses for a robot of the team, in 16 datagrams, 20 times a second.
- `another team`: three robots with other keys, in their own namespaces, that look for each other too.
- `elsewhere`: the same three on their own bridge. This is no attack: it shows how much their load on the cores costs.

Needs root for the namespaces, and says so without. Exits with 1 if a robot does not come back within the bound, or if
the number of descriptors stays higher. Times depend on the machine: they are only printed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.lan import Lan, Robots, address, ask, end, is_possible
from lib.simulator import REPOSITORY, binary
from lib.table import number, percent, show

PORT = 7460
PORTS = 16
ROBOTS = ("lead", "one", "two")
PERIOD_S = 1 / 30
FULL_S = 15.0
QUICK_S = 3.0
AFTER_S = 10.0
BACK_MAX_S = 5.0
"""Maximum time for a robot to come back after a restart under attack."""
DESCRIPTORS_MORE = 8
"""Maximum number of additional descriptors of `lead` after an attack, for links that change."""
UP_S = 60.0
BULK = bytes(8_000_000)
STRANGER = REPOSITORY / "target" / "release" / "examples" / "stranger"
STATE = struct.Struct("<dQ")


def be_robot(name: str, folder: Path) -> None:
    """Runs a robot's program, which answers commands, one per line."""
    import coorp

    began_s = time.time()
    node = coorp.Node(folder / "team.toml", robot=name, state=folder / "state" / name)
    heard, received = Heard(), [0]
    if name == "lead":
        states, receiver = node.control_subscriber("state"), node.bulk_receiver()

        def hear() -> None:
            while True:
                message = states.recv()
                sent_s, _ = STATE.unpack(message.data)
                heard.add(message.sender, sent_s, time.time())

        def take() -> None:
            while True:
                received[0] += len(receiver.recv().take())

        for target in (hear, take):
            threading.Thread(target=target, daemon=True).start()
    else:
        publisher = node.control_publisher("state", period=PERIOD_S)

        def tell() -> None:
            for number in itertools.count():
                publisher.put(STATE.pack(time.time(), number))
                time.sleep(PERIOD_S)

        def send() -> None:
            while True:
                with contextlib.suppress(coorp.NodeError):
                    stream = node.bulk_stream("lead", "map")
                    stream.write(BULK)
                    stream.finish().wait()

        for target in (tell, *([send] if name == "one" else [])):
            threading.Thread(target=target, daemon=True).start()
    for line in sys.stdin:
        match line.split():
            case ["marks"]:
                answer: Any = {
                    "took_ms": heard.take(),
                    "bytes": received[0],
                    "at_s": time.time(),
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "memory_mb": resident_mb(),
                    "refused": sum(refused["count"] for refused in node.status()["door"]["refused"]),
                }
            case ["heard", who, since_s]:
                answer = heard.since(who, float(since_s))
            case _:
                answer = began_s
        print(json.dumps(answer), flush=True)
    os._exit(0)


class Heard:
    """The latencies of control messages, and the time at which each sender was heard last."""

    def __init__(self) -> None:
        self.lock, self.took_ms, self.last = threading.Lock(), [], {}

    def add(self, sender: str, sent_s: float, now_s: float) -> None:
        with self.lock:
            self.last[sender] = (sent_s, now_s)
            # `two` is killed meanwhile.
            if sender == "one":
                self.took_ms.append(1e3 * (now_s - sent_s))

    def take(self) -> list[float]:
        with self.lock:
            taken, self.took_ms = self.took_ms, []
            return taken

    def since(self, who: str, since_s: float) -> float | None:
        """Returns the time at which a message sent after `since_s` arrived, if any."""
        sent_s, now_s = self.last.get(who, (0.0, 0.0))
        return now_s if sent_s > since_s else None


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# The stranger's attacks, each until its standard input ends.


def connections() -> None:
    """Opens TCP connections that send nothing."""
    kept, refused = [], 0
    for port in itertools.islice(itertools.cycle(range(PORT, PORT + PORTS)), 1_500 * PORTS):
        one = socket.socket()
        one.settimeout(0.2)
        try:
            one.connect((address(0), port))
            kept.append(one)
        except OSError:
            one.close()
            refused += 1
    sys.stdin.read()
    print(json.dumps(f"{len(kept)} accepted, {refused:,} refused"))


def garbage() -> None:
    """Sends random bytes to every port, some of them in the form of a QUIC Initial."""
    sender, sent, chance = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0, random.Random(1)
    until_told = told()
    while not until_told():
        for port in range(PORT, PORT + PORTS):
            for form in range(20):
                body = chance.randbytes(1_200)
                # A long header with version 1, and two connection IDs of 8 bytes.
                begin = b"\xc3\0\0\0\1\x08" + body[:8] + b"\x08" + body[8:16] if form == 0 else b""
                with contextlib.suppress(OSError):
                    sender.sendto((begin + body)[:1_200], (address(0), port))
                    sent += 1
        time.sleep(0.01)
    print(json.dumps(f"{sent:,} sent"))


def names() -> None:
    """Sends multicast DNS replies with 1,024 addresses each, for a robot of the team in `--folder`."""
    sender, sent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sender.bind(("", 5353))
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    seen = heard_names(sender)
    until_told = told()
    while not until_told():
        for reply in forged(seen, sent):
            with contextlib.suppress(OSError):
                sender.sendto(reply, ("224.0.0.251", 5353))
                sent += 1
        time.sleep(0.05)
    print(json.dumps(f"{sent // 16:,} replies of 1,024 addresses"))


def heard_names(listener: socket.socket) -> bytes:
    """Returns a reply of the team, from which the stranger learns the names."""
    group = socket.inet_aton("224.0.0.251") + socket.inet_aton("0.0.0.0")
    listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    asked = struct.pack("!HHHHHH", 0, 0, 1, 0, 0, 0) + b"\x06_coorp\x04_udp\x05local\0" + struct.pack("!HH", 12, 1)
    listener.settimeout(1.0)
    while True:
        listener.sendto(asked, ("224.0.0.251", 5353))
        try:
            packet, _ = listener.recvfrom(9_000)
        except TimeoutError:
            continue
        # A response with answers.
        if packet[2] & 0x80 and struct.unpack("!H", packet[6:8])[0]:
            return packet


def forged(seen: bytes, number: int) -> Iterator[bytes]:
    """Yields the reply that was heard, with the addresses replaced by 1,024 others, in datagrams that fit."""
    host = host_of(seen)
    if host is None:
        return
    for part in range(16):
        chance = random.Random(number * 16 + part)
        records = b"".join(
            host + struct.pack("!HHIH", 1, 0x8001, 120, 4) + bytes((10, 97, 0, chance.randrange(20, 250)))
            for _ in range(64)
        )
        counts = struct.pack("!HHHHHH", 0, 0x8400, 0, 64, 0, 0)
        yield counts + records


def host_of(packet: bytes) -> bytes | None:
    """Returns the name to which the SRV record of a reply points, without compression."""
    questions, *sections = struct.unpack("!HHHH", packet[4:12])
    at = 12
    for _ in range(questions):
        at = name_at(packet, at)[1] + 4
    for _ in range(sum(sections)):
        at = name_at(packet, at)[1]
        kind, _, _, length = struct.unpack("!HHIH", packet[at : at + 10])
        if kind == 33:
            return name_at(packet, at + 16)[0]
        at += 10 + length
    return None


def name_at(packet: bytes, at: int) -> tuple[bytes, int]:
    """Returns a name in a packet as labels, and the position of its end."""
    labels, after = b"", None
    while packet[at]:
        if packet[at] >= 0xC0:
            after = after or at + 2
            at = struct.unpack("!H", packet[at : at + 2])[0] & 0x3FFF
            continue
        labels += packet[at : at + 1 + packet[at]]
        at += 1 + packet[at]
    return labels + b"\0", after or at + 1


def told() -> Callable[[], bool]:
    """Returns a function that returns whether standard input has ended."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    return ended.is_set


STRANGERS: dict[str, Callable[[], None]] = {"connections": connections, "garbage": garbage, "names": names}


@contextlib.contextmanager
def attack(what: str, lan: Lan, folder: Path, program: Path) -> Iterator[list[str]]:
    """Runs an attack while it is needed. At the end, the list says what the attack did."""
    did: list[str] = []
    with contextlib.ExitStack() as stack:
        if what in ("another team", "elsewhere"):
            others = {name: f"other {name}" for name in ROBOTS}
            if what == "elsewhere":
                lan.part(list(others.values()))
            team = stack.enter_context(Robots(lan, folder / "other", program, others))
            for name in ROBOTS:
                team.start(name)
            yield did
            count = len(ask(team.running["lead"], "marks")["took_ms"])
            did.append(f"its lead heard {count:,} messages")
            return
        if what == "operators":
            command = [str(program), "watch", str(folder / "team" / "team.toml")]
            watching = [lan.run("stranger", *command) for _ in range(26)]
            for one in watching:
                # The sessions print a lot.
                threading.Thread(target=one.stdout.read if one.stdout else None, daemon=True).start()
                stack.callback(end, one)
            yield did
            did.append(f"{sum(one.poll() is None for one in watching)} of 26 sessions live")
            return
        if what == "handshakes":
            command = [str(STRANGER), "150", address(0), str(PORT)]
        else:
            command = [sys.executable, str(Path(__file__).resolve()), "--stranger", what]
        stranger = lan.run("stranger", *command)
        stack.callback(end, stranger)
        yield did
        said, _ = stranger.communicate(timeout=UP_S)
        if what == "handshakes":
            begun, proved = said.split()
            did.append(f"{int(begun):,} begun, {int(proved):,} proved")
        else:
            did.append(json.loads(said) if said else "died")


@dataclass(frozen=True)
class Span:
    """The messages and bulk that `lead` received over a span."""

    took_ms: list[float]
    mbps: float

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.took_ms) if self.took_ms else float("nan")

    @property
    def p99_ms(self) -> float:
        return statistics.quantiles(self.took_ms, n=100)[98] if len(self.took_ms) > 1 else float("nan")


def listen(lead: subprocess.Popen[str], span_s: float) -> Span:
    first = ask(lead, "marks")
    time.sleep(span_s)
    last = ask(lead, "marks")
    return Span(last["took_ms"], (last["bytes"] - first["bytes"]) / 1e6 / (last["at_s"] - first["at_s"]))


def wait_for(lead: subprocess.Popen[str], who: str, since_s: float, within_s: float) -> float:
    """Returns the time at which `lead` first heard a message sent after `since_s`; NaN if it did not."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        at_s = ask(lead, f"heard {who} {since_s}")
        if at_s is not None:
            return float(at_s)
        time.sleep(0.02)
    return float("nan")


def measure(what: str, lan: Lan, folder: Path, program: Path, span_s: float) -> tuple[list[str], list[str]]:
    """Returns a row of the table, and the problems."""
    with Robots(lan, folder / "team", program, {name: name for name in ROBOTS}) as team:
        for name in ROBOTS:
            team.start(name)
        lead, now_s = team.running["lead"], time.time()
        for name in ROBOTS[1:]:
            wait_for(lead, name, now_s, UP_S)
        # By then bulk has begun, and memory has been touched once.
        time.sleep(span_s)
        before = ask(lead, "marks")
        calm = listen(lead, span_s)
        with attack(what, lan, folder, program) as did:
            time.sleep(1.0)
            under = listen(lead, span_s)
            team.kill("two")
            team.start("two")
            began_s = float(ask(team.running["two"], "began"))
            back_s = wait_for(lead, "two", began_s, UP_S) - began_s
        time.sleep(AFTER_S)
        after = ask(lead, "marks")
    row = [
        what,
        f"{number(calm.p50_ms)} / {number(calm.p99_ms)}",
        f"{number(under.p50_ms)} / {number(under.p99_ms)}",
        number(calm.mbps),
        percent(under.mbps / calm.mbps if calm.mbps else float("nan"), 0),
        number(back_s, 2),
        f"{before['descriptors']} / {after['descriptors']}",
        f"{before['memory_mb']:.0f} / {after['memory_mb']:.0f}",
        f"{after['refused'] - before['refused']:,}",
        *did,
    ]
    problems = []
    if not back_s <= BACK_MAX_S:
        problems.append(f"{what}: two was back after {number(back_s, 2)} s, not within {BACK_MAX_S:.0f} s")
    if after["descriptors"] > before["descriptors"] + DESCRIPTORS_MORE:
        problems.append(f"{what}: lead has {after['descriptors']} descriptors, and had {before['descriptors']}")
    return row, problems


TITLES = [
    "attack",
    "control p50 / p99, ms",
    "under attack",
    "bulk, MB/s",
    "under attack",
    "back, s",
    "descriptors before / after",
    "memory, MB",
    "refused",
    "the attack",
]
ATTACKS = ("connections", "garbage", "handshakes", "operators", "names", "another team", "elsewhere")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short spans, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--only", choices=ATTACKS, help="one attack")
    parser.add_argument("--robot", help=argparse.SUPPRESS)
    parser.add_argument("--stranger", choices=STRANGERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.robot:
        be_robot(arguments.robot, arguments.folder)
        return 0
    if arguments.stranger:
        STRANGERS[arguments.stranger]()
        return 0
    program = binary()
    if program is None:
        return 0
    if not is_possible():
        return 0
    if not STRANGER.exists():
        print(f"SKIPPED: {STRANGER} is missing: cargo build --release -p coorp-node --example stranger")
        return 0
    span_s = QUICK_S if arguments.quick else FULL_S
    rows, problems = [], []
    for what in (arguments.only,) if arguments.only else ATTACKS:
        hosts = [*ROBOTS, "stranger", *(f"other {name}" for name in ROBOTS)]
        with tempfile.TemporaryDirectory() as folder, Lan(hosts) as lan:
            row, wrong = measure(what, lan, Path(folder), program, span_s)
        rows.append(row)
        problems += wrong
    print(f"Three robots and a stranger on one bridge, {span_s:g} s each without and with the attack.\n")
    show(TITLES, rows, markdown=arguments.markdown)
    for problem in problems:
        print(f"FAIL: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
