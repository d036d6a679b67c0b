"""One run of `coorp learn`, from its plan to its files; and the plans of a comparison.

A run's folder holds `checkpoint.pt` (written every ten virtual minutes, at Ctrl-C and at the end), and when it is done
`model.pt` (the weights learnt), `outcome.json` (what came of it), `team.gif` and `run.mcap` where asked for.
"""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import coorp
from coorp.envs import Navigation
from coorp.learn import checkpoint
from coorp.learn.checkpoint import CheckpointError
from coorp.learn.cosim import Cosim
from coorp.learn.errors import Broken, Mend
from coorp.learn.fit import PRETRAINED, SHAPE
from coorp.learn.learner import Learner
from coorp.learn.onlookers import Film, Onlooker, Tape
from coorp.learn.outcome import Outcome, run_name
from coorp.learn.ppo import Hyper

LEVEL = "unknown"
"""What the team drives in: more and faster obstacles than the pre-trained policy knows."""
NO_BULK, NO_CONTROL = "mpc-only", "bulk-only"
SAVE_EVERY_S = 600


@dataclass(frozen=True)
class Plan:
    """One run of a comparison."""

    team: Path
    policy: str
    sync: str
    """bsp, ssp or asp; none where there is no bulk, and so no learning."""
    staleness: int | None
    """Rounds that SSP lets a robot be ahead; None is the team file's, and where it is not SSP."""
    seed: int
    seconds: int
    frozen: bool
    model: Path
    folder: Path
    resume: bool = False
    gif: bool = True
    mcap: bool = False

    @property
    def label(self) -> str:
        """For people."""
        return self.policy if self.sync == "none" else f"{self.policy} {self.sync}"

    def session(self) -> coorp.Session:
        """The simulator, at its start."""
        sync = None if self.sync == "none" else self.sync
        return coorp.Session(self.team, self.policy, seed=self.seed, sync=sync, staleness=self.staleness)

    def run(self, watch: Callable[[int, str], bool]) -> bool:
        """Drives, and learns, to the end or until `watch`, told each second and a note, says no; whether it got to the
        end. What there is by then is saved."""
        if self.resume and self._is_done():
            return True
        # The network is too small to be shared between cores; the simulator has the other.
        torch.set_num_threads(1)
        session = self.session()
        cosim = self._cosim(session)
        if self.resume and self._checkpoint.exists():
            self._restore(cosim)
        else:
            self._clear()
        film = Film(cosim.env, self.seconds)
        with ExitStack() as open_files:
            cosim.onlookers = self._onlookers(cosim, film, open_files)
            self._drive(cosim, watch)
        self._save(cosim)
        if cosim.now_s < self.seconds:
            return False
        self._finish(session, cosim, film)
        return True

    def _clear(self) -> None:
        """Takes away what an earlier run left, so that nobody takes it for this one's."""
        for name in ("checkpoint.pt", "outcome.json", "model.pt", "team.gif"):
            (self.folder / name).unlink(missing_ok=True)
        for recording in self.folder.glob("run*.mcap"):
            recording.unlink()

    def _drive(self, cosim: Cosim, watch: Callable[[int, str], bool]) -> None:
        def each_second(second: int) -> bool:
            goes_on = watch(second, _note(cosim))
            if goes_on and second % SAVE_EVERY_S == 0 and second < self.seconds:
                self._save(cosim)
            return goes_on

        try:
            cosim.run(self.seconds, each_second)
        except coorp.BrokenRuleError as problem:
            raise Broken(str(problem)) from problem

    def _onlookers(self, cosim: Cosim, film: Film, open_files: ExitStack) -> list[Onlooker]:
        onlookers: list[Onlooker] = [film] if self.gif else []
        if self.mcap:
            from coorp.record import Recorder

            # What was recorded before a Ctrl-C is whole as it is, so the rest gets a file of its own.
            name = f"run-from-{cosim.now_s}s.mcap" if cosim.now_s else "run.mcap"
            onlookers.append(Tape(open_files.enter_context(Recorder(self.folder / name)), cosim.env))
        return onlookers

    def outcome(self) -> Outcome:
        """What came of it, once it is done."""
        return Outcome.load(self.folder / "outcome.json")

    @property
    def learns(self) -> bool:
        """Whether weights change."""
        return not self.frozen and self.sync != "none"

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def _cosim(self, session: coorp.Session) -> Cosim:
        env = Navigation(LEVEL, robots=session.team.robots, endless=True, render_mode="rgb_array")
        env.reset(seed=self.seed)
        control = checkpoint.load_model(self.model, SHAPE)
        learner = Learner(control, session.team, Hyper()) if self.learns else None
        return Cosim(session, env, control, learner, self.seed)

    def _setting(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be gone on from."""
        return {
            "team file": _digest(self.team),
            "policy": self.policy,
            "--sync": self.sync,
            "--staleness": self.staleness,
            "--seed": self.seed,
            "--frozen": self.frozen,
            "--model": _digest(self.model),
        }

    def _save(self, cosim: Cosim) -> None:
        checkpoint.save(self._checkpoint, {"setting": self._setting(), "cosim": cosim.state()})

    def _restore(self, cosim: Cosim) -> None:
        content = checkpoint.load(self._checkpoint)
        theirs = content.get("setting")
        if not isinstance(theirs, dict) or "cosim" not in content:
            raise CheckpointError(f"{self._checkpoint} is no checkpoint of a run; delete it and start anew")
        for name, mine in self._setting().items():
            if theirs.get(name) != mine:
                told = "" if "file" in name or name == "--model" else f": {theirs.get(name)} then, {mine} now"
                raise CheckpointError(
                    f"{self._checkpoint} is of a run with another {name}{told}; "
                    "give the same, or another --out, or leave out --resume to start anew"
                )
        if content["cosim"]["now_s"] > self.seconds:
            raise CheckpointError(
                f"{self._checkpoint} is at {content['cosim']['now_s'] / 60:g} minutes already, beyond --minutes "
                f"{self.seconds / 60:g}; give more, or leave out --resume to start anew"
            )
        try:
            cosim.restore(content["cosim"])
        except (KeyError, ValueError, TypeError, AssertionError, RuntimeError) as problem:
            raise CheckpointError(
                f"{self._checkpoint} does not fit this run ({problem}); leave out --resume to start anew"
            ) from problem

    def _is_done(self) -> bool:
        """Whether there is an outcome of just this run already."""
        try:
            content = json.loads((self.folder / "outcome.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return content.get("setting") == self._setting() and content.get("minutes") == self.seconds / 60

    def _finish(self, session: coorp.Session, cosim: Cosim, film: Film) -> None:
        result = session.result()
        if self.learns:
            checkpoint.save_model(self.folder / "model.pt", cosim.control, f"coorp learn {self.team} ({self.label})")
        if self.gif:
            film.save(self.folder / "team.gif")
        Outcome(
            team=str(self.team),
            policy=self.policy,
            sync=self.sync,
            seed=self.seed,
            frozen=not self.learns,
            robots=len(session.team.robots),
            minutes=self.seconds / 60,
            loops=result.loops,
            violation_rate=result.violation_rate or 0.0,
            bulk_mbps=result.bulk_mbps or 0.0,
            history=cosim.history,
            setting=self._setting(),
        ).save(self.folder / "outcome.json")


def plan(options: Namespace, policies: list[str], paradigms: list[str] | None, folder: Path) -> list[Plan]:
    """The runs that were asked for, each tried up to its start, so that nothing is found wrong after the first."""
    if NO_CONTROL in policies:
        raise Mend(f"under {NO_CONTROL} there is no control loop, so nobody drives; take it out of --policy")
    learning = coorp.check(options.team).learning
    if learning is None:
        raise Mend(f"{options.team} has no [learning]; add it, with parameters = 10_000_000 or as many as yours has")
    if options.staleness is not None and "ssp" not in (paradigms or [learning.sync]):
        raise Mend("--staleness is for ssp only; leave it out, or add ssp to --sync")
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
                frozen=options.frozen,
                model=options.model or PRETRAINED,
                folder=folder / run_name(policy, sync),
                resume=options.resume,
                gif=options.gif,
                mcap=options.mcap,
            )
            each.session()
            plans.append(each)
    checkpoint.load_model(plans[0].model, SHAPE)
    if options.resume and not any(each.folder.exists() for each in plans):
        raise CheckpointError(f"there is nothing in {folder} to go on from; leave out --resume, or give another --out")
    for each in plans:
        each.folder.mkdir(parents=True, exist_ok=True)
    return plans


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _note(cosim: Cosim) -> str:
    """Reward per robot and second over the last minute, and collisions so far."""
    history, robots = cosim.history, len(cosim.env.possible_agents)
    back = min(60, len(history.t_s))
    gained = history.reward[-1] - (history.reward[-back - 1] if len(history.reward) > back else 0.0)
    return f", reward {gained / (back * robots):.2f}, {history.collisions[-1]} collisions"
