"""Compares `coorp emu` and `coorp sim` on the same flows.

    cargo build --release -p coorp-cli
    sudo python studies/emulator.py [--quick] [--markdown] [--team examples/flows.toml]

The flows of a team file run in two ways: in the simulator over several seeds, under `edca`, which is plain WiFi; and
several times as real programs (lib/flows.py) with the kernel's own UDP and TCP over the emulator. The table compares
throughput and message latency. Below it is the emulator's lateness, which decides whether the rest counts.

Known differences: the kernel's TCP is not the simulator's, and its queue is in the emulated card, where CoDel keeps it
short, instead of in its own socket. Programs take time to wake up.

If the `coorp` binary, root or TUN is missing, the study says so and succeeds.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lib.emulated import emulator
from lib.simulator import REPOSITORY, Spread
from lib.table import number, show

PLAYER = REPOSITORY / "studies" / "lib" / "flows.py"
HEAD_START_S = 3.0
"""Time to set up namespaces, interpreters and connections."""

Flows = dict[str, dict[str, Any]]
"""The findings of one run, by flow name."""


def simulated(program: Path, team: Path, duration_s: float, seed: int) -> Flows:
    """Makes one run of the simulator."""
    command = [str(program), "sim", str(team), "--policy", "edca", "--seed", str(seed), "--duration"]
    done = subprocess.run(
        [*command, f"{duration_s:g}s", "--json", "-", "--quiet"], capture_output=True, text=True, check=True
    )
    return {flow["name"]: flow for flow in json.loads(done.stdout)["results"][0]["flows"]}


def emulated(program: Path, team: Path, duration_s: float) -> tuple[Flows, dict[str, Any]]:
    """Makes one run of the emulator, and returns its findings and its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        start = time.monotonic() + HEAD_START_S
        player = [sys.executable, str(PLAYER), "--start", f"{start:.6f}", "--duration", f"{duration_s:g}"]
        command = [str(program), "emu", str(team), "--json", str(report), "--quiet", "--", *player, "--folder", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"coorp emu failed:\n{done.stdout}{done.stderr}")
        lines = [line.split("] ", 1)[1] for line in done.stdout.splitlines() if "] {" in line]
        return {found["flow"]: found for found in map(json.loads, lines)}, json.loads(report.read_text())


def figure(flow: dict[str, Any], name: str) -> float:
    """Returns the throughput, or a percentile of the latency; NaN if the flow has none."""
    value = flow["mbps"] if name == "mbps" else (flow.get("latency_ms") or {}).get(name)
    return math.nan if value is None else float(value)


def shown(runs: list[Flows], flow: str, name: str, digits: int) -> str:
    """Returns a figure's mean and spread over runs."""
    spread = Spread.of(figure(run[flow], name) for run in runs)
    if math.isnan(spread.mean):
        return "-"
    return f"{number(spread.mean, digits)} ± {number(spread.deviation, digits)}"


def main() -> None:
    """Runs both and prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--team", type=Path, default=REPOSITORY / "examples" / "flows.toml")
    arguments = parser.parse_args()
    program = emulator()
    if program is None:
        return
    duration_s, seeds, times = (4.0, 2, 1) if arguments.quick else (10.0, 10, 5)
    simulations = [simulated(program, arguments.team, duration_s, seed) for seed in range(1, seeds + 1)]
    pairs = [emulated(program, arguments.team, duration_s) for _ in range(times)]
    emulations = [flows for flows, _ in pairs]
    titles = ["flow", "Mbit/s sim", "emu", "p50 ms sim", "emu", "p90 ms sim", "emu", "p99 ms sim", "emu"]
    columns = (("mbps", 2), ("p50", 1), ("p90", 1), ("p99", 1))
    rows = []
    for flow in simulations[0]:
        cells = [shown(runs, flow, name, digits) for name, digits in columns for runs in (simulations, emulations)]
        rows.append([flow, *cells])
    show(titles, rows, markdown=arguments.markdown)
    for _, report in pairs:
        timing = report["timing"]
        late = ", ".join(f"{name} {timing[f'{name}_us']:.0f} us" for name in ("p50", "p99", "max"))
        verdict = "kept up" if report["kept_up"] else "DID NOT KEEP UP: these figures do not count"
        print(f"emulator: {timing['deliveries']} deliveries late by {late}; {verdict}")


if __name__ == "__main__":
    main()
