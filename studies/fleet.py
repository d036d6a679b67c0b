"""Measures the age of gathered robot states: tables II to V of Dust, beside plain CycloneDDS, Fast DDS and Zenoh.

    pip install . ./live cyclonedds==11.0.1 eclipse-zenoh==1.10.2; sudo apt install g++ libfastrtps-dev
    python studies/fleet.py [--quick] [--markdown] [--robots 10,30,50] [--resume]

Robots publish a state of 128 bytes every 1 or 2 ms; one process gathers them into a list with the same period. As in
Dust, but over 1000 lists instead of 500. Many-to-one: all publish on one topic. One-to-one: each on its own.

- *age*: from creating a state to taking the list, over all states of all lists. Robots and lists have the same period
  but different phases, so even an instant network would give half a period;
- *missed*: the share of list entries with no state newer than in the previous list;
- *cores*: CPU use of the gathering process and of the robots' processes;
- *made*, *listed*: the share of the states and lists due that these processes completed. A `*` marks rows in which
  either is below 95 %: the machine's cores are the limit there, and the other figures show how each system behaves
  then, not how a network would.

All are used from Python, over this machine's loopback; robots are separate participants, in two processes. The peers
and `coorp` run without encryption; `coorp-keys` is the default: keys, and everything encrypted. coorp makes the list
itself; for the others the program does, with a dictionary and a timer. Fast DDS moves data between processes of one
machine through shared memory, as it does under ROS 2.

Differences from Dust: ROS 2 is left out (its middleware is used directly), the list is used where it is made, and
Dust's computers had 6 to 12 cores. If something is missing, the study says so and continues with the others. Each row
is saved when it is complete (target/studies/fleet/rows.jsonl); `--resume` continues an earlier run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from lib.simulator import MADE, REPOSITORY
from lib.table import number, percent, show

ROBOTS = REPOSITORY / "studies" / "lib" / "robots.py"
ROWS = MADE / "fleet" / "rows.jsonl"
FAST = REPOSITORY / "studies" / "fastdds" / "fastdds.cpp"
FAST_LIBRARY = MADE / "fleet" / "libfastdds.so"
SYSTEMS = {"coorp": "coorp", "coorp-keys": "coorp", "CycloneDDS": "cyclonedds", "Fast DDS": None, "Zenoh": "zenoh"}
"""Each one's Python package; Fast DDS has none."""
PROCESSES = 2
"""Number of processes that the robots share."""
PORT = 10_000
"""The first of the team's ports, 16 per robot."""
DONE_S = 120.0
"""Maximum duration of one measurement."""
TRIES = 3
"""After this many tries without finding all robots, a system is dropped at a period; each try takes a minute or two."""
ENOUGH = 0.95
"""Minimum share of states and lists; below it the cores are the limit."""
# On loopback, with enough participants on one machine.
CYCLONE = """<CycloneDDS><Domain><General><Interfaces><NetworkInterface name="lo" multicast="true"/></Interfaces>
</General><Discovery><MaxAutoParticipantIndex>400</MaxAutoParticipantIndex></Discovery></Domain></CycloneDDS>"""
FIGURES = ("found", "age_ms", "p50_ms", "p99_ms", "missed", "cores", "robots_cores", "made", "listed")

Found = dict[str, float]
NOTHING: Found = dict.fromkeys(FIGURES, math.nan)


def missing(system: str) -> str | None:
    """Returns what a system needs that is not installed. Compiles the library for Fast DDS."""
    if (package := SYSTEMS[system]) is not None:
        return None if importlib.util.find_spec(package) else f"the Python package {package} is not installed"
    if shutil.which("g++") is None or not Path("/usr/include/fastdds").is_dir():
        return "g++ or the Debian package libfastrtps-dev is not installed"
    FAST_LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", str(FAST), "-lfastrtps", "-lfastcdr"]
    subprocess.run([*command, "-o", str(FAST_LIBRARY)], check=True)
    return None


def team(robots: int) -> str:
    """Returns a team file on loopback. Robots join at places, which the file reserves."""
    here = 'addresses = ["127.0.0.1"]\nport = '
    text = f'[[robot]]\nname = "base"\nleader = true\n{here}{PORT}\n'
    # A file has two robots; the second one stays away.
    text += f'[[robot]]\nname = "spare"\n{here}{PORT + 16}\n'
    return text + f'[[place]]\nname = "r"\ncount = {robots}\n{here}{PORT + 32}\n'


class Fleet:
    """The processes of one measurement."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.folder, self.command = folder, command
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Starts a process, which ends with the others."""
        with (self.folder / f"errors-{len(self.processes)}").open("w") as errors:
            self.processes.append(
                subprocess.Popen(
                    [*self.command, *more],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    bufsize=1,
                    env=os.environ | {"CYCLONEDDS_URI": CYCLONE, "FASTDDS_LIBRARY": str(FAST_LIBRARY)},
                )
            )
        return self.processes[-1]

    def stop(self) -> None:
        """Ends all processes; then reads of their lines return nothing."""
        for process in self.processes:
            process.kill()

    def errors(self) -> str:
        """Returns the last error that a process reported."""
        texts = [path.read_text().strip() for path in sorted(self.folder.glob("errors-*"))]
        lines = [text.splitlines()[-1] for text in texts if text]
        return lines[0] if lines else f"not done after {DONE_S:.0f} s"


def tell(processes: list[subprocess.Popen[str]], order: str) -> None:
    """Sends a command."""
    for process in processes:
        assert process.stdin
        process.stdin.write(f"{order}\n")


def line(process: subprocess.Popen[str]) -> str:
    """Returns the next line of a process."""
    assert process.stdout
    said = process.stdout.readline().strip()
    if not said:
        raise EOFError
    return said


def measured(system: str, robots: int, period_ms: int, many_to_one: bool, lists: int, *, parts: bool = False) -> Found:
    """Measures one system once; missing figures are NaN."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "team.toml").write_text(team(robots))
        command = [sys.executable, str(ROBOTS), system, "--folder", name, "--robots", str(robots)]
        command += ["--period", str(period_ms / 1e3), "--lists", str(lists)]
        command += ["--many-to-one"] if many_to_one else []
        command += ["--parts"] if parts else []
        if system == "coorp-keys":
            keys = [sys.executable, "-m", "coorp", "keys", "init", str(folder / "team.toml")]
            subprocess.run(keys, capture_output=True, check=True)
        fleet = Fleet(folder, command)
        watch = threading.Timer(DONE_S, fleet.stop)
        watch.start()
        try:
            return conduct(fleet)
        except (EOFError, BrokenPipeError, json.JSONDecodeError):
            print(f"{system}, {robots} robots, {period_ms} ms: {fleet.errors()}", file=sys.stderr)
            return NOTHING
        finally:
            watch.cancel()
            fleet.stop()
            for process in fleet.processes:
                process.wait()


def conduct(fleet: Fleet) -> Found:
    """Starts all processes, and makes them measure at the same time."""
    began_s = time.monotonic()
    gathers = fleet.start()
    line(gathers)
    robots = [fleet.start("--some", str(part), str(PROCESSES)) for part in range(PROCESSES)]
    for process in robots:
        line(process)
    tell(fleet.processes, "go")
    line(gathers)
    started_s = time.monotonic() - began_s
    tell(robots, "count")
    gathered: dict[str, Any] = json.loads(line(gathers))
    tell(robots, "stop")
    sent = [json.loads(line(process)) for process in robots]
    together = {"robots_cores": sum(each["cores"] for each in sent), "made": min(each["made"] for each in sent)}
    return {**gathered, **together, "started_s": started_s}


class Rows:
    """The measurements, stored on disk."""

    def __init__(self, *, resume: bool) -> None:
        self.known: dict[str, Found] = {}
        self.lost: dict[tuple[str, int], list[int]] = {}
        """For each system and period: the numbers of robots at which it did not find all robots."""
        ROWS.parent.mkdir(parents=True, exist_ok=True)
        if resume and ROWS.is_file():
            for row in ROWS.read_text().splitlines():
                case, found = json.loads(row)
                self.known[case] = found
        else:
            ROWS.write_text("")

    def get(self, system: str, robots: int, period_ms: int, many_to_one: bool, lists: int) -> Found:
        """Measures, or returns a stored measurement."""
        case = f"{system} {robots} {period_ms} {many_to_one} {lists}"
        lost = self.lost.setdefault((system, period_ms), [])
        if case not in self.known and len(lost) >= TRIES:
            return NOTHING
        if case not in self.known:
            if sys.stderr.isatty():
                print(f"{case} ...", end="\r", file=sys.stderr, flush=True)
            self.known[case] = measured(system, robots, period_ms, many_to_one, lists)
            with ROWS.open("a") as rows:
                rows.write(json.dumps([case, self.known[case]]) + "\n")
        if not self.known[case]["found"] >= robots:
            lost.append(robots)
        return self.known[case]


def row(robots: int, many_to_one: bool, system: str, found: Found) -> list[str]:
    """Returns a row of the table."""
    limited = min(found["made"], found["listed"]) < ENOUGH
    return [
        f"{robots}, {'many-to-one' if many_to_one else 'one-to-one'}, {system}{' *' if limited else ''}",
        number(found["found"], 0),
        number(found["age_ms"], 2),
        number(found["p50_ms"], 2),
        number(found["p99_ms"], 2),
        percent(found["missed"]),
        number(found["cores"], 2),
        number(found["robots_cores"], 2),
        percent(found["made"], 0),
        percent(found["listed"], 0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ten robots, 2 ms, few lists")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--resume", action="store_true", help="keep the measurements of an earlier run")
    parser.add_argument("--robots", default="10,30,50,70,90,110,130,150", help="numbers of robots, such as 10,30,50")
    parser.add_argument("--periods", default="1,2", help="in ms")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which of them")
    asked = parser.parse_args()
    lacks = {system: missing(system) for system in SYSTEMS if system in asked.systems.split(",")}
    systems = [system for system, what in lacks.items() if what is None]
    for system, what in lacks.items():
        if what is not None:
            print(f"{system} is skipped: {what}\n")
    counts = [10] if asked.quick else [int(count) for count in asked.robots.split(",")]
    periods_ms = [2] if asked.quick else [int(period) for period in asked.periods.split(",")]
    rows, lists = Rows(resume=asked.resume), 100 if asked.quick else 1000
    titles = ["robots, topics, system", "found", "age, ms", "p50", "p99", "missed", "cores", "robots' cores"]
    for period_ms in periods_ms:
        table = []
        for robots in counts:
            for many_to_one in (True, False):
                for system in systems:
                    found = rows.get(system, robots, period_ms, many_to_one, lists)
                    table.append(row(robots, many_to_one, system, found))
        print(f"States and lists every {period_ms} ms\n")
        show([*titles, "made", "listed"], table, markdown=asked.markdown)
    for (system, period_ms), robots in rows.lost.items():
        given_up = ", and was then dropped" if len(robots) >= TRIES else ""
        if robots:
            counts_of = ", ".join(map(str, robots))
            print(f"{system} at {period_ms} ms did not find all of {counts_of} robots on this machine{given_up}")


if __name__ == "__main__":
    main()
