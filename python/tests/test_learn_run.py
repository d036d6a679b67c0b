"""`coorp learn` as a whole: the co-simulation, stopping and resuming, files, messages and exit codes."""

from __future__ import annotations

import copy
import errno
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

for needed in ("torch", "pettingzoo", "matplotlib"):
    pytest.importorskip(needed)

import torch  # noqa: E402

import coorp  # noqa: E402
from coorp.envs import Navigation, Task  # noqa: E402
from coorp.learn import checkpoint, fit, imitate, look, ppo, pretrain  # noqa: E402
from coorp.learn.checkpoint import CheckpointError  # noqa: E402
from coorp.learn.cosim import Cosim  # noqa: E402
from coorp.learn.driver import NEARBY  # noqa: E402
from coorp.learn.errors import Mend  # noqa: E402
from coorp.learn.learner import Learner  # noqa: E402
from coorp.learn.main import _about_disk, _parser, main  # noqa: E402
from coorp.learn.network import Network, flat  # noqa: E402
from coorp.learn.outcome import History, Outcome, poisson_interval, share_interval  # noqa: E402
from coorp.learn.ppo import Batch, Hyper, Optimiser, Transitions  # noqa: E402
from coorp.learn.run import Plan, plan  # noqa: E402

TEAM = """
[[robot]]
name = "leader"
leader = true
[[robot]]
name = "a"
[[robot]]
name = "b"
training = "150ms"
[air]
standard = "802.11ac"
width_mhz = 80
[control]
rate_hz = 30
bound = "33ms"
perception = "12KiB"
command = "1KiB"
inference = "10ms"
[learning]
parameters = 20_000
batch_loops = 20
rounds = 2
training = "100ms"
training_spread = 0.1
"""

STUDIES = Path(__file__).parents[2] / "studies"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def team(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEAM, encoding="utf-8")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    path = tmp_path / "start.pt"
    checkpoint.save_model(path, fit.fresh(), "a test")
    return path


def planned(team: Path, model: Path, folder: Path, **changes: object) -> Plan:
    folder.mkdir(parents=True, exist_ok=True)
    usual = Plan(
        team=team,
        policy="coorp",
        sync="ssp",
        staleness=1,
        seed=1,
        seconds=6,
        frozen=False,
        model=model,
        folder=folder,
        gif=False,
    )
    return Plan(**{**vars(usual), **changes})


def weights(folder: Path) -> torch.Tensor:
    return flat(checkpoint.load_model(folder / "model.pt", fit.SHAPE))


class Watcher:
    """Records when each robot perceives and gets commands, and its speed before."""

    def __init__(self) -> None:
        self.env: Navigation
        self.commands: list[tuple[int, int, np.ndarray, np.ndarray]] = []
        self.seen: list[tuple[int, int]] = []
        self.loops = 0

    def on_perception(self, t_ns: int, robot: int, image: np.ndarray) -> None:
        assert image.shape == (64, 64, 3)
        self.seen.append((t_ns, robot))

    def on_command(self, t_ns: int, robot: int, velocity: np.ndarray) -> None:
        self.commands.append((t_ns, robot, velocity.copy(), self.env.velocities[robot].copy()))

    def on_loop_ended(self, t_ns: int) -> None:
        self.loops += 1

    def on_second(self, t_ns: int, history: History) -> None:
        assert history.t_s[-1] * 1e9 == t_ns


def cosim(team: Path, watcher: Watcher | None = None, *, learns: bool = True, sync: str = "bsp") -> Cosim:
    torch.manual_seed(3)
    session = coorp.Session(team, "coorp", seed=1, sync=sync)
    env = Navigation("unknown", robots=session.team.robots, endless=True)
    env.reset(seed=1)
    control = fit.fresh()
    learner = Learner(control, session.team, Hyper()) if learns else None
    if watcher is not None:
        watcher.env = env
    return Cosim(session, env, control, learner, 1, [] if watcher is None else [watcher])


def control(run: Cosim) -> Network:
    assert isinstance(run.control, Network)
    return run.control


def test_robots_drive_by_the_command_that_reached_them_last(team: Path) -> None:
    watcher = Watcher()
    run = cosim(team, watcher, learns=False)
    run.run(2)
    result = coorp.simulate(team, "coorp", duration_s=2.0, seed=1)
    assert watcher.loops == result.loops
    assert {robot for _, robot, *_ in watcher.commands} == {0, 1, 2}
    for _, _, wanted, driven in watcher.commands:
        np.testing.assert_allclose(wanted, driven, rtol=1e-6)
    moments = [t for t, *_ in watcher.commands]
    assert moments == sorted(moments)
    assert len({t for t, robot, *_ in watcher.commands if robot == 1}) > 50


def test_learning_changes_the_control_model_when_an_epoch_ends_only(team: Path) -> None:
    run = cosim(team)
    changes: list[float] = []
    before = flat(control(run))
    for second in range(1, 7):
        run.run(second)
        after = flat(control(run))
        if not torch.equal(before, after):
            changes.append(second)
        before = after
    epochs = {int(np.ceil(end)) for end in run.history.epochs_s}
    assert len(epochs) >= 2
    assert set(changes) == epochs


def test_an_epoch_of_the_team_is_one_of_plain_ppo(team: Path) -> None:
    """Covers an epoch end to end: a batch collected by driving, robots' gradients, the leader's steps, the control
    model."""
    run = cosim(team)
    learner = run.learner
    assert learner is not None
    batches: list[Batch] = []
    on_batch_full = learner.on_batch_full

    def keep(got: Transitions | None) -> None:
        assert got is not None
        batches.append(ppo.prepare(control(run), got, learner.hyper))
        on_batch_full(got)

    learner.on_batch_full = keep
    start = flat(control(run))
    network = copy.deepcopy(control(run))
    run.run(2)
    assert len(run.history.epochs_s) == 1
    optimisers = [Optimiser(start, learner.hyper) for _ in range(3)]
    model = start.clone()
    for _ in range(2):
        updates = [of.update(network, model, batches[0].part(robot, 3)) for robot, of in enumerate(optimisers)]
        model += torch.stack(updates).mean(0)
    assert not torch.equal(flat(control(run)), start)
    assert torch.equal(flat(control(run)), model)


def test_what_is_learnt_does_not_change_when_things_happen(team: Path) -> None:
    frozen, learning = cosim(team, learns=False), cosim(team)
    frozen.run(4)
    learning.run(4)
    assert frozen.history.epochs_s == learning.history.epochs_s
    assert frozen.history.reward != learning.history.reward, "it explores"


def test_a_run_that_was_ended_does_not_lose_a_second(team: Path) -> None:
    run = cosim(team)
    run.run(3, lambda second: second < 2)
    with pytest.raises(RuntimeError, match="restore its state in another one"):
        run.run(3)
    other = cosim(team)
    assert other.restore(run.state())
    other.run(3)
    whole = cosim(team)
    whole.run(3)
    assert vars(other.history) == vars(whole.history)


@pytest.mark.parametrize("sync", ["bsp", "ssp", "asp"])
def test_a_run_gone_on_with_ends_as_an_unbroken_one(team: Path, model: Path, tmp_path: Path, sync: str) -> None:
    staleness = 1 if sync == "ssp" else None
    whole = planned(team, model, tmp_path / "whole", sync=sync, staleness=staleness)
    assert whole.run(lambda second, note: True)
    for stop in (1, 4):
        broken = planned(team, model, tmp_path / f"broken{stop}", sync=sync, staleness=staleness)
        assert not broken.run(lambda second, note, stop=stop: second < stop)
        resumed = planned(team, model, broken.folder, sync=sync, staleness=staleness, resume=True)
        assert resumed.run(lambda second, note: True)
        assert resumed.outcome() == whole.outcome()
        assert torch.equal(weights(broken.folder), weights(whole.folder))
    start = flat(checkpoint.load_model(model, fit.SHAPE))
    assert not torch.equal(weights(whole.folder), start), "and has learnt something"


def test_a_run_that_catches_up_can_be_stopped(team: Path, model: Path, tmp_path: Path) -> None:
    whole = planned(team, model, tmp_path / "whole")
    assert whole.run(lambda second, note: True)
    run = planned(team, model, tmp_path / "run", seconds=6)
    assert not run.run(lambda second, note: second < 4)
    kept = (run.folder / "checkpoint.pt").read_bytes()
    resumed = planned(team, model, run.folder, resume=True)
    told: list[tuple[int, str]] = []
    assert not resumed.run(lambda second, note: told.append((second, note)) or second < 2)
    assert told == [(1, ", catching up"), (2, ", catching up")]
    assert files(run.folder) == {"checkpoint.pt": kept}
    assert planned(team, model, run.folder, resume=True).run(lambda second, note: True)
    assert run.outcome() == whole.outcome()


def test_a_run_can_be_made_longer(team: Path, model: Path, tmp_path: Path) -> None:
    whole = planned(team, model, tmp_path / "whole")
    whole.run(lambda second, note: True)
    short = planned(team, model, tmp_path / "short", seconds=3)
    short.run(lambda second, note: True)
    longer = planned(team, model, tmp_path / "short", resume=True)
    longer.run(lambda second, note: True)
    assert longer.outcome() == whole.outcome()
    with pytest.raises(CheckpointError, match="minutes, beyond --minutes"):
        short = planned(team, model, tmp_path / "short", seconds=2, resume=True)
        short.run(lambda second, note: True)


@pytest.mark.parametrize(("change", "named"), [({"seed": 2}, "--seed: 1 then, 2 now"), ({"policy": "edca"}, "policy")])
def test_another_run_is_not_gone_on_with(
    team: Path, model: Path, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    first = planned(team, model, tmp_path / "run", seconds=2)
    first.run(lambda second, note: True)
    with pytest.raises(CheckpointError, match=named):
        planned(team, model, tmp_path / "run", seconds=3, resume=True, **change).run(lambda second, note: True)


def test_bad_checkpoints_are_told_apart(tmp_path: Path, model: Path) -> None:
    good = model.read_bytes()
    bad = tmp_path / "bad.pt"
    rng = np.random.default_rng(1)
    flipped = []
    for place in rng.integers(good.index(b"data.pkl"), len(good), 100).tolist():
        flipped.append(bytearray(good))
        flipped[-1][place] ^= 1 << int(rng.integers(8))
    for content in (b"", b"not a checkpoint", good[: len(good) // 2], good[:-20]):
        bad.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged or not a file"):
            checkpoint.load(bad)
    network = checkpoint.load_model(model, fit.SHAPE)
    told = 0
    for content in flipped:
        bad.write_bytes(content)
        try:
            assert torch.equal(flat(checkpoint.load_model(bad, fit.SHAPE)), flat(network)), "padding was hit"
        except CheckpointError as problem:
            told += "damaged or not a file" in str(problem)
    assert told > 80
    torch.save({"kind": checkpoint.KIND, "version": 99, "content": {}}, bad)
    with pytest.raises(CheckpointError, match="has version 99, but this coorp reads version 2"):
        checkpoint.load(bad)
    with pytest.raises(CheckpointError, match="a model of version 99, but this coorp reads version 1"):
        torch.save({"kind": checkpoint.KIND, "version": 99, "content": torch.load(model)["content"]}, bad)
        checkpoint.load_model(bad, fit.SHAPE)
    torch.save({"kind": checkpoint.KIND, "version": 1, "content": {}}, bad)
    with pytest.raises(CheckpointError, match="has version 1, from before each robot had its own optimiser"):
        checkpoint.load(bad)
    checkpoint.save(bad, {"setting": {}})
    with pytest.raises(CheckpointError, match="contains no model; give"):
        checkpoint.load_model(bad, fit.SHAPE)
    torch.save([1, 2, 3], bad)
    with pytest.raises(CheckpointError, match="not a file of `coorp learn`"):
        checkpoint.load(bad)
    torch.save({"kind": print}, bad)
    with pytest.raises(CheckpointError):
        checkpoint.load(bad)
    checkpoint.save_model(bad, Network(vector=4, action=2), "a test")
    with pytest.raises(CheckpointError, match="a different shape: it takes 4 numbers"):
        checkpoint.load_model(bad, fit.SHAPE)
    with pytest.raises(CheckpointError, match="there is no file"):
        checkpoint.load(tmp_path / "nothing.pt")


def test_checkpoints_keep_every_kind_of_value(tmp_path: Path) -> None:
    content = {
        "arrays": [np.arange(6, dtype=np.uint64).reshape(2, 3), np.zeros((0, 2)), np.array([True, False])],
        "number": 2**100,
        "nested": {"a": (1, None, "text"), 3: torch.ones(2)},
        "random": np.random.default_rng(1).bit_generator.state,
    }
    checkpoint.save(tmp_path / "a.pt", content)
    back = checkpoint.load(tmp_path / "a.pt")
    for mine, theirs in zip(content["arrays"], back["arrays"], strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    assert back["number"] == 2**100 and back["random"] == content["random"]
    assert back["nested"]["a"] == (1, None, "text") and torch.equal(back["nested"][3], torch.ones(2))


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    checkpoint.save(path, {"old": 1})
    (tmp_path / "a.pt.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, {"new": 2})
    assert checkpoint.load(path) == {"old": 1}


def test_the_command_writes_report_and_figures(
    team: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    common = ["--minutes", "0.1", "--model", str(model), "--out", str(out)]
    assert main([str(team), "--compare", "edca,coorp,mpc-only", "--sync", "bsp,asp", *common]) == 0
    folder = out / "small-seed1"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/gif") == 5
    assert "http" not in page
    assert "mpc-only: frozen, driving by the policy's mean" in page and "Frozen policy" not in page
    assert f"seed 1, at up to 4.5 m/s, from the weights {model}." in page
    assert "mean over the 2 s around each point" in page, "a third of the run"
    assert "<th>time per epoch, s</th><th>time per epoch, relative to edca</th>" in page
    for name in ("reward.png", "collisions.png", "epochs.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    outcome = json.loads((folder / "coorp-bsp" / "outcome.json").read_text(encoding="utf-8"))
    assert outcome["loops"] > 100 and outcome["epoch_s"] > 0
    low, high = outcome["collisions_per_robot_hour_95"]
    assert low <= outcome["collisions_per_robot_hour"] <= high
    assert "report.html" in capsys.readouterr().out
    written = (folder / "coorp-bsp" / "checkpoint.pt").stat().st_mtime_ns
    assert main([str(team), "--compare", "coorp", "--sync", "bsp", "--resume", "--no-report", *common]) == 0
    assert (folder / "coorp-bsp" / "checkpoint.pt").stat().st_mtime_ns == written, "a finished run is not repeated"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sync", "bps"], "unknown paradigm 'bps': choose from bsp, ssp, asp; did you mean bsp?"),
        (["--policy", "coorq"], "coorq"),
        (["--policy", "bulk-only"], "no control loop"),
        (["--policy", "coorp,,edca"], "empty name"),
        (["--sync", "asp", "--staleness", "2"], "only to ssp"),
        (["--minutes", "0"], "not a number of minutes from"),
        (["--minutes", "nan"], "not a number of minutes from"),
        (["--speed", "0"], "not a number of metres per second from 0.1 to 20"),
        (["--model", "driver"], "does not learn; add --frozen to drive with it"),
        (["--seed", "-1"], "not a whole number"),
        (["--resume"], "nothing in"),
        (["--model", "/nowhere/model.pt"], "no file /nowhere/model.pt"),
        (["--out", "/proc/nowhere"], "--out"),
    ],
)
def test_bad_input_says_what_to_do(
    team: Path, model: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["--model", str(model), "--out", str(tmp_path / "runs"), "--minutes", "0.1"]
    assert main([str(team), *usual, *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def learn(team: Path, model: Path, out: Path, *more: str) -> int:
    usual = ["--minutes", "0.05", "--model", str(model), "--out", str(out), "--no-gif", "--no-report"]
    return main([str(team), *usual, *more])


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_learnt_weights_can_be_driven_where_they_were_learnt(
    team: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    assert learn(team, model, out) == 0
    before = files(out)
    learnt = out / "small-seed1" / "coorp-bsp" / "model.pt"
    assert learn(team, learnt, out, "--frozen") == 0
    after = files(out)
    assert {name: after[name] for name in before} == before
    outcome = Outcome.load(out / "small-seed1" / "coorp-bsp-frozen" / "outcome.json")
    assert outcome.frozen and outcome.name == "coorp-bsp-frozen"
    assert learn(team, learnt, out, "--policy", "edca,coorp", "--overwrite") == 2
    assert "which this run writes to; copy it elsewhere first" in capsys.readouterr().err
    assert files(out) == after


def test_weights_that_change_during_a_run_are_not_its_own(team: Path, model: Path, tmp_path: Path) -> None:
    """A changed team file has no effect either: a run uses the files as they were when it was planned."""
    untouched = planned(team, model, tmp_path / "untouched", seconds=3)
    untouched.run(lambda second, note: True)
    options = _parser().parse_args(
        [str(team), "--sync", "ssp,bsp", "--staleness", "1", "--minutes", "0.05", "--model", str(model), "--no-gif"]
    )
    first, second = plan(options, ["coorp"], ["ssp", "bsp"], tmp_path / "touched")

    def touch(_second: int, _note: str) -> bool:
        team.write_text("no team any more", encoding="utf-8")
        model.write_bytes(b"no model any more")
        return True

    assert first.run(touch) and second.run(touch)
    assert first.outcome() == untouched.outcome()
    assert second.outcome().setting["team file"] == first.outcome().setting["team file"]
    assert torch.equal(weights(first.folder), weights(untouched.folder))


def test_a_repeated_command_leaves_what_there_is(
    team: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    folder = out / "small-seed1" / "coorp-bsp"
    assert learn(team, model, out) == 0
    mine = ("runway.mcap", "run-mine.mcap", "notes.txt")
    for name in mine:
        (folder / name).write_text("not the run's", encoding="utf-8")
    before = files(out)
    assert learn(team, model, out) == 2
    said = capsys.readouterr().err
    assert "coorp-bsp has checkpoint.pt, model.pt, outcome.json of an earlier run" in said
    assert "--resume" in said and "another --out" in said and "--overwrite" in said
    (folder / "outcome.json").unlink()
    assert learn(team, model, out, "--policy", "edca,coorp") == 2, "unfinished, and not the first"
    assert not (out / "small-seed1" / "edca-bsp").exists()
    (folder / "run-from-2s.mcap").write_text("the run's", encoding="utf-8")
    assert learn(team, model, out, "--overwrite") == 0
    after = files(out)
    assert set(after) == set(before)
    assert all((folder / name).read_text(encoding="utf-8") == "not the run's" for name in mine)
    (folder / "checkpoint.pt").unlink()
    assert learn(team, model, out, "--resume", "--seed", "1", "--minutes", "0.1") == 2
    assert "no checkpoint to resume" in capsys.readouterr().err
    assert "outcome.json" in {each.name for each in folder.iterdir()}


def test_a_study_ends_with_the_reason(team: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STUDIES)
    from lib.learning import outcomes

    folder = tmp_path / "run"
    assert planned(team, model, folder).run(lambda _second, _note: True)
    shorter = planned(team, model, folder, seconds=3, resume=True)
    with pytest.raises(SystemExit, match=r"already at 0\.1 minutes(.|\n)*without --resume it starts again"):
        outcomes([shorter], resume=True)
    assert (folder / "outcome.json").exists()


def test_no_study_replaces_another_ones_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STUDIES)
    import convergence
    from papers import learning

    asked: list[convergence.Job] = []

    def run(jobs: list[convergence.Job], *, resume: bool) -> None:
        asked.extend(jobs)
        sys.exit(f"resume: {resume}")

    monkeypatch.setattr(convergence, "run", run)
    monkeypatch.setattr(convergence, "write_team", lambda: None)
    with pytest.raises(SystemExit):
        learning.growth(90, range(1, 6), ("bsp", "ssp", "asp"), learning.POLICIES, resume=False)
    assert len({job.folder for job in asked}) == 60
    others = {job.folder for job in convergence.learning_jobs(convergence.FULL)}
    assert others.isdisjoint(job.folder for job in asked)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_outcome_is_none(team: Path, model: Path, tmp_path: Path, content: str) -> None:
    run = planned(team, model, tmp_path / "run")
    (run.folder / "outcome.json").write_text(content, encoding="utf-8")
    assert not run.is_done()


def test_a_comparison_that_overwrites_can_be_continued(
    team: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = (team, model, tmp_path / "runs", "--policy", "edca,coorp")
    assert learn(*usual) == 0
    team.write_text(TEAM.replace("20_000", "30_000"), encoding="utf-8")
    with monkeypatch.context() as interrupted:
        interrupted.setattr("coorp.learn.main._run", lambda _plan, _interrupted: False)
        assert learn(*usual, "--overwrite") == 130
    assert "to continue: coorp learn" in capsys.readouterr().err
    assert learn(*usual, "--resume") == 0, capsys.readouterr().err


def test_a_folder_has_one_run_at_a_time(
    team: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    folder = out / "small-seed1" / "coorp-bsp"
    seconds = []

    def try_others(second: int, _note: str) -> bool:
        seconds.append(second)
        before = files(out)
        for more in ([], ["--resume"], ["--overwrite"], ["--policy", "edca,coorp"]):
            assert learn(team, model, out, *more) == 2
            assert f"another run writes to {folder}; wait until it has ended" in capsys.readouterr().err
        with pytest.raises(Mend, match="another run writes to"):
            planned(team, model, folder).run(lambda _second, _note: True)
        assert files(out) == before
        return True

    assert planned(team, model, folder, seconds=2).run(try_others) and seconds == [1, 2]
    assert learn(team, model, out, "--overwrite") == 0


def test_what_differs_is_named_and_nothing_else(team: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    planned(team, model, folder, seconds=2).run(lambda second, note: True)
    content = checkpoint.load(folder / "checkpoint.pt")
    assert content["setting"]["coorp"] == coorp.__version__
    content["setting"] |= {"coorp": "0.0.1", "hyper-parameters": "another", "environment": "another"}
    checkpoint.save(folder / "checkpoint.pt", content)
    outcome = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    outcome["setting"] = content["setting"]
    (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    with pytest.raises(CheckpointError) as told:
        planned(team, model, folder, seconds=2, resume=True).run(lambda second, note: True)
    assert (
        f"from a run with another coorp: 0.0.1 then, {coorp.__version__} now, another hyper-parameters, "
        "another environment; give the same" in str(told.value)
    )


def test_a_recording_that_was_not_made_is_not_passed_over(
    team: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcap_ros2")
    assert learn(team, model, tmp_path / "runs") == 0
    assert learn(team, model, tmp_path / "runs", "--resume", "--mcap") == 2
    assert "is finished and was not recorded; omit --mcap" in capsys.readouterr().err
    assert learn(team, model, tmp_path / "runs", "--overwrite", "--mcap") == 0
    assert learn(team, model, tmp_path / "runs", "--resume", "--mcap") == 0


@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        ([f"r{i}" for i in range(65)], [], "does not fit the environment: there must be 1 to 64 robots, not 65"),
        (["a-b", "a.b"], ["--mcap"], "would both be recorded as '/a_b'; rename one; or omit --mcap"),
        (["x", "1st"], ["--mcap"], "'1st' is not a valid robot name"),
    ],
)
def test_a_team_that_cannot_be_driven_or_recorded_is_told_before_anything_is_cleared(
    team: Path,
    model: Path,
    tmp_path: Path,
    names: list[str],
    more: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("mcap_ros2")
    assert learn(team, model, tmp_path / "runs") == 0
    before = files(tmp_path / "runs")
    robots = "".join(f'[[robot]]\nname = "{name}"\n{"leader = true" * (name == names[0])}\n' for name in names)
    team.write_text(robots + TEAM[TEAM.index("[air]") :], encoding="utf-8")
    assert learn(team, model, tmp_path / "runs", "--overwrite", *more) == 2
    assert message in capsys.readouterr().err
    assert files(tmp_path / "runs") == before


def test_a_batch_beyond_memory_is_told(
    team: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team.write_text(TEAM.replace("batch_loops = 20", "batch_loops = 200_000"), encoding="utf-8")
    assert learn(team, model, tmp_path / "runs") == 2
    assert "6.9 GiB of images, but the limit is 4 GiB; use at most 116508" in capsys.readouterr().err
    assert learn(team, model, tmp_path / "runs", "--frozen") == 0, "nothing is kept"


@pytest.mark.parametrize("options", [("--policy", "coorp", "--compare", "edca"), ("--policy", "a", "--policy", "b")])
def test_policies_are_given_once(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["team.toml", *options]) == 2
    assert "--policy and --compare are the same option" in capsys.readouterr().err


def test_what_is_no_model_is_left_to_its_owner(team: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Read me", encoding="utf-8")
    for path, message in ((readme, "not a file of `coorp learn`"), (tmp_path, "cannot be read: Is a directory")):
        assert learn(team, path, tmp_path / "runs") == 2
        said = capsys.readouterr().err
        assert message in said and "set --model to the model.pt of a run" in said
        assert "delete" not in said and "--out" not in said


def test_without_a_terminal_there_are_lines(
    team: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert learn(team, model, tmp_path / "runs") == 0
    assert capsys.readouterr().err == "", "not before a minute is over"
    monkeypatch.setattr("coorp.learn.main.LINE_EVERY_S", 0.0)
    assert learn(team, model, tmp_path / "more") == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("coorp bsp: 0.0 of 0.1 min, reward ")


def test_a_disk_that_takes_no_recording_still_takes_a_checkpoint(team: Path, model: Path, tmp_path: Path) -> None:
    """Both files are on one disk, which here refuses files of more than 3 MB."""
    pytest.importorskip("mcap_ros2")
    out = tmp_path / "runs"
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000)); "
        "from coorp.learn.main import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = [str(team), "--model", str(model), "--frozen", "--out", str(out), "--no-gif", "--no-report", "--mcap"]
    command = [sys.executable, "-c", limited, *arguments, "--minutes", "1000"]
    got = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert got.returncode == 2
    assert "cannot write the recording" in got.stderr and "without --mcap to continue unrecorded" in got.stderr
    folder = out / "small-seed1" / "coorp-bsp-frozen"
    saved = checkpoint.load(folder / "checkpoint.pt")["cosim"]["now_s"]
    assert f"saved up to {saved / 60:.3g} minutes" in got.stderr
    minutes = str((saved + 2) / 60)
    assert main([*arguments[:-1], "--minutes", minutes, "--resume"]) == 0


def test_a_full_disk_is_told_with_what_works(tmp_path: Path) -> None:
    told = _about_disk(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert "free some, then repeat the command with --resume" in told and "another --out" not in told


def test_a_team_that_does_not_learn_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "team.toml"
    path.write_text(TEAM[: TEAM.index("[learning]")].replace('training = "150ms"', ""), encoding="utf-8")
    assert main([str(path)]) == 2
    assert "has no [learning]" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing.toml")]) == 2
    assert "nothing.toml" in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(team: Path) -> None:
    code = (
        f"import sys; sys.modules['torch'] = None; from coorp.learn.main import main; sys.exit(main([{str(team)!r}]))"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert got.returncode == 2
    assert "needs the Python package 'torch'" in got.stderr and "pip install" in got.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(team: Path, model: Path, tmp_path: Path, number: int) -> None:
    out = tmp_path / "runs"
    # The ten minutes before the first checkpoint take one real minute.
    code = "import sys\nfrom coorp.learn import run, main\nrun.SAVE_EVERY_S = 60\nsys.exit(main.main(sys.argv[1:]))\n"
    command = [sys.executable, "-c", code, str(team), "--model", str(model), "--out", str(out)]
    run = subprocess.Popen([*command, "--minutes", "1000", "--overwrite"], stderr=subprocess.PIPE, text=True)
    checkpoint_file = out / "small-seed1" / "coorp-bsp" / "checkpoint.pt"
    deadline = time.monotonic() + 300
    while not checkpoint_file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    run.send_signal(number)
    _, said = run.communicate(timeout=300)
    assert run.returncode == 130
    assert "--minutes 1000 --resume" in said and "--overwrite" not in said and "Traceback" not in said
    assert checkpoint.load(checkpoint_file)["cosim"]["now_s"] >= 60


@pytest.mark.parametrize("saved", [True, False])
def test_a_second_ctrl_c_says_what_is_left(
    team: Path, model: Path, tmp_path: Path, saved: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    if saved:
        assert learn(team, model, out) == 0
    code = (
        "import os, signal, sys\n"
        "from coorp.learn import run, main\n"
        "def twice(*_):\n"
        "    os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return ''\n"
        "run._note = twice\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    arguments = [str(team), "--model", str(model), "--out", str(out), "--no-gif", "--minutes", "0.1"]
    more = ["--resume"] if saved else []
    got = subprocess.run(
        [sys.executable, "-c", code, *arguments, *more], capture_output=True, text=True, check=False, timeout=60
    )
    assert got.returncode == 130
    assert "Traceback" not in got.stderr
    if saved:
        assert "ended at once; everything since the last checkpoint is lost; to continue: coorp learn" in got.stderr
        assert learn(team, model, out, "--resume", "--minutes", "0.1") == 0
    else:
        assert "ended before there was anything to save" in got.stderr


def test_a_recording_has_what_robots_saw_and_did(team: Path, model: Path, tmp_path: Path) -> None:
    reader = pytest.importorskip("mcap_ros2.reader")
    run = planned(team, model, tmp_path / "run", seconds=2, mcap=True)
    run.run(lambda second, note: True)
    topics: dict[str, int] = {}
    for message in reader.read_ros2_messages(run.folder / "run.mcap"):
        topics[message.channel.topic] = topics.get(message.channel.topic, 0) + 1
    assert topics["/reward"] == topics["/collisions"] == 2
    assert topics["/leader/camera"] > 50
    assert topics["/a/camera"] == topics["/a/pose"] > 50
    assert topics["/leader/cmd_vel"] == topics["/b/cmd_vel"] > 50


def test_the_shipped_policy_knows_the_easier_environment() -> None:
    assert fit.PRETRAINED.stat().st_size < 500_000
    network = checkpoint.load_model(fit.PRETRAINED, fit.SHAPE)
    env = Navigation("known", endless=True)
    env.reset(seed=11)
    for step in range(1, 120 * 30):
        for robot, velocity in enumerate(fit.velocities(network.act(*env.observe()))):
            env.set_velocity(robot, velocity)
        env.advance_to(step / 30)
    tally = env.tally()
    assert tally.arrivals.sum() > 1.5 * (tally.collisions.sum() + tally.timeouts.sum())


def test_the_default_speed_is_the_default_tasks() -> None:
    assert _parser().parse_args(["team.toml"]).speed == fit.SPEED_MPS == Task().max_speed_mps


@pytest.mark.parametrize(
    ("command", "name"), [(pretrain, "navigation.pt"), (imitate, "driver.pt"), (look, "images.pt")]
)
def test_training_keeps_the_shipped_weights(
    command: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = fit.PRETRAINED.with_name(name)
    before = shipped.stat().st_mtime_ns
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pretrain, "pretrain", lambda *_: fit.fresh())
    monkeypatch.setattr(imitate.Imitation, "run", lambda *_: None)
    monkeypatch.setattr(look, "train", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["train", *(["--rounds", "1"] if command is imitate else [])])
    assert command.main() == 0
    fit.load(tmp_path / name, Task())
    assert shipped.stat().st_mtime_ns == before


@pytest.mark.parametrize("command", [pretrain, imitate, look])
@pytest.mark.parametrize(("out", "why"), [("/proc/nowhere/it.pt", "cannot be written"), (".", "is a folder")])
def test_training_does_not_start_without_a_place_for_the_weights(
    command: ModuleType,
    out: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", "--out", out])
    monkeypatch.setattr(pretrain, "pretrain", lambda *_: pytest.fail("it trains"))
    monkeypatch.setattr(imitate, "Imitation", lambda *_: pytest.fail("it trains"))
    monkeypatch.setattr(look, "train", lambda *_: pytest.fail("it trains"))
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(("weights", "nearby"), [(fit.DRIVER, NEARBY), (fit.IMAGES, 0)])
def test_the_shipped_drivers_drive(weights: Path, nearby: int) -> None:
    assert weights.stat().st_size < 2_000_000
    task = Task.at(1.5)
    driver = fit.load(weights, task)
    env = Navigation("unknown", task=task, endless=True, nearby=nearby)
    env.reset(seed=11)
    for step in range(1, 120 * 30):
        for robot, velocity in enumerate(fit.velocities(driver.act(*env.observe()), task)):
            env.set_velocity(robot, velocity)
        env.advance_to(step / 30)
    assert env.tally().success > 0.9
    assert env.tally().arrivals.sum() > 80


def test_the_command_drives_the_drivers(team: Path, model: Path, tmp_path: Path) -> None:
    out = ["--minutes", "0.5", "--frozen", "--no-gif", "--no-report", "--out", str(tmp_path)]
    results = {}
    for speed, weights in (("1.5", "driver"), ("3", "driver"), ("1.5", str(model)), ("1.5", "images")):
        assert main([str(team), "--speed", speed, "--model", weights, "--overwrite", *out]) == 0
        results[speed, weights] = Outcome.load(tmp_path / "small-seed1" / "coorp-bsp-frozen" / "outcome.json")
    slow, fast, other, seeing = results.values()
    assert slow.loops == fast.loops == other.loops == seeing.loops, "what robots do does not change when things happen"
    assert fast.arrivals > 1.5 * slow.arrivals > 5
    assert min(slow.success, seeing.success) > 0.8 > other.success, "the other one is untrained"
    assert slow.to_goal_s > 1.5 * fast.to_goal_s
    assert slow.setting["--speed"] == 1.5


def test_the_example_can_be_short() -> None:
    example = Path(__file__).parents[2] / "examples" / "train_navigation.py"
    for minutes in ("0", "0.1"):
        got = subprocess.run(
            [sys.executable, str(example), "--minutes", minutes],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert got.returncode == 0, got.stderr
        assert "bulk 0.0 Mbit/s" in got.stdout
    # Robots that collide earn some -40 per second here; over a whole minute it would be a tenth of that.
    reward = float(got.stdout.split("per robot and second")[1].split()[0])
    assert reward < -10


def test_intervals_are_those_of_the_tables() -> None:
    # Garwood's exact limits for 0, 10 and 100 events; Wilson's for 10 of 100.
    for count, low, high in ((0, 0.0, 3.689), (10, 4.795, 18.39), (100, 81.36, 121.63)):
        got = poisson_interval(count)
        assert got[0] == pytest.approx(low, rel=0.01, abs=1e-9)
        assert got[1] == pytest.approx(high, rel=0.02)
    assert share_interval(0.1, 100) == pytest.approx((0.0552, 0.1744), abs=1e-3)
    assert share_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("seconds", [2, 6, 100])
def test_a_short_run_has_a_first_and_a_last_reward(seconds: int) -> None:
    history = History()
    for second in range(1, seconds + 1):
        history.add(second, -2.0 * second * second, Navigation(robots=2).tally())
    outcome = Outcome("t", "edca", "bsp", 1, False, 2, seconds / 60, 0, 0.0, 0.0, history)
    first, last = outcome.mean_reward(0, 0.2), outcome.mean_reward(0.8, 1)
    assert first == last == -3.0 if seconds == 2 else first > last
    assert outcome.mean_reward(0, 1) == pytest.approx(-(seconds + 1))
