"""Deng 2022, figures 2b and 9: how fast the reward grows under each policy and paradigm, by `coorp learn`.

Runs are like those of studies/convergence.py, in a folder of their own, with `coorp-paper` beside the others. Growth
is the reward over its start, in means of a quarter of an hour. 'Faster than SchedWiFi' is the ratio of two growths over
the same time, with a 95 % interval from bootstrap samples of the seeds; it is shown if all of the interval is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from papers import charts
from papers.outcome import Claim, Outcome, Table

POLICIES = ("edca", "schedwifi", "coorp-paper", "coorp")


def growth(
    minutes: int, seeds: Sequence[int], syncs: Sequence[str], policies: Sequence[str], *, resume: bool
) -> Outcome:
    """Figure 9, and its like for the other paradigms."""
    import convergence

    smooth_s = min(900, minutes * 60 // 6)
    command = "python studies/papers/run.py --measure --only deng.figure_9"
    what = f"`coorp learn`, {minutes} virtual minutes, seeds {seeds[0]} to {seeds[-1]}"
    out = Outcome("simulated", command, what)
    convergence.write_team()

    def job(policy: str, sync: str, seed: int) -> convergence.Job:
        return convergence.Job(policy, sync, seed, minutes, kept=convergence.OUT / "figure-9")

    jobs = [job(policy, sync, seed) for sync in syncs for policy in policies for seed in seeds]
    runs = convergence.run(jobs, resume=resume)
    rows: list[list[str]] = []
    rows_of_ratios: list[list[str]] = []
    panels: dict[str, dict[str, convergence.Rewards]] = {}
    for sync in syncs:
        curves = {
            policy: convergence.curves([runs[job(policy, sync, seed)] for seed in seeds], smooth_s)
            for policy in policies
        }
        panels[sync.upper()] = curves
        there = convergence.reached(curves, smooth_s)
        for policy in policies:
            ends = curves[policy][:, -1] - curves[policy][:, 0]
            error = float(np.std(ends, ddof=1)) / len(ends) ** 0.5 if len(ends) > 1 else float("nan")
            epoch_s = statistics.fmean(runs[job(policy, sync, seed)].epoch_s for seed in seeds)
            cells = [f"{ends.mean():+.2f}", f"{error:.2f}", *convergence.reached_cells(there[policy]), f"{epoch_s:.1f}"]
            rows.append([f"{policy}, {sync.upper()}", *cells])
            if sync == "asp" and policy == "coorp-paper":
                converges = ends.mean() > 2.0 * error
                out.claims["asp"] = Claim(not converges, f"the reward grows by {ends.mean():+.1f} ± {error:.1f}")
        if "schedwifi" in curves and "coorp-paper" in curves:
            paper, planned = (_second_half(curves[policy]) for policy in ("coorp-paper", "schedwifi"))
            ratio = float(paper.mean() / planned.mean())
            low, high = convergence.ends(
                lambda rng, paper=paper, planned=planned: float(
                    convergence.drawn(paper, rng).mean() / convergence.drawn(planned, rng).mean()
                )
            )
            rows_of_ratios.append([sync.upper(), f"{ratio:.2f}", f"{low:.2f} to {high:.2f}"])
            if sync == "ssp":
                found = f"{100 * (ratio - 1):+.0f} % (95 %: {100 * (low - 1):+.0f} to {100 * (high - 1):+.0f})"
                out.claims["faster"] = Claim(low > 1.0, found)
    titles = ["", "growth of the reward", "standard error", *convergence.REACHED_TITLES, "epoch, s"]
    name = charts.growth("deng-figure-9.svg", panels, first_s=smooth_s / 2)
    of = f"a mean over {smooth_s // 60} minutes"
    out.charts = {name: f"Reward while learning ({of}): the mean of {len(seeds)} seeds, and its standard error"}
    title = "Reward per robot and second at the end less at the start, and when it reaches half of edca's growth."
    out.tables.append(Table(title, titles, rows))
    title = "Growth in the mean of the second half under coorp-paper, relative to schedwifi's."
    out.tables.append(Table(title, ["", "ratio", "95 %"], rows_of_ratios))
    return out


def _second_half(rewards: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns how much each run's reward has grown in the mean of the second half."""
    return (rewards[:, rewards.shape[1] // 2 :] - rewards[:, :1]).mean(axis=1)
