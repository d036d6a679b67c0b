"""One run of `coorp learn`, from its plan to its files; and the plans of a comparison.

A run's folder contains `checkpoint.pt` (written every ten virtual minutes, on Ctrl-C and at the end). A finished run
adds `model.pt` (the learnt weights), `outcome.json` (the results), and on request `team.gif` and `run.mcap`. Its
inputs, the team file and the weights, are read once, by `plan`; later changes to those files have no effect.

A live run (live/run.py) has the same files except for the checkpoint and the recording. If it is ended early, it has
them for the time that it lasted.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import coorp
from coorp.envs import Navigation, Task
from coorp.learn import checkpoint
from coorp.learn.checkpoint import CheckpointError
from coorp.learn.cosim import Cosim
from coorp.learn.driver import Driver
from coorp.learn.errors import Broken, Mend
from coorp.learn.fit import PRETRAINED, SPEED_MPS, load
from coorp.learn.learner import Learner
from coorp.learn.network import Network
from coorp.learn.onlookers import Film, Onlooker, Tape
from coorp.learn.outcome import History, Outcome, run_name
from coorp.learn.ppo import Hyper
from coorp.sweep.files import alone

LEVEL = "unknown"
"""The team's environment: more and faster obstacles than the pre-trained policy knows."""
NO_BULK, NO_CONTROL = "mpc-only", "bulk-only"
SAVE_EVERY_S = 600
WRITES = re.compile(r"checkpoint\.pt|outcome\.json|model\.pt|team\.gif|run(-from-\d+s)?\.mcap")
"""Names of the files that a run writes; other files in its folder are not its own."""
IMAGE_BYTES = 64 * 64 * 3
BATCH_BYTES_MAX = 4 << 30
"""Maximum size of a batch's images, which are kept in memory."""
DIGESTS = ("team file", "--model", "hyper-parameters", "environment")
"""The settings of a run that are compared by a digest, which is not shown."""
ANEW = "another --out, or --overwrite instead of --resume to start again"


@dataclass(frozen=True)
class Plan:
    """One run of a comparison."""

    team: Path
    policy: str
    sync: str
    """bsp, ssp or asp; none if there is no bulk, and thus no learning."""
    staleness: int | None
    """Rounds that a robot may be ahead under SSP; None for the team file's value, and without SSP."""
    seed: int
    seconds: int
    frozen: bool
    model: Path
    folder: Path
    speed_mps: float = SPEED_MPS
    resume: bool = False
    gif: bool = True
    mcap: bool = False
    live: bool = False

    @property
    def label(self) -> str:
        """The name to print."""
        words = (self.policy, "" if self.sync == "none" else self.sync, "live" if self.live else "")
        return " ".join(word for word in words if word)

    @cached_property
    def setting(self) -> dict[str, Any]:
        """The settings that must match to resume a checkpoint, and for an outcome to belong to this run."""
        env = self._environment()
        return {
            "coorp": coorp.__version__,
            "team file": _digest(self.team),
            "policy": self.policy,
            "--sync": self.sync,
            "--staleness": self.staleness,
            "--seed": self.seed,
            "--frozen": self.frozen,
            "--speed": self.speed_mps,
            "--model": _digest(self.model),
            "hyper-parameters": _digest(repr(asdict(Hyper()))),
            "environment": _digest(repr((env.task, env.level))),
            **({"--live": True} if self.live else {}),
        }

    @cached_property
    def session(self) -> coorp.Session:
        """The simulator, at its start."""
        sync = None if self.sync == "none" else self.sync
        return coorp.Session(self.team, self.policy, seed=self.seed, sync=sync, staleness=self.staleness)

    @cached_property
    def start(self) -> Network | Driver:
        """The policy with its initial weights."""
        return load(self.model, Task.at(self.speed_mps))

    def run(self, watch: Callable[[int, str], bool]) -> bool:
        """Drives and learns to the end, or until `watch` returns False; `watch` gets each second and a note. Returns
        whether it reached the end. The state at that point is saved."""
        if self.resume and self.is_done():
            return True
        # The network is too small for several cores; the simulator uses the other one.
        torch.set_num_threads(1)
        with alone(self.folder):
            return self._live(watch) if self.live else self._simulated(watch)

    def _simulated(self, watch: Callable[[int, str], bool]) -> bool:
        """Does what `run` does, in virtual time."""
        cosim = self._cosim()
        if not (self.resume and self.is_saved):
            self._clear()
        elif not self._restore(cosim, watch):
            return False
        film = Film(cosim.env, self.seconds)
        with ExitStack() as open_files:
            tape = self._tape(cosim, open_files)
            onlookers: tuple[Onlooker | None, ...] = (film if self.gif else None, tape)
            cosim.onlookers = [each for each in onlookers if each is not None]
            self._drive(cosim, watch, tape)
            # Save the run before closing the recording, in case that fails.
            self._save(cosim)
        if tape is not None and tape.failure is not None:
            raise Mend(
                f"{tape.failure}; the run itself is saved up to {cosim.now_s / 60:.3g} minutes: "
                "repeat the command with --resume to continue from there, without --mcap to continue unrecorded"
            ) from tape.failure
        if cosim.now_s < self.seconds:
            return False
        self._finish(cosim, film)
        return True

    def check_folder(self, *, overwrite: bool) -> None:
        """Raises if this run would destroy another one's work, or cannot continue from the existing files."""
        if self.folder.resolve() in self.model.resolve().parents:
            raise Mend(
                f"--model {self.model} is in {self.folder}, which this run writes to; "
                "copy it elsewhere first, or give another --out"
            )
        if self.folder.is_dir():
            with alone(self.folder):
                pass
        left = self._left()
        if overwrite or not left:
            return
        if not self.resume:
            raise Mend(
                f"{self.folder} has {', '.join(left)} of an earlier run; give --resume to continue it, "
                "another --out, or --overwrite to delete it"
            )
        if self.is_done():
            if self.mcap and not any(name.endswith(".mcap") for name in left):
                raise Mend(
                    f"the run in {self.folder} is finished and was not recorded; omit --mcap, "
                    "or drive it again with another --out, or with --overwrite instead of --resume"
                )
        elif self.is_saved:
            self._kept()
        elif "outcome.json" in left:
            raise CheckpointError(
                f"{self.folder} has the outcome of another run and no checkpoint to resume; "
                "give another --out, or --overwrite instead of --resume to start again"
            )

    def make_folder(self, *, overwrite: bool = False) -> None:
        """Makes the folder of this run, without an earlier one's files if that is to be overwritten."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if overwrite:
            self._clear()

    def _left(self) -> list[str]:
        """Returns the files of an earlier run that this one would write."""
        if not self.folder.is_dir():
            return []
        return sorted(each.name for each in self.folder.iterdir() if WRITES.fullmatch(each.name))

    def _clear(self) -> None:
        """Deletes files of an earlier run, so that they are not mistaken for this one's."""
        for name in self._left():
            (self.folder / name).unlink()

    def _drive(self, cosim: Cosim, watch: Callable[[int, str], bool], tape: Tape | None) -> None:
        robots = len(cosim.env.possible_agents)

        def each_second(second: int) -> bool:
            # The run cannot stop within a second, because nothing can be saved there.
            goes_on = watch(second, _note(cosim.history, robots)) and (tape is None or tape.failure is None)
            if goes_on and second % SAVE_EVERY_S == 0 and second < self.seconds:
                self._save(cosim)
            return goes_on

        try:
            cosim.run(self.seconds, each_second)
        except coorp.BrokenRuleError as problem:
            raise Broken(str(problem)) from problem

    def _tape(self, cosim: Cosim, open_files: ExitStack) -> Tape | None:
        if not self.mcap:
            return None
        from coorp.record import Recorder

        # The recording up to a Ctrl-C is complete, so the rest gets its own file.
        name = f"run-from-{cosim.now_s}s.mcap" if cosim.now_s else "run.mcap"
        return Tape(open_files.enter_context(Recorder(self.folder / name)), cosim.env)

    def outcome(self) -> Outcome:
        """Returns the outcome, once the run is finished."""
        return Outcome.load(self.folder / "outcome.json")

    @property
    def learns(self) -> bool:
        """Whether weights change."""
        return not self.frozen and self.sync != "none"

    @property
    def is_saved(self) -> bool:
        """Whether there is a checkpoint."""
        return self._checkpoint.exists()

    @property
    def has_outcome(self) -> bool:
        """Whether the run has left results."""
        return (self.folder / "outcome.json").exists()

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def _environment(self) -> Navigation:
        try:
            return Navigation(
                LEVEL,
                robots=self.session.team.robots,
                task=Task.at(self.speed_mps),
                endless=True,
                nearby=self.start.nearby if isinstance(self.start, Driver) else 0,
                render_mode="rgb_array",
            )
        except ValueError as problem:
            raise Mend(f"{self.team} does not fit the environment: {problem}") from problem

    def _cosim(self) -> Cosim:
        env = self._environment()
        env.reset(seed=self.seed)
        learner = None
        if self.learns and not isinstance(self.start, Driver):
            learner = Learner(self.start, self.session.team, Hyper())
        return Cosim(self.session, env, self.start, learner, self.seed)

    def _save(self, cosim: Cosim) -> None:
        checkpoint.save(self._checkpoint, {"setting": self.setting, "cosim": cosim.state()})

    def _kept(self) -> dict[str, Any]:
        """Returns the checkpoint's state, if it belongs to this run."""
        content = checkpoint.load(self._checkpoint)
        theirs, state = content.get("setting"), content.get("cosim")
        if not isinstance(theirs, dict) or not isinstance(state, dict) or not isinstance(state.get("now_s"), int):
            raise CheckpointError(f"{self._checkpoint} is not a run's checkpoint; give {ANEW}")
        others = [
            name if name in DIGESTS else f"{name}: {theirs.get(name)} then, {mine} now"
            for name, mine in self.setting.items()
            if theirs.get(name) != mine
        ]
        if others:
            raise CheckpointError(
                f"{self._checkpoint} is from a run with another {', another '.join(others)}; give the same, or {ANEW}"
            )
        if state["now_s"] > self.seconds:
            raise CheckpointError(
                f"{self._checkpoint} is already at {state['now_s'] / 60:g} minutes, beyond --minutes "
                f"{self.seconds / 60:g}; give more, or {ANEW}"
            )
        return state

    def _restore(self, cosim: Cosim, watch: Callable[[int, str], bool]) -> bool:
        state = self._kept()
        try:
            return cosim.restore(state, lambda second: watch(second, ", catching up"))
        except (KeyError, ValueError, TypeError, AssertionError, RuntimeError) as problem:
            raise CheckpointError(f"{self._checkpoint} does not fit this run ({problem}); give {ANEW}") from problem

    def is_done(self) -> bool:
        """Returns whether this exact run already has an outcome."""
        try:
            content = json.loads((self.folder / "outcome.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return (
            isinstance(content, dict)
            and content.get("setting") == self.setting
            and content.get("minutes") == self.seconds / 60
        )

    def _finish(self, cosim: Cosim, film: Film) -> None:
        result = self.session.result()
        if self.learns:
            self._save_model(cosim.control)
        if self.gif:
            film.save(self.folder / "team.gif")
        self._save_outcome(self.seconds, result.loops, result.violation_rate, result.bulk_mbps, cosim.history)

    def _live(self, watch: Callable[[int, str], bool]) -> bool:
        """Does what `run` does, with real processes and in real time."""
        from coorp.learn.live import run as live

        if self.setting["team file"] != _digest(self.team):
            raise Mend(f"{self.team} has changed since the start, and live robots would read it again; start again")
        self._clear()
        sync = None if self.sync == "none" else self.sync
        asked = live.Setting(
            str(self.team), self.policy, sync, self.staleness, self.seed, self.seconds, self.learns, self.speed_mps
        )
        env = self._environment()
        env.reset(seed=self.seed)
        robots = len(env.possible_agents)
        lived = live.run(asked, self.start, env, lambda second, history: watch(second, _note(history, robots)))
        if lived is None:
            return False
        if lived.model is not None:
            self._save_model(lived.model)
        if self.gif:
            film = Film(env, lived.seconds)
            for at_ns, state in lived.frames:
                env.set_state(state)
                film.on_loop_ended(at_ns)
            film.save(self.folder / "team.gif")
        figures, emulator = lived.figures, lived.emulator
        facts = {"kept_up": emulator["kept_up"], "late_us": emulator["timing"], "waited": lived.waited}
        self._save_outcome(
            lived.seconds, figures["loops"], figures["violation_rate"], figures["bulk_mbps"], lived.history, facts
        )
        return lived.seconds == self.seconds

    def _save_model(self, network: Network | Driver) -> None:
        checkpoint.save_model(self.folder / "model.pt", network, f"coorp learn {self.team} ({self.label})")

    def _save_outcome(
        self,
        seconds: int,
        loops: int,
        violation_rate: float | None,
        bulk_mbps: float | None,
        history: History,
        live: dict[str, Any] | None = None,
    ) -> None:
        Outcome(
            team=str(self.team),
            policy=self.policy,
            sync=self.sync,
            seed=self.seed,
            frozen=not self.learns,
            robots=len(self.session.team.robots),
            minutes=seconds / 60,
            loops=loops,
            violation_rate=violation_rate or 0.0,
            bulk_mbps=bulk_mbps or 0.0,
            history=history,
            setting=self.setting,
            live=live,
            model=_model_name(self.model),
        ).save(self.folder / "outcome.json")


def plan(options: Namespace, policies: list[str], paradigms: list[str] | None, folder: Path) -> list[Plan]:
    """Returns the requested runs, and makes their folders, so that errors show before the first one runs."""
    plans = prepare(options, policies, paradigms, folder)
    if options.resume and not any(each.folder.exists() for each in plans):
        raise CheckpointError(f"there is nothing in {folder} to resume; omit --resume, or give another --out")
    for each in plans:
        each.check_folder(overwrite=options.overwrite)
    for each in plans:
        each.make_folder(overwrite=options.overwrite)
    return plans


def prepare(options: Namespace, policies: list[str], paradigms: list[str] | None, folder: Path) -> list[Plan]:
    """Returns the runs of one team and seed, each prepared up to its start."""
    if NO_CONTROL in policies:
        raise Mend(f"under {NO_CONTROL} there is no control loop, so no robot drives; remove it from --policy")
    team = coorp.check(options.team)
    learning = team.learning
    if learning is None:
        raise Mend(f"{options.team} has no [learning]; add it, with parameters = 10_000_000 or your model's number")
    if options.live:
        _check_live(options, policies)
    if options.staleness is not None and "ssp" not in (paradigms or [learning.sync]):
        raise Mend("--staleness applies only to ssp; omit it, or add ssp to --sync")
    plans = []
    for policy in policies:
        for sync in ["none"] if policy == NO_BULK else paradigms or [learning.sync]:
            each = Plan(
                team=options.team,
                policy=policy,
                sync=sync,
                staleness=options.staleness if sync == "ssp" else None,
                seed=options.seed,
                seconds=max(1, round(options.minutes * 60)),
                speed_mps=options.speed,
                frozen=options.frozen,
                model=_model(options.model),
                folder=folder / run_name(policy, sync, frozen=options.frozen, live=options.live),
                resume=options.resume,
                gif=options.gif,
                mcap=options.mcap,
                live=options.live,
            )
            _read(each)
            plans.append(each)
    if any(each.setting["team file"] != _digest(options.team) for each in plans):
        raise Mend(f"{options.team} was changed while it was read; repeat the command")
    if any(each.learns for each in plans):
        _check_batch(options.team, learning.batch_loops, len(team.robots))
    if options.mcap:
        _check_names(options.team, team.robots)
    return plans


def _model(given: Path | None) -> Path:
    """Returns the file of the weights; the shipped ones have names."""
    if given is None:
        return PRETRAINED
    shipped = PRETRAINED.with_name(f"{given.name}.pt")
    return shipped if given == Path(given.name) and shipped.exists() and not given.exists() else given


def _model_name(path: Path) -> str:
    return path.stem if path.parent == PRETRAINED.parent else str(path)


def _read(each: Plan) -> None:
    """Reads the inputs of the run, which a plan keeps."""
    _ = each.start, each.setting, each.session
    if each.learns and isinstance(each.start, Driver):
        raise Mend(f"the driver in {each.model} does not learn; add --frozen to drive with it, or omit --model")


def _check_live(options: Namespace, policies: list[str]) -> None:
    """Raises if this machine, an option or a policy does not fit a live run."""
    from coorp.learn.live import run as live

    if options.resume:
        raise Mend("a live run has no checkpoint, as its time does not stand still; omit --resume, or omit --live")
    if options.mcap:
        raise Mend("--mcap records simulated runs; omit it, or omit --live")
    live.check()
    for policy in policies:
        with tempfile.TemporaryDirectory() as folder:
            live.prepare(options.team, policy, Path(folder))


def _check_batch(team: Path, loops: int, robots: int) -> None:
    if loops * robots * IMAGE_BYTES > BATCH_BYTES_MAX:
        raise Mend(
            f"{team}: a batch of batch_loops = {loops} with {robots} robots has "
            f"{loops * robots * IMAGE_BYTES / 2**30:.1f} GiB of images, but the limit is {BATCH_BYTES_MAX >> 30} GiB; "
            f"use at most {BATCH_BYTES_MAX // (robots * IMAGE_BYTES)}"
        )


def _check_names(team: Path, robots: list[str]) -> None:
    from coorp.record import topic_names

    try:
        topic_names(robots)
    except ValueError as problem:
        raise Mend(f"{team} cannot be recorded: {problem}; or omit --mcap") from problem


def _digest(of: Path | str) -> str:
    return hashlib.sha256(of.encode() if isinstance(of, str) else of.read_bytes()).hexdigest()


def _note(history: History, robots: int) -> str:
    """Returns the reward per robot and second over the last minute, and the collisions so far."""
    back = min(60, len(history.t_s))
    if back == 0:
        return ""
    gained = history.reward[-1] - (history.reward[-back - 1] if len(history.reward) > back else 0.0)
    return f", reward {gained / (back * robots):.2f}, {history.collisions[-1]} collisions"
