"""The report of a comparison: report.html, which opens offline, and its figures as PNG.

Figures: reward over virtual time (Deng 2022, figures 2b and 9: one panel per paradigm), time per epoch (Deng 2022,
table I), collisions against the violation rate with 95 % confidence intervals, and the last seconds of each run as a
GIF.
"""

from __future__ import annotations

import base64
import html
import math
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from coorp.learn.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTH_S = 60
COLOURS = {
    "mpc-only": "#17202b",
    "edca": "#b3001b",
    "schedwifi": "#7b8794",
    "coorp": "#00875f",
    "coorp-paper": "#56b4e9",
}
GIF = "team.gif"

STYLE = """
:root { --page: #f6f7f9; --card: #fff; --ink: #17202b; --soft: #5a6675; --line: #dde2e8 }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif }
main { max-width: 1100px; margin: 0 auto; padding: 24px 20px 48px }
section { margin: 16px 0; padding: 16px 18px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; overflow-x: auto }
h1 { margin: 0; font-size: 26px } h2 { margin: 0 0 8px; font-size: 17px } p { color: var(--soft); margin: 4px 0 8px }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: 4px 12px; text-align: right; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left }
img { max-width: 100%; height: auto }
figure { display: inline-block; margin: 0 12px 12px 0 } figcaption { color: var(--soft); font-size: 13px }
"""


def write(folder: Path, outcomes: list[Outcome]) -> Path:
    """Draws the figures into `folder` and writes its report.html. Returns that file."""
    figures = {"reward": _reward(outcomes), "collisions": _collisions(outcomes)}
    if any(outcome.history.epochs_s for outcome in outcomes):
        figures["epochs"] = _epochs(outcomes)
    for name, figure in figures.items():
        _save(figure, folder / f"{name}.png")
    page = folder / "report.html"
    page.write_text(_page(folder, outcomes, list(figures)), encoding="utf-8")
    return page


def _colour(outcome: Outcome) -> str | None:
    return COLOURS.get(outcome.policy)


def _smoothed(outcome: Outcome, smooth_s: int) -> tuple[list[float], list[float]]:
    """Returns minutes, and the reward per robot and second over `_window_s` around them."""
    times, totals = outcome.history.t_s, outcome.history.reward
    back = _window_s(outcome, smooth_s)
    spans = list(zip(times[:-back], times[back:], totals[:-back], totals[back:], strict=True))
    minutes = [(start + end) / 120 for start, end, _, _ in spans]
    return minutes, [(b - a) / ((end - start) * outcome.robots) for start, end, a, b in spans]


def _window_s(outcome: Outcome, smooth_s: int) -> int:
    """Returns the seconds over which a reward is averaged: `smooth_s`, or a third of a shorter run."""
    return min(smooth_s, max(1, len(outcome.history.t_s) // 3))


def _window(outcomes: list[Outcome], smooth_s: int = SMOOTH_S) -> str:
    """Returns these seconds as text; live runs that ended early may differ."""
    windows = sorted({_window_s(outcome, smooth_s) for outcome in outcomes})
    return f"{windows[0]} s" if len(windows) == 1 else f"{windows[0]} to {windows[-1]} s"


def write_reward(path: Path, outcomes: list[Outcome], smooth_s: int = SMOOTH_S) -> None:
    """Draws the reward over virtual time, averaged over `smooth_s`: of several seeds, the mean with its standard
    error."""
    _save(_reward(outcomes, smooth_s), path)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def _reward(outcomes: list[Outcome], smooth_s: int = SMOOTH_S) -> Figure:
    paradigms = list(dict.fromkeys(outcome.sync for outcome in outcomes))
    figure, axes = plt.subplots(1, len(paradigms), figsize=(5.5 * len(paradigms), 3.8), sharey=True, squeeze=False)
    for panel, paradigm in zip(axes[0], paradigms, strict=True):
        shown = [outcome for outcome in outcomes if outcome.sync == paradigm]
        for policy in dict.fromkeys(outcome.policy for outcome in shown):
            seeds = [_smoothed(outcome, smooth_s) for outcome in shown if outcome.policy == policy]
            minutes, rewards = seeds[0][0], np.array([reward for _, reward in seeds])
            mean, colour = rewards.mean(axis=0), COLOURS.get(policy)
            panel.plot(minutes, mean, label=policy, color=colour, linewidth=1.4)
            if len(seeds) > 1:
                error = rewards.std(axis=0, ddof=1) / math.sqrt(len(seeds))
                panel.fill_between(minutes, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
        panel.set_title("no learning" if paradigm == "none" else paradigm.upper())
        panel.set_xlabel("time, minutes")
        panel.grid(alpha=0.3)
        panel.legend()
    axes[0][0].set_ylabel(f"reward per robot and second,\nover {_window(outcomes, smooth_s)}")
    return figure


def _epochs(outcomes: list[Outcome]) -> Figure:
    learnt = [outcome for outcome in outcomes if outcome.history.epochs_s]
    figure, axis = plt.subplots(figsize=(1.5 + 1.3 * len(learnt), 3.8))
    bars = axis.bar(range(len(learnt)), [o.epoch_s for o in learnt], color=[_colour(o) or "#7b8794" for o in learnt])
    axis.bar_label(bars, [f"{o.epoch_s:.1f} s\n{_of_edca(o, outcomes)}".rstrip() for o in learnt])
    axis.margins(y=0.15)
    axis.set_xticks(range(len(learnt)), [f"{o.policy}\n{o.sync.upper()}" for o in learnt], fontsize=8)
    axis.set_ylabel("seconds per epoch")
    return figure


def _of_edca(outcome: Outcome, outcomes: list[Outcome]) -> str:
    """Returns the time per epoch relative to edca under the same paradigm, as in table I; empty if one of them has
    none."""
    edca = [o for o in outcomes if o.policy == "edca" and o.sync == outcome.sync and o.history.epochs_s]
    return f"{outcome.epoch_s / edca[0].epoch_s:.2f}" if edca and outcome.history.epochs_s else ""


def _collisions(outcomes: list[Outcome]) -> Figure:
    figure, axis = plt.subplots(figsize=(6.5, 4.2))
    markers = {"bsp": "o", "ssp": "s", "asp": "^"}
    for outcome in outcomes:
        rate, low, high = outcome.collision_rate
        v_low, v_high = outcome.violation_interval
        share = outcome.violation_rate
        axis.errorbar(
            100 * share,
            rate,
            xerr=[[max(0.0, 100 * (share - v_low))], [max(0.0, 100 * (v_high - share))]],
            yerr=[[max(0.0, rate - low)], [high - rate]],
            fmt=markers.get(outcome.sync, "D"),
            color=_colour(outcome),
            label=outcome.label,
            capsize=3,
        )
    axis.set_xlabel("violation rate, %")
    axis.set_ylabel("collisions per robot-hour")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return figure


def _page(folder: Path, outcomes: list[Outcome], figures: list[str]) -> str:
    titles = {"reward": "Reward", "collisions": "Collisions and late loops", "epochs": "Time per epoch"}
    notes = {
        "reward": f"Per robot and second, mean over the {_window(outcomes)} around each point.",
        "collisions": "Bars are 95 % confidence intervals of this one run: Poisson for collisions, Wilson for loops.",
        "epochs": "Collecting, disseminating, training and synchronising: seconds, and relative to edca if that ran.",
    }
    first = outcomes[0]
    still = [outcome.label for outcome in outcomes if outcome.frozen]
    how = f" {html.escape(', '.join(still))}: frozen, driving by the policy's mean; learning explores." if still else ""
    if len(still) == len(outcomes):
        how = " Frozen policy."
    time = "minutes of live runs" if first.live else "virtual minutes"
    title = html.escape(f"{Path(first.team).stem}: learning while driving")
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style><main>',
        f"<h1>{title}</h1><p>{first.robots} robots, {first.minutes:.3g} {time}{_setting(first)}.{how}</p>",
        f"<section>{_table(outcomes)}</section>",
    ]
    for name in figures:
        image = _inline(folder / f"{name}.png", "image/png", titles[name])
        parts.append(f"<section><h2>{titles[name]}</h2><p>{notes[name]}</p>{image}</section>")
    shown = []
    for outcome in outcomes:
        path = folder / outcome.name / GIF
        if path.exists():
            caption = f"<figcaption>{html.escape(outcome.label)}</figcaption>"
            shown.append(f"<figure>{_inline(path, 'image/gif', outcome.label)}{caption}</figure>")
    if shown:
        parts.append(f"<section><h2>The last seconds of each run</h2>{''.join(shown)}</section>")
    return "".join([*parts, "</main></html>\n"])


def _setting(outcome: Outcome) -> str:
    """Returns the seed of a run, and its full speed and weights as far as they are known."""
    speed = "" if math.isnan(outcome.speed_mps) else f", at up to {outcome.speed_mps:g} m/s"
    model = f", from the weights {html.escape(outcome.model)}" if outcome.model else ""
    return f", seed {outcome.seed}{speed}{model}"


def _table(outcomes: list[Outcome]) -> str:
    head = (
        "policy",
        "reward, first fifth",
        "reward, last fifth",
        "success",
        "collisions per robot-hour",
        "95 %",
        "near misses per robot-hour",
        "time to goal, s",
        "violation rate",
        "bulk, Mbit/s",
        "epochs",
        "time per epoch, s",
        "time per epoch, relative to edca",
    )
    rows = [f"<tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>"]
    for outcome in outcomes:
        rate, low, high = outcome.collision_rate
        cells = (
            html.escape(outcome.label),
            f"{outcome.mean_reward(0, 0.2):.3f}",
            f"{outcome.mean_reward(0.8, 1):.3f}",
            "-" if math.isnan(outcome.success) else f"{100 * outcome.success:.1f} %",
            f"{rate:.1f}",
            f"{low:.1f} - {high:.1f}",
            f"{outcome.near_miss_rate[0]:.1f}",
            "-" if math.isnan(outcome.to_goal_s) else f"{outcome.to_goal_s:.2f}",
            f"{100 * outcome.violation_rate:.1f} %",
            f"{outcome.bulk_mbps:.1f}",
            str(len(outcome.history.epochs_s)),
            "-" if math.isnan(outcome.epoch_s) else f"{outcome.epoch_s:.1f}",
            _of_edca(outcome, outcomes) or "-",
        )
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _inline(path: Path, kind: str, alt: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:{kind};base64,{data}">'
