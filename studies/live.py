"""Compares the navigation traffic of real processes over `coorp emu` with `coorp sim`; and measures peers on the same
channel.

    cargo build --release -p coorp-cli
    pip install . ./live eclipse-zenoh        # the package `coorp` with its live half, and the peer
    sudo python studies/live.py [--quick] [--markdown]

The study takes some 30 minutes on an otherwise idle machine, and `--quick` about one.

**The team.** `examples/navigation.toml` under each policy: several runs of half a minute with `coorp emu --demo`, the
policies in turn, and as many in the simulator, each with its own seed. A figure agrees if the two means differ by at
most the spread of runs plus 10 %. The spread is twice the standard deviation of the difference of two runs (the root of
the sum of both variances); the 10 % refer to the simulator's mean. If the spread exceeds a quarter of the simulator's
mean, agreement means little, and the table says so. Two claims, for the means in each environment:

- `edca` is clearly bad: its violation rate is at least 5 times `mpc-only`'s. - `coorp` is clearly good: its violation
  rate is at most 5 points over `mpc-only`'s, and its bulk is at least 90 % of `edca`'s.

If a figure does not agree or a claim does not hold, the study reports that as a finding and succeeds.

**A busy host.** The same, while a loop in another process keeps half of the cores busy, at least one, as perception
does. The goal: `coorp` at most 2 points over `mpc-only`, with 85 % of `edca`'s bulk, all on the same busy host. The
table also has the simulator's results for several `scheduling_delay`s, the mean time that a program waits for a core.

**Peers.** Unmodified programs and libraries over the channel of the same file (lib/peers.py): every 33 ms, each of four
robots sends the leader a request and gets a reply, without bulk and beside bulk from all four. They use `ping`, UDP,
Zenoh's Python package by default and with priorities, and `coorp.Node`. A round trip contains no inference; 'over 33
ms' counts round trips that took longer or never finished.

A run counts if the emulator kept up; the last table of each part shows its worst lateness. It cannot see whether the
robots' programs got a core when they needed one. The table therefore also shows the share of the time in which some
program of the machine waited for a core, as reported by Linux (pressure stall information). With `--quick`, runs are
short and few and learning sends early, so the figures mean nothing.

If the `coorp` binary, root or TUN is missing, the study says so and succeeds; missing peers are skipped. If a run of
our own fails, it exits with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lib.edit import changed_key, with_keys
from lib.emulated import BOUND_MS, PEERS, Peer, Runs, cell, emulate, emulator, failures, met, show_emulator
from lib.simulator import REPOSITORY
from lib.table import number, percent, show

TEAM = REPOSITORY / "examples" / "navigation.toml"
POLICIES = ("mpc-only", "bulk-only", "edca", "coorp-paper", "coorp")
TOLERANCE = 0.1
DEVIATIONS = 2.0
WIDE = 0.25
BAD_TIMES, GOOD_POINTS, GOOD_BULK = 5.0, 5.0, 0.9
BUSY_POLICIES = ("mpc-only", "edca", "coorp")
BUSY_POINTS, BUSY_BULK = 2.0, 0.85

FIGURES: dict[str, tuple[int, Callable[[dict[str, Any]], float | None]]] = {
    "violation %": (1, lambda result: None if (rate := result["violation_rate"]) is None else 100.0 * rate),
    "reaction p50 ms": (1, lambda result: (result["reaction_ms"] or {}).get("p50")),
    "reaction p99 ms": (1, lambda result: (result["reaction_ms"] or {}).get("p99")),
    "bulk Mbit/s": (1, lambda result: result["bulk_mbps"]),
}
"""The compared figures: their digits, and their position in a result of `--json`."""
VIOLATION, BULK = "violation %", "bulk Mbit/s"


LIVE_PEERS = ("ping", "ping-ef", "udp", "zenoh", "zenoh-rt", "coorp")
QUICK_PEERS = ("ping-ef", "udp", "zenoh", "coorp")


@dataclass(frozen=True)
class Plan:
    """The extent of the study."""

    batch_loops: int | None
    """The time at which learning starts to send, if different from the file."""
    policies: tuple[str, ...]
    team_s: float
    team_times: int
    busy_times: int
    scheduling_delays_ms: tuple[float, ...]
    peers: tuple[Peer, ...]
    bulks: tuple[bool, ...]
    peers_s: float
    peers_times: int


FULL = Plan(
    batch_loops=None,
    policies=POLICIES,
    team_s=30.0,
    team_times=5,
    busy_times=3,
    scheduling_delays_ms=(0.0, 0.25, 0.5, 1.0, 2.0),
    peers=tuple(peer for peer in PEERS if peer.how in LIVE_PEERS),
    bulks=(False, True),
    peers_s=10.0,
    peers_times=2,
)
QUICK = Plan(
    batch_loops=30,
    policies=("mpc-only", "edca", "coorp"),
    team_s=2.0,
    team_times=1,
    busy_times=1,
    scheduling_delays_ms=(1.0,),
    peers=tuple(peer for peer in PEERS if peer.how in QUICK_PEERS),
    bulks=(True,),
    peers_s=1.0,
    peers_times=1,
)


# --- runs ---------------------------------------------------------------------------------------------------------


def figures_of(result: dict[str, Any]) -> dict[str, float]:
    """Returns the compared figures; NaN if a policy has none."""
    values = {name: of(result) for name, (_, of) in FIGURES.items()}
    return {name: math.nan if value is None else float(value) for name, value in values.items()}


def simulated(program: Path, team: Path, plan: Plan) -> dict[str, Runs]:
    """Runs all policies in the simulator, one seed per run."""
    runs = {policy: Runs() for policy in plan.policies}
    for seed in range(1, plan.team_times + 1):
        command = [str(program), "sim", str(team), "--policy", ",".join(plan.policies), "--seed", str(seed)]
        command += ["--duration", f"{plan.team_s:g}s", "--json", "-", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for result in json.loads(done.stdout)["results"]:
            runs[result["policy"]].figures.append(figures_of(result))
    return runs


def emulated(program: Path, team: Path, plan: Plan) -> dict[str, Runs]:
    """Runs all policies with real processes, in turn."""
    runs = {policy: Runs() for policy in plan.policies}
    for policy in plan.policies * plan.team_times:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            command = [str(program), "emu", str(team), "--demo", "--policy", policy, "--quiet"]
            why, waited = emulate([*command, "--duration", f"{plan.team_s:g}s", "--json", str(report)])
            if why is not None:
                runs[policy].failures.append(why)
                continue
            found = json.loads(report.read_text())
        runs[policy].add(figures_of(found["results"][0]), found["emulator"][0], waited)
    return runs


# --- evaluation ---------------------------------------------------------------------------------------------------


def compared(policy: str, name: str, digits: int, sim: Runs, emu: Runs) -> list[str] | None:
    """Returns a row: one figure in both environments. None if the policy has no such figure."""
    expected, found = sim.spread(name), emu.spread(name)
    if math.isnan(expected.mean):
        return None
    off = found.mean - expected.mean
    spread = DEVIATIONS * math.hypot(expected.deviation, found.deviation)
    allowed = spread + TOLERANCE * abs(expected.mean)
    known = min(len(sim.figures), len(emu.figures)) > 1 and not math.isnan(off)
    agrees = "agrees" if spread <= WIDE * abs(expected.mean) else "agrees, widely spread"
    verdict = (agrees if abs(off) <= allowed else "DISAGREES") if known else "-"
    numbers = [number(off, digits, sign=True), number(allowed, digits) if known else "-"]
    return [f"{policy}, {name}", cell(sim, name, digits), cell(emu, name, digits), *numbers, verdict]


def verdict(holds: bool, *needed: float) -> str:
    """Returns the verdict on a claim."""
    if any(math.isnan(value) for value in needed):
        return "not known"
    return "holds" if holds else "DOES NOT HOLD"


def claims(ground: str, runs: dict[str, Runs]) -> list[str]:
    """Returns the two claims, as numbers."""
    alone, edca, coorp = (runs[policy].spread(VIOLATION).mean for policy in ("mpc-only", "edca", "coorp"))
    most, ours = (runs[policy].spread(BULK).mean for policy in ("edca", "coorp"))
    times = edca / alone if alone > 0.0 else math.nan if math.isnan(edca) or edca == 0.0 else math.inf
    share = ours / most if most > 0.0 else math.nan
    bad = verdict(times >= BAD_TIMES, times)
    good = verdict(coorp - alone <= GOOD_POINTS and share >= GOOD_BULK, coorp, alone, share)
    return [
        f"{ground}: 'edca is clearly bad' {bad}: {number(edca)} % violations, {number(times)} times mpc-only's "
        f"{number(alone)} % (at least {BAD_TIMES:g})",
        f"{ground}: 'coorp is clearly good' {good}: {number(coorp)} % violations, {number(coorp - alone, sign=True)} "
        f"points from mpc-only's (at most {GOOD_POINTS:+g}); bulk {number(100.0 * share, 0)} % of edca's "
        f"(at least {100.0 * GOOD_BULK:.0f} %)",
    ]


def compare(program: Path, team: Path, plan: Plan, *, markdown: bool) -> bool:
    """Runs the first part; returns whether all runs completed."""
    sim, emu = simulated(program, team, plan), emulated(program, team, plan)
    rows = [
        row
        for policy in plan.policies
        for name, (digits, _) in FIGURES.items()
        if (row := compared(policy, name, digits, sim[policy], emu[policy])) is not None
    ]
    show(["figure", "sim", "emu", "off by", "allowed", ""], rows, markdown=markdown)
    for ground, runs in (("sim", sim), ("emu", emu)):
        for claim in claims(ground, runs):
            print(f"- {claim}" if markdown else claim)
    print()
    show_emulator("policy", emu.items(), markdown=markdown)
    return not failures(emu.items())


@contextlib.contextmanager
def burning(cores: Iterable[int]) -> Iterator[None]:
    """Keeps cores busy, one process each."""
    spin = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile os.getppid() != 1: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin, str(core)]) for core in cores]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def busy_rows(runs: dict[str, Runs], ground: str) -> list[list[str]]:
    """Returns a row per policy in one environment: lateness and bulk, the latter over `edca`'s."""
    most = runs["edca"].spread(BULK).mean
    shares = {policy: those.spread(BULK).mean / most if most > 0.0 else math.nan for policy, those in runs.items()}
    figures = ((VIOLATION, 1), ("reaction p99 ms", 1), (BULK, 1))
    return [
        [ground, policy, *(cell(those, name, digits) for name, digits in figures), percent(shares[policy], 0)]
        for policy, those in runs.items()
    ]


def busy(program: Path, team: Path, plan: Plan, *, markdown: bool) -> bool:
    """Runs the team on a busy host; returns whether all runs completed."""
    cores = sorted(os.sched_getaffinity(0))
    plan = replace(plan, policies=BUSY_POLICIES, team_times=plan.busy_times)
    with burning(cores[: max(1, len(cores) // 2)]):
        emu = emulated(program, team, plan)
    rows = busy_rows(emu, "emu, busy")
    text = team.read_text()
    for delay_ms in plan.scheduling_delays_ms:
        late = team.with_name(f"late-{team.name}")
        late.write_text(with_keys(text, "policy", {"scheduling_delay": f'"{delay_ms:g}ms"'}))
        rows += busy_rows(simulated(program, late, plan), f"sim, {delay_ms:g} ms")
    show(["host", "policy", "violation %", "reaction p99 ms", "bulk Mbit/s", "of edca's"], rows, markdown=markdown)
    alone, ours = (emu[policy].spread(VIOLATION).mean for policy in ("mpc-only", "coorp"))
    most, bulk = (emu[policy].spread(BULK).mean for policy in ("edca", "coorp"))
    share = bulk / most if most > 0.0 else math.nan
    holds = verdict(ours - alone <= BUSY_POINTS and share >= BUSY_BULK, ours, alone, share)
    claim = (
        f"busy host: the goal {holds}: coorp {number(ours - alone, sign=True)} points from mpc-only's (at most "
        f"{BUSY_POINTS:+g}); bulk {percent(share, 0)} of edca's (at least {percent(BUSY_BULK, 0)})"
    )
    print(f"- {claim}" if markdown else claim)
    print()
    show_emulator("policy", emu.items(), markdown=markdown)
    return not failures(emu.items())


def peers(program: Path, team: Path, plan: Plan, *, markdown: bool) -> bool:
    """Runs the last part; returns whether all of our own runs completed."""
    there: list[Peer] = []
    for peer in plan.peers:
        if (absent := peer.missing()) is None:
            there.append(peer)
        else:
            print(f"skipped: control by {peer.control}: {absent} is missing")
    cases = {(peer, bulk): Runs() for peer in there for bulk in plan.bulks}
    for _ in range(plan.peers_times):
        for (peer, bulk), runs in cases.items():
            met(peer, program, team, plan.peers_s, runs, bulk=bulk)
    rows, named = [], []
    for (peer, bulk), runs in cases.items():
        beside = peer.bulk if bulk else "none"
        figures = (("p50", 1), ("p99", 1), ("over", 1), ("lost", 1), ("mbps", 1))
        rows.append([peer.control, beside, *(cell(runs, name, digits) for name, digits in figures)])
        named.append((f"{peer.control}, bulk: {beside}", runs))
    titles = ["control", "bulk", "round trip p50 ms", "p99", f"over {BOUND_MS:.0f} ms, %", "lost, %", "Mbit/s"]
    show(titles, rows, markdown=markdown)
    show_emulator("case", named, markdown=markdown)
    failures(named)
    return not any(runs.failures for (peer, _), runs in cases.items() if peer.package == "coorp")


def main() -> None:
    """Runs all parts and prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    program = emulator()
    if program is None:
        return
    plan = QUICK if arguments.quick else FULL
    text = TEAM.read_text()
    if plan.batch_loops is not None:
        text = changed_key(text, "learning", "batch_loops", str(plan.batch_loops))
    with tempfile.TemporaryDirectory() as folder:
        team = Path(folder) / TEAM.name
        team.write_text(text)
        subprocess.run([str(program), "keys", "init", str(team)], capture_output=True, check=True)
        parts = [part(program, team, plan, markdown=arguments.markdown) for part in (compare, busy, peers)]
    if not all(parts):
        sys.exit(1)


if __name__ == "__main__":
    main()
