"""`coorp learn`: options, runs one after another, progress, and error messages.

Exit codes: 0 success, 1 the simulator violated an invariant or a run of a sweep failed, 2 bad input or unusable files,
130 ended by Ctrl-C or SIGTERM, with a checkpoint if anything was driven. Torch and others are imported only before a
run, so that a missing one produces a message and `--help` is fast.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coorp.learn.errors import Broken, Mend
from coorp.sweep import farm

if TYPE_CHECKING:
    from coorp.learn.run import Plan

PARADIGMS = ("bsp", "ssp", "asp")
MINUTES_MAX = 24 * 60
SPEED_MPS, SPEED_MAX_MPS = 4.5, 20.0
"""The default is that of `coorp.envs.Task`, which is not imported here."""
STALENESS_MAX = 1_000_000
LINE_EVERY_S = 60.0
"""Wall-clock interval between progress lines."""


def main(arguments: Sequence[str]) -> int:
    """Runs `coorp learn` with these arguments and returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    try:
        return _learn(options, ["coorp", "learn", *arguments])
    except Mend as problem:
        return _say(f"error: {problem}", 2)
    except Broken as problem:
        return _say(f"failed: {problem}", 1)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").split(".")[0]
        if package in ("", "coorp"):
            raise
        return _say(
            f"error: 'coorp learn' needs the Python package '{package}', which is not installed; "
            "in Coorp's source: pip install '.[learn]'",
            2,
        )
    except ValueError as problem:
        # coorp.InputError, whose text starts with 'error:', like the command line's errors.
        if type(problem).__module__ != "coorp":
            raise
        return _say(str(problem), 2)
    except OSError as problem:
        return _say(f"error: {_about_disk(problem, options.out)}", 2)
    except KeyboardInterrupt:
        return _say("ended before the start", 130)


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def _about_disk(problem: OSError, out: Path) -> str:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left on the disk of {out}; free some, then repeat the command with --resume "
            "to continue from the last checkpoint"
        )
    where = f"{problem.filename}: " if problem.filename else ""
    return f"{where}{problem.strerror or problem}; check that {out} can be written to, or give another --out"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="coorp learn",
        description="Train a team while it drives: environment, policy network, PPO and air in one virtual time.",
        epilog="Exit codes: 0 success, 1 the run found a failure, 2 bad input or unusable files, 130 ended by Ctrl-C "
        "or SIGTERM.",
    )
    parser.add_argument("team", type=Path, help="team file with [control] and [learning]")
    parser.add_argument(
        "--policy",
        "--compare",
        dest="policies",
        action=_Once,
        metavar="P[,P]",
        help="coordination policies, one run each [coorp]",
    )
    parser.add_argument("--sync", metavar="S[,S]", help="bsp, ssp, asp: one run each [the team file's]")
    parser.add_argument(
        "--staleness", type=_staleness, metavar="N", help="rounds that a robot may be ahead under SSP [1]"
    )
    parser.add_argument("--minutes", type=_minutes, default=30.0, help="virtual time, or real time with --live [30]")
    parser.add_argument("--speed", type=_speed, default=SPEED_MPS, metavar="M/S", help="robots' full speed [4.5]")
    parser.add_argument("--seed", type=_seed, default=1, help="the same seed gives the same run [1]")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for results [runs]")
    parser.add_argument("--model", type=Path, help="weights to start from: a file, driver or images [navigation]")
    parser.add_argument("--frozen", action="store_true", help="drive with unchanged weights; bulk still flows")
    parser.add_argument(
        "--live", action="store_true", help="real processes over 'coorp emu', in real time (needs root)"
    )
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument("--resume", action="store_true", help="continue from the checkpoints in --out")
    earlier.add_argument("--overwrite", action="store_true", help="delete the same runs in --out and start again")
    parser.add_argument("--mcap", action="store_true", help="record each run as run.mcap")
    parser.add_argument(
        "--gif", action=argparse.BooleanOptionalAction, help="a GIF of each run's last seconds [yes; no in a sweep]"
    )
    parser.add_argument(
        "--report", action=argparse.BooleanOptionalAction, default=True, help="report.html and its figures [yes]"
    )
    parser.add_argument(
        "--sweep", action="store_true", help="all policies, paradigms and seeds at once, for a team file or a folder"
    )
    farm.add_options(parser)
    return parser


class _Once(argparse.Action):
    """An option with two names. Without this class, the last one would silently win."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error("--policy and --compare are the same option; give it once, with all names: --compare a,b")
        setattr(namespace, self.dest, values)


def _minutes(text: str) -> float:
    return _number(text, "minutes", 1 / 60, MINUTES_MAX)


def _speed(text: str) -> float:
    return _number(text, "metres per second", 0.1, SPEED_MAX_MPS)


def _number(text: str, what: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of {what} from {least:.3g} to {most:.3g}")
    return value


def _staleness(text: str) -> int:
    return farm.whole(text, 0, STALENESS_MAX)


def _seed(text: str) -> int:
    return farm.seed(text)


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise Mend(f"'{text}' has an empty name between commas; give names such as a,b")
    return names


def _paradigms(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = _names(text.lower())
    for name in names:
        if name not in PARADIGMS:
            near = difflib.get_close_matches(name, PARADIGMS, 1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Mend(f"--sync: unknown paradigm '{name}': choose from {', '.join(PARADIGMS)}{hint}")
    return names


def _learn(options: argparse.Namespace, command: list[str]) -> int:
    paradigms = _paradigms(options.sync)
    policies = _names("coorp" if options.policies is None else options.policies)
    again = shlex.join(farm.continuing(command))
    if options.gif is None:
        options.gif = not options.sweep
    if options.sweep:
        if options.live:
            raise Mend("--live needs real time and the whole machine, so it runs alone; omit it, or omit --sweep")
        from coorp.learn.sweep import sweep

        return sweep(options, policies, paradigms, again)
    if options.team.is_dir() or (options.seeds, options.on, options.workers) != (None, None, None):
        raise Mend("a folder of team files, --seeds, --on and --workers belong to a sweep; add --sweep")
    go_on = f"to continue: {again}"
    from coorp.learn.run import plan

    folder: Path = options.out / f"{options.team.stem}-seed{options.seed}"
    plans = plan(options, policies, paradigms, folder)
    try:
        with farm.interrupted() as interrupted:
            for place, each in enumerate(plans):
                if not _run(each, interrupted):
                    if each.live:
                        return _ended_live(plans[: place + 1], folder, options.report)
                    return _say(f"\nsaved; {go_on}", 130)
        _report(plans, folder, options.report)
    except KeyboardInterrupt:
        if options.live:
            return _say("\nended at once; this run is lost", 130)
        if any(each.is_saved for each in plans):
            return _say(f"\nended at once; everything since the last checkpoint is lost; {go_on}", 130)
        return _say("\nended before there was anything to save", 130)
    return 0


def _ended_live(plans: list[Plan], folder: Path, wanted: bool) -> int:
    """Reports on live runs of which the last was ended early."""
    left = [each for each in plans if each.has_outcome]
    if not left:
        return _say("\nended before there was anything to save", 130)
    _report(left, folder, wanted)
    return _say(f"\nsaved in {folder}, up to here", 130)


def _run(each: Plan, interrupted: list[bool]) -> bool:
    """Runs one run of the comparison; returns whether it reached its end."""
    from tqdm import tqdm

    bar_format = "{desc:<20} {percentage:3.0f} % |{bar}| {n:.1f}/{total:.1f} min [{elapsed}<{remaining}]{postfix}"
    with tqdm(total=each.seconds / 60, desc=each.label, bar_format=bar_format, disable=None) as bar:
        in_lines = _lines(each)

        def watch(second: int, note: str) -> bool:
            bar.update(second / 60 - bar.n)
            bar.set_postfix_str(note, refresh=False)
            in_lines(second, note)
            return not interrupted[0]

        return each.run(watch)


def _lines(each: Plan) -> Callable[[int, str], None]:
    """Returns a callback that shows progress without a terminal: an occasional line."""
    if sys.stderr.isatty():
        return lambda _second, _note: None
    told_s = time.monotonic()

    def tell(second: int, note: str) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= LINE_EVERY_S:
            told_s = time.monotonic()
            print(f"{each.label}: {second / 60:.1f} of {each.seconds / 60:.1f} min{note}", file=sys.stderr, flush=True)

    return tell


def _report(plans: list[Plan], folder: Path, wanted: bool) -> None:
    outcomes = [each.outcome() for each in plans]
    for outcome in outcomes:
        rate, low, high = outcome.collision_rate
        print(
            f"{outcome.label:<18} reward {outcome.mean_reward(0, 0.2):7.3f} -> {outcome.mean_reward(0.8, 1):7.3f}   "
            f"collisions per robot-hour {rate:6.1f} ({low:.1f} to {high:.1f})   "
            f"success {100 * outcome.success:5.1f} %   "
            f"violations {100 * outcome.violation_rate:5.1f} %   epochs {len(outcome.history.epochs_s)}"
        )
    if wanted:
        from coorp.learn import report

        print(f"report: {report.write(folder, outcomes)}")
