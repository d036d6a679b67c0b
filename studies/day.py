"""Runs three robots for a day, and checks that memory, threads and descriptors do not grow.

    python studies/day.py [--hours 8] [--speed 1] [--out day] [--quick] [--markdown]

Three robots, a process each, on loopback. Each sends control 30 times a second and receives everyone's, and every 10 s
sends 10 MB of bulk to the next robot, which drops it. `--speed` makes messages that many times as frequent, so that the
messages of 8 hours take less. Once a minute, `day.csv` in `--out` gets each robot's memory, its allocated memory,
threads and descriptors, and its counts of messages sent and received. The table at the end, or after Ctrl-C or SIGTERM,
compares the ten minutes after the first ten with the last ten, by their medians.

Exits with 1 if a robot has died, or in the last ten minutes has more threads or descriptors than ever in those first
ten, or more memory than `MORE` allows. `--quick` runs for 20 s, for CI, and does not judge memory, which still grows.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import itertools
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path

from lib.processes import free_ports, ticks
from lib.simulator import binary
from lib.table import number, percent, show

ROBOTS = ("r1", "r2", "r3")
PORTS = 16
"""Ports of one robot."""
PERIOD_S = 1 / 30
LATE_S = PERIOD_S
"""The age at which a control message is late: the next one is due."""
BULK = bytes(10_000_000)
BULK_PERIOD_S = 10.0
MORE = {"allocated_mb": 1.0, "memory_mb": 10.0, "threads": 2, "descriptors": 2}
"""Maximum growth of a robot after the first ten minutes. Allocated memory, in 8 hours: less than a byte for each of 1.7
million messages, and 350 bytes for each of 2,880 pieces of bulk. Memory: glibc keeps freed memory in each thread's
arena, and an arena may fill late with the 8 MB that bulk receives ahead of its disk. Threads that wait for the disk
come and go, with a file each."""
STATE = struct.Struct("<d")


class Mallinfo2(ctypes.Structure):
    """The statistics of glibc's allocator (mallinfo2(3))."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@dataclass(frozen=True)
class Sample:
    """A line of the CSV file. Counts are since the robot's start."""

    at_s: float
    robot: str
    memory_mb: float
    allocated_mb: float
    """Memory that the allocator has given out; it keeps more than that from the kernel."""
    threads: int
    descriptors: int
    cpu_s: float
    sent: int
    delivered: int
    late: int
    bulk_sent: int
    bulk_delivered: int
    bulk_failed: int


@dataclass(frozen=True)
class Pace:
    """The times of samples, and the spans that are compared."""

    period_s: float
    warm_s: float
    """Time for which a robot may grow."""
    span_s: float
    """The length of the two spans that are compared."""
    judges_memory: bool


FULL = Pace(60.0, 600.0, 600.0, judges_memory=True)
QUICK = Pace(1.0, 12.0, 4.0, judges_memory=False)
QUICK_S = 20.0


def be_robot(name: str, folder: Path, speed: float) -> None:
    """Runs a robot's program, which writes a line with its counts for each line that it reads."""
    period_s, bulk_period_s = PERIOD_S / speed, BULK_PERIOD_S / speed
    import coorp

    node = coorp.Node(folder / "team.toml", robot=name, state=folder / name)
    count = dict.fromkeys(("sent", "delivered", "late", "bulk_sent", "bulk_delivered", "bulk_failed"), 0)
    publisher, states = node.control_publisher("state", period=period_s), node.control_subscriber("state")
    receiver, following = node.bulk_receiver(), ROBOTS[(ROBOTS.index(name) + 1) % len(ROBOTS)]

    def tell() -> None:
        for due_s in itertools.count(time.monotonic(), period_s):
            time.sleep(max(0.0, due_s - time.monotonic()))
            publisher.put(STATE.pack(time.monotonic()))
            count["sent"] += 1

    def hear() -> None:
        while True:
            message = states.recv()
            if message.sender != name:
                count["delivered"] += 1
                count["late"] += time.monotonic() - STATE.unpack(message.data)[0] > LATE_S

    def send() -> None:
        while True:
            time.sleep(bulk_period_s)
            try:
                stream = node.bulk_stream(following, "map")
                stream.write(BULK)
                count["bulk_sent"] += 1
                stream.finish().wait()
            except coorp.NodeError:
                count["bulk_failed"] += 1

    def take() -> None:
        while True:
            receiver.recv().take()
            count["bulk_delivered"] += 1

    for target in (tell, hear, send, take):
        threading.Thread(target=target, daemon=True).start()
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Mallinfo2
    for _ in sys.stdin:
        heap = library.mallinfo2()
        print(json.dumps({**count, "allocated_mb": (heap.uordblks + heap.hblkhd) / 1e6}), flush=True)
    os._exit(0)


class Day(contextlib.ExitStack):
    """The robots, and the samples taken from them."""

    def __init__(self, program: Path, folder: Path, speed: float) -> None:
        super().__init__()
        first = free_ports(PORTS * len(ROBOTS))
        texts = (
            f'[[robot]]\nname = "{name}"\nleader = {str(place == 0).lower()}\naddresses = ["127.0.0.1"]\n'
            f"port = {first + PORTS * place}\n"
            for place, name in enumerate(ROBOTS)
        )
        (folder / "team.toml").write_text("\n".join(texts))
        subprocess.run([str(program), "keys", "init", str(folder / "team.toml")], check=True, capture_output=True)
        self.robots: dict[str, subprocess.Popen[str]] = {}
        self.samples: list[Sample] = []
        for name in ROBOTS:
            command = [sys.executable, str(Path(__file__).resolve()), "--robot", name, "--folder", str(folder)]
            command += ["--speed", str(speed)]
            # Ctrl-C is only for this process.
            pipe = subprocess.PIPE
            self.robots[name] = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
            self.callback(self.robots[name].wait)
            self.callback(self.robots[name].kill)
        self.began_s = time.monotonic()

    def sample(self, name: str) -> Sample:
        process = self.robots[name]
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{name} has died, with code {process.wait()}")
        proc = Path(f"/proc/{process.pid}")
        said = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
        found = Sample(
            at_s=round(time.monotonic() - self.began_s, 1),
            robot=name,
            memory_mb=int(said["VmRSS"].split()[0]) / 1e3,
            threads=int(said["Threads"]),
            descriptors=len(os.listdir(proc / "fd")),
            cpu_s=ticks(process.pid) / os.sysconf("SC_CLK_TCK"),
            **json.loads(answer),
        )
        self.samples.append(found)
        return found

    def run(self, out: Path, lasts_s: float, period_s: float) -> None:
        """Samples all robots until the end."""
        with (out / "day.csv").open("w", newline="") as file:
            titles = [field.name for field in fields(Sample)]
            lines = csv.writer(file)
            lines.writerow(titles)
            for due_s in itertools.count(self.began_s + period_s, period_s):
                if due_s - self.began_s > lasts_s:
                    return
                time.sleep(max(0.0, due_s - time.monotonic()))
                for name in ROBOTS:
                    sample = self.sample(name)
                    lines.writerow([getattr(sample, title) for title in titles])
                    file.flush()


def slope_per_hour(times_s: list[float], values: list[float]) -> float:
    if len(set(times_s)) < 2:
        return float("nan")
    return 3600.0 * statistics.linear_regression(times_s, values).slope


FIGURES = {
    "memory_mb": "memory, MB",
    "allocated_mb": "allocated, MB",
    "threads": "threads",
    "descriptors": "descriptors",
}


def compare(samples: list[Sample], pace: Pace) -> tuple[list[list[str]], list[str]]:
    """Returns the table's rows, with the figures that may grow, and the problems."""
    rows, problems = [], []
    for name, (figure, title) in itertools.product(ROBOTS, FIGURES.items()):
        warm = [sample for sample in samples if sample.robot == name and sample.at_s > pace.warm_s]
        if not warm:
            return [], []
        end_s = warm[-1].at_s
        begin = [getattr(sample, figure) for sample in warm if sample.at_s <= pace.warm_s + pace.span_s]
        last = [getattr(sample, figure) for sample in warm if sample.at_s > end_s - pace.span_s]
        values = [getattr(sample, figure) for sample in warm]
        first, final = statistics.median(begin), statistics.median(last)
        slope = slope_per_hour([sample.at_s for sample in warm], values) if pace.judges_memory else float("nan")
        is_memory = figure.endswith("_mb")
        digits = 1 if is_memory else 0
        row = [name, title, *(number(value, digits) for value in (first, final, max(values)))]
        rows.append([*row, number(slope, 2, sign=True)])
        allowed = MORE[figure] + (first if is_memory else max(begin))
        if final > allowed and (pace.judges_memory or not is_memory):
            problems.append(f"{name}: {title}: {final:g} in the last {pace.span_s:g} s, {first:g} after the warm-up")
    return rows, problems


def traffic(samples: list[Sample]) -> list[list[str]]:
    last = {sample.robot: sample for sample in samples}
    rows = []
    for place, (name, own) in enumerate(last.items()):
        # A robot's own messages are left out.
        due = sum(other.sent for other in last.values()) - own.sent
        bulk_due = last[ROBOTS[place - 1]].bulk_sent if len(last) == len(ROBOTS) else 0
        share = own.late / own.delivered if own.delivered else float("nan")
        bulk = f"{own.bulk_delivered:,} of {bulk_due:,}"
        core = own.cpu_s / own.at_s
        rows.append([name, f"{own.sent:,}", f"{own.delivered:,} of {due:,}", percent(share, 2), bulk, percent(core)])
    return rows


def report(samples: list[Sample], pace: Pace, *, markdown: bool) -> list[str]:
    """Prints the tables, and returns the problems."""
    rows, problems = compare(samples, pace)
    print(f"Three robots for {max((sample.at_s for sample in samples), default=0.0) / 3600:.2f} h.\n")
    if rows:
        titles = ["robot", "figure", "after the warm-up", "at the end", "most", "per hour"]
        show(titles, rows, markdown=markdown)
    else:
        print(f"The run ended within the warm-up of {pace.warm_s:g} s: nothing to compare.\n")
    titles = ["robot", "control sent", "delivered", "late", "bulk delivered", "a core's share"]
    show(titles, traffic(samples), markdown=markdown)
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0, help="duration")
    parser.add_argument("--speed", type=float, default=1.0, help="factor for the rate of messages")
    parser.add_argument("--out", type=Path, help="the folder for day.csv (default: not kept)")
    parser.add_argument("--quick", action="store_true", help="20 s, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--robot", choices=ROBOTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.robot:
        be_robot(arguments.robot, arguments.folder, arguments.speed)
        return 0
    program = binary()
    if program is None:
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pace, lasts_s = (QUICK, QUICK_S) if arguments.quick else (FULL, 3600.0 * arguments.hours)
    problems = []
    with tempfile.TemporaryDirectory() as made, Day(program, Path(made), arguments.speed) as day:
        out = arguments.out or Path(made)
        out.mkdir(parents=True, exist_ok=True)
        try:
            day.run(out, lasts_s, pace.period_s)
        except KeyboardInterrupt:
            print("Stopped early.")
        except RuntimeError as died:
            problems.append(str(died))
    problems += report(day.samples, pace, markdown=arguments.markdown)
    for problem in problems:
        print(f"FAIL: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
