"""Deng 2022, figure 13: how many robots fit, by eq. 1 to 3 and by simulation with robots at random places.

The paper gives neither the inference time nor the bandwidth nor the A-MPDU's length of its figure. So the limit is
computed for a range of them, and the table says which combinations give the published limit.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from lib.edit import changed_key, replaced, with_keys
from lib.published import on_testbed
from lib.simulator import REPOSITORY, Job, Simulator, Team
from lib.table import number

from papers.deng import Effort, outcome, over_seeds, team_of
from papers.outcome import Claim, Found, Outcome, Table

BOUND_MS = 33.0
RATE_HZ = 30.0
LOOP_BYTES = 13 * 1024
"""A perception and a command of one robot."""
TESTBED_MBPS = 198.3
RADIUS_M = 10.0
ON_TIME = 0.95
"""Share of loops within the bound for a team that fits."""
LIMIT = 40
AMPDU_KIB = 64 * 1540 / 1024
"""64 full frames, the most of an A-MPDU."""
INFERENCE_MS = 5.0
"""A team file's default; the calibrated 26.9 ms stand for all between the last perception and the first command."""
STUBBORN, RETRIES = "ideal-stubborn.toml", 31
"""The ideal card with the retries of the testbed's (crates/team/profiles/mt7612u.toml)."""
SIZES = (5, 10, 20, 30, 35, 40, 45, 50)


@dataclass(frozen=True)
class Model:
    """Eq. 1 to 3."""

    mbps: float
    ampdu_kib: float
    inference_ms: float
    bulk_first: float

    def reaction_ms(self, robots: int, share: float) -> float:
        """The reaction time that this share of the loops does not exceed."""
        contentions = 2 * (robots - 1)
        below, count = 0.0, 0
        for count in range(contentions + 1):
            p = self.bulk_first
            below += math.comb(contentions, count) * p**count * (1 - p) ** (contentions - count)
            if below >= share - 1e-12:
                break
        sent_bytes = (robots - 1) * LOOP_BYTES + count * self.ampdu_kib * 1024
        return self.inference_ms + sent_bytes * 8e-3 / self.mbps

    def bulk_mbps(self, robots: int) -> float:
        return self.mbps - (robots - 1) * RATE_HZ * LOOP_BYTES * 8e-6

    def robots_max(self, share: float) -> int:
        """The largest team with this share of the loops within the bound; 1 if not even two robots fit."""
        robots = 1
        while robots < 500 and self.reaction_ms(robots + 1, share) <= BOUND_MS and self.bulk_mbps(robots + 1) > 0:
            robots += 1
        return robots


def bulk_first_probability(control: int = 3, bulk: int = 15) -> float:
    """p0: bulk draws the lower backoff, or both draw the same, double their windows, and bulk then draws the lower."""

    def lower(a: int, b: int) -> float:
        return sum(min(c, b) for c in range(a)) / (a * b)

    a, b = control + 1, bulk + 1
    return lower(a, b) + min(a, b) / (a * b) * lower(2 * a, 2 * b)


def disc(robots: int, seed: int, inference_ms: float) -> Team:
    """Navigation with robots at random places in the disc around the leader, ideal cards, rates by distance."""
    places = random.Random(seed)
    text = team_of(robots).text
    for robot in range(1, robots):
        radius, angle = RADIUS_M * math.sqrt(places.random()), 2.0 * math.pi * places.random()
        place = f"[{radius * math.cos(angle):.2f}, {radius * math.sin(angle):.2f}]"
        text = replaced(text, f'name = "robot-{robot}"\n', f'name = "robot-{robot}"\nposition_m = {place}\n')
    text = replaced(text, "leader = true\n", "leader = true\nposition_m = [0.0, 0.0]\n")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("mcs =")) + "\n"
    text = changed_key(text, "air", "wnic", f'"{STUBBORN}"')
    text = changed_key(text, "control", "inference", f'"{inference_ms:g}ms"')
    return Team(f"disc-{robots}-{inference_ms:g}-{seed}", text)


def limit(simulator: Simulator, effort: Effort) -> Outcome:
    """Figure 13."""
    ideal = REPOSITORY / "crates" / "team" / "profiles" / "ideal.toml"
    simulator.write(STUBBORN, ideal.read_text() + f"\nretries_max = {RETRIES}\n")
    what = (
        "`coorp-paper`, learning under BSP, robots at random places within 10 m, rates by distance, ideal cards that "
    )
    what += "send a frame up to 32 times as the testbed's do"
    out = outcome("deng.figure_13", what, effort)
    out.ground = "analytic and simulated"
    p0 = bulk_first_probability()
    out.figures["bulk_first_probability"] = {"AC_VO against AC_BE": Found(p0)}
    free = _bandwidth(simulator, effort)
    rows: list[list[str]] = []
    sizes: dict[float, list[Size]] = {}
    for inference_ms in (INFERENCE_MS, 1.0, 26.9) if effort.settings else (INFERENCE_MS,):
        for robots in SIZES if effort.settings else SIZES[:2]:
            size = _size(
                simulator, effort, lambda seed, n=robots, ms=inference_ms: disc(n, seed, ms), "coorp-paper", robots
            )
            sizes.setdefault(inference_ms, []).append(size)
            model = Model(free, AMPDU_KIB, inference_ms, p0)
            rows.append(
                [
                    f"{inference_ms:g} ms, {robots}",
                    f"{100 * size.late:.1f} %",
                    number(size.median_ms),
                    number(model.reaction_ms(robots, 0.5)),
                    number(size.mbps, 0),
                    number(max(0.0, model.bulk_mbps(robots)), 0),
                ]
            )
    model = Model(free, AMPDU_KIB, INFERENCE_MS, p0)
    found = {
        "eq. 1 to 3": model.robots_max(ON_TIME),
        "simulated": most(sizes[INFERENCE_MS], 0.5),
        "eq. 1 to 3, half of the loops on time": model.robots_max(0.5),
        "simulated, 95 % of the loops on time": most(sizes[INFERENCE_MS], ON_TIME),
    }
    out.figures["robots_max"] = {case: Found(robots) for case, robots in found.items()}
    titles = ["inference, robots", "late", "reaction p50, ms", "eq. 2, p50", "bulk, Mbit/s", "eq. 3"]
    title = (
        f"Simulated beside eq. 1 to 3 with A-MPDUs of 64 frames and {free:.0f} Mbit/s, which TCP of five robots gets."
    )
    out.tables.append(Table(title, titles, rows))
    out.tables.append(_assumptions(p0, free))
    if effort.settings:
        out.tables.append(_tried(simulator, effort))
    out.claims["linear"] = _linear({size.robots: size.mbps for size in sizes[INFERENCE_MS] if size.late <= 0.5})
    return out


@dataclass(frozen=True)
class Size:
    """Teams of one size."""

    robots: int
    late: float
    median_ms: float
    mbps: float

    def __str__(self) -> str:
        return f"{100 * self.late:.0f} % / {self.median_ms:.0f} / {number(self.mbps, 0)}"


def _size(simulator: Simulator, effort: Effort, team: Callable[[int], Team], policy: str, robots: int) -> Size:
    """Means over seeds, each of which has other places."""
    jobs = [Job(on_testbed(team(seed), policy), policy, seed, effort.duration_s) for seed in effort.seeds]
    runs = simulator.run(jobs).values()
    late, median_ms, mbps = (
        over_seeds(values).mean
        for values in ([r.violation for r in runs], [r.reaction_p50_ms for r in runs], [r.bulk_mbps for r in runs])
    )
    return Size(robots, late, median_ms, mbps)


def most(sizes: list[Size], share: float) -> int:
    """The largest size up to which, at every size tried, this share of the loops is on time."""
    fits = [size.robots for size in itertools.takewhile(lambda size: size.late <= 1.0 - share, sizes)]
    return fits[-1] if fits else 1


TRIED: dict[str, Callable[[str], str]] = {
    "as above": lambda text: text,
    "a frame is given up after 7 retries": lambda text: changed_key(text, "air", "wnic", '"ideal"'),
    "7 retries, AC_VO's window grows to 1023": lambda text: with_keys(
        changed_key(text, "air", "wnic", '"ideal"'), "air.ac_vo", {"cw_max": "1023"}
    ),
    "the testbed's card": lambda text: changed_key(text, "air", "wnic", '"mt7612u"'),
    "the testbed's card and rate": lambda text: with_keys(
        changed_key(text, "air", "wnic", '"mt7612u"'), "air", {"mcs": "5"}
    ),
    "sensors at random phases": lambda text: changed_key(text, "control", "synchronised", "false"),
    "no RTS": lambda text: changed_key(text, "air", "rts_cts", "false"),
}


def _tried(simulator: Simulator, effort: Effort) -> Table:
    """The limit under other assumptions."""
    rows: list[list[str]] = []
    for name, change in TRIED.items():
        cells: list[str] = []
        for policy in ("mpc-only", "coorp-paper", "coorp"):
            for robots in (20, 30, 40):

                def team(seed: int, n: int = robots, how: Callable[[str], str] = change, what: str = name) -> Team:
                    base = disc(n, seed, INFERENCE_MS)
                    return Team(f"{base.name}-{list(TRIED).index(what)}", how(base.text))

                cells.append(str(_size(simulator, effort, team, policy, robots)))
        rows.append([name, *cells])
    titles = ["changed", *(f"{policy}, {n}" for policy in ("mpc-only", "coorp-paper", "coorp") for n in (20, 30, 40))]
    return Table(f"Other assumptions at {INFERENCE_MS:g} ms: late / reaction p50 in ms / bulk in Mbit/s.", titles, rows)


def _bandwidth(simulator: Simulator, effort: Effort) -> float:
    """What bulk gets without control."""
    job = Job(disc(5, effort.seeds[0], INFERENCE_MS), "bulk-only", effort.seeds[0], effort.duration_s)
    return simulator.run([job])[job].bulk_mbps


def _assumptions(p0: float, free_mbps: float) -> Table:
    """What gives the published limit."""
    rows: list[list[str]] = []
    for name, mbps in (
        ("testbed's 198.3 Mbit/s", TESTBED_MBPS),
        (f"the ideal cards' {free_mbps:.0f} Mbit/s", free_mbps),
    ):
        for ampdu_kib in (32, 64, AMPDU_KIB):
            free = Model(mbps, ampdu_kib, 0.0, p0)
            cells = [f"{BOUND_MS - free.reaction_ms(LIMIT, share):.1f} ms" for share in (0.5, ON_TIME)]
            limits = [
                f"{Model(mbps, ampdu_kib, ms, p0).robots_max(share)}"
                for ms in (INFERENCE_MS, 26.9)
                for share in (0.5, ON_TIME)
            ]
            rows.append([f"{name}, A-MPDU {ampdu_kib:.0f} KiB", *cells, *limits])
    titles = ["eq. 1 and 2 with", "inference for 40 robots, half on time", "95 % on time"]
    titles += ["robots at 5 ms, half", "95 %", "robots at 26.9 ms, half", "95 %"]
    return Table("What gives the published limit of 40 robots; a negative time says that nothing does.", titles, rows)


def _linear(bulk: dict[int, float]) -> Claim:
    """Whether bulk falls on a line, while some is left."""
    sizes = [robots for robots in bulk if bulk[robots] > 0]
    mean_x = sum(sizes) / len(sizes)
    mean_y = sum(bulk[r] for r in sizes) / len(sizes)
    spread = sum((r - mean_x) ** 2 for r in sizes)
    slope = sum((r - mean_x) * (bulk[r] - mean_y) for r in sizes) / spread
    total = sum((bulk[r] - mean_y) ** 2 for r in sizes)
    left = sum((bulk[r] - mean_y - slope * (r - mean_x)) ** 2 for r in sizes)
    fit = 1.0 - left / total if total else 0.0
    each = RATE_HZ * LOOP_BYTES * 8e-6
    text = f"{-slope:.1f} Mbit/s less for each robot (its messages: {each:.1f}), R² {fit:.2f}"
    return Claim(fit > 0.9 and slope < 0, text)
