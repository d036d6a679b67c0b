"""Tests agents that protect unchanged programs, under faults: that no stream loses a byte, and no machine stays
changed.

    cargo build --release -p coorp-cli
    sudo python studies/protect_faults.py [--runs 200] [--seed 1] [--quick] [--markdown]

Three robots in network namespaces on one bridge, each with a card of 50 Mbit/s, and `coorp up --protect`. Their
programs (lib/streams.py) send over TCP in both directions, and check every byte: bulk by a rule and by its backlog,
control by a rule and by its period. Some streams begin before the agents, some while they run, and some after one was
killed. Requests by UDP may get lost, and are counted.

Each run has faults drawn from its seed, for some three seconds. Faults of agents, including the leader's: `kill -9`, an
orderly end, a stop of up to two seconds. Faults of cards: down, unplugged, without its address, with a shorter MTU. In
one of four runs a robot dies: its agent and its programs, in half of these runs after its card was unplugged.

A run fails if

- a byte differs from the sent one. The bytes from a robot that died must be a prefix;
- a stream between two living robots breaks after its first byte, or has not reached its end, confirmed by both hashes,
  60 s after its programs were told to end. That is long because TCP may wait for a time-out of more than 10 s: what a
  killed agent held is lost, and a connection that was held for seconds assumes round trips of seconds. Runs in which it
  takes more than 10 s are counted. A stream that is reset before its first byte is opened again, and counted: a robot
  that loses its address forgets half-open connections;
- an agent ends by itself, does not carry packets again after the faults, or does not end on request;
- `ip rule`, `ip route show table all`, `ip link` or `rp_filter` are not as before, to the byte. A killed agent leaves
  its two rules, which the next start must clear, and a loose `rp_filter`, which stays.

In half of the runs the streams end after the agents, in the others before. A run that fails is printed with the command
that repeats it, with the same plan and nearly the same timing. `--quick` has two runs.

Needs root, TUN and `tc` with `tbf`, and says so without.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.lan import HUB, Lan, address, answer, ask, card, end, ip, is_possible, tell
from lib.simulator import REPOSITORY, binary
from lib.streams import Stream, describe
from lib.table import number, percent, show

ROBOTS = ("one", "two", "three")
PROGRAMS = REPOSITORY / "studies" / "lib" / "streams.py"
KINDS = {"bulk": 9_000, "backlog": 9_100, "control": 9_200, "periodic": 9_300}
"""The kinds of streams, by a rule or by their traffic, with their first ports."""
RULES = """
[[protect]]
as = "bulk"
ports = "9000-9099"
[[protect]]
as = "control"
ports = "9200-9299"
"""
SHAPE = ("tbf", "rate", "50mbit", "burst", "32k", "limit", "300k")
MTU = 1_500
RUNS, QUICK_RUNS = 200, 2
UP_S = (0.3, 0.6)
"""The span in which agents start."""
WHILE_S, FAULTS_S, LAST_S = 1.2, 1.4, 3.2
"""The time until which streams begin while agents run; the beginning of faults, and of the last one."""
GO_ON_MAX_S = 10.0
"""The longest time until an agent is up, and until streams are at their ends in a run that does not count as slow."""
ARRIVE_MAX_S = 60.0
END_MAX_S = 5.0
CALM_S = 0.5
LOG_LINES = 25
CARD = {"down": "up", "unplug": "plug", "unset": "set", "shorten": "lengthen"}
"""Faults of cards, and the actions that end them."""
FAULTS = ("kill", "end", "stop", *CARD, "die")
LEFT = re.compile(r"^519[01]:.*\n", re.MULTILINE)
"""The rules of an agent that was killed."""
SEEN = (
    "ip rule; echo; ip -6 rule; echo; ip route show table all; echo; ip -6 route show table all; echo; ip link; echo; "
    "grep . /proc/sys/net/ipv4/conf/*/rp_filter"
)
STRICT = "/proc/sys/net/ipv4/conf/eth0/rp_filter:1"
LOOSE = "/proc/sys/net/ipv4/conf/eth0/rp_filter:2"
LEADS = re.compile(r"driver: (\w+) leads")
PASSED = re.compile(r"is (bulk|control): (.*)")


@dataclass(frozen=True)
class Step:
    """An action on a robot, and its time."""

    at_s: float
    robot: str
    do: str
    value: int = 0


@dataclass
class Plan:
    """A run, as drawn from its seed."""

    seed: int
    streams: dict[str, tuple[Stream, float]] = field(default_factory=dict)
    """The streams by name, each with its beginning."""
    steps: list[Step] = field(default_factory=list)
    dies: str | None = None
    agents_end_first: bool = False

    @staticmethod
    def draw(seed: int) -> Plan:
        draw, plan = random.Random(seed), Plan(seed)
        plan.agents_end_first = draw.random() < 0.5
        for robot in ROBOTS:
            plan.add(draw.uniform(*UP_S), robot, "start")
        free_s = {(robot, of): FAULTS_S for robot in ROBOTS for of in ("agent", "card")}
        killed, at_s = draw.choice(ROBOTS), draw.uniform(FAULTS_S, FAULTS_S + 0.4)
        plan.add(at_s, killed, "kill")
        after_s = at_s + 0.1
        free_s[killed, "agent"] = plan.start_again(draw, at_s, killed)
        if draw.random() < 0.25:
            plan.dies = draw.choice(ROBOTS)
        for _ in range(draw.randint(3, 6)):
            robot, of = draw.choice(list(free_s))
            at_s = free_s[robot, of] + draw.uniform(0.0, 0.8)
            if at_s > LAST_S or robot == plan.dies:
                continue
            harm = plan.harm_agent if of == "agent" else plan.harm_card
            free_s[robot, of] = harm(draw, at_s, robot)
        dead_s = float("inf")
        if plan.dies:
            dead_s = max(free_s[plan.dies, "agent"] if killed == plan.dies else 0.0, draw.uniform(2.2, LAST_S))
            plan.let_die(draw, min(dead_s, LAST_S), plan.dies)
        plan.steps.sort(key=lambda step: step.at_s)
        kinds = [*KINDS, *draw.choices(list(KINDS), k=2), *draw.choices(list(KINDS), k=2)]
        begins = [*[0.0] * len(KINDS), WHILE_S, WHILE_S, after_s, after_s]
        for place, (kind, begin_s) in enumerate(zip(kinds, begins, strict=True)):
            opener, answerer = draw.sample(ROBOTS, 2)
            if begin_s == after_s and killed not in (opener, answerer):
                opener = killed
            when = "before" if begin_s == 0.0 else "while" if begin_s == WHILE_S else "after"
            name = f"{place}-{kind}-{when}"
            stream = Stream(name, opener, answerer, KINDS[kind] + place, kind in ("bulk", "backlog"))
            plan.streams[name] = (stream, begin_s)
        return plan

    def add(self, at_s: float, robot: str, do: str, value: int = 0) -> None:
        self.steps.append(Step(at_s, robot, do, value))

    def start_again(self, draw: random.Random, at_s: float, robot: str) -> float:
        """Starts the agent again, in most cases. Returns the time at which the agent is free for another fault."""
        if draw.random() < 0.3:
            return float("inf")
        at_s += draw.uniform(0.05, 1.0)
        self.add(at_s, robot, "start")
        return at_s + 0.2

    def harm_agent(self, draw: random.Random, at_s: float, robot: str) -> float:
        do = draw.choice(("kill", "end", "stop"))
        self.add(at_s, robot, do)
        if do != "stop":
            return self.start_again(draw, at_s, robot)
        at_s += draw.uniform(0.5, 2.0)
        self.add(at_s, robot, "continue")
        return at_s + 0.2

    def harm_card(self, draw: random.Random, at_s: float, robot: str) -> float:
        do = draw.choice(list(CARD))
        self.add(at_s, robot, do, draw.randrange(1_280, MTU, 20) if do == "shorten" else 0)
        at_s += draw.uniform(0.1, 1.5)
        self.add(at_s, robot, CARD[do])
        return at_s + 0.2

    def let_die(self, draw: random.Random, at_s: float, robot: str) -> None:
        silent = draw.random() < 0.5
        if silent:
            self.add(at_s - 0.01, robot, "unplug")
        self.add(at_s, robot, "die")
        if silent:
            self.add(at_s + draw.uniform(0.2, 1.0), robot, "plug")

    def show(self) -> str:
        lines = [f"{step.at_s:5.2f} s  {step.robot} {step.do} {step.value or ''}".rstrip() for step in self.steps]
        for name, (stream, at_s) in self.streams.items():
            lines.append(f"{at_s:5.2f} s  {stream.opener} to {stream.answerer}: {name}")
        lines.append(f"the streams end {'after' if self.agents_end_first else 'before'} the agents")
        return "\n".join(sorted(lines))


class Robot:
    """A robot's namespace, its programs and its agent."""

    def __init__(self, lan: Lan, name: str, folder: Path, program: Path) -> None:
        self.lan, self.name, self.place = lan, name, ROBOTS.index(name)
        self.inside = lan.names[name]
        self.log = folder / f"{name}.log"
        self.log.touch()
        self.command = [str(program), "up", str(folder.parent / "team.toml"), "--robot", name, "--protect"]
        self.command += ["--state", str(folder / name)]
        self.agent: subprocess.Popen[str] | None = None
        self.is_wanted = self.was_killed = self.is_loose = self.is_dead = False
        # Whether the card has no address, and whether it had none at some time since the agent's start.
        self.is_bare = self.was_bare = False
        self.carried = self.leaders_killed = 0
        self.programs: subprocess.Popen[str] | None = None
        self.before = ""
        self.ups = 0
        self.problems: list[str] = []

    def prepare(self, streams: Path) -> None:
        for setting in ("all.rp_filter=0", "eth0.rp_filter=1"):
            self.write("ipv4", setting)
        # Then the kernel's own address is there at once, even after the card was down.
        for setting in ("eth0.accept_dad=0", "eth0.dad_transmits=0"):
            self.write("ipv6", setting)
        self.do(Step(0.0, self.name, "down"))
        self.do(Step(0.0, self.name, "up"))
        shape(self.inside)
        # The kernel gives the card its IPv6 address some time later.
        soon(lambda: "local fe80" in self.seen(), 2.0)
        self.before = self.seen()
        own = [sys.executable, str(PROGRAMS), "--robot", self.name, "--streams", str(streams)]
        self.programs = self.lan.run(self.name, *own)
        answer(self.programs)

    def close(self) -> None:
        for running in (self.programs, self.agent):
            if running is not None:
                end(running)

    def write(self, family: str, setting: str) -> None:
        where, value = setting.split("=")
        file = f"/proc/sys/net/{family}/conf/{where.replace('.', '/')}"
        self.run("sh", "-c", f"echo {value} > {file}")

    def run(self, *command: str) -> str:
        inside = ["ip", "netns", "exec", self.inside, *command]
        return subprocess.run(inside, capture_output=True, text=True, check=True).stdout

    def seen(self) -> str:
        """Returns the state that an agent may change."""
        return self.run("sh", "-c", SEEN)

    def start(self) -> None:
        self.is_wanted, self.was_killed = True, False
        self.ups, self.was_bare = self.said_up(), self.is_bare
        with self.log.open("a") as log:
            inside = ["ip", "netns", "exec", self.inside, *self.command]
            self.agent = subprocess.Popen(inside, stdout=log, stderr=log, stdin=subprocess.DEVNULL, text=True)

    def said_up(self) -> int:
        return self.log.read_text().count(" is up with policy ")

    def said_last(self) -> str:
        return self.log.read_text().rstrip().rpartition("\n")[2]

    def is_up(self) -> bool:
        """Returns whether the newest agent has said that it is up."""
        self.look()
        return self.said_up() > self.ups

    def is_refused(self) -> bool:
        """Returns whether the newest agent could not come up because it had no address."""
        return self.was_bare and self.said_up() == self.ups

    def count(self) -> int:
        """Returns the number of packets that this agent has taken from programs."""
        if self.agent is None or self.agent.poll() is not None:
            return 0
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.agent.pid}/net/dev").read_text().splitlines():
                name, _, figures = line.partition(":")
                if name.strip() == "coorp0":
                    return int(figures.split()[9])
        return 0

    def look(self) -> None:
        """Restarts an agent that found its card without an address; any other end is a problem."""
        if self.agent is None or not self.is_wanted or self.agent.poll() is None:
            return
        if self.is_refused():
            self.start()
        else:
            self.is_wanted = False
            self.problems.append(f"{self.name}'s agent ended by itself ({self.agent.returncode}): {self.said_last()}")

    def leave(self, how: int) -> None:
        """Ends the agent."""
        if self.agent is None or not self.is_wanted:
            return
        self.look()
        self.carried += self.count()
        if how == signal.SIGKILL:
            self.leaders_killed += LEADS.findall(self.log.read_text())[-1:] == [self.name]
        self.is_wanted = False
        self.agent.send_signal(how)
        try:
            code = self.agent.wait(END_MAX_S)
            if code != -how and not self.is_refused():
                self.problems.append(f"{self.name}'s agent ended with {code} after signal {how}")
        except subprocess.TimeoutExpired:
            self.problems.append(f"{self.name}'s agent did not end within {END_MAX_S:.0f} s after signal {how}")
            self.agent.kill()
            self.agent.wait()
        if how == signal.SIGKILL:
            self.was_killed = self.is_loose = True

    def do(self, step: Step) -> None:
        """Does a step of the plan."""
        hub, own = self.lan.names[HUB], address(self.place)
        match step.do:
            case "start":
                self.start()
            case "kill":
                self.leave(signal.SIGKILL)
            case "end":
                self.leave(signal.SIGTERM)
            case "stop" | "continue":
                if self.agent is not None and self.is_wanted:
                    self.agent.send_signal(signal.SIGSTOP if step.do == "stop" else signal.SIGCONT)
            case "down":
                ip("-n", self.inside, "link", "set", "eth0", "down")
            case "up":
                ip("-n", self.inside, "link", "set", "eth0", "up")
                self.route()
            case "unplug" | "plug":
                ip("-n", hub, "link", "set", card(self.place), "down" if step.do == "unplug" else "up")
            case "unset":
                self.is_bare = self.was_bare = True
                ip("-n", self.inside, "addr", "del", f"{own}/24", "dev", "eth0")
            case "set":
                ip("-n", self.inside, "addr", "add", f"{own}/24", "brd", "+", "dev", "eth0")
                self.is_bare = False
                self.route()
                self.look()
            case "shorten" | "lengthen":
                ip("-n", self.inside, "link", "set", "eth0", "mtu", str(step.value or MTU))
            case _:
                assert self.programs is not None
                self.programs.kill()
                self.leave(signal.SIGKILL)
                self.programs.wait()
                self.is_dead = True

    def route(self) -> None:
        """Restores the route that the kernel does not restore itself."""
        ip("-n", self.inside, "route", "replace", "224.0.0.0/4", "dev", "eth0")

    def settle(self) -> None:
        """Ends the agent, and checks that it has left nothing behind."""
        if self.was_killed:
            self.compare("a kill", left=True)
            self.start()
            if not soon(self.is_up, GO_ON_MAX_S):
                self.problems.append(f"{self.name}'s agent does not start after it was killed")
        self.leave(signal.SIGTERM)
        self.compare("an orderly end", left=False)

    def compare(self, after: str, *, left: bool) -> None:
        def same() -> bool:
            now, before = self.seen(), self.before
            if left:
                now = LEFT.sub("", now)
            return now == (before.replace(STRICT, LOOSE) if self.is_loose and LOOSE in now else before)

        if not soon(same, 2.0):
            old, new = self.before.splitlines(), self.seen().splitlines()
            more = [f"+{line}" for line in new if line not in old] + [f"-{line}" for line in old if line not in new]
            self.problems.append(f"{self.name} is not as before, after {after}: {more or 'another order'}")


def soon(holds: Callable[[], bool], within_s: float) -> bool:
    """Waits until a condition holds. Returns False if it does not within this time."""
    until_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.05)
    return True


@dataclass
class Found:
    """The findings of a run."""

    problems: list[str] = field(default_factory=list)
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    streams: collections.Counter[str] = field(default_factory=collections.Counter)
    cut: int = 0
    bytes: collections.Counter[str] = field(default_factory=collections.Counter)
    resumed_s: list[float] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    """How long it took in each run until all streams were at their ends, once their programs were told to end."""
    passed: collections.Counter[str] = field(default_factory=collections.Counter)
    udp: collections.Counter[str] = field(default_factory=collections.Counter)
    carried: int = 0
    leaders_killed: int = 0
    resets: int = 0
    took_s: list[float] = field(default_factory=list)

    def add(self, other: Found) -> None:
        for one in dataclasses.fields(Found):
            mine, more = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, collections.Counter):
                mine.update(more)
            else:
                setattr(self, one.name, mine + more)


def run(plan: Plan, folder: Path, program: Path) -> Found:
    """Makes one run."""
    began_s, found = time.monotonic(), Found()
    with Lan(list(ROBOTS)) as lan, contextlib.ExitStack() as ends:
        robots = {name: Robot(lan, name, folder, program) for name in ROBOTS}
        streams = folder / "streams.json"
        addresses = {name: address(place) for place, name in enumerate(ROBOTS)}
        streams.write_text(describe([stream for stream, _ in plan.streams.values()], addresses))
        for robot in robots.values():
            ends.callback(robot.close)
        each(robots, lambda robot: robot.prepare(streams))
        last_s = carry_out(plan, robots, found)
        conclude(plan, robots, found, last_s)
        for robot in robots.values():
            found.carried += robot.carried
            found.leaders_killed += robot.leaders_killed
            found.problems += robot.problems
            found.passed.update(f"{kind}: {why}" for kind, why in PASSED.findall(robot.log.read_text()))
    found.took_s.append(time.monotonic() - began_s)
    return found


def each(robots: dict[str, Robot], do: Callable[[Robot], None]) -> None:
    """Does something to all robots at once."""
    with ThreadPoolExecutor(len(robots)) as pool:
        list(pool.map(do, robots.values()))


def living(robots: dict[str, Robot]) -> list[subprocess.Popen[str]]:
    return [robot.programs for robot in robots.values() if robot.programs and not robot.is_dead]


def carry_out(plan: Plan, robots: dict[str, Robot], found: Found) -> float:
    """Carries out the plan's beginnings and faults. Returns the time at which the last one was over."""
    todo: list[tuple[float, Step | Stream]] = [(step.at_s, step) for step in plan.steps]
    todo += [(at_s, stream) for stream, at_s in plan.streams.values()]
    began_s = last_s = time.monotonic()
    for at_s, what in sorted(todo, key=lambda one: one[0]):
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        if isinstance(what, Stream):
            opener, answerer = robots[what.opener], robots[what.answerer]
            if not opener.is_dead and not answerer.is_dead and opener.programs:
                tell(opener.programs, f"open {what.name}")
            continue
        robots[what.robot].do(what)
        last_s = time.monotonic()
        found.faults[what.do] += 1
    return last_s


def conclude(plan: Plan, robots: dict[str, Robot], found: Found, last_s: float) -> None:
    """Checks that everything continues, and ends properly."""
    for programs in living(robots):
        tell(programs, "mark")
    for robot in robots.values():
        if robot.is_wanted and not soon(robot.is_up, GO_ON_MAX_S):
            found.problems.append(f"{robot.name}'s agent is not up")
    time.sleep(max(0.0, last_s + CALM_S - time.monotonic()))
    for robot in robots.values():
        robot.look()
        before = robot.count()
        # A robot without programs has nothing to carry.
        if robot.is_wanted and not robot.is_dead and not soon(lambda robot=robot, n=before: robot.count() > n, 2.0):
            found.problems.append(f"{robot.name}'s agent runs, but does not carry programs' packets")
    if plan.agents_end_first:
        each(robots, lambda robot: robot.leave(signal.SIGTERM))
        time.sleep(CALM_S)
    told_s = time.monotonic()
    reports = finish(plan, robots)
    found.arrived_s.append(time.monotonic() - told_s)
    judge(plan, reports, found)
    each(robots, Robot.settle)


def finish(plan: Plan, robots: dict[str, Robot]) -> dict[str, Any]:
    """Makes all streams end. Returns the last reports, by robot and stream."""
    until_s = time.monotonic() + ARRIVE_MAX_S
    for programs in living(robots):
        tell(programs, "finish")
    while True:
        reports = {
            name: ask(robot.programs, "report")
            for name, robot in robots.items()
            if robot.programs and not robot.is_dead
        }
        sides = [
            reports[robot]["streams"].get(stream.name) or {}
            for stream, _ in plan.streams.values()
            if plan.dies not in (both := (stream.opener, stream.answerer))
            for robot in both
        ]
        if all(side.get("done") or side.get("wrong") for side in sides) or time.monotonic() > until_s:
            return reports
        time.sleep(0.05)


def judge(plan: Plan, reports: dict[str, Any], found: Found) -> None:
    """Compares the reports of each stream's ends."""
    for stream, _ in plan.streams.values():
        both = (stream.opener, stream.answerer)
        sides = {robot: reports[robot]["streams"].get(stream.name) or {} for robot in both if robot in reports}
        _, kind, when = stream.name.split("-")
        found.streams[f"{kind}, {when}"] += 1
        found.cut += plan.dies in both and any(side.get("bytes") for side in sides.values())
        for robot, side in sides.items():
            found.bytes[f"{kind}, {when}"] += side.get("bytes", 0)
            if side.get("wrong"):
                found.problems.append(f"{stream.name} at {robot}: {side['wrong']}")
            if side.get("resumed_s") is not None and plan.dies not in both:
                found.resumed_s.append(side["resumed_s"])
        if plan.dies in both:
            continue
        opener, answerer = (sides[robot] for robot in both)
        if opener.get("wrong") or answerer.get("wrong"):
            continue
        if not (opener.get("done") and answerer.get("done")):
            brief = {robot: [side.get(what) for what in ("sent", "received", "broke")] for robot, side in sides.items()}
            found.problems.append(f"{stream.name} is not at its end after {ARRIVE_MAX_S:.0f} s: {brief}")
        elif opener["sent"] != answerer["received"] or answerer["sent"] != opener["received"]:
            found.problems.append(f"{stream.name}: the hashes of both ends are not the same")
    for robot, report in reports.items():
        found.resets += report["resets"]
        found.udp.update(report["udp"])
        if report["udp"]["wrong"]:
            found.problems.append(f"{robot}: {report['udp']['wrong']} datagrams are not what was sent")


def report(found: Found, runs: int, *, markdown: bool) -> None:
    """Prints the tables."""
    print(f"{runs} runs of {statistics.fmean(found.took_s):.1f} s (at most {max(found.took_s):.1f} s).\n")
    rows = [[name, f"{found.faults[name]:,}"] for name in FAULTS]
    show(["fault", "times"], rows, markdown=markdown)
    rows = [[name, f"{count:,}", number(found.bytes[name] / 1e6, 2)] for name, count in sorted(found.streams.items())]
    show(["streams, begun", "count", "MB checked"], rows, markdown=markdown)
    slow = sum(took > GO_ON_MAX_S for took in found.arrived_s)
    lost = 1.0 - found.udp["answered"] / found.udp["asked"] if found.udp["asked"] else float("nan")
    passed = (f"{count:,} {of}" for of, count in sorted(found.passed.items()))
    for line in (
        f"{found.leaders_killed} of the agents that were killed, by themselves or with their robots, led the team",
        f"{found.cut} of the streams were cut off by a robot's death; what had come was a prefix",
        f"{found.resets} connections were reset before their first byte, and opened again",
        f"the next record after the last fault: {spread(found.resumed_s)}",
        f"all streams of a run at their ends: {spread(found.arrived_s)}; in {slow} runs after {GO_ON_MAX_S:.0f} s",
        f"requests by UDP without a reply: {percent(lost)} of {found.udp['asked']:,}",
        f"{found.carried:,} packets passed agents; how often a flow was taken for what: {'; '.join(passed)}",
    ):
        print(f"- {line}" if markdown else line)


def spread(took_s: list[float]) -> str:
    took = sorted(took_s) or [float("nan")]
    p50, p99 = (took[int(share * (len(took) - 1))] for share in (0.5, 0.99))
    return f"p50 {p50:.2f} s, p99 {p99:.2f} s, at most {took[-1]:.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"number of runs (default: {RUNS})")
    parser.add_argument("--seed", type=int, default=1, help="the first run's seed; each run has the next one")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    arguments = parser.parse_args()
    program = binary()
    if program is None or not is_possible():
        return 0
    if (why := impossible()) is not None:
        print(f"SKIPPED: {why}")
        return 0
    runs = QUICK_RUNS if arguments.quick else arguments.runs
    total = Found()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        robots = [
            f'[[robot]]\nname = "{robot}"\naddresses = ["{address(place)}"]\ninterfaces = ["eth0"]\n'
            f"leader = {str(place == 0).lower()}\n"
            for place, robot in enumerate(ROBOTS)
        ]
        (folder / "team.toml").write_text("\n".join([*robots, RULES]))
        subprocess.run([str(program), "keys", "init", str(folder / "team.toml")], check=True, capture_output=True)
        for seed in range(arguments.seed, arguments.seed + runs):
            plan, own = Plan.draw(seed), folder / str(seed)
            own.mkdir()
            if runs == 1:
                print(plan.show(), end="\n\n")
            found = run(plan, own, program)
            for problem in found.problems:
                print(f"FAIL: seed {seed}: {problem}")
            if found.problems:
                for robot in ROBOTS:
                    lines = (own / f"{robot}.log").read_text().splitlines()
                    print(f"The end of {robot}'s log:", *lines[-LOG_LINES:], sep="\n  ")
                print(f"to repeat it: sudo python studies/protect_faults.py --seed {seed} --runs 1", flush=True)
            total.add(found)
    report(total, runs, markdown=arguments.markdown)
    if not total.carried:
        total.problems.append("no packet passed an agent")
        print(f"FAIL: {total.problems[-1]}")
    return 1 if total.problems else 0


def impossible() -> str | None:
    """Returns why a card cannot be shaped or protected, if so."""
    if not Path("/dev/net/tun").exists():
        return "the agents need /dev/net/tun"
    try:
        with Lan(["one"]) as lan:
            shape(lan.names["one"])
    except (OSError, subprocess.CalledProcessError) as error:
        return f"the cards need tc with tbf: {error}"
    return None


def shape(inside: str) -> None:
    """Gives a card its rate."""
    command = ["tc", "-n", inside, "qdisc", "replace", "dev", "eth0", "root", *SHAPE]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
