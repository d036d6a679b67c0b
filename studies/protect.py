"""Measures programs that know nothing of Coorp: their control beside their bulk, without and with `coorp up --protect`.

    cargo build --release -p coorp-cli --features zenoh
    cargo build --release --manifest-path studies/ros2/Cargo.toml
    cargo build --release --manifest-path studies/ros2-zenoh/Cargo.toml
    sudo python studies/protect.py [--quick] [--markdown]

Over `coorp emu`, on the channel of `examples/navigation.toml`. Every 33 ms, each of four robots sends the leader a
request and gets a reply, beside bulk of unmodified programs (lib/peers.py):

- `ping`, marked EF and not, and datagrams marked EF, beside `iperf3` over TCP;
- Cyclone DDS: poses beside images of 1 MB from the same participant, all with ROS 2's default settings;
- the same from nodes of `ros2-client` (RustDDS), which Cyclone DDS takes and answers;
- poses and images of nodes of hiroz, which speaks rmw_zenoh's protocol, and also a service and parameters. The
  protecting agents are the Zenoh routers;
- datagrams of teleoperation, not marked, beside `rsync` of 1 GB;
- datagrams of an MPC loop, not marked, beside `torch.distributed` with gloo: all five robots reduce gradients of 40 MB.

Each case runs

- alone: without bulk, and without protection;
- unprotected: beside bulk from all robots;
- tc: unprotected, but with a stock shaper on each robot, HTB with priorities. Priorities have no effect without a rate,
  because the queue is in the card. So each robot gets an equal part of 95 % of the bulk that the unprotected runs
  measured. A user knows neither that rate nor the number of robots that send;
- protected: unprotected, but with `coorp emu --protect`, which runs Coorp's agent on each robot. The team file has no
  rules: the agent finds out itself which traffic is control and which is bulk.

'Over 33 ms' counts round trips that took longer or never finished. In all cases, bulk is the bulk that reaches programs
while control is measured. The goal: control's p99 within 5 ms of its p99 without bulk, and 90 % of the bulk without
protection. A missed goal is a finding, and the study succeeds. It fails if a run fails. A run does not count if the
emulator did not keep up, and is repeated, three times at most. `--quick` has one short run of some cases, whose figures
mean nothing.

**What it costs.** Two robots in network namespaces, joined by a veth: `ping`, marked EF, and `iperf3` over TCP, which a
rule of the team file makes bulk. The study runs without agents, with forwarders that decide nothing in their place
(lib/forward.c, the minimum cost of an agent that takes packets one by one), and with agents. It measures the round
trip's median; the agent's share of a core while it carries 200 Mbit/s; the highest rate. Packets pass only the sender's
agent, so with an agent on one robot, one direction of a round trip goes through it, and that counts. With agents on
both, both wake up on the same two cores, which no two real robots share. Over a veth, the sender's thread also does the
receiver's work in the kernel, which counts as the agent's. The goals: at most 60 us more per direction, 15 % of a core,
and at least 3 Gbit/s. The figures are noisy on a busy machine.

If the `coorp` binary, root or TUN is missing, the study says so and succeeds. Cases are skipped if their requirements
are missing: `ping`, `iperf3`, `rsync`, a C compiler, the nodes of `ros2-client` and hiroz, Zenoh in `coorp`, the
packages `cyclonedds` and `torch`, HTB or u32 of the kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.emulated import BOUND_MS, PEERS, Peer, Runs, cell, emulator, failures, met, shaping_lacks, show_emulator
from lib.lan import Lan, address, end
from lib.processes import ticks
from lib.simulator import REPOSITORY
from lib.table import number, percent, show

TEAM = REPOSITORY / "examples" / "navigation.toml"
HOWS = ("ping-ef", "ping", "udp", "dds", "ros2", "ros2-zenoh", "rsync", "gloo")
ALONE, UNPROTECTED, SHAPED, PROTECTED = WAYS = ("alone", "unprotected", "tc", "protected")
QUICK: dict[str, tuple[str, ...]] = {
    "ping-ef": (ALONE, UNPROTECTED, PROTECTED),
    "dds": (UNPROTECTED, SHAPED, PROTECTED),
}
ZENOH = "ros2-zenoh"
SHARE = 0.95
"""The rate of shaped robots, with headers, as a share of the bulk without protection."""
SPAN_S, TIMES, TRIES = 30.0, 2, 5
"""The length of a run; the number of runs that count, and the maximum number of runs."""
QUICK_SPAN_S = 1.0
MORE_MS, BULK_SHARE = 5.0, 0.9
PAIR = ("one", "two")
IPERF_PORT = 5201
TOS_EF = 46 << 2
STEADY_MBPS, SETTLE_S = 200, 3.0
FORWARDED, FORWARDED_TABLE = "tun0", 100
MORE_US, CORE, HIGH_MBPS = 60.0, 0.15, 3_000


def main() -> int:
    """Runs all cases and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--only", choices=HOWS, help="one kind of control")
    arguments = parser.parse_args()
    program = emulator()
    if program is None:
        return 0
    ways: dict[str, tuple[str, ...]] = QUICK if arguments.quick else {how: WAYS for how in HOWS}
    if arguments.only:
        ways = {arguments.only: WAYS}
    peers = [peer for peer in PEERS if peer.how in ways]
    for peer in peers:
        if (absent := peer.missing()) is not None:
            print(f"skipped: {both(peer)}: {absent} is missing")
    if (lacking := shaping_lacks()) is not None:
        print(f"skipped: tc: this kernel has no HTB or no u32: {lacking}")
    cases = {
        (peer, way): Runs()
        for peer in peers
        for way in ways[peer.how]
        if peer.missing() is None and (way != SHAPED or lacking is None)
    }
    if any(peer.how == ZENOH for peer in peers) and not has_zenoh(program):
        print("skipped: ROS 2 over Zenoh, protected: coorp was built without --features zenoh")
        cases = {(peer, way): runs for (peer, way), runs in cases.items() if (peer.how, way) != (ZENOH, PROTECTED)}
    with tempfile.TemporaryDirectory() as folder:
        team = Path(folder) / TEAM.name
        team.write_text(TEAM.read_text())
        routers = Path(folder) / "routers.toml"
        routers.write_text(f"{TEAM.read_text()}\n[live]\nzenoh = true\n")
        subprocess.run([str(program), "keys", "init", str(team)], capture_output=True, check=True)
        times, tries = (1, 1) if arguments.quick else (TIMES, TRIES)
        for _ in range(tries):
            for (peer, way), runs in cases.items():
                if runs.kept_up == times:
                    continue
                rate = None
                if way == SHAPED:
                    rate = SHARE * cases[peer, UNPROTECTED].spread("mbps").mean / peer.senders
                    if math.isnan(rate):
                        print(f"skipped: {name(peer, way)}: no unprotected run tells its rate")
                        continue
                span_s = QUICK_SPAN_S if arguments.quick else SPAN_S
                options = ("--protect",) if way == PROTECTED else ()
                of = routers if (peer.how, way) == (ZENOH, PROTECTED) else team
                met(peer, program, of, span_s, runs, bulk=way != ALONE, options=options, shape_mbps=rate)
    report(cases, markdown=arguments.markdown)
    costs(program, quick=arguments.quick, markdown=arguments.markdown)
    return 1 if failures((name(*case), runs) for case, runs in cases.items()) else 0


def has_zenoh(program: Path) -> bool:
    """Returns whether this `coorp` can be a Zenoh router."""
    said = subprocess.run([str(program), "doctor"], capture_output=True, text=True, check=False).stdout
    return "not built in" not in said


@dataclass(frozen=True)
class Cost:
    """The measurements of two robots."""

    one_us: float
    both_us: float
    """Round trips, with a program in the path on the first robot, and on both."""
    core: float
    """The sending agent's share of a core; NaN without one."""
    mbps: float


def costs(program: Path, *, quick: bool, markdown: bool) -> None:
    """Measures what the agent costs, and prints it."""
    if lacking := [needed for needed in ("ping", "iperf3") if shutil.which(needed) is None]:
        print(f"skipped: what it costs: {' and '.join(lacking)} is missing")
        return
    pings, span_s = (100, 1) if quick else (1_000, 5)
    with tempfile.TemporaryDirectory() as folder, Lan(list(PAIR)) as lan:
        team = Path(folder) / "team.toml"
        robots = [
            f'[[robot]]\nname = "{name}"\naddresses = ["{address(place)}"]\ninterfaces = ["eth0"]\n'
            for place, name in enumerate(PAIR)
        ]
        rule = f'[[protect]]\nas = "bulk"\nport = {IPERF_PORT}\n'
        team.write_text("\n".join([*robots, rule]).replace("interfaces", "leader = true\ninterfaces", 1))
        subprocess.run([str(program), "keys", "init", str(team)], capture_output=True, check=True)
        without = cost(lan, pings, span_s, None)
        found = [("without agents", without)]
        if (forwarder := compiled(Path(folder))) is not None:

            def forward(names: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
                with beside(lan, names, lambda _: [str(forwarder), FORWARDED, "eth0"]) as forwarders:
                    for name in names:
                        forwards(lan, name, address(PAIR.index(name)))
                    yield forwarders[0]

            found.append(("with empty forwarders", at_one_and_both(lan, pings, span_s, forward)))

        def protect(names: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
            agent = [str(program), "up", str(team), "--protect", "--state", str(Path(folder) / "state")]
            with beside(lan, names, lambda name: [*agent[:-1], f"{agent[-1]}/{name}", "--robot", name]) as agents:
                # Each agent says that it is up; then they need a leader.
                for each in agents:
                    assert each.stdout is not None
                    each.stdout.readline()
                time.sleep(SETTLE_S)
                yield agents[0]

        ours = at_one_and_both(lan, pings, span_s, protect)
        found.append(("with agents", ours))
    rows = [
        [name, number(one.one_us, 0), number(one.both_us, 0), percent(one.core, 0), number(one.mbps, 0)]
        for name, one in found
    ]
    titles = ["", "round trip us: one has it", "both", f"core at {STEADY_MBPS} Mbit/s", "highest Mbit/s"]
    show(titles, rows, markdown=markdown)
    more = ours.one_us - without.one_us
    for what, holds in (
        (f"{number(more, 0)} us more a way (at most {MORE_US:.0f})", more <= MORE_US),
        (f"{percent(ours.core, 0)} of a core at {STEADY_MBPS} Mbit/s (at most {percent(CORE, 0)})", ours.core <= CORE),
        (f"{number(ours.mbps, 0)} Mbit/s (at least {HIGH_MBPS})", ours.mbps >= HIGH_MBPS),
    ):
        claim = f"the goal {'holds' if holds else 'DOES NOT HOLD'}: {what}"
        print(f"- {claim}" if markdown else claim)


def at_one_and_both(
    lan: Lan, pings: int, span_s: int, run: Callable[[Sequence[str]], Iterator[subprocess.Popen[str]]]
) -> Cost:
    """Measures a program's cost. `run` runs it first only on the first robot, for round trips, and then on both."""
    started = contextlib.contextmanager(run)
    with started(PAIR[:1]):
        one_us = round_trip_us(lan, pings)
    with started(PAIR) as first:
        both = cost(lan, pings, span_s, first)
    return dataclasses.replace(both, one_us=one_us)


@contextlib.contextmanager
def beside(
    lan: Lan, names: Sequence[str], command: Callable[[str], list[str]]
) -> Iterator[list[subprocess.Popen[str]]]:
    """Runs a program on each of these robots."""
    programs: list[subprocess.Popen[str]] = []
    try:
        for name in names:
            programs.append(lan.run(name, *command(name)))
        yield programs
    finally:
        for program in programs:
            end(program)


def compiled(folder: Path) -> Path | None:
    """Compiles the forwarder, if there is a compiler."""
    if shutil.which("cc") is None:
        print("skipped: empty forwarders: a C compiler is missing")
        return None
    forwarder = folder / "forward"
    source = Path(__file__).with_name("lib") / "forward.c"
    subprocess.run(["cc", "-O2", "-o", str(forwarder), str(source)], check=True)
    return forwarder


def forwards(lan: Lan, name: str, own: str) -> None:
    """Routes a robot's packets through its forwarder, as the agent does; all of this but the rule goes away with the
    TUN."""
    network = f"{own.rsplit('.', 1)[0]}.0/24"
    for command in (
        f"until ip link set {FORWARDED} up txqueuelen 2000 2> /dev/null; do sleep 0.05; done",
        f"ip route add {network} dev {FORWARDED} src {own} table {FORWARDED_TABLE}",
        f"ip rule add pref 100 iif lo lookup {FORWARDED_TABLE}",
    ):
        done = lan.run(name, "sh", "-c", command)
        done.communicate(timeout=10)


def round_trip_us(lan: Lan, pings: int) -> float:
    """Returns the median of pings from the first robot to the other."""
    ping = lan.run(PAIR[0], "ping", "-n", "-Q", hex(TOS_EF), "-i", "0.01", "-c", str(pings), address(1))
    said, _ = ping.communicate()
    trips = [1e3 * float(took) for took in re.findall(r"time=([\d.]+) ms", said)]
    return statistics.median(trips) if trips else math.nan


def cost(lan: Lan, pings: int, span_s: int, agent: subprocess.Popen[str] | None) -> Cost:
    """Measures one robot that pings the other, then sends at a steady rate, then as fast as possible."""
    to, both_us = address(1), round_trip_us(lan, pings)

    def iperf3(*options: str) -> float:
        server = lan.run(PAIR[1], "iperf3", "--server", "--one-off", "--port", str(IPERF_PORT), "--forceflush")
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            if server.poll() is not None:
                sys.exit("iperf3 does not listen")
        client = lan.run(
            PAIR[0], "iperf3", "--json", "--client", to, "--port", str(IPERF_PORT), "--time", str(span_s), *options
        )
        found, _ = client.communicate()
        server.communicate()
        return json.loads(found)["end"]["sum_received"]["bits_per_second"] / 1e6

    before, began = None if agent is None else ticks(agent.pid), time.monotonic()
    iperf3("--bitrate", f"{STEADY_MBPS}M")
    core = math.nan
    if agent is not None and before is not None:
        core = (ticks(agent.pid) - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
    return Cost(both_us, both_us, core, iperf3())


def both(peer: Peer) -> str:
    return f"{peer.control} and {peer.bulk}"


def name(peer: Peer, way: str) -> str:
    return f"{both(peer)}, {way}"


def report(cases: dict[tuple[Peer, str], Runs], *, markdown: bool) -> None:
    """Prints the tables and the goals."""
    rows = []
    for (peer, way), runs in cases.items():
        figures = (("p50", 1), ("p99", 1), ("over", 1), ("lost", 1), ("mbps", 1))
        rows.append([both(peer), way, *(cell(runs, figure, digits) for figure, digits in figures)])
    show(
        ["control and bulk", "", "round trip p50 ms", "p99", f"over {BOUND_MS:.0f} ms, %", "lost, %", "bulk Mbit/s"],
        rows,
        markdown=markdown,
    )
    for peer in dict.fromkeys(peer for peer, _ in cases):
        alone, without, ours = (cases.get((peer, way), Runs()) for way in (ALONE, UNPROTECTED, PROTECTED))
        more = ours.spread("p99").mean - alone.spread("p99").mean
        share = ours.spread("mbps").mean / without.spread("mbps").mean
        holds = "holds" if more <= MORE_MS and share >= BULK_SHARE else "DOES NOT HOLD"
        claim = (
            f"{both(peer)}: the goal {holds}: p99 {number(more, sign=True)} ms from that without bulk (at most "
            f"{MORE_MS:+g}), bulk {percent(share, 0)} of that without protection (at least {percent(BULK_SHARE, 0)})"
        )
        print(f"- {claim}" if markdown else claim)
    print()
    show_emulator("case", [(name(*case), runs) for case, runs in cases.items()], markdown=markdown)


if __name__ == "__main__":
    sys.exit(main())
