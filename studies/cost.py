"""Measures what Coorp costs: control compared with plain Zenoh, bulk with plain QUIC, a permit, and an idle agent.

    cargo build --release -p coorp-cli
    python studies/cost.py [--quick] [--markdown]

Runs `crates/node/cost`, whose source describes the measurements; with `--quick`, without Zenoh, which takes minutes to
compile. Then runs five robots with `coorp up` on loopback that publish nothing: each robot's share of a core over some
time, from `/proc/PID/stat`, and its memory at the end. Resident memory (RSS) counts the program's own pages for every
robot; the proportional share (PSS) counts them once in total.

Prints all measurements, and then each claim and whether it holds. All figures are noisy on a busy machine, so the load
before the run is shown. If the program or cargo is missing, the study says so and succeeds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lib.processes import free_ports, ticks
from lib.simulator import REPOSITORY, binary
from lib.table import number, show

ROBOTS = ("base", "one", "two", "three", "four")
PORTS = 16
"""Ports of one robot."""
SETTLE_S = 6.0
MEET_S = 60.0
"""Time for links, a leader and clocks."""
PLAIN_CONTROL = "zenoh, callback"
PLAIN_BULK = "quinn"
OWN_CONTROL = "coorp, recv"
GUESTS_CONTROL = "guests of coorp, recv"
CONTROL_US = 20.0
GUESTS_US = 120.0
"""Maximum extra latency between guests: 60 us at each end."""
BULK_SHARE = 0.9
PERMIT_US = 1000.0
CORE_PERCENT = 1.0
MEMORY_MB = 50.0


@dataclass(frozen=True)
class Row:
    """One contender at one size, as reported by the bench."""

    what: str
    contender: str
    bytes: int
    count: int
    lost: int
    p50_us: float
    p99_us: float
    processor_ms: float | None


@dataclass(frozen=True)
class Agent:
    """One idle robot."""

    name: str
    core_percent: float
    rss_mb: float
    pss_mb: float
    threads: int


@dataclass(frozen=True)
class Claim:
    """A claim: the figure found, and its bound."""

    what: str
    found: str
    bound: str
    holds: bool


def bench(cargo: str, *, quick: bool) -> list[Row]:
    """Runs the bench."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "cost.json"
        command = [cargo, "run", "--quiet", "--release", "--locked", "--manifest-path", "crates/node/cost/Cargo.toml"]
        # The main workspace's folder, which has most of it compiled.
        command += ["--target-dir", os.environ.get("CARGO_TARGET_DIR", "target")]
        command += [*([] if quick else ["--features", "zenoh"]), "--"]
        command += ["--json", str(found), *(["--quick"] if quick else [])]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"the bench failed:\n{done.stdout}{done.stderr}")
        return [Row(**row) for row in json.loads(found.read_text())]


@contextmanager
def up(program: Path, team: Path, name: str) -> Iterator[int]:
    """Runs a robot's agent while it is needed, and yields its process id."""
    command = [str(program), "up", str(team), "--robot", name, "--state", str(team.parent / "state" / name)]
    log = (team.parent / f"{name}.log").open("w")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as agent:
        try:
            yield agent.pid
        finally:
            agent.terminate()


def memory_mb(process: int, kind: str) -> float:
    """Returns `Rss` or `Pss` of a process."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 1024.0


def idle(program: Path, span_s: float) -> list[Agent]:
    """Measures five idle robots."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as agents:
        team = Path(folder) / "team.toml"
        first = free_ports(PORTS * len(ROBOTS))
        team.write_text(
            "\n".join(
                f'[[robot]]\nname = "{name}"\nleader = {str(place == 0).lower()}\n'
                f'addresses = ["127.0.0.1"]\nport = {first + PORTS * place}'
                for place, name in enumerate(ROBOTS)
            )
        )
        subprocess.run([str(program), "keys", "init", str(team)], capture_output=True, check=True)
        processes = {name: agents.enter_context(up(program, team, name)) for name in ROBOTS}
        time.sleep(SETTLE_S)
        command = [str(program), "watch", str(team), "--once"]
        late = time.monotonic() + MEET_S
        while True:
            seen = subprocess.run(command, capture_output=True, text=True, check=False)
            if seen.returncode == 0 and all(name in seen.stdout for name in ROBOTS):
                break
            if time.monotonic() > late:
                sys.exit(f"the robots did not come up:\n{seen.stdout}{seen.stderr}")
            time.sleep(0.5)
        began, before = time.monotonic(), {name: ticks(process) for name, process in processes.items()}
        time.sleep(span_s)
        used = {name: ticks(process) - before[name] for name, process in processes.items()}
        passed_s = time.monotonic() - began
        return [
            Agent(
                name=name,
                core_percent=100.0 * used[name] / os.sysconf("SC_CLK_TCK") / passed_s,
                rss_mb=memory_mb(process, "Rss"),
                pss_mb=memory_mb(process, "Pss"),
                threads=len(list(Path(f"/proc/{process}/task").iterdir())),
            )
            for name, process in processes.items()
        ]


def claims(rows: list[Row], agents: list[Agent]) -> list[Claim]:
    """Returns each claim, compared with the measurements."""
    found: list[Claim] = []
    plain = {(row.what, row.bytes): row for row in rows if row.contender in (PLAIN_CONTROL, PLAIN_BULK)}
    own = {row.bytes: row for row in rows if row.contender == OWN_CONTROL}
    for row in rows:
        beside = plain.get((row.what, row.bytes))
        if row.contender == GUESTS_CONTROL and row.bytes in own:
            more_us = row.p50_us - own[row.bytes].p50_us
            what = f"control of {row.bytes} B between guests: median over that between robots"
            found.append(Claim(what, f"{more_us:+.1f} us", f"{GUESTS_US:.0f} us", more_us <= GUESTS_US))
        if not row.contender.startswith("coorp"):
            continue
        if row.what == "control" and beside is not None:
            more_us = row.p50_us - beside.p50_us
            what = f"control of {row.bytes} B: median over plain Zenoh's"
            found.append(Claim(what, f"{more_us:+.1f} us", f"{CONTROL_US:.0f} us", more_us <= CONTROL_US))
        elif row.what == "bulk" and beside is not None:
            share = beside.p50_us / row.p50_us
            what = f"bulk, {row.contender.removeprefix('coorp, ')}: share of plain QUIC's rate"
            found.append(Claim(what, f"{share:.2f}", f"{BULK_SHARE}", share >= BULK_SHARE))
        elif row.what == "permit":
            what = "permit: median round trip"
            found.append(Claim(what, f"{row.p50_us:.0f} us", f"{PERMIT_US:.0f} us", row.p50_us < PERMIT_US))
    core = max(agent.core_percent for agent in agents)
    memory = max(agent.rss_mb for agent in agents)
    found.append(
        Claim("idle agent: share of a core, the most", f"{core:.2f} %", f"{CORE_PERCENT:.0f} %", core < CORE_PERCENT)
    )
    found.append(
        Claim("idle agent: resident memory, the most", f"{memory:.1f} MB", f"{MEMORY_MB:.0f} MB", memory < MEMORY_MB)
    )
    return found


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    program, cargo = binary(), shutil.which("cargo")
    if program is None:
        return
    if cargo is None:
        print("skipped: cargo, which runs the bench, is not on the PATH")
        return
    load = os.getloadavg()[0]
    rows = bench(cargo, quick=arguments.quick)
    agents = idle(program, 5.0 if arguments.quick else 30.0)
    titles = ["what", "contender", "bytes", "count", "lost", "median us", "p99 us", "CPU ms", "Mbit/s"]
    lines = [
        [
            row.what,
            row.contender,
            str(row.bytes) if row.bytes else "-",
            str(row.count),
            str(row.lost),
            number(row.p50_us),
            number(row.p99_us),
            "-" if row.processor_ms is None else number(row.processor_ms, 0),
            number(8.0 * row.bytes / row.p50_us, 0) if row.what == "bulk" else "-",
        ]
        for row in rows
    ]
    show(titles, lines, markdown=arguments.markdown)
    titles = ["idle agent", "share of a core, %", "RSS MB", "PSS MB", "threads"]
    lines = [
        [agent.name, number(agent.core_percent, 2), number(agent.rss_mb), number(agent.pss_mb), str(agent.threads)]
        for agent in agents
    ]
    show(titles, lines, markdown=arguments.markdown)
    lines = [
        [claim.what, claim.found, claim.bound, "holds" if claim.holds else "DOES NOT HOLD"]
        for claim in claims(rows, agents)
    ]
    show(["claim", "found", "bound", "verdict"], lines, markdown=arguments.markdown)
    print(f"load average before: {load:.2f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
