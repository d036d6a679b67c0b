"""Deng 2022: figures 4, 6, 8, 10 to 12 and 14, simulated; where ours differs, assumptions are changed one at a time."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from lib.edit import changed_key, replaced, with_keys
from lib.published import on_testbed
from lib.simulator import Job, Result, Simulator, Team
from lib.table import number
from wnic import CALIBRATED, Range, Setting
from wnic import Effort as WnicEffort

from papers import charts
from papers.inventory import papers
from papers.outcome import Claim, Found, Outcome, Table
from papers.testbed import low_teams, navigation
from papers.traces import Times, prediction_errors, trace

BOUND_MS = 33.0
NEAR_IDEAL = 0.12
"""How far above the ideal latency the paper's is at most."""
TIMER = Path(__file__).with_name("timer.py")


@dataclass(frozen=True)
class Effort:
    """The extent of a measurement."""

    duration_s: float
    seeds: range
    settings: bool
    """Whether to try other assumptions."""
    live_s: float
    """Of the timer of figure 6; 0: none."""

    def __str__(self) -> str:
        seeds = f"seeds {self.seeds[0]} to {self.seeds[-1]}" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        return f"{self.duration_s:g} s, {seeds}"


def outcome(key: str, what: str, effort: Effort, ground: str = "simulated") -> Outcome:
    return Outcome(ground, f"python studies/papers/run.py --measure --only {key}", f"{what}, {effort}")


def over_seeds(values: list[float]) -> Found:
    return Found(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)


# Figure 4

CONGESTION = {
    "no bulk": (),
    "another robot's bulk": ("robot-2",),
    "own bulk (local congestion)": ("robot-1",),
    "own and another's (exacerbated)": ("robot-1", "robot-2"),
}


def congestion_team(senders: tuple[str, ...], wnic: str) -> Team:
    """Navigation's air with one control flow, and saturated TCP from some robots."""
    text = f'[air]\nstandard = "802.11ac"\nwidth_mhz = 80\nstreams = 2\nmcs = 5\nrts_cts = true\nwnic = "{wnic}"\n'
    text += "\n".join(
        f'\n[[robot]]\nname = "{r}"\nleader = {str(r == "leader").lower()}' for r in ("leader", "robot-1", "robot-2")
    )
    text += '\n\n[[flow]]\nname = "control"\nfrom = "robot-1"\nto = "leader"\nac = "AC_VO"\nsize = "12KiB"\n'
    text += 'period = "33.3ms"\njitter = "500us"\n'
    for robot in senders:
        text += (
            f'\n[[flow]]\nname = "bulk-{robot}"\nfrom = "{robot}"\nto = "leader"\ntransport = "tcp"\nsaturated = true\n'
        )
    return Team(f"congestion-{len(senders)}-{senders[0] if senders else 'none'}-{wnic}", text)


def congestion(simulator: Simulator, effort: Effort) -> Outcome:
    """Figure 4."""
    out = outcome("deng.figure_4", "12 KiB in AC_VO every 33 ms beside saturated TCP under `edca`", effort)
    median: dict[str, float] = {}
    for wnic in ("mt7612u", "ideal"):
        for case, senders in CONGESTION.items():
            team = congestion_team(senders, wnic)
            runs = simulator.run(Job(team, "edca", seed, effort.duration_s) for seed in effort.seeds).values()
            for quantile in ("p50", "p99"):
                found = over_seeds([run.flows["control"].latency_ms[quantile] for run in runs])
                name = case if wnic == "mt7612u" else f"{case}, ideal card"
                out.figures.setdefault(f"latency_{quantile}_ms", {})[name] = found
                if quantile == "p50":
                    median[name] = found.mean
    alone, other, own, both = (median[case] for case in CONGESTION)
    text = f"median {alone:.1f} ms alone, {own:.1f} ms with its own bulk, {both:.1f} ms with another's too"
    out.claims["order"] = Claim(alone < own < both and other < own, text)
    return out


# Figure 6


def errors(_: Simulator, effort: Effort) -> Outcome:
    """Figure 6."""
    out = outcome("deng.figure_6", "perceptions under `coorp-paper`", effort)
    all_errors: dict[str, Times] = {}
    for name, policy in (("perceptions", "coorp-paper"), ("perceptions without bulk", "mpc-only")):
        made = trace(navigation(), policy, effort.seeds[0], effort.duration_s).made
        all_errors[name] = np.concatenate([prediction_errors(times) for times in made.values()])
    simulated = all_errors["perceptions"]
    if effort.live_s:
        done = subprocess.run(
            [sys.executable, str(TIMER), f"{effort.live_s:g}"], capture_output=True, text=True, check=True
        )
        woken = np.array([float(line) for line in done.stdout.split()])
        all_errors["a 30 Hz timer of Python here, live"] = prediction_errors(woken)
    rows: list[list[str]] = []
    for name, found in all_errors.items():
        sigma = float(np.std(found))
        within = 100.0 * float(np.mean(np.abs(found - np.mean(found)) <= 2.0 * sigma))
        out.figures.setdefault("within_2_sigma_percent", {})[name] = Found(within)
        shares = [number(float(np.quantile(found, q)), 3) for q in (0.01, 0.1, 0.5, 0.9, 0.99)]
        rows.append(
            [name, str(len(found)), number(sigma, 3), *shares, number(kurtosis(found), 1), number(distance(found), 3)]
        )
    titles = [
        "errors, ms",
        "count",
        "sigma",
        "p1",
        "p10",
        "p50",
        "p90",
        "p99",
        "excess kurtosis",
        "distance from normal",
    ]
    out.tables.append(Table("The distance is the greatest one between the two distribution functions.", titles, rows))
    off, excess = distance(simulated), kurtosis(simulated)
    free = distance(all_errors["perceptions without bulk"])
    text = f"distribution functions at most {off:.3f} apart ({free:.3f} without bulk), excess kurtosis {excess:.1f}"
    out.claims["normal"] = Claim(off < 0.05, text)
    return out


def kurtosis(values: Times) -> float:
    """Excess kurtosis: 0 if normal."""
    off = values - values.mean()
    return float((off**4).mean() / (off**2).mean() ** 2 - 3.0)


def distance(values: Times) -> float:
    """Kolmogorov's distance from the normal distribution of the same mean and deviation."""
    ordered = np.sort(values)
    normal = np.array([0.5 * math.erfc(-(x - values.mean()) / (values.std() * math.sqrt(2.0))) for x in ordered])
    steps = np.arange(1, len(ordered) + 1) / len(ordered)
    return float(max(np.abs(normal - steps).max(), np.abs(normal - steps + 1.0 / len(ordered)).max()))


# Figure 8

LATENCIES = ("mpc-only", "schedwifi", "coorp-paper", "coorp", "edca")
LATENCY_TEAMS = {
    "as calibrated": {},
    "completions on the air": {"completes_on_transfer": "false"},
    "commit stage of 8 frames": {"commit_frames": "8"},
}


def latencies(simulator: Simulator, effort: Effort) -> Outcome:
    """Figure 8, and the parts of the reaction time."""
    out = outcome("deng.figure_8", "`examples/navigation.toml`", effort)
    rows: list[list[str]] = []
    middle: dict[str, float] = {}
    for policy in LATENCIES:
        runs = [trace(navigation(), policy, seed, effort.duration_s) for seed in effort.seeds]
        joined = [np.concatenate([run.messages for run in runs])]
        middle[policy] = float(np.median(joined[0]))
        for quantile in (50, 90, 99):
            values = [float(np.quantile(run.messages, quantile / 100)) for run in runs]
            out.figures.setdefault(f"latency_p{quantile}_ms", {})[policy] = over_seeds(values)
        out.figures.setdefault("latency_mean_ms", {})[policy] = over_seeds([float(run.messages.mean()) for run in runs])
        parts = [[part(run) for run in runs] for part in PARTS.values()]
        rows.append([policy, *(number(float(np.mean(values)), 2) for values in parts)])
    out.tables.append(Table("Parts of the reaction time, ms.", ["policy", *PARTS], rows))
    ratio = {policy: middle[policy] / middle["mpc-only"] - 1.0 for policy in ("schedwifi", "coorp-paper", "coorp")}
    text = ", ".join(f"`{policy}` {100 * value:+.0f} %" for policy, value in ratio.items()) + " at the median"
    out.claims["near_ideal"] = Claim(max(ratio["schedwifi"], ratio["coorp-paper"]) <= NEAR_IDEAL, text)
    if effort.settings:
        out.tables.append(latency_table(simulator, effort))
    return out


PARTS = {
    "exchange, mean": lambda run: float(run.exchange.mean()),
    "p50": lambda run: float(np.quantile(run.exchange, 0.5)),
    "p99": lambda run: float(np.quantile(run.exchange, 0.99)),
    "inference, mean": lambda run: float(run.inference.mean()),
    "dissemination, mean": lambda run: float(run.dissemination.mean()),
    "p50 ": lambda run: float(np.quantile(run.dissemination, 0.5)),
    "p99 ": lambda run: float(np.quantile(run.dissemination, 0.99)),
    "a perception, p50": lambda run: float(np.quantile(run.perceptions, 0.5)),
    "a command, p50": lambda run: float(np.quantile(run.commands, 0.5)),
}


def latency_table(simulator: Simulator, effort: Effort) -> Table:
    """The latency under other assumptions."""
    rows: list[list[str]] = []
    tried = Range(simulator, WnicEffort(effort.duration_s, []))
    settings = {
        "as calibrated": CALIBRATED,
        "completions on the air": replace(CALIBRATED, on_transfer=False),
        "commit stage of 4 frames": replace(CALIBRATED, commit_frames=4),
        "no commit stage (ideal card)": replace(CALIBRATED, commit_frames=None),
    }
    for name, setting in settings.items():
        team = tried.team(setting, navigation_median_ms())
        rows.append([name, *_latency_cells(simulator, team, effort)])
    high = replaced(navigation().text, "mcs = 5 ", "mcs = 9 ")
    rows.append(["MCS 9", *_latency_cells(simulator, Team("mcs-9", high), effort)])
    titles = ["changed"]
    for policy in ("mpc-only", "schedwifi", "coorp-paper"):
        titles += [f"{policy}: perception p50", "command p50", "all, mean"]
    return Table(
        "One assumption changed at a time; latency in ms, and the mean of all messages over `mpc-only`'s.", titles, rows
    )


def _latency_cells(simulator: Simulator, team: Team, effort: Effort) -> list[str]:
    cells: list[str] = []
    base = math.nan
    for policy in ("mpc-only", "schedwifi", "coorp-paper"):
        job = Job(on_testbed(team, policy), policy, effort.seeds[0], effort.duration_s)
        run = simulator.run([job])[job]
        base = run.latency_ms["control"]["mean"] if policy == "mpc-only" else base
        mean = run.latency_ms["control"]["mean"]
        more = "" if policy == "mpc-only" else f" ({100 * (mean / base - 1):+.0f} %)"
        cells += [number(run.latency_ms[kind]["p50"], 2) for kind in ("perception", "command")]
        cells.append(f"{number(mean, 2)}{more}")
    return cells


def navigation_median_ms() -> float:
    """The calibrated inference."""
    import tomllib

    return float(tomllib.loads(navigation().text)["control"]["inference"].removesuffix("ms"))


# Figure 10

ALONE = ("edca", "edca+global", "edca+local", "coorp-paper")


def components(simulator: Simulator, effort: Effort) -> Outcome:
    """Figure 10."""
    out = outcome("deng.figure_10", "`examples/navigation.toml`", effort)
    jobs = {p: [Job(on_testbed(navigation(), p), p, seed, effort.duration_s) for seed in effort.seeds] for p in ALONE}
    found = simulator.run(job for all_jobs in jobs.values() for job in all_jobs)
    late: dict[str, float] = {}
    for policy in ALONE:
        runs = [found[job] for job in jobs[policy]]
        out.figures.setdefault("violation_percent", {})[policy] = over_seeds([100 * run.violation for run in runs])
        late[policy] = out.figures["violation_percent"][policy].mean
        for quantile in ("p50", "p90", "p99"):
            values = [run.latency_ms["reaction"][quantile] for run in runs]
            out.figures.setdefault(f"reaction_{quantile}_ms", {})[policy] = over_seeds(values)
    text = f"{late['edca+global']:.1f} % late with global alone, {late['edca+local']:.1f} % with local alone"
    out.claims["order"] = Claim(late["edca+global"] < late["edca+local"], text)
    both = late["coorp-paper"] < min(late["edca+global"], late["edca+local"])
    out.claims["both"] = Claim(both, f"{late['coorp-paper']:.1f} % with both")
    if effort.settings:
        out.tables.append(component_table(simulator, effort))
    return out


def component_table(simulator: Simulator, effort: Effort) -> Table:
    """The order under other assumptions."""
    tried = Range(simulator, WnicEffort(effort.duration_s, []))
    wide = replace(CALIBRATED, spread=0.15)
    settings: dict[str, Setting] = {
        "as calibrated": CALIBRATED,
        "completions on the air": replace(CALIBRATED, on_transfer=False),
        "commit stage of 48": replace(CALIBRATED, commit_frames=48),
        "commit stage of 80": replace(CALIBRATED, commit_frames=80),
        "inference spread 0.15": wide,
        "spread 0.15, commit stage of 48": replace(wide, commit_frames=48),
        "spread 0.15, commit stage of 80": replace(wide, commit_frames=80),
        "spread 0.15, commit stage of 80, completions on the air": replace(
            wide, commit_frames=80, on_transfer=False, queue_frames=128
        ),
    }
    teams = {name: tried.team(setting, tried.median(setting)) for name, setting in settings.items()}
    base = tried.team(CALIBRATED, tried.median(CALIBRATED))
    teams["sensors' jitter 2 ms"] = _changed(base, "control", "jitter", '"2ms"')
    teams["sensors at random phases"] = Team("phases", changed_key(base.text, "control", "synchronised", "false"))
    clocks = {"overlap": "true"}
    teams["sensors sample by their clocks"] = Team("clocks", with_keys(base.text, "control", clocks))
    air = tried.team(replace(CALIBRATED, on_transfer=False), tried.median(CALIBRATED))
    teams["the same, completions on the air"] = Team("clocks-air", with_keys(air.text, "control", clocks))
    teams["reading completion times at 50 %"] = Team(
        "half", with_keys(base.text, "policy", {"protection_percentile": "0.5"})
    )
    rows: list[list[str]] = []
    for name, team in teams.items():
        runs: dict[str, Result] = {}
        for policy in ALONE:
            job = Job(
                on_testbed(Team(team.name + "-f10", team.text), policy), policy, effort.seeds[0], effort.duration_s
            )
            runs[policy] = simulator.run([job])[job]
        ours = "as published" if runs["edca+global"].violation < runs["edca+local"].violation else "reversed"
        rows.append([name, *(f"{100 * runs[p].violation:.1f} / {runs[p].bulk_mbps:.0f}" for p in ALONE), ours])
    title = "One or two assumptions changed; late loops in % / bulk in Mbit/s. "
    title += "For each spread of the inference, its median is fitted so that `mpc-only` is late in 3.0 %."
    return Table(title, ["changed", *ALONE, "order"], rows)


def _changed(team: Team, table: str, key: str, value: str) -> Team:
    return Team(f"{team.name}-{key}", changed_key(team.text, table, key, value))


# Figure 11


def packets_ahead(simulator: Simulator, effort: Effort) -> Outcome:
    """Figure 11."""
    out = outcome("deng.figure_11", "`examples/navigation.toml`", effort)
    none: dict[str, float] = {}
    for policy in ("edca", "edca+global", "edca+local", "coorp-paper", "coorp"):
        jobs = [Job(on_testbed(navigation(), policy), policy, seed, effort.duration_s) for seed in effort.seeds]
        runs = simulator.run(jobs).values()
        out.figures.setdefault("none_ahead_percent", {})[policy] = over_seeds([100 * run.ahead_none for run in runs])
        out.figures.setdefault("mean_ahead_packets", {})[policy] = over_seeds([run.ahead_mean for run in runs])
        none[policy] = out.figures["none_ahead_percent"][policy].mean
    mean = out.figures["mean_ahead_packets"]
    out.claims["accumulate"] = Claim(
        mean["edca"].mean > 2.0 * mean["coorp-paper"].mean,
        f"{mean['edca'].mean:.1f} packets in the mean, {mean['coorp-paper'].mean:.1f} under `coorp-paper`",
    )
    share = none["coorp-paper"]
    out.claims["zero"] = Claim(50.0 < share < 100.0, f"none for {share:.1f} % of the control packets")
    return out


# Figure 12


def team_of(robots: int, like: Team | None = None) -> Team:
    """Navigation, or another team made of it, with this many robots, the leader included."""
    like = like or navigation()
    text = like.text
    for robot in range(1, 5):
        text = replaced(text, f'[[robot]]\nname = "robot-{robot}"\n\n', "")
    more = "".join(f'[[robot]]\nname = "robot-{robot}"\n\n' for robot in range(1, robots))
    return Team(f"{like.name}-of-{robots}", replaced(text, "[air]\n", f"{more}[air]\n"))


ROBOTS_FIGURES: dict[str, Callable[[Result], float]] = {
    "reaction_p50_ms": lambda run: run.reaction_p50_ms,
    "violation_percent": lambda run: 100 * run.violation,
    "bulk_mbps": lambda run: run.bulk_mbps,
}


def few_robots(simulator: Simulator, effort: Effort) -> Outcome:
    """Figure 12."""
    out = outcome("deng.figure_12", "`examples/navigation.toml` with 2 to 7 robots", effort)
    sizes = range(2, 8)
    for policy in ("mpc-only", "bulk-only", "edca+global", "coorp-paper", "coorp"):
        for robots in sizes:
            team = on_testbed(team_of(robots), policy)
            runs = simulator.run(Job(team, policy, seed, effort.duration_s) for seed in effort.seeds).values()
            for quantity, of in ROBOTS_FIGURES.items():
                found = over_seeds([of(run) for run in runs])
                if not math.isnan(found.mean):
                    out.figures.setdefault(quantity, {})[f"{policy}, {robots}"] = found
    median, late, bulk = (out.figures[name] for name in ("reaction_p50_ms", "violation_percent", "bulk_mbps"))
    two, seven = (f"coorp-paper, {robots}" for robots in (2, 7))
    risen = median[seven].mean - median[two].mean
    text = f"median {median[two].mean:.1f} ms with 2, {median[seven].mean:.1f} ms with 7 under `coorp-paper`"
    out.claims["reaction"] = Claim(0.0 < risen < 0.25 * median[two].mean, text)
    text = f"{late[two].mean:.1f} % late with 2, {late[seven].mean:.1f} % with 7"
    out.claims["tail"] = Claim(abs(late[seven].mean - late[two].mean) <= 5.0, text)
    takes = 5 * 30 * 13 * 1024 * 8 / 1e6
    fallen = bulk[two].mean - bulk[seven].mean
    text = f"{fallen:.1f} Mbit/s less with 7 than with 2, of which control's messages are {takes:.1f}"
    out.claims["bulk"] = Claim(0.5 * takes <= fallen <= 2.0 * takes, text)
    if effort.settings:
        out.tables.append(spread_table(simulator, effort))
    return out


def spread_table(simulator: Simulator, effort: Effort) -> Table:
    """Late loops over the number of robots if the inference varies more."""
    tried = Range(simulator, WnicEffort(effort.duration_s, []))
    rows: list[list[str]] = []
    for setting in (CALIBRATED, *(replace(CALIBRATED, spread=spread) for spread in (0.15, 0.3, 0.5))):
        median_ms = tried.median(setting)
        base = tried.team(setting, median_ms)
        for policy in ("mpc-only", "coorp-paper"):
            cells: list[str] = []
            for robots in (2, 5, 7):
                job = Job(on_testbed(team_of(robots, base), policy), policy, effort.seeds[0], effort.duration_s)
                run = simulator.run([job])[job]
                cells += [f"{100 * run.violation:.1f} %", number(run.reaction_p50_ms)]
            rows.append([f"{setting.spread:g}, {median_ms:.1f} ms, {policy}", *cells])
    titles = ["spread, median, policy"]
    for robots in (2, 5, 7):
        titles += [f"late with {robots}", "p50, ms"]
    title = "Other spreads of the inference, its median fitted so that `mpc-only` is late in 3.0 % with five robots."
    return Table(title, titles, rows)


# Figure 14


def low_reactions(_: Simulator, effort: Effort, *, draw: bool) -> Outcome:
    """Figure 14."""
    out = outcome("deng.figure_14", "the teams of table IV", effort)
    cases = {"all fast": navigation(), **low_teams()}
    middle: dict[tuple[str, str], float] = {}
    for name, team in cases.items():
        for policy in ("mpc-only", "edca", "coorp-paper", "coorp"):
            runs = [trace(team, policy, seed, effort.duration_s) for seed in effort.seeds]
            case = f"{name}, {policy}"
            for quantile in (50, 90):
                values = [float(np.quantile(run.reaction, quantile / 100)) for run in runs]
                out.figures.setdefault(f"reaction_p{quantile}_ms", {})[case] = over_seeds(values)
            out.figures.setdefault("violation_percent", {})[case] = over_seeds(
                [100.0 * float(np.mean(run.reaction > BOUND_MS)) for run in runs]
            )
            middle[name, policy] = out.figures["reaction_p50_ms"][case].mean
    rises = {policy: middle["all low", policy] / middle["all fast", policy] for policy in ("edca", "coorp-paper")}
    text = ", ".join(f"`{policy}` {value:.1f} times the median" for policy, value in rises.items())
    out.claims["all_low"] = Claim(min(rises.values()) > 1.5, text)
    if draw:
        shown = ("mpc-only", "edca", "coorp-paper", "coorp")
        panels = {
            name: {p: trace(team, p, effort.seeds[0], effort.duration_s).reaction for p in shown}
            for name, team in cases.items()
        }
        name = charts.distributions(
            "deng-figure-14.svg", panels, unit="reaction time, ms", span=(20.0, 150.0), bound=BOUND_MS
        )
        out.charts = {name: "Distributions of the reaction time with fast robots, one low and all low"}
    return out


# Figure 2a


def reaction_chart(effort: Effort) -> dict[str, str]:
    """The distributions, with the published points."""
    shown = ("mpc-only", "edca", "schedwifi", "coorp-paper", "coorp")
    curves = {p: trace(navigation(), p, effort.seeds[0], effort.duration_s).reaction for p in shown}
    published = next(
        item.figures["violation_percent"] for paper in papers() for item in paper.items if item.key == "deng.figure_2a"
    )
    name = charts.distributions(
        "deng-figure-2a.svg",
        {"": curves},
        unit="reaction time, ms",
        span=(20.0, 60.0),
        published=published,
        bound=BOUND_MS,
    )
    return {name: "Distributions of the reaction time; dots are the published shares at the bound"}
