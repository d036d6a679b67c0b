"""Compares learning over live nodes with the simulated run, epoch by epoch; and with torch.distributed.

    pip install '.[learn]' ./live
    sudo python studies/live_learning.py [--quick] [--markdown]

**Live and simulated.** `coorp learn` on examples/navigation.toml with a smaller model and fewer rounds, so that a few
minutes have several epochs: under `edca` and `coorp`, each with BSP, SSP and ASP; once live, and in the simulator with
several seeds. The tables have each epoch's duration and reward, and for whole runs the reward, the violation rate and
the bulk. The same world, policy and learning meet in both; different are the air's randomness, and what real processes
cost. A figure of a single live run has no interval; the simulator's standard deviation shows how far runs differ.

**torch.distributed.** The same team, world and learning with gloo's all-reduce and control over UDP, marked EF
(lib/gloo_learning.py): unprotected, and with `coorp emu --protect`. It is BSP. A ring's all-reduce sends less than a
leader that combines, but all robots send at once.

All live runs share this machine's cores, and training and inference take at least the times of the team file. The last
table says whether the emulator kept up, and how often some program waited for a core: figures of a run that did not
keep up mean nothing, and those of a run that waited often are the machine's as much as the channel's.

If root, TUN, the package or torch is missing, the study says so and succeeds. If a run fails, it exits with 1. With
`--quick`, runs are short and few, and mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from lib.edit import with_keys
from lib.simulator import REPOSITORY
from lib.table import number, percent, show

if TYPE_CHECKING:
    from coorp.learn.outcome import Outcome

EXAMPLE = REPOSITORY / "examples" / "navigation.toml"
GLOO = Path(__file__).with_name("lib") / "gloo_learning.py"
NEEDED = ("coorp", "torch", "pettingzoo", "matplotlib", "tqdm")
UNPROTECTED, PROTECTED = "gloo", "gloo, protected"
SEED = 1


@dataclass(frozen=True)
class Effort:
    """The extent of the study."""

    seconds: int
    policies: tuple[str, ...]
    paradigms: tuple[str, ...]
    seeds: range
    """Seeds of simulated runs; the live run has the first."""
    learning: dict[str, str]
    """Changed keys of `[learning]`."""
    gloo: tuple[str, ...]
    epochs: int
    """Maximum number of epochs in the tables."""


FULL = Effort(
    120,
    ("edca", "coorp"),
    ("bsp", "ssp", "asp"),
    range(SEED, SEED + 5),
    {"parameters": "1_500_000", "rounds": "3"},
    (UNPROTECTED, PROTECTED),
    8,
)
QUICK = Effort(
    12,
    ("coorp",),
    ("bsp",),
    range(SEED, SEED + 1),
    {"parameters": "100_000", "rounds": "2", "batch_loops": "60", "training": '"100ms"'},
    (UNPROTECTED,),
    3,
)


@dataclass(frozen=True)
class Run:
    """What the tables show of one run."""

    epoch_s: list[float]
    """Durations, epoch by epoch."""
    epoch_rewards: list[float]
    """Reward per robot and second, epoch by epoch."""
    reward: float
    """Reward per robot and second of the whole run."""
    violation: float
    bulk_mbps: float
    live: dict[str, Any] | None

    @staticmethod
    def of(outcome: Outcome) -> Run:
        """Returns the figures of an outcome."""
        history, robots = outcome.history, outcome.robots
        times, totals = [0.0, *history.t_s], [0.0, *history.reward]
        ends = [0.0, *history.epochs_s]
        rewards = []
        for begin_s, end_s in pairwise(ends):
            a, b = math.ceil(begin_s), min(math.floor(end_s), len(times) - 1)
            span_s = times[b] - times[a] if b > a else math.nan
            rewards.append((totals[b] - totals[a]) / (span_s * robots))
        return Run(
            epoch_s=[end_s - begin_s for begin_s, end_s in pairwise(ends)],
            epoch_rewards=rewards,
            reward=totals[-1] / (times[-1] * robots),
            violation=outcome.violation_rate,
            bulk_mbps=outcome.bulk_mbps,
            live=outcome.live,
        )


def skipped() -> str | None:
    """Returns why the study cannot run here, if so."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} missing: pip install '.[learn]' ./live"
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        return "coorp emu needs root and /dev/net/tun"
    return None


def learnt(team: Path, effort: Effort, out: Path, seed: int, *, live: bool) -> dict[str, Run]:
    """Runs all policies and paradigms with `coorp learn`."""
    from coorp.learn.outcome import Outcome, run_name

    command = [sys.executable, "-m", "coorp", "learn", str(team), "--policy", ",".join(effort.policies)]
    command += ["--sync", ",".join(effort.paradigms), "--minutes", f"{effort.seconds / 60}", "--seed", str(seed)]
    command += ["--out", str(out), "--no-gif", "--no-report", *(["--live"] if live else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(command)}\n{done.stdout}{done.stderr}")
    folder = out / f"{team.stem}-seed{seed}"
    return {
        f"{policy}, {sync.upper()}": Run.of(
            Outcome.load(folder / run_name(policy, sync, frozen=False, live=live) / "outcome.json")
        )
        for policy in effort.policies
        for sync in effort.paradigms
    }


def with_gloo(team: Path, effort: Effort, *, protected: bool) -> Run | None:
    """Runs the team with torch.distributed. Returns None if the run failed, and says why."""
    import coorp
    from coorp.envs import Navigation
    from coorp.learn import checkpoint
    from coorp.learn.errors import Broken, Mend
    from coorp.learn.fit import PRETRAINED, SHAPE
    from coorp.learn.live import run as live
    from coorp.learn.live.robot import Setting
    from coorp.learn.outcome import Outcome
    from coorp.learn.run import LEVEL

    robots = coorp.check(team).robots
    env = Navigation(LEVEL, robots=robots, endless=True)
    env.reset(seed=SEED)
    # The policy's name only says that there are control and bulk.
    setting = Setting(str(team), "edca", "bsp", None, SEED, effort.seconds, learns=True)
    start = checkpoint.load_model(PRETRAINED, SHAPE)
    options = ["--protect"] if protected else []
    try:
        lived = live.run(
            setting, start, env, lambda _second, _history: True, robot=(sys.executable, str(GLOO)), options=options
        )
    except (Broken, Mend) as problem:
        print(f"failed: {GLOO.name} {' '.join(options)}\n{problem}\n")
        return None
    assert lived is not None, "nobody ended the run"
    outcome = Outcome(
        team=str(team),
        policy="gloo",
        sync="bsp",
        seed=SEED,
        frozen=False,
        robots=len(robots),
        minutes=effort.seconds / 60,
        loops=lived.figures["loops"],
        violation_rate=lived.figures["violation_rate"] or 0.0,
        bulk_mbps=lived.figures["bulk_mbps"] or 0.0,
        history=lived.history,
        live={"kept_up": lived.emulator["kept_up"], "late_us": lived.emulator["timing"], "waited": lived.waited},
    )
    return Run.of(outcome)


def spread(values: Sequence[float], digits: int) -> str:
    """Returns the mean of several runs, and their standard deviation."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "-"
    one = number(mean(known), digits)
    return f"{one} ± {number(stdev(known), digits)}" if len(known) > 1 else one


def epochs(
    runs: Sequence[tuple[str, str, list[Run]]], effort: Effort, what: str, digits: int, *, markdown: bool
) -> None:
    """Prints a figure epoch by epoch: the mean of runs, where as many epochs have ended."""
    rows = []
    for name, ground, those in runs:
        columns: list[list[float]] = [
            [getattr(run, what)[epoch] for run in those if len(getattr(run, what)) > epoch]
            for epoch in range(effort.epochs)
        ]
        # A mean over some of the seeds is not the others'.
        cells = [spread(column, digits) if len(column) == len(those) else "-" for column in columns]
        rows.append([name, ground, *cells])
    last = max((place for row in rows for place, cell in enumerate(row) if cell != "-"), default=1)
    titles = ["", "", *(f"epoch {epoch + 1}" for epoch in range(effort.epochs))]
    show(titles[: last + 1], [row[: last + 1] for row in rows], markdown=markdown)


def main() -> None:
    """Runs everything and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    arguments = parser.parse_args()
    if (why := skipped()) is not None:
        print(f"skipped: {why}")
        return
    effort = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory() as name:
        team = Path(name) / EXAMPLE.name
        team.write_text(with_keys(EXAMPLE.read_text(), "learning", effort.learning))
        subprocess.run([sys.executable, "-m", "coorp", "keys", "init", str(team)], capture_output=True, check=True)
        sim = [learnt(team, effort, Path(name) / "sim", seed, live=False) for seed in effort.seeds]
        live = learnt(team, effort, Path(name) / "live", SEED, live=True)
        gloo = {how: with_gloo(team, effort, protected=how == PROTECTED) for how in effort.gloo}
    runs: list[tuple[str, str, list[Run]]] = []
    for label, run in live.items():
        runs += [(label, "live", [run]), (label, "sim", [seed[label] for seed in sim])]
    runs += [(how, "live", [run]) for how, run in gloo.items() if run is not None]
    markdown = arguments.markdown
    print("Seconds per epoch:\n")
    epochs(runs, effort, "epoch_s", 1, markdown=markdown)
    print("Reward per robot and second, in each epoch:\n")
    epochs(runs, effort, "epoch_rewards", 2, markdown=markdown)
    print("Whole runs:\n")
    rows = [
        [
            label,
            ground,
            spread([len(run.epoch_s) for run in those], 1),
            spread([mean(run.epoch_s) if run.epoch_s else math.nan for run in those], 1),
            spread([run.reward for run in those], 2),
            spread([100.0 * run.violation for run in those], 1),
            spread([run.bulk_mbps for run in those], 1),
        ]
        for label, ground, those in runs
    ]
    titles = ["", "", "epochs", "s per epoch", "reward", "violation %", "bulk Mbit/s"]
    show(titles, rows, markdown=markdown)
    rows = []
    for label, _, those in runs:
        for run in those:
            if run.live is not None:
                late = run.live["late_us"]
                waited = math.nan if run.live["waited"] is None else run.live["waited"]
                kept_up = "yes" if run.live["kept_up"] else "NO"
                rows.append(
                    [label, kept_up, *(number(late[f"{at}_us"], 0) for at in ("p50", "p99", "max")), percent(waited, 0)]
                )
    show(["live run", "kept up", "late p50 us", "p99", "max", "waited for a core"], rows, markdown=markdown)
    if None in gloo.values():
        sys.exit(1)


if __name__ == "__main__":
    main()
