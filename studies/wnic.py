"""Simulates the papers' testbed with other values for the undocumented properties of its WNIC.

    cargo build --release -p coorp-cli
    python studies/wnic.py [--quick] [--markdown]

The WNIC's queue, its commit stage and its driver's definition of completion determine much of the published result, and
no source gives them all (crates/team/profiles/mt7612u.toml has the evidence, docs/calibration.md the choice). So
examples/navigation.toml runs over the whole plausible range: frames in the commit stage, completion on transfer or on
the air, frames in the queue, AC_VO with and without aggregation, narrow and wide spread of the inference, and a WNIC
without a commit stage. The inference's median is fitted for each setting, so that `mpc-only` stays at its published 3.0
%.

All published policies ran on the papers' patched driver and have its completion hook here. `coorp` has only the
information of a stock kernel.

The first table gives each policy's range, the second changes one calibrated value at a time, the third has the means
over all settings that share a value. The last gives for each conclusion the number of settings at which it holds, split
by value if it does not hold at all of them.

If the `coorp` binary is missing, the study says so and succeeds. It exits with 1 if `coorp` is not better than `edca`
at some setting: this is claimed for any card.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lib.edit import changed_key, changed_line, with_keys
from lib.published import on_testbed
from lib.simulator import REPOSITORY, Job, Result, Simulator, Team, binary
from lib.table import number, percent, show

POLICIES = ("mpc-only", "bulk-only", "edca", "edca+global", "edca+local", "schedwifi", "coorp-paper", "coorp")
NAVIGATION = REPOSITORY / "examples" / "navigation.toml"
PROFILE = REPOSITORY / "crates" / "team" / "profiles" / "mt7612u.toml"
MPC_ONLY = 0.030
"""The violation rate for which the inference's median is fitted."""
MEDIAN_MS = (10.0, 33.0)
MEDIAN_STEP_MS = 0.02
MEDIAN_RUN_S = 600.0

Results = dict[str, Result]
"""Results by policy."""


@dataclass(frozen=True)
class Setting:
    """One value of each property."""

    commit_frames: int | None
    """Frames in the commit stage; None for the ideal WNIC."""
    on_transfer: bool
    queue_frames: int
    aggregated: bool
    spread: float

    def axes(self) -> dict[str, str]:
        """Returns the value on each axis, for the tables."""
        if self.commit_frames is None:
            return {
                "commit frames": "ideal",
                "completion": "ideal",
                "queue": "ideal",
                "AC_VO": "aggregated" if self.aggregated else "single",
                "spread": f"{self.spread:g}",
            }
        return {
            "commit frames": str(self.commit_frames),
            "completion": "transfer" if self.on_transfer else "air",
            "queue": str(self.queue_frames),
            "AC_VO": "aggregated" if self.aggregated else "single",
            "spread": f"{self.spread:g}",
        }

    @property
    def name(self) -> str:
        return "-".join(self.axes().values())


def _calibrated() -> Setting:
    """Returns the values of the example and the profile."""
    profile = tomllib.loads(PROFILE.read_text())
    navigation = tomllib.loads(NAVIGATION.read_text())
    return Setting(
        profile["commit_frames"],
        on_transfer=profile["completes_on_transfer"],
        queue_frames=profile["queue_frames"],
        aggregated=navigation["air"].get("ac_vo", {}).get("ampdu_frames", 64) > 1,
        spread=navigation["control"]["inference_spread"],
    )


CALIBRATED = _calibrated()
SPREADS = (CALIBRATED.spread, 0.15)


@dataclass(frozen=True)
class Effort:
    """The extent of the study."""

    duration_s: float
    settings: list[Setting]


def _settings(
    commit: Iterable[int],
    transfer: Iterable[bool],
    queue: Iterable[int],
    aggregated: Iterable[bool],
    spread: Iterable[float],
) -> list[Setting]:
    ideal = (Setting(None, False, 0, a, s) for a, s in itertools.product(aggregated, spread))
    made = itertools.product(commit, transfer, queue, aggregated, spread)
    # An incomplete frame still occupies the queue, so the commit stage is part of the queue in that case.
    return [*(Setting(c, t, q, a, s) for c, t, q, a, s in made if t or c <= q), *ideal]


FULL = Effort(200.0, _settings((20, 32, 48, 64, 80), (True, False), (32, 64, 128), (True, False), SPREADS))
QUICK = Effort(60.0, _settings((20, 64), (True, False), (64,), (True,), SPREADS[:1]))


class Range:
    """The simulator over the settings."""

    def __init__(self, simulator: Simulator, effort: Effort) -> None:
        self._simulator = simulator
        self._effort = effort
        self._navigation = NAVIGATION.read_text()
        self._profile = PROFILE.read_text()
        self.median_ms: dict[tuple[bool, float, bool], float] = {}

    def team(self, setting: Setting, median_ms: float) -> Team:
        wnic = '"ideal"'
        if setting.commit_frames is not None:
            profile = changed_line(self._profile, "commit_frames", str(setting.commit_frames))
            profile = changed_line(profile, "queue_frames", str(setting.queue_frames))
            profile = changed_line(profile, "completes_on_transfer", "true" if setting.on_transfer else "false")
            file = f"wnic-{setting.name}.toml"
            self._simulator.write(file, profile)
            wnic = f'"{file}"'
        text = changed_key(self._navigation, "air", "wnic", wnic)
        text = changed_key(text, "control", "inference", f'"{median_ms:.3f}ms"')
        text = changed_key(text, "control", "inference_spread", f"{setting.spread:g}")
        text = with_keys(text, "air.ac_vo", {"ampdu_frames": "64" if setting.aggregated else "1"})
        return Team(f"{setting.name}-{median_ms:.3f}", text)

    def median(self, setting: Setting) -> float:
        """Returns the inference's median at which `mpc-only` violates the bound as often as published, by bisection."""
        key = (setting.aggregated, setting.spread, setting.commit_frames is None)
        if key not in self.median_ms:
            low, high = MEDIAN_MS
            while high - low > MEDIAN_STEP_MS:
                middle = (low + high) / 2.0
                job = Job(self.team(setting, middle), "mpc-only", 1, MEDIAN_RUN_S)
                below = self._simulator.run([job])[job].violation < MPC_ONLY
                low, high = (middle, high) if below else (low, middle)
            self.median_ms[key] = (low + high) / 2.0
        return self.median_ms[key]

    def run(self) -> dict[Setting, Results]:
        teams = {setting: self.team(setting, self.median(setting)) for setting in self._effort.settings}
        pairs = [(setting, policy) for setting in teams for policy in POLICIES]
        jobs = {(s, p): Job(on_testbed(teams[s], p), p, 1, self._effort.duration_s) for s, p in pairs}
        found = self._simulator.run(jobs.values())
        return {setting: {p: found[jobs[setting, p]] for p in POLICIES} for setting in teams}


CONCLUSIONS: dict[str, Callable[[Results], bool]] = {
    "coorp violates the bound less often than edca": lambda r: r["coorp"].violation < r["edca"].violation,
    "coorp violates it less often than coorp-paper": lambda r: r["coorp"].violation < r["coorp-paper"].violation,
    "coorp is within 1 point of mpc-only": lambda r: r["coorp"].violation <= r["mpc-only"].violation + 0.01,
    "coorp moves 97 % of edca's bulk or more": lambda r: r["coorp"].bulk_mbps >= 0.97 * r["edca"].bulk_mbps,
    "coorp-paper violates it less than half as often as edca": lambda r: (
        r["coorp-paper"].violation < 0.5 * r["edca"].violation
    ),
    "coorp-paper violates it less often than each component alone": lambda r: (
        r["coorp-paper"].violation < min(r["edca+local"].violation, r["edca+global"].violation)
    ),
    "edca+global alone violates it less often than edca+local alone": lambda r: (
        r["edca+global"].violation < r["edca+local"].violation
    ),
    "schedwifi violates it less often than coorp-paper": lambda r: (
        r["schedwifi"].violation < r["coorp-paper"].violation
    ),
    "schedwifi moves less bulk than coorp-paper": lambda r: r["schedwifi"].bulk_mbps < r["coorp-paper"].bulk_mbps,
    "coorp-paper moves 80 to 97 % of edca's bulk": lambda r: (
        0.80 * r["edca"].bulk_mbps <= r["coorp-paper"].bulk_mbps <= 0.97 * r["edca"].bulk_mbps
    ),
    "edca+global moves more bulk than edca+local": lambda r: r["edca+global"].bulk_mbps > r["edca+local"].bulk_mbps,
    "edca violates it in 30 % of loops or more": lambda r: r["edca"].violation >= 0.30,
    "edca violates it in 50 to 58 % of loops (53.9 % published)": lambda r: 0.50 <= r["edca"].violation <= 0.58,
}
CLAIMED = next(iter(CONCLUSIONS))


def print_ranges(found: dict[Setting, Results], *, markdown: bool) -> None:
    calibrated = found.get(CALIBRATED)
    rows: list[list[str]] = []
    for policy in POLICIES:
        violations = [results[policy].violation for results in found.values()]
        bulks = [results[policy].bulk_mbps for results in found.values()]
        chosen = calibrated[policy] if calibrated else None
        rows.append(
            [
                policy,
                percent(chosen.violation) if chosen else "-",
                *(percent(value) for value in (min(violations), statistics.median(violations), max(violations))),
                number(chosen.bulk_mbps) if chosen else "-",
                *(number(value) for value in (min(bulks), statistics.median(bulks), max(bulks))),
            ]
        )
    titles = ["policy", "violation", "least", "median", "most", "bulk Mbit/s", "least", "median", "most"]
    print("As calibrated, and over the whole range\n")
    show(titles, rows, markdown=markdown)


def print_neighbours(found: dict[Setting, Results], *, markdown: bool) -> None:
    """Prints results with one value changed at a time."""
    base = CALIBRATED
    changed = {
        "as calibrated": base,
        **{f"commit frames {n}": replace(base, commit_frames=n) for n in (32, 48, 64, 80)},
        "completion on the air": replace(base, on_transfer=False),
        **{f"queue {n}": replace(base, queue_frames=n) for n in (32, 128)},
        "AC_VO single": replace(base, aggregated=False),
        "spread 0.15": replace(base, spread=0.15),
        "ideal WNIC": Setting(None, on_transfer=False, queue_frames=0, aggregated=True, spread=base.spread),
    }
    shown = [policy for policy in POLICIES if policy not in ("mpc-only", "bulk-only")]
    rows: list[list[str]] = []
    for name, setting in changed.items():
        if setting in found:
            own = found[setting]
            cells = [f"{100.0 * own[policy].violation:.1f} / {own[policy].bulk_mbps:.1f}" for policy in shown]
            rows.append([name, *cells])
    print("Violation in percent / bulk in Mbit/s, one value changed at a time\n")
    show(["changed", *shown], rows, markdown=markdown)


def print_axes(found: dict[Setting, Results], *, markdown: bool) -> None:
    """Prints means over all settings that share one value."""
    shown = [policy for policy in POLICIES if policy not in ("mpc-only", "bulk-only")]
    rows: list[list[str]] = []
    for axis in CALIBRATED.axes():
        for value in dict.fromkeys(setting.axes()[axis] for setting in found):
            if value == "ideal" and axis != "commit frames":
                continue
            group = [results for setting, results in found.items() if setting.axes()[axis] == value]
            mean = statistics.fmean
            cells = [
                f"{100.0 * mean(r[p].violation for r in group):.1f} / {mean(r[p].bulk_mbps for r in group):.0f}"
                for p in shown
            ]
            rows.append([f"{axis} {value}", *cells])
    print("Violation in percent / bulk in Mbit/s, mean over all settings with that value\n")
    show(["value", *shown], rows, markdown=markdown)


def _where(found: dict[Setting, Results], holds: Callable[[Results], bool]) -> list[str]:
    """Returns, for each axis that matters to a conclusion, the number of settings at which it holds, by value."""
    lines: list[str] = []
    for axis in CALIBRATED.axes():
        counts: dict[str, list[bool]] = {}
        for setting, results in found.items():
            counts.setdefault(setting.axes()[axis], []).append(holds(results))
        shares = {value: sum(held) / len(held) for value, held in counts.items()}
        if max(shares.values()) - min(shares.values()) >= 0.2:
            lines.append(f"{axis}: " + ", ".join(f"{v} {sum(held)}/{len(held)}" for v, held in counts.items()))
    return lines


def print_conclusions(found: dict[Setting, Results]) -> None:
    for text, holds in CONCLUSIONS.items():
        count = sum(holds(results) for results in found.values())
        words = "everywhere" if count == len(found) else "nowhere" if count == 0 else ""
        place = "" if CALIBRATED not in found else "; as calibrated: " + ("yes" if holds(found[CALIBRATED]) else "no")
        print(f"- {text}: {words + ', ' if words else ''}{count} of {len(found)} settings{place}")
        if not words:
            for line in _where(found, holds):
                print(f"    - {line}")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the ends of the range and shorter runs, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    arguments = parser.parse_args()
    program = binary()
    if program is None:
        return 0
    effort, markdown = QUICK if arguments.quick else FULL, arguments.markdown
    plausible = Range(Simulator(program, "wnic"), effort)
    found = plausible.run()
    print(f"{len(found)} settings, {effort.duration_s:g} s each, seed 1.\n")
    medians = [plausible.median_ms[key] for key in sorted(plausible.median_ms)]
    print(
        f"Medians of the inference for {percent(MPC_ONLY)} of mpc-only: {min(medians):.2f} to {max(medians):.2f} ms.\n"
    )
    print_ranges(found, markdown=markdown)
    print_neighbours(found, markdown=markdown)
    print_axes(found, markdown=markdown)
    print_conclusions(found)
    lost = [setting.name for setting, results in found.items() if not CONCLUSIONS[CLAIMED](results)]
    for name in lost:
        print(f"FAIL: does not hold at {name}: {CLAIMED}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
