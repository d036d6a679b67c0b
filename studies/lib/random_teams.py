"""Random teams, for claims that should hold on teams that nobody has examined.

There are two draws. `draw` is for studies/ablation.py; docs/results.md quotes its seeds, so it must not change.
`draw_wide` is wider: jitter to 5 ms, losses to 10 %, control at 10 to 100 Hz, any MCS up to 9, bulk in all directions,
and teams with plain control flows instead of a control loop. Left out: positions, events, several interfaces, clock
skew.

A draw may be hopeless from the start; the caller runs it to decide whether to keep it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from lib.simulator import Team

STANDARDS = ("802.11n", "802.11ac", "802.11ax")
_MCS_MOST = {"802.11n": 7, "802.11ac": 8, "802.11ax": 9}


def draw(seed: int) -> Team:
    """Draws one team: 2 to 12 robots, any width, rates, WNIC, phases, period, sizes, inference and kind of bulk."""
    rng = random.Random(seed)
    standard = rng.choice(STANDARDS)
    robots = rng.randint(2, 12)
    parts = [_robots(rng, standard, robots), _air(rng, standard), _control(rng), _bulk(rng, robots)]
    return Team(f"random-{seed}", "\n".join(parts))


def _robots(rng: random.Random, standard: str, robots: int) -> str:
    text = '[[robot]]\nname = "leader"\nleader = true\n'
    for robot in range(1, robots):
        text += f'\n[[robot]]\nname = "robot-{robot}"\nmcs = {rng.randint(2, _MCS_MOST[standard])}\n'
    return text


def _air(rng: random.Random, standard: str) -> str:
    width = rng.choice((20, 40) if standard == "802.11n" else (20, 40, 80))
    interval = rng.choice((800, 1600)) if standard == "802.11ax" else rng.choice((400, 800))
    return (
        f'[air]\nstandard = "{standard}"\nwidth_mhz = {width}\nstreams = {rng.choice((1, 2))}\n'
        f"guard_interval_ns = {interval}\nmcs = {rng.randint(4, 7)}\nloss = {rng.choice((0.0, 0.0, 0.01, 0.05))}\n"
        f'rts_cts = {rng.choice(("true", "false"))}\nwnic = "{rng.choice(("ideal", "mt7612u"))}"\n'
    )


def _control(rng: random.Random) -> str:
    period_ms = rng.choice((20.0, 25.0, 33.3, 50.0, 100.0))
    bound_ms = round(period_ms * rng.uniform(0.6, 1.0), 1)
    return (
        f'[control]\nperiod = "{period_ms}ms"\nbound = "{bound_ms}ms"\n'
        f'perception = "{rng.choice((500, 1500, 4096, 12288, 20480))}B"\n'
        f'command = "{rng.choice((100, 300, 1024, 2000))}B"\n'
        f'inference = "{round(bound_ms * rng.uniform(0.1, 0.8), 1)}ms"\n'
        f'inference_spread = {rng.choice((0.03, 0.07, 0.15))}\njitter = "{rng.choice((100, 300, 500, 1000))}us"\n'
        f"synchronised = {rng.choice(('true', 'true', 'false'))}\n"
    )


def _bulk(rng: random.Random, robots: int) -> str:
    if rng.random() < 0.5:
        return (
            f'[learning]\nparameters = {rng.randint(1, 10)}_000_000\nsync = "{rng.choice(("BSP", "SSP", "ASP"))}"\n'
            f"batch_loops = {rng.choice((100, 200, 300))}\nrounds = {rng.choice((4, 10))}\n"
            f'training = "{rng.choice((300, 1000, 2000))}ms"\ntraining_spread = {rng.choice((0.05, 0.1, 0.3))}\n'
        )
    senders = [robot for robot in range(1, robots) if rng.random() < 0.7] or [1]
    flows = [
        f'[[flow]]\nname = "bulk-{robot}"\nfrom = "robot-{robot}"\nto = "leader"\ntransport = "tcp"\nsaturated = true\n'
        for robot in senders
    ]
    return "\n".join(flows)


_WIDTHS = {"802.11n": (20, 40), "802.11ac": (20, 40, 80), "802.11ax": (20, 40, 80)}
_INTERVALS = {"802.11n": (400, 800), "802.11ac": (400, 800), "802.11ax": (800, 1600)}
_CARDS = {"mt7612u": "USB", "ideal": "PCIe"}
_REPORTS = {
    "states": ((20.0, 30.0, 50.0, 100.0), (100, 300, 1024)),
    "scans": ((10.0, 20.0, 40.0), (2048, 4096, 8192)),
    "images": ((10.0, 15.0, 30.0), (12288, 20480)),
}
"""Kinds of reports: rates in Hz, and sizes in bytes."""
_COMMANDS = (64, 200, 500, 1024)
_FAR = 0.25
"""Share of teams with one robot that is much farther away than the others."""
JITTER_MS_MAX = 5.0


@dataclass(frozen=True)
class Drawn:
    """A team from the wide draw."""

    team: Team
    what: str
    """The kind of team, in a few words."""
    kinds: tuple[str, ...]
    """Categories that many teams share: standard, card, sensors, bulk, and whether control is a loop."""


@dataclass(frozen=True)
class _Reports:
    """The reports of a team's robots, and their regularity."""

    kind: str
    rate_hz: float
    size: int
    jitter_ms: float
    bound_ms: float
    phases_ms: list[float]
    """Phases, one per robot except the leader."""
    sensors: str

    @property
    def what(self) -> str:
        return f"{self.kind} {self.rate_hz:g} Hz {self.sensors}"


def draw_wide(seed: int) -> Drawn:
    """Draws one team of 2 to 12 robots, as varied as users' teams."""
    rng = random.Random(f"wide-{seed}")
    robots = [f"robot-{robot}" for robot in range(1, rng.randint(2, 12))]
    standard = rng.choice(STANDARDS)
    width, streams = rng.choice(_WIDTHS[standard]), rng.choice((1, 2))
    # 802.11ac has no MCS 9 at 20 MHz on one or two streams.
    most = {"802.11n": 7, "802.11ac": 8 if width == 20 else 9, "802.11ax": 9}[standard]
    usual, wnic = rng.randint(2, most), rng.choice(tuple(_CARDS))
    rates = [min(max(usual + rng.randint(-2, 1), 0), most) for _ in robots]
    if rng.random() < _FAR:
        rates[rng.randrange(len(rates))] = rng.choice((0, 1))
    loop = rng.random() < 0.5
    reports = _reports(rng, len(robots), loop=loop)
    tables = _loop(rng, reports) if loop else _control_flows(rng, robots, reports)
    kind, bulk = _any_bulk(rng, robots, reports, loop=loop)
    air = (
        f'[air]\nstandard = "{standard}"\nwidth_mhz = {width}\nstreams = {streams}\n'
        f"guard_interval_ns = {rng.choice(_INTERVALS[standard])}\nmcs = {usual}\n"
        f"loss = {rng.choice((0.0, 0.0, 0.01, 0.03, 0.1))}\n"
        f'rts_cts = {rng.choice(("true", "false"))}\nwnic = "{wnic}"\n'
    )
    text = "\n".join((_placed(robots, rates, reports, loop=loop), air, _ways_back(robots, rates), tables, bulk))
    card, control = _CARDS[wnic], "loop" if loop else "flows"
    what = f"{len(robots) + 1} {standard[6:]}/{width} MCS {_span(rates)} {card}, {reports.what} {control}, {kind}"
    kinds = (standard, card, f"sensors {reports.sensors}", f"control {control}", f"bulk {kind}")
    return Drawn(Team(f"wide-{seed}", text), what, kinds)


def _span(rates: list[int]) -> str:
    least, most = min(rates), max(rates)
    return f"{least}" if least == most else f"{least}-{most}"


def _placed(robots: list[str], rates: list[int], reports: _Reports, *, loop: bool) -> str:
    tables = ['[[robot]]\nname = "leader"\nleader = true\n']
    for robot, mcs, phase_ms in zip(robots, rates, reports.phases_ms, strict=True):
        phase = f'phase = "{phase_ms}ms"\n' if loop else ""
        tables.append(f'[[robot]]\nname = "{robot}"\nmcs = {mcs}\n{phase}')
    return "\n".join(tables)


def _ways_back(robots: list[str], rates: list[int]) -> str:
    """Returns links from the leader: to each robot at the rate at which that robot sends."""
    links = zip(robots, rates, strict=True)
    return "\n".join(f'[[air.link]]\nfrom = "leader"\nto = "{robot}"\nmcs = {mcs}\n' for robot, mcs in links)


def _reports(rng: random.Random, robots: int, *, loop: bool) -> _Reports:
    """Draws reports of sensors that sample together, nearly together, or independently.

    A loop starts with the first perception, so a loop over independent sensors is hopeless even without bulk: few teams
    are drawn like that.
    """
    kind = rng.choice(tuple(_REPORTS))
    rates_hz, sizes = _REPORTS[kind]
    rate_hz, size = rng.choice(rates_hz), rng.choice(sizes)
    period_ms = 1e3 / rate_hz
    bound_ms = round(period_ms * rng.uniform(0.6, 1.0) if loop else min(period_ms, 50.0) * rng.uniform(0.3, 1.0), 1)
    # The first and the last of a dozen sensors are about three standard deviations apart.
    jitter_most_ms = min(JITTER_MS_MAX, bound_ms / 8.0) if loop else min(JITTER_MS_MAX, period_ms / 4.0)
    jitter_ms = round(math.exp(rng.uniform(math.log(0.05), math.log(jitter_most_ms))), 2)
    sensors = rng.choices(("together", "near", "apart"), (6, 3, 1) if loop else (2, 1, 2))[0]
    over_ms = {"together": 0.0, "near": bound_ms / 5.0, "apart": period_ms}[sensors]
    phases_ms = [round(rng.uniform(0.0, 0.999 * over_ms), 2) for _ in range(robots)]
    return _Reports(kind, rate_hz, size, jitter_ms, bound_ms, phases_ms, sensors)


def _loop(rng: random.Random, reports: _Reports) -> str:
    inference_ms = round(reports.bound_ms * rng.uniform(0.1, 0.6), 1)
    return (
        f"[control]\nrate_hz = {reports.rate_hz:g}\n"
        f'bound = "{reports.bound_ms}ms"\nperception = {reports.size}\ncommand = {rng.choice(_COMMANDS)}\n'
        f'inference = "{inference_ms}ms"\ninference_spread = {rng.choice((0.03, 0.07, 0.15))}\n'
        f'jitter = "{reports.jitter_ms}ms"\n'
    )


def _control_flows(rng: random.Random, robots: list[str], reports: _Reports) -> str:
    """Draws independent flows: reports up, commands down, or both."""
    command = rng.choice(_COMMANDS)
    ways = rng.choice(("up", "up", "down", "both"))
    tables: list[str] = []
    for robot, phase_ms in zip(robots, reports.phases_ms, strict=True):
        ends = [(f"report-{robot}", robot, "leader", reports.size)] if ways != "down" else []
        ends += [(f"command-{robot}", "leader", robot, command)] if ways != "up" else []
        for name, sender, receiver, size in ends:
            tables.append(
                f'[[flow]]\nname = "{name}"\nfrom = "{sender}"\nto = "{receiver}"\nac = "AC_VO"\nsize = {size}\n'
                f'period = "{round(1e6 / reports.rate_hz)}us"\njitter = "{reports.jitter_ms}ms"\n'
                f'start = "{phase_ms}ms"\nbound = "{reports.bound_ms}ms"\n'
            )
    return "\n".join(tables)


def _any_bulk(rng: random.Random, robots: list[str], reports: _Reports, *, loop: bool) -> tuple[str, str]:
    """Draws the bulk: its kind, and its tables."""
    kinds = ["up", "down", "both", "one"]
    kinds += ["between"] if len(robots) > 1 else []
    kinds += ["learning", "learning"] if loop else []
    kind = rng.choice(kinds)
    if kind == "learning":
        # Two seconds of data, so that there are exchanges in a short run.
        return kind, (
            f'[learning]\nparameters = {rng.randint(1, 10)}_000_000\nsync = "{rng.choice(("BSP", "SSP", "ASP"))}"\n'
            f"batch_loops = {round(2.0 * reports.rate_hz)}\nrounds = {rng.choice((2, 4))}\n"
            f'training = "{rng.choice((300, 600, 1000))}ms"\ntraining_spread = {rng.choice((0.05, 0.1, 0.3))}\n'
        )
    busy = [robot for robot in robots if rng.random() < 0.7] or robots[:1]
    up, down = [(robot, "leader") for robot in busy], [("leader", robot) for robot in busy]
    ends = {"up": up, "down": down, "both": up + down, "one": up[:1]}
    ends["between"] = [(robot, robots[place - 1]) for place, robot in enumerate(robots) if robot in busy]
    return kind, "\n".join(
        f'[[flow]]\nname = "bulk-{place}"\nfrom = "{sender}"\nto = "{receiver}"\ntransport = "tcp"\nsaturated = true\n'
        for place, (sender, receiver) in enumerate(ends[kind])
    )
