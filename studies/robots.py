"""Measures how many robots one channel carries: 10 to 50, with messages of 1 KiB and TCP bulk from all.

    cargo build --release -p coorp-cli
    python studies/robots.py [--quick] [--markdown]

Once per period, each robot except the leader sends the leader a report of 1 KiB and gets a command of 1 KiB. Each also
has a saturated TCP flow to the leader. The air and the card are as in examples/navigation.toml. Rates are 10 Hz with
a bound of 50 ms, and 30 Hz with a bound of 33 ms; policies are `mpc-only`, `edca` and `coorp`.

A policy's limit is the largest size up to which, at every size shown, at most 5 % of loops are late. `coorp` also has a
limit for its goal: within 1 point of `mpc-only`, with 97 % or more of `edca`'s bulk. The columns 'loops' give the
finished loops relative to `mpc-only`: a late loop delays the next one, and `edca` uses the airtime saved for bulk.

If the `coorp` binary is missing, the study says so and succeeds. It exits with 1 if results are malformed, and asserts
no performance.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from lib.simulator import Job, Result, Simulator, Team, binary
from lib.table import number, percent, show

POLICIES = ("mpc-only", "edca", "coorp")
ROBOTS = (10, 15, 20, 25, 30, 40, 50)
LOOPS = ((10, 50), (30, 33))
"""Rate in Hz and bound in ms."""
FULL_S = 30.0
QUICK_S = 4.0
LATE_MOST = 0.05
LATE_GOAL = 0.01
BULK_GOAL = 0.97


@dataclass(frozen=True)
class Size:
    """One team size under all policies. A policy's figures are missing if it let no bulk pass for seconds."""

    robots: int
    results: dict[str, Result]

    def late(self, policy: str) -> float:
        """Returns the share of late loops; 1 if no loop ended."""
        return self.results[policy].violation if self.results[policy].loops else 1.0

    def mbps(self, policy: str) -> float:
        found = self.results[policy].bulk_mbps
        return 0.0 if math.isnan(found) else found

    @property
    def goal(self) -> bool:
        later = self.late("coorp") - self.late("mpc-only")
        return later <= LATE_GOAL and self.mbps("coorp") >= BULK_GOAL * self.mbps("edca")

    @property
    def row(self) -> list[str]:
        late = [percent(self.late(policy)) for policy in POLICIES]
        bulk = [number(self.mbps(policy)) for policy in POLICIES[1:]]
        loops = [
            percent(self.results[policy].loops / max(self.results["mpc-only"].loops, 1), 0) for policy in POLICIES[1:]
        ]
        return [str(self.robots), *late, *loops, *bulk, percent(self.mbps("coorp") / max(self.mbps("edca"), 1e-9), 0)]

    @property
    def malformed(self) -> list[str]:
        return [
            f"{self.robots} robots, {policy}: lateness {self.late(policy)}, bulk {self.mbps(policy)} Mbit/s"
            for policy, result in self.results.items()
            if result.airtime and not (0.0 <= self.late(policy) <= 1.0 and 0.0 <= self.mbps(policy) < math.inf)
        ]


TITLES = [
    "robots",
    *(f"late {policy}" for policy in POLICIES),
    "loops edca",
    "loops coorp",
    "bulk edca",
    "bulk coorp",
    "coorp/edca",
]


def team(robots: int, rate_hz: int, bound_ms: int) -> Team:
    """Returns a team of the leader and `robots` - 1 identical other robots."""
    text = (
        '[air]\nstandard = "802.11ac"\nwidth_mhz = 80\nstreams = 2\nmcs = 5\nrts_cts = true\nwnic = "mt7612u"\n\n'
        f'[control]\nrate_hz = {rate_hz}\nbound = "{bound_ms}ms"\nperception = "1KiB"\ncommand = "1KiB"\n'
        'inference = "10ms"\n\n[[robot]]\nname = "leader"\nleader = true\n'
    )
    for robot in range(1, robots):
        text += f'\n[[robot]]\nname = "robot-{robot}"\n'
        text += f'\n[[flow]]\nname = "bulk-{robot}"\nfrom = "robot-{robot}"\nto = "leader"\n'
        text += 'transport = "tcp"\nsaturated = true\n'
    return Team(f"robots-{robots}-{rate_hz}", text)


def most(sizes: list[Size], good: Iterable[bool]) -> str:
    """Returns the largest size up to which all sizes are good."""
    upto = [size.robots for size, _ in itertools.takewhile(lambda pair: pair[1], zip(sizes, good, strict=True))]
    return str(upto[-1]) if upto else f"below {sizes[0].robots}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and shorter runs, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    arguments = parser.parse_args()
    program = binary()
    if program is None:
        return 0
    duration_s = QUICK_S if arguments.quick else FULL_S
    simulator = Simulator(program, "robots", lenient=True)
    problems: list[str] = []
    for rate_hz, bound_ms in LOOPS:
        sizes: list[Size] = []
        for robots in ROBOTS[:: len(ROBOTS) - 1] if arguments.quick else ROBOTS:
            jobs = {policy: Job(team(robots, rate_hz, bound_ms), policy, 1, duration_s) for policy in POLICIES}
            found = simulator.run(jobs.values())
            sizes.append(Size(robots, {policy: found[job] for policy, job in jobs.items()}))
            problems += sizes[-1].malformed
        print(f"{rate_hz} Hz, bound {bound_ms} ms, {duration_s:g} s, seed 1. Bulk in Mbit/s.\n")
        show(TITLES, [size.row for size in sizes], markdown=arguments.markdown)
        late = [f"{p} {most(sizes, (size.late(p) <= LATE_MOST for size in sizes))}" for p in POLICIES]
        goal = most(sizes, (size.goal for size in sizes))
        print(f"Robots with at most {percent(LATE_MOST, 0)} of loops late: {', '.join(late)}. coorp's goal: {goal}.\n")
    for problem in problems:
        print(f"FAIL: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
