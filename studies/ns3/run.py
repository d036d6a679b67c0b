"""Compares Coorp's air with ns-3 3.44 on the same scenarios.

    pip install ns3==3.44.post0
    cargo build --release
    python studies/ns3/run.py [--quick] [--stock] [--markdown]

If ns-3 or g++ is missing, the study says so and succeeds. It exits with 1 if a figure is off by more than the limits
below. docs/fidelity.md says which settings match on ns-3's side, and which do not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import peer
from cases import CASES, Case, team_file

THROUGHPUT_LIMIT = 0.05
LATENCY_LIMIT = 0.15
PARALLEL = 2
"""Number of concurrent ns-3 processes."""
COORP_TIMES = 5
"""Duration of Coorp's runs over ns-3's, so that Coorp's part of the sampling error is small."""


@dataclass(frozen=True)
class Effort:
    """Duration of ns-3's runs, in virtual seconds per seed."""

    throughput_s: float
    latency_s: float
    seeds: int


FULL = Effort(throughput_s=20.0, latency_s=60.0, seeds=2)
QUICK = Effort(throughput_s=8.0, latency_s=30.0, seeds=1)


@dataclass(frozen=True)
class Coorp:
    """The results of `coorp sim`."""

    total_mbps: float
    latency_ms: dict[str, float]
    virtual_s: float
    wall_s: float


@dataclass(frozen=True)
class Row:
    """One figure of one case."""

    case: str
    figure: str
    ns3: float
    coorp: float
    limit: float

    @property
    def error(self) -> float:
        return self.coorp / self.ns3 - 1.0

    @property
    def passed(self) -> bool:
        return abs(self.error) <= self.limit


@dataclass(frozen=True)
class Result:
    """One case, run in both."""

    rows: list[Row]
    ns3: peer.Run
    coorp: Coorp


def coorp_binary() -> Path:
    path = Path(os.environ.get("COORP", peer.REPOSITORY / "target" / "release" / "coorp"))
    if not path.is_file():
        raise peer.Missing(f"{path} does not exist (cargo build --release, or set COORP)")
    return path


def run_coorp(binary: Path, case: Case, duration_s: float, *, stock: bool) -> Coorp:
    with tempfile.TemporaryDirectory() as folder:
        team, out = Path(folder) / "team.toml", Path(folder) / "out.json"
        team.write_text(team_file(case, stock=stock))
        command = [str(binary), "sim", str(team), "--policy", "edca", "--duration", f"{duration_s:g}s"]
        command += ["--seed", "1", "--json", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"coorp failed on '{case.name}':\n{done.stderr}")
        result = json.loads(out.read_text())["results"][0]
    return Coorp(
        total_mbps=sum(flow["mbps"] for flow in result["flows"] if flow["name"].startswith("bulk-")),
        latency_ms=result["control_latency_ms"] or {},
        virtual_s=result["virtual_s"],
        wall_s=result["wall_s"],
    )


def compare(scenario: Path, coorp: Path, case: Case, effort: Effort, *, stock: bool) -> Result:
    duration_s = effort.latency_s if case.has_control else effort.throughput_s
    seeds = range(1, effort.seeds + 1)
    theirs = peer.pool([peer.run(scenario, case, duration_s, seed, stock=stock) for seed in seeds])
    ours = run_coorp(coorp, case, COORP_TIMES * duration_s * effort.seeds, stock=stock)
    rows: list[Row] = []
    if case.stations:
        rows.append(Row(case.name, "Mbit/s", theirs.total_mbps, ours.total_mbps, THROUGHPUT_LIMIT))
    if case.has_control:
        for figure, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            sample = peer.quantile(theirs.latency_ms, q)
            rows.append(Row(case.name, f"{figure} ms", sample, ours.latency_ms[figure], LATENCY_LIMIT))
    return Result(rows, theirs, ours)


def print_rows(rows: list[Row], *, markdown: bool) -> None:
    width = max(len(row.case) for row in rows)
    separator, edge = (" | ", "|") if markdown else ("  ", "")

    def line(case: str, *fields: str) -> None:
        cells = separator.join([case.ljust(width), *(field.rjust(8) for field in fields)])
        print(f"{edge} {cells} {edge}".strip())

    line("scenario", "figure", "ns-3", "Coorp", "error", "")
    if markdown:
        line("---", "---", "---:", "---:", "---:", "---")
    for row in rows:
        verdict = "pass" if row.passed else "FAIL"
        line(row.case, row.figure, f"{row.ns3:.3f}", f"{row.coorp:.3f}", f"{row.error:+.1%}", verdict)


def speed(results: list[Result], of: Callable[[Result], peer.Run | Coorp]) -> float:
    """Returns the virtual seconds per wall-clock second over all cases."""
    runs = [of(result) for result in results]
    return sum(run.virtual_s for run in runs) / sum(run.wall_s for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and shorter runs, for CI")
    parser.add_argument("--stock", action="store_true", help="ns-3 by its own rules, and Coorp with the same")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    arguments = parser.parse_args()
    try:
        coorp, scenario = coorp_binary(), peer.compile_scenario()
    except peer.Missing as reason:
        print(f"skipped: {reason}")
        return 0
    effort = QUICK if arguments.quick else FULL
    cases = [case for case in CASES if case.quick or not arguments.quick]
    with ThreadPoolExecutor(PARALLEL) as pool:
        results = list(pool.map(lambda case: compare(scenario, coorp, case, effort, stock=arguments.stock), cases))
    rows = [row for result in results for row in result.rows]
    print_rows(rows, markdown=arguments.markdown)
    failures = sum(not row.passed for row in rows)
    theirs, ours = speed(results, lambda r: r.ns3), speed(results, lambda r: r.coorp)
    print(
        f"\n{len(rows) - failures} of {len(rows)} figures within {THROUGHPUT_LIMIT:.0%} (Mbit/s)"
        f" and {LATENCY_LIMIT:.0%} (latency)."
    )
    print(
        f"Virtual seconds per wall-clock second on these scenarios: ns-3 {theirs:.2f}, Coorp {ours:.0f},"
        f" {ours / theirs:.0f} times as fast."
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
