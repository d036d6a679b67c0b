"""`coorp sim`, run on many team files, and what it found."""

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
"""Where derived team files and results stand."""
PARALLEL = 2
"""Simulations at a time."""
STARVED = "broken rule: the gate opens again"
"""What `coorp` says where a policy let no bulk pass for seconds, which it takes for a defect."""


@dataclass(frozen=True)
class Team:
    """A team file, and what it is called in tables and on the disk."""

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
class Result:
    """What one run gave. A figure that the team gives no ground for is not a number."""

    violation: float
    """Share of loops over the reaction bound, of 1."""
    loops: float
    """Control loops that ended."""
    bulk_mbps: float
    epoch_s: float
    reaction_p50_ms: float
    ahead_mean: float
    window_share: float
    airtime: dict[str, float]
    """Shares of the channel's time: data, control, idle."""


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
    """The program, or nothing, with a word on how to get it."""
    path = Path(os.environ.get("COORP", REPOSITORY / "target" / "release" / "coorp")).resolve()
    if path.is_file():
        return path
    print(f"skipped: {path} does not exist (cargo build --release, or set COORP)")
    return None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _result(found: dict[str, Any]) -> Result:
    return Result(
        violation=_number(found["violation_rate"]),
        loops=_number(found["loops"]),
        bulk_mbps=_number(found["bulk_mbps"]),
        epoch_s=_number(found["epoch_s"]),
        reaction_p50_ms=_number((found["reaction_ms"] or {}).get("p50")),
        ahead_mean=_number((found["wnic_ahead"] or {}).get("mean")),
        window_share=_number(found["window_share"]),
        airtime=found["mac"]["airtime_share"],
    )


class Simulator:
    """Runs jobs, each once: what was run before is remembered.

    A run that starves bulk ends a study, unless it is `starving`: then its figures are not numbers.
    """

    def __init__(self, program: Path, study: str, *, starving: bool = False) -> None:
        self._starving = starving
        self._program = program
        self._folder = MADE / study
        self._folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[Job, Result] = {}

    def write(self, name: str, text: str) -> None:
        """Writes a file that team files of this study name, a WNIC profile."""
        (self._folder / name).write_text(text)

    def run(self, jobs: Iterable[Job]) -> dict[Job, Result]:
        """Runs those that are new, some side by side, and answers for all."""
        wanted = list(dict.fromkeys(jobs))
        new = [job for job in wanted if job not in self._known]
        with ThreadPoolExecutor(PARALLEL) as pool:
            self._known.update(zip(new, pool.map(self._one, new), strict=True))
        return {job: self._known[job] for job in wanted}

    def over_seeds(
        self, team: Team, policy: str, seeds: Iterable[int], duration_s: float, figure: Callable[[Result], float]
    ) -> Spread:
        """One figure's mean and spread."""
        jobs = [Job(team, policy, seed, duration_s) for seed in seeds]
        return Spread.of(figure(result) for result in self.run(jobs).values())

    def _one(self, job: Job) -> Result:
        name = f"{job.team.name}-{job.policy}-{job.seed}"
        team, out = self._folder / f"{name}.toml", self._folder / f"{name}.json"
        team.write_text(job.team.text)
        command = [str(self._program), "sim", str(team), "--policy", job.policy, "--seed", str(job.seed)]
        command += ["--duration", f"{job.duration_s:g}s", "--json", str(out), "--threads", "1", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if self._starving and STARVED in done.stderr:
            return Result(*[math.nan] * 7, airtime={})
        if done.returncode != 0:
            sys.exit(f"coorp failed on {team}:\n{done.stderr}")
        return _result(json.loads(out.read_text())["results"][0])
