"""`coorp sim --sweep`: teams, policies and seeds, each run kept in a file of its own, and all of them in one table.

A run's file is `OUT/<team>/<policy>-seed<n>.json`, with its settings and its result as in `coorp sim --json`, less the
wall-clock time, so that it is the same wherever it ran. At the end all are in `OUT/sweep.json`, and their main figures
in `OUT/sweep.csv`.

Left out: HTML reports, recordings that replace a team's traffic, and faults in the real node: `coorp sim` without
--sweep has these.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import coorp
from coorp.learn.errors import Mend
from coorp.sweep import farm, tables
from coorp.sweep.farm import Job, Tell
from coorp.sweep.files import alone, replace

POLICIES = "edca,coorp"
UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
UNKNOWN = "there is no policy"
"""Part of the simulator's message about a name that is no policy."""


@dataclass(frozen=True)
class Run:
    """One run of the simulator."""

    team: Path
    digest: str
    policy: str
    seed: int
    duration_s: float
    faults: bool
    out: Path

    @property
    def name(self) -> str:
        return f"{self.team.stem}, {self.policy}, seed {self.seed}"

    @property
    def path(self) -> Path:
        return self.out / self.team.stem / f"{self.policy}-seed{self.seed}.json"

    @property
    def setting(self) -> dict[str, Any]:
        """What makes a run this one."""
        return {
            "coorp": coorp.__version__,
            "team file": self.digest,
            "policy": self.policy,
            "seed": self.seed,
            "duration_s": self.duration_s,
            "faults": self.faults,
        }

    def kept(self) -> dict[str, Any] | None:
        """Returns the content of this run's file, if there is one."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            content = None
        if not isinstance(content, dict) or not isinstance(content.get("setting"), dict):
            raise Mend(f"{self.path} is not a run of a sweep; delete it, or give another --out, or --overwrite")
        return content

    def run(self, _tell: Tell) -> bool:
        """Simulates, and keeps the result. The simulator cannot be stopped on the way: a run takes seconds."""
        if digest(self.team) != self.digest:
            raise Mend(f"{self.team} was changed during the sweep; repeat the command with --overwrite")
        result, unfit = None, None
        try:
            whole = coorp.simulate(
                self.team, self.policy, duration_s=self.duration_s, seed=self.seed, faults=self.faults
            )
            result = {name: value for name, value in whole.to_dict().items() if name != "wall_s"}
        except coorp.InputError as problem:  # the team is valid, so it is the policy that does not fit
            unfit = str(problem)
        content = {"team": self.team.stem, "setting": self.setting, "result": result, "unfit": unfit}
        replace(self.path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
        return True


def main(arguments: Sequence[str]) -> int:
    """Runs `coorp sim --sweep` with these arguments and returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    try:
        return _sweep(options, shlex.join(farm.continuing(["coorp", "sim", *arguments])))
    except coorp.InputError as problem:  # its text starts with 'error:'
        print(problem, file=sys.stderr)
    except Mend as problem:
        print(f"error: {problem}", file=sys.stderr)
    except OSError as problem:
        print(f"error: {problem.filename}: {problem.strerror or problem}; give another --out", file=sys.stderr)
    except KeyboardInterrupt:
        print("ended at once; finished runs are kept, and --resume continues", file=sys.stderr)
        return 130
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="coorp sim",
        description="Simulate teams under policies with several seeds, all runs at once; a sweep can be resumed.",
        epilog="Exit codes: 0 success, 1 a run failed, 2 bad input or unusable files, 130 ended by Ctrl-C or SIGTERM. "
        "Without --sweep, see 'coorp sim --help'.",
    )
    parser.add_argument("teams", type=Path, help="a folder of team files (*.toml), or one of them")
    parser.add_argument("--sweep", action="store_true", required=True, help="run all of them at once")
    parser.add_argument("--policy", default=POLICIES, metavar="P[,P]", help=f"policies [{POLICIES}]")
    parser.add_argument("--duration", type=_duration, default=60.0, metavar="TIME", help="virtual time of a run [60s]")
    parser.add_argument("--seed", type=farm.seed, default=1, metavar="N", help="the first seed [1]")
    parser.add_argument("--faults", action="store_true", help="robots die, freeze and restart, messages get lost")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for results [runs]")
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument("--resume", action="store_true", help="leave the finished runs in --out as they are")
    earlier.add_argument("--overwrite", action="store_true", help="run them again")
    farm.add_options(parser)
    return parser


def _duration(text: str) -> float:
    parts = re.fullmatch(r"(\d+\.?\d*|\.\d+)([a-z]+)", text.strip())
    if parts is None or parts[2] not in UNITS_S:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time; write it as 600s, 10min or 1.5h")
    seconds = float(parts[1]) * UNITS_S[parts[2]]
    if not 1e-3 <= seconds <= 24 * 3600:
        raise argparse.ArgumentTypeError(f"{text} is not from 1ms to 24h")
    return seconds


def digest(team: Path) -> str:
    """Returns the digest of a team file."""
    return hashlib.sha256(team.read_bytes()).hexdigest()


def plan(options: argparse.Namespace) -> list[Run]:
    """Returns the runs, and checks before the first one that teams and policies are good."""
    teams = tables.team_files(options.teams)
    if not teams:
        raise Mend(f"there is no team file (*.toml) in {options.teams}")
    policies = list(dict.fromkeys(name.strip() for name in options.policy.split(",")))
    seeds = range(options.seed, options.seed + (options.seeds or 1))
    farm.check_count(len(teams) * len(policies) * len(seeds))
    for team, policy in product(teams, policies):
        coorp.check(team)
        try:
            coorp.Session(team, policy, seed=options.seed)
        except coorp.InputError as problem:
            if UNKNOWN in str(problem):
                raise
    return [
        Run(team, digest(team), policy, seed, options.duration, options.faults, options.out)
        for team, policy, seed in product(teams, policies, seeds)
    ]


def _sweep(options: argparse.Namespace, command: str) -> int:
    runs = plan(options)
    todo = list(runs) if options.overwrite else [run for run in runs if not _is_done(run, options)]
    for folder in {run.path.parent for run in runs}:
        folder.mkdir(parents=True, exist_ok=True)
    with alone(options.out):
        if options.overwrite:
            for run in todo:
                run.path.unlink(missing_ok=True)
        ended = farm.run([Job(run.name, partial(_run, run)) for run in todo], options.on, options.workers)
        contents = [content for run in runs if (content := run.kept()) is not None]
        if contents and all(content["unfit"] for content in contents):
            raise Mend("\n".join(dict.fromkeys(content["unfit"].replace("error: ", "") for content in contents)))
        if not ended.stopped and contents:
            _write(options.out, contents)
    return farm.outcome(ended, command)


def _run(run: Run, tell: Tell) -> bool:
    return run.run(tell)


def _is_done(run: Run, options: argparse.Namespace) -> bool:
    content = run.kept()
    if content is None:
        return False
    if not options.resume:
        raise Mend(f"{run.path} is of an earlier sweep; give --resume, --overwrite or another --out")
    theirs = content["setting"]
    others = [name for name, mine in run.setting.items() if theirs.get(name) != mine]
    if others:
        raise Mend(f"{run.path} is from a run with another {' and '.join(others)}; give --overwrite or another --out")
    return True


def _write(out: Path, contents: list[dict[str, Any]]) -> None:
    replace(out / "sweep.json", (json.dumps(contents, indent=1, allow_nan=False) + "\n").encode())
    tables.write_csv(out / "sweep.csv", [_row(content) for content in contents])
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for content in contents:
        groups.setdefault((content["team"], content["setting"]["policy"]), []).append(content["result"] or {})
    rows = [_line(team, policy, results) for (team, policy), results in groups.items()]
    titles = ("team", "policy", "seeds", "violations, mean", "worst", "bulk Mbit/s, mean", "worst", "epoch s, mean")
    print(tables.lay_out(titles, rows, 2), end="")
    for reason in dict.fromkeys(f"{content['team']}: {content['unfit']}" for content in contents if content["unfit"]):
        print(f"Note: {reason.replace('error: ', '')}")
    print(f"{len(contents)} runs: {out / 'sweep.csv'}, {out / 'sweep.json'}")


def _line(team: str, policy: str, results: list[dict[str, Any]]) -> list[str]:
    def of(name: str) -> list[float]:
        return [value for result in results if (value := result.get(name)) is not None]

    late, bulk = of("violation_rate"), of("bulk_mbps")
    return [
        team,
        policy,
        str(len(results)),
        tables.shown(100 * tables.mean(late), suffix=" %"),
        tables.shown(100 * max(late, default=float("nan")), suffix=" %"),
        tables.shown(tables.mean(bulk)),
        tables.shown(min(bulk, default=float("nan"))),
        tables.shown(tables.mean(of("epoch_s"))),
    ]


def _row(content: dict[str, Any]) -> dict[str, Any]:
    result, setting = content["result"] or {}, content["setting"]
    own = {"team": content["team"], **{name: setting[name] for name in ("policy", "seed", "duration_s", "faults")}}
    own |= {name: result.get(name) for name in ("violation_rate", "loops", "bulk_mbps", "epochs", "epoch_s")}
    for latency in ("reaction_ms", "control_latency_ms"):
        own |= {f"{latency}_{name}": value for name, value in (result.get(latency) or {}).items()}
    return own
