"""Runs `coorp sim` on many team files, and collects the results."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
MADE = REPOSITORY / "target" / "studies"
"""The folder for derived team files and results."""
PARALLEL = 2
"""Number of simulations at a time."""
STARVED = "broken rule: the gate opens again"
"""The text that `coorp` prints if a policy let no bulk pass for seconds, which it regards as a bug."""
UNFIT = "does not fit this team"
"""The text that `coorp` prints if a policy cannot run, such as SchedWiFi when its windows fill the period."""


@dataclass(frozen=True)
class Team:
    """A team file, and its name in tables and on disk."""

    name: str
    text: str


@dataclass(frozen=True)
class Job:
    """One policy on one team, with one seed."""

    team: Team
    policy: str
    seed: int
    duration_s: float


@dataclass(frozen=True)
class FlowResult:
    """The results of a `[[flow]]`."""

    mbps: float
    sent: int
    delivered: int
    latency_ms: dict[str, float]
    """Quantiles by name, p10 to p999; empty if nothing arrived."""
    violation: float
    """Share of messages that arrived after the flow's bound or not at all, from 0 to 1; NaN without a bound."""


@dataclass(frozen=True)
class Result:
    """The results of one run. Figures that do not apply to the team are NaN."""

    violation: float
    """Share of loops over the reaction bound, from 0 to 1."""
    loops: float
    """Number of completed control loops."""
    bulk_mbps: float
    epoch_s: float
    reaction_p50_ms: float
    ahead_mean: float
    ahead_none: float
    """Share of control packets that found no bulk in their WNIC, from 0 to 1; NaN from a `coorp` that does not say."""
    window_share: float
    latency_ms: dict[str, dict[str, float]]
    """Quantiles and mean by name: of the reaction, of control messages, and of perceptions and commands among them."""
    airtime: dict[str, float]
    """Shares of the channel's time: data, control, idle."""
    flows: dict[str, FlowResult]
    """Results of flows, by name. A policy without bulk or without control omits the flows that it does not run."""


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    mean: float
    deviation: float
    """The sample's standard deviation; 0 for one seed."""

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        found = list(values)
        if any(math.isnan(value) for value in found):
            return Spread(math.nan, math.nan)
        return Spread(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0)


def binary() -> Path | None:
    """Returns the program; None, after printing how to get it, if it is missing."""
    path = Path(os.environ.get("COORP", REPOSITORY / "target" / "release" / "coorp")).resolve()
    if path.is_file():
        return path
    print(f"skipped: {path} does not exist (cargo build --release, or set COORP)")
    return None


_LATENCIES = {
    "reaction": "reaction_ms",
    "control": "control_latency_ms",
    "perception": "perception_latency_ms",
    "command": "command_latency_ms",
}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _flow(found: dict[str, Any]) -> FlowResult:
    violation = _number(found.get("violation_rate"))
    return FlowResult(found["mbps"], found["sent"], found["delivered"], found["latency_ms"] or {}, violation)


def _result(found: dict[str, Any]) -> Result:
    return Result(
        violation=_number(found["violation_rate"]),
        loops=_number(found["loops"]),
        bulk_mbps=_number(found["bulk_mbps"]),
        epoch_s=_number(found["epoch_s"]),
        reaction_p50_ms=_number((found["reaction_ms"] or {}).get("p50")),
        ahead_mean=_number((found["wnic_ahead"] or {}).get("mean")),
        ahead_none=_number((found["wnic_ahead"] or {}).get("none")),
        window_share=_number(found["window_share"]),
        latency_ms={kind: found[key] or {} for kind, key in _LATENCIES.items()},
        airtime=found["mac"]["airtime_share"],
        flows={flow["name"]: _flow(flow) for flow in found["flows"]},
    )


class Simulator:
    """Runs each job once and keeps its result.

    A policy that starves bulk or does not fit its team ends the study, unless this is `lenient`: then the run's figures
    are NaN.
    """

    def __init__(self, program: Path, study: str, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self._program = program
        self._folder = MADE / study
        self._folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[Job, Result] = {}

    def write(self, name: str, text: str) -> None:
        """Writes a file that team files of this study refer to, such as a WNIC profile."""
        (self._folder / name).write_text(text)

    def run(self, jobs: Iterable[Job]) -> dict[Job, Result]:
        """Runs the new jobs, some in parallel, and returns the results of all."""
        wanted = list(dict.fromkeys(jobs))
        new = [job for job in wanted if job not in self._known]
        with ThreadPoolExecutor(PARALLEL) as pool:
            self._known.update(zip(new, pool.map(self._one, new), strict=True))
        return {job: self._known[job] for job in wanted}

    def over_seeds(
        self, team: Team, policy: str, seeds: Iterable[int], duration_s: float, figure: Callable[[Result], float]
    ) -> Spread:
        """Returns one figure's mean and spread."""
        jobs = [Job(team, policy, seed, duration_s) for seed in seeds]
        return Spread.of(figure(result) for result in self.run(jobs).values())

    def _one(self, job: Job) -> Result:
        name = f"{job.team.name}-{job.policy}-{job.seed}"
        team, out = self._folder / f"{name}.toml", self._folder / f"{name}.json"
        team.write_text(job.team.text)
        command = [str(self._program), "sim", str(team), "--policy", job.policy, "--seed", str(job.seed)]
        command += ["--duration", f"{job.duration_s:g}s", "--json", str(out), "--threads", "1", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if self._lenient and any(reason in done.stderr for reason in (STARVED, UNFIT)):
            return Result(*[math.nan] * 8, latency_ms={}, airtime={}, flows={})
        if done.returncode != 0:
            sys.exit(f"coorp failed on {team}:\n{done.stderr}")
        return _result(json.loads(out.read_text())["results"][0])
