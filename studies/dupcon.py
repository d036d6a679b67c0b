"""Measures control packets while one of two paths degrades: table I and figure 8 of Lee, with real programs over `coorp
emu`.

    cargo build --release -p coorp-cli
    cargo build --release -p coorp-node --example control
    sudo python studies/dupcon.py [--quick] [--markdown] [--no-data]

A sender and a receiver have two interfaces each, on separate channels. The sender sends a control packet every 0.5 s
and data all the time. After a while the first path degrades, as when Lee removes an antenna: nine of ten frames are
lost, so with seven retries some four packets of ten never arrive. The table shows the mean and the deviation of the
times between arrivals, before and after, and the longest one after, in ms:

- one path: TCP over the first interface;
- MPTCP: as in this kernel, one connection for control and one for data;
- MPTCP, shared: control and data in one connection, as in Lee;
- round robin: TCP over each interface, packets in turn;
- DupCon: Coorp with `duplicate = "always"`, data as its bulk;
- adaptive: Coorp with `duplicate = "adaptive"`.

The first four are programs of the study (lib/packets.py), the last two the example `control` of `crates/node`.
`--no-data` sends only control, which shows the paths themselves; otherwise control shares the second path with all the
data once the first one is bad.

If a binary, root, TUN or MPTCP is missing, the study says so and succeeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.packets import IPPROTO_MPTCP
from lib.simulator import REPOSITORY, binary
from lib.table import number, show

PLAYER = REPOSITORY / "studies" / "lib" / "packets.py"
PERIOD_S = 0.5
BULK_BYTES = 16_000_000
SETTLE_S = 8.0
"""Time to set up namespaces, connections and, with Coorp, a leader and permits."""
CASES = {
    "one path": "one",
    "MPTCP": "mptcp",
    "MPTCP, shared": "shared",
    "round robin": "robin",
    "DupCon": "always",
    "adaptive": "adaptive",
}
OURS = ("always", "adaptive")

TEAM = """\
[[robot]]
name = "receiver"
leader = true
interfaces = ["wlan0", "wlan1"]
addresses = ["10.77.0.1", "10.78.0.1"]

[[robot]]
name = "sender"
interfaces = ["wlan0", "wlan1"]
addresses = ["10.77.0.2", "10.78.0.2"]

[air]
mcs = 3
wnic = "short.toml"

[[interface]]
channel = 149
mcs = 3
wnic = "short.toml"

[[event]]
at = "{bad_at:g}s"
interface = "wlan0"
loss = 0.9

[live]
duplicate = "{duplicate}"
"""

PROFILE = "queue_frames = 16\n"
"""The card's queue, as short as mac80211's airtime limits keep it, so that data waits in queues that separate flows."""


@dataclass
class Phase:
    """The arrivals before, or after, the first path degraded."""

    intervals_s: list[float] = field(default_factory=list)
    data_mbps: float = math.nan

    def mean_ms(self) -> float:
        """Returns the mean of the times between arrivals."""
        return 1e3 * statistics.fmean(self.intervals_s)

    def deviation_ms(self) -> float:
        """Returns the standard deviation of the times between arrivals."""
        return 1e3 * statistics.pstdev(self.intervals_s)

    def add(self, found: dict[str, Any], begin_s: float, end_s: float) -> None:
        """Adds the findings of one run between two times. An interval belongs to the time at which it ends."""
        arrivals = [at for at, _ in found["arrivals"]]
        pairs = itertools.pairwise(arrivals)
        self.intervals_s += [later - earlier for earlier, later in pairs if begin_s <= later < end_s]
        if arrivals and arrivals[-1] < end_s - 2 * PERIOD_S:
            # Nothing arrived in this phase.
            self.intervals_s.append(end_s - max(arrivals[-1], begin_s))
        counts = [(at, count) for at, count in found["bytes"] if begin_s <= at < end_s]
        (first_at, first), (last_at, last) = counts[0], counts[-1]
        self.data_mbps = (last - first) * 8e-6 / (last_at - first_at)


def run(program: Path, how: str, span_s: float, *, data: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arrivals in one run, and the emulator's report."""
    duration_s = SETTLE_S + 2 * span_s
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        team, report = folder / "team.toml", folder / "report.json"
        (folder / "short.toml").write_text(PROFILE)
        duplicate = how if how in OURS else "never"
        team.write_text(TEAM.format(bad_at=SETTLE_S + span_s, duplicate=duplicate))
        if how in OURS:
            subprocess.run([str(program), "keys", "init", str(team)], capture_output=True, check=True)
            bulk_bytes = BULK_BYTES if data else 0
            player = [str(example(program)), f"{1e3 * PERIOD_S:.0f}", f"{duration_s:.0f}", str(bulk_bytes)]
        else:
            player = [sys.executable, str(PLAYER), how, "--duration", f"{duration_s:g}", "--period", f"{PERIOD_S:g}"]
            player += [] if data else ["--no-data"]
        command = [str(program), "emu", str(team), "--json", str(report), "--quiet", "--", *player]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line.split("] ", 1)[1] for line in done.stdout.splitlines() if line.startswith("[receiver] {")]
        if done.returncode != 0 or not lines:
            sys.exit(f"coorp emu failed:\n{done.stdout}{done.stderr}")
        return json.loads(lines[0]), json.loads(report.read_text())


def example(program: Path) -> Path:
    """Returns the program of our own cases, built next to `coorp`."""
    return program.parent / "examples" / "control"


def missing(program: Path) -> str | None:
    """Returns why the study cannot run here, if it cannot."""
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        return "coorp emu needs root and /dev/net/tun"
    if not example(program).is_file():
        return f"{example(program)} does not exist (cargo build --release -p coorp-node --example control)"
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
    except OSError as error:
        return f"this kernel has no MPTCP ({error})"
    return None


def main() -> None:
    """Runs all cases and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--no-data", action="store_true")
    arguments = parser.parse_args()
    program = binary()
    if program is None:
        return
    if (why := missing(program)) is not None:
        print(f"skipped: {why}")
        return
    span_s = 12.0 if arguments.quick else 30.0
    bad_at = SETTLE_S + span_s
    rows, verdicts = [], []
    for name, how in CASES.items():
        if how == "shared" and arguments.no_data:
            continue
        before, after = Phase(), Phase()
        found, report = run(program, how, span_s, data=not arguments.no_data)
        before.add(found, SETTLE_S, bad_at)
        after.add(found, bad_at, bad_at + span_s)
        timing = report["timing"]
        late = ", ".join(f"{timing[f'{point}_us']:.0f} us ({point})" for point in ("p50", "p99"))
        verdict = "kept up" if report["kept_up"] else "DID NOT KEEP UP: this run does not count"
        verdicts.append(f"{name}: emulator late by {late}; {verdict}")
        rows.append(
            [
                name,
                *(number(value, 2) for phase in (before, after) for value in (phase.mean_ms(), phase.deviation_ms())),
                number(1e3 * max(after.intervals_s), 0),
                *(number(phase.data_mbps, 1) for phase in (before, after)),
            ]
        )
    titles = ["case", "mean ms", "deviation", "bad: mean ms", "deviation", "longest", "data Mbit/s", "bad: Mbit/s"]
    show(titles, rows, markdown=arguments.markdown)
    print("\n".join(verdicts))


if __name__ == "__main__":
    main()
