"""Measures the age of gathered robot states: tables II to V of Dust, beside plain CycloneDDS, Fast DDS and Zenoh.

    pip install . ./live cyclonedds==11.0.1 eclipse-zenoh==1.10.2; sudo apt install g++ libfastrtps-dev
    python studies/fleet.py [--quick] [--markdown] [--robots 10,30,50] [--resume]
    sudo env PATH="$PATH" python studies/fleet.py --hosts [--quick] [--markdown]

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

With `--hosts`, each robot is a host: a process in its own network namespace, on the channel of examples/navigation.toml
by `coorp emu` (needs root). There, 10 and 30 robots publish every 33 and every 10 ms, each on its own topic, and 300
lists are made: that channel does not carry a thousand states a second of each. *frames/s* are those on the air from the
start of the processes to their end. A `*` also marks rows in which the emulator did not keep up.

Differences from Dust: ROS 2 is left out (its middleware is used directly), the list is used where it is made, and
Dust's computers had 6 to 12 cores. If something is missing, the study says so and continues with the others. Each row
is saved when it is complete (target/studies/fleet/rows.jsonl); `--resume` continues an earlier run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.emulated import emulator
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
CHANNEL = REPOSITORY / "examples" / "navigation.toml"
# With enough participants on one machine.
CYCLONE = """<CycloneDDS><Domain><General><Interfaces><NetworkInterface name="%s" multicast="true"/></Interfaces>
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


def on_the_air(robots: int) -> str:
    """Returns a team file of hosts on one channel, without addresses: robots find each other."""
    names = ["base", *(f"r-{place + 1}" for place in range(robots))]
    text = "".join(f'[[robot]]\nname = "{name}"\nleader = {str(name == "base").lower()}\n' for name in names)
    # The section of the example, to the next one.
    return text + "[air]" + CHANNEL.read_text().split("[air]", 1)[1].split("\n[", 1)[0]


@dataclass
class Place:
    """Where the processes of a measurement run."""

    processes: int = PROCESSES
    """Number of processes that the robots share."""
    interface: str = "lo"
    namespaces: str | None = None
    """What the names of the hosts' namespaces begin with; none on one host."""

    def inside(self, host: str) -> list[str]:
        """Returns the beginning of a command that runs on a host."""
        return [] if self.namespaces is None else ["ip", "netns", "exec", self.namespaces + host]


@dataclass
class Fleet:
    """The processes of one measurement."""

    folder: Path
    command: list[str]
    place: Place
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, host: str, *more: str) -> subprocess.Popen[str]:
        """Starts a process, which ends with the others."""
        uri = CYCLONE % self.place.interface
        with (self.folder / f"errors-{len(self.processes)}").open("w") as errors:
            self.processes.append(
                subprocess.Popen(
                    [*self.place.inside(host), *self.command, *more],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    bufsize=1,
                    env=os.environ | {"CYCLONEDDS_URI": uri, "FASTDDS_LIBRARY": str(FAST_LIBRARY)},
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


@contextlib.contextmanager
def air(program: Path, folder: Path, robots: int, report: dict[str, Any]) -> Iterator[Place]:
    """Puts hosts on the air while the context is open, and then fills the report."""
    written = folder / "report.json"
    command = [str(program), "emu", str(folder / "team.toml"), "--json", str(written)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert running.stderr
    try:
        # 'N robots are on the air', or why not.
        said = running.stderr.readline()
        if " on the air" not in said:
            sys.exit(f"coorp emu: {said}{running.stderr.read()}".strip())
        yield Place(robots, "wlan0", f"coorp-{running.pid}-")
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate()
    report.update(json.loads(written.read_text()))


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


def measured(
    system: str,
    robots: int,
    period_ms: int,
    many_to_one: bool,
    lists: int,
    *,
    parts: bool = False,
    over: Path | None = None,
) -> Found:
    """Measures one system once, over the emulator `over` if given; missing figures are NaN."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "team.toml").write_text(team(robots) if over is None else on_the_air(robots))
        command = [sys.executable, str(ROBOTS), system, "--folder", name, "--robots", str(robots)]
        command += ["--period", str(period_ms / 1e3), "--lists", str(lists)]
        command += ["--many-to-one"] if many_to_one else []
        command += ["--parts"] if parts else []
        if system == "coorp-keys":
            keys = [sys.executable, "-m", "coorp", "keys", "init", str(folder / "team.toml")]
            subprocess.run(keys, capture_output=True, check=True)
        if over is None:
            return watched(Fleet(folder, command, Place()))
        report: dict[str, Any] = {}
        with air(over, folder, robots, report) as place:
            found = watched(Fleet(folder, command, place))
        sent = sum(interface["sent"] for interface in report["interfaces"])
        return {**found, "frames": sent / report["seconds"], "kept_up": float(report["kept_up"])}


def watched(fleet: Fleet) -> Found:
    """Conducts a measurement, and ends its processes in time."""
    watch = threading.Timer(DONE_S, fleet.stop)
    watch.start()
    try:
        return conduct(fleet)
    except (EOFError, BrokenPipeError, json.JSONDecodeError):
        print(f"{' '.join(fleet.command[2:])}: {fleet.errors()}", file=sys.stderr)
        return NOTHING
    finally:
        watch.cancel()
        fleet.stop()
        for process in fleet.processes:
            process.wait()


def conduct(fleet: Fleet) -> Found:
    """Starts all processes, and makes them measure at the same time."""
    began_s = time.monotonic()
    gathers = fleet.start("base")
    line(gathers)
    count = fleet.place.processes
    robots = [fleet.start(f"r-{part + 1}", "--some", str(part), str(count)) for part in range(count)]
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

    def __init__(self, *, resume: bool, over: Path | None = None) -> None:
        self.over = over
        self.rows = ROWS if over is None else ROWS.with_name("hosts.jsonl")
        self.known: dict[str, Found] = {}
        self.lost: dict[tuple[str, int], list[int]] = {}
        """For each system and period: the numbers of robots at which it did not find all robots."""
        self.rows.parent.mkdir(parents=True, exist_ok=True)
        if resume and self.rows.is_file():
            for row in self.rows.read_text().splitlines():
                case, found = json.loads(row)
                self.known[case] = found
        else:
            self.rows.write_text("")

    def get(self, system: str, robots: int, period_ms: int, many_to_one: bool, lists: int) -> Found:
        """Measures, or returns a stored measurement."""
        case = f"{system} {robots} {period_ms} {many_to_one} {lists}"
        lost = self.lost.setdefault((system, period_ms), [])
        if case not in self.known and len(lost) >= TRIES:
            return NOTHING
        if case not in self.known:
            if sys.stderr.isatty():
                print(f"{case} ...", end="\r", file=sys.stderr, flush=True)
            self.known[case] = measured(system, robots, period_ms, many_to_one, lists, over=self.over)
            with self.rows.open("a") as rows:
                rows.write(json.dumps([case, self.known[case]]) + "\n")
        if not self.known[case]["found"] >= robots:
            lost.append(robots)
        return self.known[case]


def row(robots: int, many_to_one: bool, system: str, found: Found) -> list[str]:
    """Returns a row of the table."""
    limited = min(found["made"], found["listed"]) < ENOUGH or not found.get("kept_up", 1.0)
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
        *([number(found["frames"], 0)] if "frames" in found else []),
    ]


@dataclass
class Effort:
    """What is measured."""

    robots: str
    periods_ms: str
    topologies: tuple[bool, ...]
    lists: int


FULL = Effort("10,30,50,70,90,110,130,150", "1,2", (True, False), 1000)
QUICK = Effort("10", "2", (True, False), 100)
HOSTS = Effort("10,30", "33,10", (False,), 300)
QUICK_HOSTS = Effort("4", "33", (False,), 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few robots and lists, one period")
    parser.add_argument("--hosts", action="store_true", help="each robot on a host of its own, over emulated WiFi")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--resume", action="store_true", help="keep the measurements of an earlier run")
    parser.add_argument("--robots", help="numbers of robots, such as 10,30,50")
    parser.add_argument("--periods", help="in ms")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which of them")
    asked = parser.parse_args()
    over = emulator() if asked.hosts else None
    if asked.hosts and over is None:
        return
    effort = {
        (False, False): FULL,
        (True, False): QUICK,
        (False, True): HOSTS,
        (True, True): QUICK_HOSTS,
    }[asked.quick, asked.hosts]
    lacks = {system: missing(system) for system in SYSTEMS if system in asked.systems.split(",")}
    systems = [system for system, what in lacks.items() if what is None]
    for system, what in lacks.items():
        if what is not None:
            print(f"{system} is skipped: {what}\n")
    counts = [int(count) for count in (asked.robots or effort.robots).split(",")]
    rows = Rows(resume=asked.resume, over=over)
    titles = ["robots, topics, system", "found", "age, ms", "p50", "p99", "missed", "cores", "robots' cores"]
    titles += ["made", "listed", *(["frames/s"] if asked.hosts else [])]
    for period_ms in map(int, (asked.periods or effort.periods_ms).split(",")):
        table = []
        for robots in counts:
            for many_to_one in effort.topologies:
                for system in systems:
                    found = rows.get(system, robots, period_ms, many_to_one, effort.lists)
                    table.append(row(robots, many_to_one, system, found))
        print(f"States and lists every {period_ms} ms{', each robot a host' if asked.hosts else ''}\n")
        show(titles, table, markdown=asked.markdown)
    for (system, period_ms), robots in rows.lost.items():
        given_up = ", and was then dropped" if len(robots) >= TRIES else ""
        if robots:
            counts_of = ", ".join(map(str, robots))
            print(f"{system} at {period_ms} ms did not find all of {counts_of} robots on this machine{given_up}")


if __name__ == "__main__":
    main()
