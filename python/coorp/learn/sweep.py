"""`coorp learn --sweep`: teams, policies, paradigms and seeds, each a run of `coorp learn`, and what they say together.

Runs and their folders are those of `coorp learn` with the same options. A finished run is left, an interrupted one
continues from its checkpoint. At the end `sweep.csv` in --out has a line for each run, and `<team>-reward.png` shows
the mean reward over the seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from coorp.learn.errors import Mend
from coorp.learn.outcome import Outcome
from coorp.learn.run import Plan, prepare
from coorp.sweep import farm, tables
from coorp.sweep.farm import Ended, Job, Tell


def sweep(options: argparse.Namespace, policies: list[str], paradigms: list[str] | None, again: str) -> int:
    """Runs `coorp learn --sweep` and returns the exit code. `again` is the command that continues it."""
    teams = tables.team_files(options.team)
    if not teams:
        raise Mend(f"there is no team file (*.toml) in {options.team}")
    seeds = range(options.seed, options.seed + (options.seeds or 1))
    farm.check_count(len(teams) * len(policies) * len(paradigms or ("the team's",)) * len(seeds))
    folders = {(team, seed): options.out / f"{team.stem}-seed{seed}" for team, seed in product(teams, seeds)}
    if options.resume and not any(folder.exists() for folder in folders.values()):
        raise Mend(f"there is nothing in {options.out} to resume; omit --resume, or give another --out")

    def planned() -> Iterator[Plan]:
        for (team, seed), folder in folders.items():
            own = argparse.Namespace(**{**vars(options), "team": team, "seed": seed})
            yield from prepare(own, policies, paradigms, folder)

    try:
        plans, ended = run(planned(), options.on, options.workers, overwrite=options.overwrite)
    except KeyboardInterrupt:
        print(f"ended at once; everything since the last checkpoints is lost; to continue: {again}", file=sys.stderr)
        return 130
    outcomes = [each.outcome() for each in plans if not ended.stopped and str(each.folder) not in ended.failed]
    if outcomes:
        _tell(options.out, outcomes, report=options.report)
    return farm.outcome(ended, again)


def run(
    planned: Iterable[Plan], where: str | None = None, at_once: int | None = None, *, overwrite: bool = False
) -> tuple[list[Plan], Ended]:
    """Runs what is planned, each from its checkpoint if it has one, unless `overwrite`. Returns the plans too."""
    plans, jobs = [], []
    for each in planned:
        each.check_folder(overwrite=overwrite)
        # A copy has nothing in memory yet: a sweep may have thousands, and other processes read the inputs again.
        plans.append(replace(each, resume=True))
        if overwrite or not each.is_done():
            jobs.append((plans[-1], Job(str(each.folder), partial(_learn, plans[-1], each.setting))))
    if len(jobs) < len(plans):
        print(f"{len(plans) - len(jobs)} of {len(plans)} runs are finished", file=sys.stderr)
    for each, _ in jobs:
        each.make_folder(overwrite=overwrite)
    return plans, farm.run([job for _, job in jobs], where, at_once)


def _learn(plan: Plan, setting: dict[str, Any], tell: Tell) -> bool:
    if plan.setting != setting:
        raise Mend(f"{plan.team} or {plan.model} was changed during the sweep; repeat the command with --overwrite")
    return plan.run(lambda second, _: tell(second / plan.seconds))


def _tell(out: Path, outcomes: list[Outcome], *, report: bool) -> None:
    tables.write_csv(out / "sweep.csv", [_row(each) for each in outcomes])
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for each in outcomes:
        groups.setdefault((Path(each.team).stem, each.label), []).append(each)
    titles = ["team", "policy", "seeds", "reward, first fifth", "last fifth", "± SE", "success"]
    titles += ["collisions per robot-hour", "violations", "epochs", "epoch s"]
    print(tables.lay_out(titles, [[*key, *_figures(group)] for key, group in groups.items()], 2), end="")
    print(f"{len(outcomes)} runs: {out / 'sweep.csv'}", end="")
    if report:
        from coorp.learn.report import write_reward

        for team in dict.fromkeys(team for team, _ in groups):
            path = out / f"{team}-reward.png"
            write_reward(path, [each for each in outcomes if Path(each.team).stem == team])
            print(f", {path}", end="")
    print()


def _figures(group: list[Outcome]) -> list[str]:
    last = [each.mean_reward(0.8, 1) for each in group]
    return [
        str(len(group)),
        tables.shown(tables.mean(each.mean_reward(0, 0.2) for each in group), 2),
        tables.shown(tables.mean(last), 2),
        tables.shown(tables.standard_error(last), 2),
        tables.shown(100 * tables.mean(each.success for each in group), suffix=" %"),
        tables.shown(tables.mean(each.collision_rate[0] for each in group)),
        tables.shown(100 * tables.mean(each.violation_rate for each in group), suffix=" %"),
        tables.shown(tables.mean(len(each.history.epochs_s) for each in group)),
        tables.shown(tables.mean(each.epoch_s for each in group)),
    ]


def _row(outcome: Outcome) -> dict[str, Any]:
    figures = {
        "speed_mps": outcome.speed_mps,
        "reward_first_fifth": outcome.mean_reward(0, 0.2),
        "reward_last_fifth": outcome.mean_reward(0.8, 1),
        "success": outcome.success,
        "collisions": outcome.collisions,
        "collisions_per_robot_hour": outcome.collision_rate[0],
        "near_misses": outcome.near_misses,
        "near_misses_per_robot_hour": outcome.near_miss_rate[0],
        "timeouts": outcome.timeouts,
        "to_goal_s": outcome.to_goal_s,
        "violation_rate": outcome.violation_rate,
        "bulk_mbps": outcome.bulk_mbps,
        "epochs": len(outcome.history.epochs_s),
        "epoch_s": outcome.epoch_s,
    }
    return {
        "team": Path(outcome.team).stem,
        **{key: getattr(outcome, key) for key in ("policy", "sync", "seed", "model", "frozen", "robots", "minutes")},
        **{key: None if math.isnan(value) else value for key, value in figures.items()},
    }
