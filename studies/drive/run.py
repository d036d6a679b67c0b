"""A robot that drives by camera: figure 6 of Kwok (HPRM) with the means available here, over several transports.

    pip install '.[learn]' eclipse-zenoh==1.10.2 cyclonedds==11.0.1
    python studies/drive/run.py [--quick] [--markdown]

The four nodes of `examples/drive/app.py` are separate processes: every 33 ms the world makes a view of 12 KB and a
camera's frame of 3 MB, the agent (PPO) and the obstacle detector work on them in parallel, and the fusion decides. The
paper has CARLA, a larger policy, and YOLO on a GPU instead. Latency is the time from the end of drawing a frame to the
fused command; simulating and drawing are left out, as in the paper. Frames are drawn in a loaned buffer, or in shared
memory, if the user of a transport can do so; otherwise in private memory. 400 frames are measured, after 100.

All transports run the same nodes on the same seed. Nothing is lost, so each must give the same commands for the same
frames, and the study fails if one of ours does not. CycloneDDS represents ROS 2, because it carries ROS 2's messages;
ROS 2's own layers would come on top. 'coorp, one process' shows the nodes one after another, with no transport between
them.

Writes a CSV file of all latencies, and a picture if matplotlib is installed. Transports that are not installed are
named and skipped. `--quick` runs a few frames, for CI; its figures mean little.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import importlib.util
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.simulator import MADE, REPOSITORY
from lib.table import number, percent, show

from drive.over_cyclone import CONFIG
from drive.transports import PLAIN, PUBLISHED, SHARED, TRANSPORTS, Transport

STUDIES, EXAMPLE = REPOSITORY / "studies", REPOSITORY / "examples" / "drive"
FOLDER = MADE / "drive"
START_S, FRAME_S = 60.0, 0.5
"""Maximum duration of a run, and the addition for each frame."""
LOG_LINES = 10


@dataclass(frozen=True)
class Effort:
    """The number of frames."""

    warm_up: int
    frames: int
    rounds: int

    @property
    def steps(self) -> int:
        """All frames of a run."""
        return self.warm_up + self.frames


FULL = Effort(warm_up=100, frames=400, rounds=1)
QUICK = Effort(warm_up=5, frames=20, rounds=1)
QUICK_WITHOUT = ("zenoh-shared", "cyclone-shared")


class RunError(Exception):
    """A transport that fails."""


@dataclass
class Found:
    """The findings about a transport."""

    latencies_ms: list[float]
    commands: list[list[float]]


def run(transport: Transport, effort: Effort) -> Found:
    """Runs all nodes once."""
    with tempfile.TemporaryDirectory(prefix="coorp-drive-") as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (STUDIES, EXAMPLE))),
            "CYCLONEDDS_URI": CONFIG,
        }
        log = Path(folder) / "log"
        with log.open("wb") as out:
            nodes = [
                subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out)
                for command in transport.commands(folder, effort.steps)
            ]
            try:
                for node in nodes:
                    node.wait(START_S + FRAME_S * effort.steps)
            except subprocess.TimeoutExpired:
                raise RunError(f"it did not end in time\n{_tail(log)}") from None
            finally:
                for node in nodes:
                    with contextlib.suppress(ProcessLookupError):
                        node.terminate()
                    node.wait()
        if any(node.returncode for node in nodes):
            raise RunError(_tail(log))
        taken = json.loads((Path(folder) / "taken.json").read_text())
        answers = json.loads((Path(folder) / "fused.json").read_text())
    latencies = [1e-6 * (fused - at) for at, fused in zip(taken, answers["fused"], strict=True)]
    return Found(latencies[effort.warm_up :], answers["commands"])


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def measure(transports: list[Transport], effort: Effort) -> tuple[dict[Transport, Found], dict[Transport, str]]:
    """Runs all rounds, each with every transport once. Returns the findings, and why some transports failed."""
    found: dict[Transport, Found] = {}
    failures: dict[Transport, str] = {}
    for _ in range(effort.rounds):
        for transport in transports:
            if transport in failures:
                continue
            try:
                got = run(transport, effort)
            except RunError as problem:
                failures[transport] = str(problem)
                continue
            if transport in found:
                if found[transport].commands != got.commands:
                    failures[transport] = "two runs gave different commands"
                found[transport].latencies_ms += got.latencies_ms
            else:
                found[transport] = got
    return found, failures


def quantile(values: list[float], share: float) -> float:
    """Returns the value that this share of all values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def against(found: dict[Transport, Found], transport: Transport, key: str) -> str:
    """Returns a transport's median against CycloneDDS's in one of its forms, and the published figure."""
    for other, theirs in found.items():
        if other.key == key and not transport.key.startswith("cyclone"):
            median, base = quantile(found[transport].latencies_ms, 0.5), quantile(theirs.latencies_ms, 0.5)
            published = PUBLISHED.get(transport.name, {}).get(key)
            return percent(median / base - 1.0, sign=True) + (f" ({published})" if published else "")
    return "-"


def show_all(found: dict[Transport, Found], *, markdown: bool) -> None:
    """Prints the table."""
    rows = []
    reference = next(iter(found.values())).commands
    for transport, got in found.items():
        times = got.latencies_ms
        figures = (quantile(times, 0.5), quantile(times, 0.99), statistics.mean(times))
        same = "same" if got.commands == reference else "DIFFERENT"
        relative = (against(found, transport, PLAIN), against(found, transport, SHARED))
        rows.append([transport.name, *(number(figure, 2) for figure in figures), *relative, same])
    print("Frame taken to fused command, ms; in parentheses, HPRM's published figures against ROS 2\n")
    titles = ["transport", "p50", "p99", "mean", "p50 against DDS", "against DDS and shared_memory", "commands"]
    show(titles, rows, markdown=markdown)


def write_csv(found: dict[Transport, Found]) -> Path:
    """Writes all latencies."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "latency.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["transport", "frame", "latency_ms"])
        for transport, got in found.items():
            rows.writerows([transport.name, at, f"{value:.6f}"] for at, value in enumerate(got.latencies_ms))
    return path


def draw(found: dict[Transport, Found]) -> Path:
    """Draws boxes as in figure 6: quartiles, and whiskers to p1 and p99."""
    importlib.import_module("matplotlib").use("agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    canvas, panel = plt.subplots(figsize=(8, 4), layout="constrained")
    names = [transport.name for transport in found]
    panel.boxplot(
        [got.latencies_ms for got in found.values()], orientation="horizontal", whis=(1, 99), showfliers=False
    )
    panel.set_yticks(range(1, len(names) + 1), names)
    panel.invert_yaxis()
    panel.set(xlabel="frame taken to fused command, ms", xlim=(0, None))
    panel.grid(axis="x", alpha=0.3)
    path = FOLDER / "latency.png"
    canvas.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(canvas)
    return path


def main() -> int:
    """Measures and prints everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few frames, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    arguments = parser.parse_args()
    lacking = [module for module in ("coorp", "torch", "pettingzoo") if importlib.util.find_spec(module) is None]
    if lacking:
        print(f"skipped: {', '.join(lacking)} is not installed: pip install '.[learn]'")
        return 0
    for transport in TRANSPORTS:
        if not transport.installed:
            print(f"skipped: {transport.name} is not installed: pip install {transport.package}")
    load = os.getloadavg()[0]
    transports = [transport for transport in TRANSPORTS if transport.installed]
    if arguments.quick:
        transports = [transport for transport in transports if transport.key not in QUICK_WITHOUT]
    # Ends like Ctrl-C, so that the nodes end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found, failures = measure(transports, QUICK if arguments.quick else FULL)
    if found:
        show_all(found, markdown=arguments.markdown)
        paths = [write_csv(found)]
        if importlib.util.find_spec("matplotlib") is not None:
            paths.append(draw(found))
        print(f"written: {', '.join(str(path.relative_to(REPOSITORY)) for path in paths)}")
    reference = [got.commands for got in found.values()]
    same = all(commands == reference[0] for commands in reference)
    print(f"{'holds' if same else 'DOES NOT HOLD'}: every transport gives the same commands for the same frames")
    for transport, why in failures.items():
        print(f"FAILED: {transport.name}: {why}")
    print(f"load average before: {load:.2f} on {os.cpu_count()} cores")
    return 0 if same and not any(transport.ours for transport in failures) else 1


if __name__ == "__main__":
    sys.exit(main())
