"""`coorp learn --live`: the robots' content in virtual time, the world and its connections, and whole runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

for needed in ("torch", "pettingzoo", "matplotlib", "tqdm"):
    pytest.importorskip(needed)

import torch  # noqa: E402

import coorp  # noqa: E402
from coorp import EventKind  # noqa: E402
from coorp.envs import Navigation  # noqa: E402
from coorp.learn import checkpoint, fit, ppo  # noqa: E402
from coorp.learn.cosim import Cosim  # noqa: E402
from coorp.learn.inference import Floats  # noqa: E402
from coorp.learn.learner import Learner  # noqa: E402
from coorp.learn.live.link import Senses, Stage, packed, unpacked  # noqa: E402
from coorp.learn.live.robot import MODEL, Follower, Leader, batch_of_bytes, batch_to_bytes  # noqa: E402
from coorp.learn.main import main  # noqa: E402
from coorp.learn.network import flat  # noqa: E402
from coorp.learn.outcome import History, Outcome  # noqa: E402
from coorp.learn.ppo import Hyper  # noqa: E402
from coorp.learn.world import NS, World  # noqa: E402

TEAM = """
[[robot]]
name = "a"
[[robot]]
name = "base"
leader = true
[[robot]]
name = "b"
training = "150ms"
[air]
standard = "802.11ac"
width_mhz = 80
[control]
rate_hz = 20
bound = "45ms"
perception = "12KiB"
command = "1KiB"
inference = "10ms"
[learning]
parameters = 200_000
batch_loops = 15
rounds = 2
training = "100ms"
training_spread = 0.1
"""
LIMIT_S = 120.0
PLACES = Path(tempfile.gettempdir())

pytestmark = pytest.mark.usefixtures("one_thread")
emulates = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="coorp emu needs root and /dev/net/tun"
)


@pytest.fixture
def team(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEAM, encoding="utf-8")
    return path


def fresh_env(robots: list[str]) -> Navigation:
    env = Navigation("unknown", robots=robots, endless=True)
    env.reset(seed=1)
    return env


# --- the content, in the simulator's time -----------------------------------------------------------------------------


class InVirtualTime(Senses):
    """A robot's senses in a world of this process, whose time somebody else advances."""

    def __init__(self, world: World, robot: int) -> None:
        self.world, self.robot, self.epochs = world, robot, 0

    def perceive(self, robot: int | None = None) -> tuple[bool, bytes]:
        return True, packed(self.world.perceive(self.robot if robot is None else robot, 0))

    def drive(self, velocity: Floats) -> None:
        self.world.env.set_velocity(self.robot, velocity)

    def epoch_ended(self) -> None:
        self.epochs += 1


class LiveInSimulator:
    """The content of live robots, whose messages take as long as the simulator says."""

    def __init__(self, session: coorp.Session, folder: Path) -> None:
        torch.manual_seed(3)
        control = fit.fresh()
        names, self.me = session.team.robots, session.team.leader
        self.session = session
        self.world = World(fresh_env(names))
        learner = Learner(control, session.team, Hyper(), here=[self.me])
        senses = InVirtualTime(self.world, self.me)
        self.leader = Leader(senses, control, learner, folder, self.me, len(names), seed=1)
        others = [robot for robot in range(len(names)) if robot != self.me]
        self.followers = {robot: Follower(InVirtualTime(self.world, robot), control, learns=True) for robot in others}
        self.control, self.senses = control, senses
        self.perceptions: dict[tuple[int, int], bytes] = {}
        self.bulk: dict[int, bytes] = {}
        self.updates: dict[int, bytes] = {}

    def run(self, seconds: int) -> None:
        history = History()
        for second in range(1, seconds + 1):
            for event in self.session.advance(float(second)):
                at, kind, robot, number = (int(event[name]) for name in ("t_ns", "kind", "robot", "number"))
                self.world.env.advance_to_ns(at)
                self.on_control(EventKind(kind), robot, number)
                if kind >= EventKind.COLLECT:
                    self.on_learning(EventKind(kind), robot)
            self.world.end_second(second, history)
        self.history = history

    def on_control(self, kind: EventKind, robot: int, number: int) -> None:
        if kind == EventKind.PERCEPTION:
            self.perceptions[robot, number] = self.followers[robot].perceive(number)[1]
        elif kind == EventKind.PERCEPTION_IN:
            # A message is padded to the size in the team file.
            self.leader.on_perception(robot, number, self.perceptions.pop((robot, number)) + bytes(100))
        elif kind == EventKind.INFER:
            assert self.leader.infer(number)
        elif kind == EventKind.COMMAND_IN:
            to = self.leader if robot == self.me else self.followers[robot]
            to.on_command(number, self.leader.command(number, robot) + bytes(100))

    def on_learning(self, kind: EventKind, robot: int) -> None:
        """Does what the native robot does for each event."""
        elsewhere = robot != self.me
        if kind == EventKind.TRAINED:
            if elsewhere:
                self.updates[robot] = self.followers[robot].train()
            else:
                assert self.leader.train() == b""
        elif kind == EventKind.UPDATE_IN and elsewhere:
            self.leader.on_update(robot, self.updates.pop(robot))
        self.leader.on_event(kind, robot)
        if kind == EventKind.BATCH_FULL:
            self.bulk = {follower: self.leader.to_worker(follower) for follower in self.followers}
        elif kind == EventKind.PARTITION_IN and elsewhere:
            self.followers[robot].on_partition(self.bulk.pop(robot))
        elif kind == EventKind.MODEL_OUT and elsewhere:
            self.bulk[robot] = self.leader.to_worker(robot)
        elif kind == EventKind.MODEL_IN and elsewhere:
            self.followers[robot].on_model(self.bulk.pop(robot))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a simulated run trains on the GPU, live robots on the CPU")
@pytest.mark.parametrize("sync", ["bsp", "ssp", "asp"])
def test_live_robots_in_the_simulators_time_learn_and_drive_as_simulated_ones(
    team: Path, tmp_path: Path, sync: str
) -> None:
    live = LiveInSimulator(coorp.Session(team, "coorp", seed=1, sync=sync), tmp_path)
    live.run(8)
    torch.manual_seed(3)
    session = coorp.Session(team, "coorp", seed=1, sync=sync)
    control = fit.fresh()
    start = flat(control)
    simulated = Cosim(session, fresh_env(session.team.robots), control, Learner(control, session.team, Hyper()), 1)
    simulated.run(8)
    assert live.history.reward == simulated.history.reward
    assert live.history.collisions == simulated.history.collisions
    assert live.senses.epochs == len(simulated.history.epochs_s) > 1
    assert torch.equal(flat(live.control), flat(control)) and not torch.equal(start, flat(control))
    saved = checkpoint.load_model(tmp_path / MODEL, fit.SHAPE)
    assert torch.equal(flat(saved), flat(control)), "the model of the last epoch"


def test_a_share_of_a_batch_survives_the_air() -> None:
    rng = np.random.default_rng(1)
    batch = ppo.Batch(
        images=torch.from_numpy(rng.integers(0, 256, (4, 3, 64, 64, 3), dtype=np.uint8)),
        **{
            name: torch.from_numpy(rng.standard_normal((4, 3), dtype=np.float32))
            for name in ("vectors", "actions", "log_probs", "advantages", "returns")
        },
    )
    again = batch_of_bytes(batch_to_bytes(batch))
    assert again is not None
    for name, tensor in vars(batch).items():
        assert torch.equal(vars(again)[name], tensor) and vars(again)[name].dtype == tensor.dtype
    assert batch_of_bytes(batch_to_bytes(None)) is None


# --- the world --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(World(fresh_env(["a", "b"])), tmp_path / "world", 2, lambda _second: True)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            stage.serve()

    serving = threading.Thread(target=serve)
    serving.start()
    yield stage
    over.set()
    serving.join()
    stage.close()


def until(condition: object, what: str) -> None:
    assert callable(condition)
    late = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < late, what
        time.sleep(0.01)


def test_a_robot_sees_and_drives_in_the_world_from_the_beginning_on(stage: Stage, tmp_path: Path) -> None:
    one, other = Senses(tmp_path / "world", 0), Senses(tmp_path / "world", 1)
    goes_on, first = one.perceive()
    still = unpacked(7, first + b"padding")
    assert goes_on and still.tick == 7 and still.image.any()
    one.drive(np.array([1.5, 0.0], np.float32))
    time.sleep(0.05)
    driving = unpacked(0, one.perceive()[1])
    assert not np.array_equal(driving.vector, still.vector), "its speed has changed"
    assert np.array_equal(driving.vector[:4], still.vector[:4]), "time stands still"
    assert other.perceive(0) == one.perceive() != other.perceive()
    one.begins(time.monotonic_ns())
    until(lambda: not np.array_equal(unpacked(0, one.perceive()[1]).vector[:2], still.vector[:2]), "it drives")
    other.epoch_ended()
    until(lambda: stage.is_over, "two seconds end")
    other.epoch_ended()
    other.perceive()
    assert stage.history.t_s == [1, 2] and len(stage.history.epochs_s) == 1
    assert [at for at, _ in stage.frames] == [frame * NS // 10 for frame in range(21)]
    assert stage.lost is None


def test_a_robot_that_leaves_early_is_lost(stage: Stage, tmp_path: Path) -> None:
    one = Senses(tmp_path / "world", 1)
    one.begins(time.monotonic_ns())
    one.perceive()
    one.close()
    until(lambda: stage.lost == 1, "it is noticed")


def test_robots_are_told_that_the_run_does_not_go_on(tmp_path: Path) -> None:
    stage = Stage(World(fresh_env(["a"])), tmp_path / "world", 60, lambda _second: False)
    serving = threading.Thread(target=lambda: [stage.serve() for _ in range(40)])
    serving.start()
    one = Senses(tmp_path / "world", 0)
    one.begins(time.monotonic_ns() - NS)
    until(lambda: not one.perceive()[0], "the second's end is the run's")
    assert stage.is_over and stage.now_s == 1
    assert len(stage.frames) == 11, "the film of a run that ended early"
    one.close()
    serving.join()
    assert stage.lost is None
    stage.close()


# --- whole runs -------------------------------------------------------------------------------------------------------


def left_behind() -> set[str]:
    """Returns namespaces of emulators, and folders of runs."""
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    emulated = {line.split()[0] for line in namespaces.splitlines() if line.startswith("coorp-")}
    return emulated | {path.name for path in PLACES.glob("coorp-learn-*")}


def learning(team: Path, out: Path, minutes: float, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "coorp", "learn", str(team), "--live", "--out", str(out), "--no-report", *more]
    return subprocess.Popen(
        [*command, "--minutes", str(minutes)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@emulates
def test_a_team_learns_over_live_nodes(team: Path, tmp_path: Path) -> None:
    before, out = left_behind(), tmp_path / "runs"
    run = learning(team, out, 0.1, "--policy", "coorp", "--sync", "ssp")
    said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    folder = out / "small-seed1" / "coorp-ssp-live"
    outcome = Outcome.load(folder / "outcome.json")
    assert outcome.live is not None and outcome.label == "coorp, SSP, live"
    assert outcome.history.t_s == [1, 2, 3, 4, 5, 6] and outcome.minutes == 0.1
    assert 0 < outcome.loops <= 120 and outcome.bulk_mbps > 0
    assert outcome.history.epochs_s, "an epoch has ended"
    learnt, start = (checkpoint.load_model(path, fit.SHAPE) for path in (folder / "model.pt", fit.PRETRAINED))
    assert not torch.equal(flat(learnt), flat(start))
    assert (folder / "team.gif").read_bytes().startswith(b"GIF")
    assert left_behind() <= before


@emulates
def test_a_robots_death_ends_the_run_and_ctrl_c_saves_it(team: Path, tmp_path: Path) -> None:
    before = left_behind()

    def driving(out: Path) -> tuple[subprocess.Popen[str], Path]:
        """Starts a run, and waits until an epoch has ended. Returns the run's folder, too."""
        known = set(PLACES.glob("coorp-learn-*"))
        run = learning(team, out, 5, "--policy", "edca", "--no-gif")
        until(lambda: set(PLACES.glob("coorp-learn-*/setting.json")) or run.poll() is not None, "it starts")
        [folder] = set(PLACES.glob("coorp-learn-*")) - known
        until(lambda: (folder / MODEL).exists() or run.poll() is not None, "an epoch ends")
        return run, folder

    run, folder = driving(tmp_path / "killed")
    os.kill(process_of("b", folder), signal.SIGKILL)
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1 and "the process of robot 'b' ended early, and the run with it" in said, said
    assert "Traceback" not in said

    run, _ = driving(tmp_path / "ended")
    run.send_signal(signal.SIGINT)
    told, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130 and "saved in" in said and "edca, BSP, live" in told, told + said
    folder = tmp_path / "ended" / "small-seed1" / "edca-bsp-live"
    outcome = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    assert 0 < outcome["minutes"] < 5 and outcome["loops"] > 0
    assert (folder / "model.pt").exists()
    assert left_behind() <= before


def process_of(robot: str, folder: Path) -> int:
    """Returns the process of a run's robot."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (process / name for name in ("cmdline", "environ"))
            own = command.read_bytes().endswith(f"coorp.learn.live.robot\0{folder}\0".encode())
            if own and f"\0COORP_ROBOT={robot}\0".encode() in b"\0" + environment.read_bytes() + b"\0":
                return int(process.name)
        except OSError:
            continue
    raise AssertionError(f"robot {robot} has no process")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "a live run has no checkpoint"),
        (["--mcap"], "--mcap records simulated runs"),
        (["--policy", "coorp,edca,schedwifi"], "schedwifi is only simulated"),
    ],
)
def test_what_is_only_simulated_is_told(
    team: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coorp.learn.live.run.check", lambda: None)
    assert main([str(team), "--live", "--out", str(tmp_path / "runs"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_without_root_it_says_so(
    team: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main([str(team), "--live", "--out", str(tmp_path / "runs")]) == 2
    assert "needs root: sudo coorp learn --live" in capsys.readouterr().err
