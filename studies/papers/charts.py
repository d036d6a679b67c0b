"""The few charts of docs/papers.md: distributions, growth with intervals, and arrivals over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lib.simulator import REPOSITORY

FOLDER = REPOSITORY / "docs" / "papers"
POINTS = 150
COLOURS = {
    "mpc-only": "#888888",
    "edca": "#c0392b",
    "schedwifi": "#d68910",
    "coorp-paper": "#2471a3",
    "coorp": "#1e8449",
}


def _new(columns: int, height: float = 3.2) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    # Without a date and random names, the same data gives the same file.
    mpl.rcParams["svg.hashsalt"] = "coorp"
    mpl.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}
    )
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(4.6 * columns, height), squeeze=False)


def _save(figure: Any, name: str) -> str:  # noqa: ANN401
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(FOLDER / name, metadata={"Date": None})
    return name


def distributions(
    name: str,
    panels: Mapping[str, Mapping[str, Sequence[float] | np.ndarray[Any, Any]]],
    *,
    unit: str,
    span: tuple[float, float],
    published: Mapping[str, float] | None = None,
    bound: float | None = None,
) -> str:
    """Distribution functions, one panel for each title; `published` are shares in percent over the bound."""
    figure, axes = _new(len(panels))
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for policy, values in curves.items():
            shares = np.linspace(0.0, 1.0, POINTS)
            [line] = axis.plot(
                np.quantile(values, shares), shares, label=policy, color=COLOURS.get(policy), linewidth=1.4
            )
            if published and bound and policy in published:
                axis.plot(
                    [bound], [1.0 - published[policy] / 100.0], "o", color=line.get_color(), markersize=6, zorder=3
                )
        if bound:
            axis.axvline(bound, color="black", linewidth=0.8, linestyle=":")
        axis.set(title=title, xlabel=unit, xlim=span, ylim=(0, 1))
    axes[0][0].set_ylabel("share at or below")
    axes[0][0].legend(frameon=False, loc="lower right")
    return _save(figure, name)


def growth(name: str, panels: Mapping[str, Mapping[str, np.ndarray[Any, Any]]], *, first_s: float) -> str:
    """Rewards of several runs by the second from `first_s` on, one panel for each title: the mean over runs, and its
    standard error. Each array is of shape (runs, seconds)."""
    figure, axes = _new(len(panels))
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for policy, rewards in curves.items():
            at = np.linspace(0, rewards.shape[1] - 1, POINTS // 2).astype(int)
            minutes, mean = (first_s + at) / 60.0, rewards.mean(axis=0)[at]
            [line] = axis.plot(minutes, mean, label=policy, color=COLOURS.get(policy), linewidth=1.4)
            if len(rewards) > 1:
                error = rewards.std(axis=0, ddof=1)[at] / len(rewards) ** 0.5
                axis.fill_between(
                    minutes, mean - error, mean + error, color=line.get_color(), alpha=0.15, linewidth=0.0
                )
        axis.set(title=title, xlabel="minutes")
    low, high = min(each.get_ylim()[0] for each in axes[0]), max(each.get_ylim()[1] for each in axes[0])
    for axis in axes[0]:
        axis.set_ylim(low, high)
    axes[0][0].set_ylabel("reward per robot and second")
    axes[0][0].legend(frameon=False, loc="upper left")
    return _save(figure, name)


def arrivals(
    name: str, cases: Mapping[str, tuple[Sequence[float], Sequence[tuple[float, float]]]], bad_at_s: float
) -> str:
    """When control packets arrived, as rows of marks, and the data rate."""
    figure, axes = _new(2, 3.0)
    for place, (case, (times, rates)) in enumerate(cases.items()):
        axes[0][0].plot(times, [place] * len(times), "|", markersize=9, label=case)
        axes[0][1].plot([at for at, _ in rates], [rate for _, rate in rates], label=case, linewidth=1.2)
    axes[0][0].set(
        yticks=range(len(cases)), yticklabels=list(cases), xlabel="s", title="control packets as they arrive"
    )
    axes[0][1].set(xlabel="s", ylabel="Mbit/s", title="data")
    for axis in axes[0]:
        axis.axvline(bad_at_s, color="black", linewidth=0.8, linestyle=":")
    axes[0][1].legend(frameon=False)
    return _save(figure, name)
