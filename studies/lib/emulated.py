"""Runs peers over `coorp emu`: unmodified programs that send control, beside bulk (lib/peers.py)."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.peers import ROS2, ROS2_ZENOH, shaper
from lib.simulator import Spread, binary
from lib.table import number, percent, show

PLAYER = Path(__file__).with_name("peers.py")
BOUND_MS = 33.0


@dataclass(frozen=True)
class Peer:
    """One way to send control and bulk."""

    control: str
    bulk: str
    how: str
    """The peer's name in lib/peers.py."""
    programs: tuple[str, ...] = ()
    package: str | None = None
    senders: int = 4
    """Number of robots that send bulk."""

    def missing(self) -> str | None:
        """Returns the requirements that this machine lacks, if any."""
        absent = [name for name in self.programs if shutil.which(name) is None]
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            absent.append(f"the Python package {PACKAGES.get(self.package, self.package)}")
        return " and ".join(absent) or None


PACKAGES = {"zenoh": "eclipse-zenoh"}
"""Package by module, if their names differ."""
PEERS = (
    Peer("ping", "iperf3", "ping", ("ping", "iperf3")),
    Peer("ping, EF", "iperf3", "ping-ef", ("ping", "iperf3")),
    Peer("UDP, EF", "iperf3", "udp", ("iperf3",)),
    Peer("Cyclone DDS", "Cyclone DDS", "dds", package="cyclonedds"),
    Peer("ROS 2", "ROS 2", "ros2", (str(ROS2),), package="cyclonedds"),
    Peer("ROS 2, Zenoh", "ROS 2, Zenoh", "ros2-zenoh", (str(ROS2_ZENOH),)),
    Peer("UDP", "rsync", "rsync", ("rsync",)),
    Peer("UDP", "gloo", "gloo", package="torch", senders=5),
    Peer("Zenoh", "Zenoh", "zenoh", package="zenoh"),
    Peer("Zenoh, real time", "Zenoh, low", "zenoh-rt", package="zenoh"),
    Peer("Coorp", "Coorp", "coorp", package="coorp"),
)


@dataclass
class Runs:
    """The results of several runs of one kind."""

    figures: list[dict[str, float]] = field(default_factory=list)
    """Results of the runs that count."""
    timings: list[dict[str, float]] = field(default_factory=list)
    """The emulator's lateness in all completed runs."""
    kept_up: int = 0
    waited: list[float] = field(default_factory=list)
    """The share of each run in which some program waited for a core."""
    failures: list[str] = field(default_factory=list)

    def spread(self, name: str) -> Spread:
        """Returns the spread of one figure; infinite if it was infinite in any run."""
        values = [run[name] for run in self.figures]
        if math.inf in values:
            return Spread(math.inf, math.nan)
        return Spread.of(values) if values else Spread(math.nan, math.nan)

    def add(self, figures: dict[str, float], emulator: dict[str, Any], waited: float) -> None:
        """Adds a completed run."""
        self.timings.append(emulator["timing"])
        self.waited.append(waited)
        if emulator["kept_up"]:
            self.kept_up += 1
            self.figures.append(figures)


def emulator() -> Path | None:
    """Returns the `coorp` binary, if `coorp emu` can run here; prints a note if not."""
    program = binary()
    if program is not None and (os.geteuid() != 0 or not Path("/dev/net/tun").exists()):
        print("skipped: coorp emu needs root and /dev/net/tun")
        return None
    return program


def waited_us() -> float:
    """Returns the time since boot in which some program waited for a core; NaN if the kernel does not record it."""
    try:
        first = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except (OSError, IndexError):
        return math.nan
    return float(first.rsplit("total=", 1)[1])


def emulate(command: list[str], log: Path | None = None) -> tuple[str | None, float]:
    """Runs `coorp emu`. Returns why it failed, if so, and the share of time in which some program waited for a core.
    The robots' log goes to `log`."""
    began, before = time.monotonic(), waited_us()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if log is not None:
        log.write_text(done.stderr)
    share = (waited_us() - before) / (1e6 * (time.monotonic() - began))
    why = None if done.returncode == 0 else f"{done.stdout}{done.stderr}".strip()
    return why, share


def shaping_lacks() -> str | None:
    """Returns why this machine cannot shape traffic as the peers do, if so."""
    command = ["unshare", "--net", "tc", "-batch", "-"]
    done = subprocess.run(command, input=shaper("lo", 1.0), capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[0]


def met(
    peer: Peer,
    program: Path,
    team: Path,
    duration_s: float,
    runs: Runs,
    *,
    bulk: bool,
    options: tuple[str, ...] = (),
    shape_mbps: float | None = None,
) -> None:
    """Makes one run of a peer, with these options of `coorp emu`, and robots shaped to a rate."""
    with tempfile.TemporaryDirectory() as name:
        report, shared = Path(name) / "report.json", Path(name) / "shared"
        shared.mkdir()
        player = [sys.executable, str(PLAYER), peer.how, "--duration", f"{duration_s:g}", "--folder", str(shared)]
        player += ["--bulk"] if bulk else []
        player += [] if shape_mbps is None else ["--shape", f"{shape_mbps:g}"]
        why, waited = emulate(
            [str(program), "emu", str(team), "--json", str(report), "--quiet", *options, "--", *player]
        )
        if why is not None:
            runs.failures.append(why)
            return
        robots = [json.loads(path.read_text()) for path in shared.glob("*.json")]
        emulator = json.loads(report.read_text())
    asked = sum(robot["asked"] for robot in robots)
    took = sorted(took for robot in robots for took in robot["round_trips_ms"])
    lost = asked - len(took)
    took += [math.inf] * lost
    figures = {
        "p50": took[int(0.5 * asked)],
        "p99": took[int(0.99 * asked)],
        "over": 100.0 * sum(trip > BOUND_MS for trip in took) / asked,
        "lost": 100.0 * lost / asked,
        "mbps": sum(robot["bulk_mbps"] or 0.0 for robot in robots) if bulk else math.nan,
    }
    runs.add(figures, emulator, waited)


def cell(runs: Runs, name: str, digits: int) -> str:
    """Returns a figure's mean, and its spread if there is more than one run."""
    spread = runs.spread(name)
    if math.isinf(spread.mean):
        return "lost"
    one = number(spread.mean, digits)
    return one if math.isnan(spread.mean) or len(runs.figures) < 2 else f"{one} ± {number(spread.deviation, digits)}"


def show_emulator(title: str, runs: Iterable[tuple[str, Runs]], *, markdown: bool) -> None:
    """Prints the emulator's lateness, and how often it kept up."""
    rows = []
    for name, those in runs:
        timings = those.timings
        worst = [
            max((timing[f"{point}_us"] for timing in timings), default=math.nan) for point in ("p50", "p99", "max")
        ]
        waited = sum(those.waited) / len(those.waited) if those.waited else math.nan
        kept_up = f"{those.kept_up} of {len(timings) + len(those.failures)}"
        rows.append([name, kept_up, *(number(late, 0) for late in worst), percent(waited, 0)])
    show([title, "kept up", "late p50 us", "p99", "max", "waited for a core"], rows, markdown=markdown)


def failures(runs: Iterable[tuple[str, Runs]]) -> bool:
    """Prints which runs failed; returns whether any did."""
    said = False
    for name, those in runs:
        for why in those.failures:
            print(f"{name}: a run failed:\n{why}\n")
            said = True
    return said
