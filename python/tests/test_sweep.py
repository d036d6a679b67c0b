"""Sweeps: where jobs run, how they fail, stop and continue, and that results do not depend on any of it."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import coorp
from coorp.learn.errors import Mend
from coorp.sweep import farm, tables
from coorp.sweep.farm import Job, Tell
from coorp.sweep.files import alone
from coorp.sweep.simulations import _duration, main

HERE = Path(__file__).parent
HAS_RAY = importlib.util.find_spec("ray") is not None
GROUNDS = ["cores", pytest.param("ray", marks=pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed"))]
TEAM = """
[[robot]]
name = "leader"
leader = true
[[robot]]
name = "a"
[air]
standard = "802.11ac"
width_mhz = 80
[control]
rate_hz = 30
bound = "33ms"
perception = "12KiB"
inference = "10ms"
"""
LEARNING = """
[learning]
parameters = 20_000
batch_loops = 20
rounds = 2
training = "100ms"
training_spread = 0.1
"""


def write(path: Path, _tell: Tell) -> bool:
    path.write_text(str(os.getpid()), encoding="utf-8")
    return True


def fail(problem: BaseException, _tell: Tell) -> bool:
    raise problem


def crash_once(path: Path, _tell: Tell) -> bool:
    if not path.exists():
        path.touch()
        os._exit(3)
    return True


def crash(code: int, _tell: Tell) -> bool:
    os._exit(code)


def die(_tell: Tell) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def run_until_stopped(folder: Path, name: str, tell: Tell) -> bool:
    (folder / f"{name}.started").write_text(str(os.getpid()), encoding="utf-8")
    while tell(0.5):
        time.sleep(0.01)
    (folder / f"{name}.stopped").touch()
    return False


def sleep(folder: Path, name: str, _tell: Tell) -> bool:
    (folder / f"{name}.started").write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(600)
    return True


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("where", GROUNDS)
def test_a_job_that_fails_takes_no_other_with_it(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray's processes have the path of the environment only.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    good = [Job(f"good {number}", partial(write, tmp_path / str(number))) for number in range(5)]
    bad = [
        Job("disk", partial(fail, OSError(28, "No space left on device"))),
        Job("input", partial(fail, Mend("team.toml: no robots"))),
        Job("bug", partial(fail, ZeroDivisionError("by zero"))),
    ]
    if where == "ray":  # tries again what crashes
        good.append(Job("once", partial(crash_once, tmp_path / "crashed")))
    else:
        bad += [Job("exit", partial(crash, 3)), Job("killed", die)]
    ended = farm.run([good[0], *bad, *good[1:]], where, 2)
    assert not ended.stopped
    assert ended.failed["disk"] == "[Errno 28] No space left on device"
    assert ended.failed["input"] == "team.toml: no robots"
    assert ended.failed["bug"].startswith("Traceback") and "raise problem" in ended.failed["bug"]
    if where == "cores":
        assert ended.failed["exit"] == "its process ended with exit code 3"
        assert ended.failed["killed"] == "its process was ended by SIGKILL"
    assert len(ended.failed) == len(bad)
    assert (tmp_path / "crashed").exists() == (where == "ray")
    pids = {(tmp_path / str(number)).read_text(encoding="utf-8") for number in range(5)}
    assert str(os.getpid()) not in pids


def test_nothing_to_do_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm, "_Cores", None)
    assert farm.run([], "cores", 2) == farm.Ended()


def test_without_ray_a_cluster_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm, "_has_ray", lambda: False)
    with pytest.raises(Mend, match="pip install ray; without it: --on cores"):
        farm.run([Job("one", die)], "head:6379")


def test_a_cluster_that_is_not_there_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Mend, match=f"no Ray listens at {address} .*; start it there, or give --on cores"):
            farm._check_reachable(address)
    for other in ("local", "auto", "ray://head:10001"):
        farm._check_reachable(other)


def test_a_job_reports_seldom_and_stops_before_it_starts() -> None:
    told: list[float] = []

    def busy(tell: Tell) -> bool:
        return all(tell(step / 1000) for step in range(1000))

    assert farm.attempt(Job("busy", busy), lambda share: told.append(share) is None) == farm.End(True)
    assert told[0] == 0.0 and len(told) < 1000
    assert farm.attempt(Job("die", die), lambda _: False) == farm.End(False)


def sweep_of(job: str, where: str, folder: Path) -> subprocess.Popen[str]:
    """Starts a sweep of three jobs, two at a time, in a group of its own, as a terminal does."""
    code = (
        "import sys\nfrom functools import partial\nfrom pathlib import Path\n"
        f"import test_sweep\nfrom coorp.sweep import farm\nfolder = Path({str(folder)!r})\n"
        f"jobs = [farm.Job(name, partial(test_sweep.{job}, folder, name)) for name in 'abc']\n"
        f"if __name__ == '__main__':\n    sys.exit(farm.outcome(farm.run(jobs, {where!r}, 2), 'this'))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def pids(folder: Path) -> list[int]:
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.started")]
    return [int(text) for text in texts if text]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", GROUNDS)
def test_ctrl_c_lets_jobs_stop_where_they_can_be_continued(tmp_path: Path, where: str, number: int) -> None:
    sweep = sweep_of("run_until_stopped", where, tmp_path)
    wait_for(lambda: len(pids(tmp_path)) == 2, "two jobs have started")
    os.killpg(sweep.pid, number)
    _, said = sweep.communicate(timeout=240)
    assert sweep.returncode == 130, said
    assert said.splitlines()[-1] == "stopped; what ran is saved; to continue: this"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.started", "a.stopped", "b.started", "b.stopped"]


def test_a_second_ctrl_c_ends_all_at_once(tmp_path: Path) -> None:
    sweep = sweep_of("sleep", "cores", tmp_path)
    wait_for(lambda: len(pids(tmp_path)) == 2, "two jobs have started")
    os.killpg(sweep.pid, signal.SIGINT)
    time.sleep(0.5)
    assert sweep.poll() is None and not any(map(is_gone, pids(tmp_path))), "it waits for the jobs"
    os.killpg(sweep.pid, signal.SIGINT)
    sweep.communicate(timeout=240)
    wait_for(lambda: all(map(is_gone, pids(tmp_path))), "their processes are gone")
    assert not (tmp_path / "c.started").exists()


def test_a_third_ctrl_c_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = farm._Cores(2)
    for index, name in enumerate("ab"):
        pool.start(index, Job(name, partial(sleep, tmp_path, name)))
    processes = list(pool._workers.values())
    monkeypatch.setattr(processes[0], "join", partial(fail, KeyboardInterrupt(), lambda _: True))
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    wait_for(lambda: not any(process.is_alive() for process in processes), "their processes are gone")


def test_jobs_stop_when_the_sweep_is_killed(tmp_path: Path) -> None:
    sweep = sweep_of("run_until_stopped", "cores", tmp_path)
    wait_for(lambda: len(pids(tmp_path)) == 2, "two jobs have started")
    sweep.kill()
    sweep.communicate(timeout=240)
    wait_for(lambda: (tmp_path / "a.stopped").exists() and (tmp_path / "b.stopped").exists(), "they have stopped")
    wait_for(lambda: all(map(is_gone, pids(tmp_path))), "their processes are gone")


# coorp sim --sweep


@pytest.fixture
def teams(tmp_path: Path) -> Path:
    folder = tmp_path / "teams"
    folder.mkdir()
    (folder / "control.toml").write_text(TEAM, encoding="utf-8")
    (folder / "learner.toml").write_text(TEAM + LEARNING, encoding="utf-8")
    return folder


def simulate(teams: Path, out: Path, *more: str) -> int:
    usual = ["--sweep", "--policy", "bulk-only,edca,coorp", "--duration", "2s", "--seeds", "2", "--out", str(out)]
    return main([str(teams), *usual, "--workers", "2", *more])


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("where", GROUNDS)
def test_a_folder_of_teams_gives_one_table(
    teams: Path, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    assert simulate(teams, out, "--on", where) == 0
    table = capsys.readouterr().out
    assert [line.split()[:3] for line in table.splitlines()[1:7]] == [
        [team, policy, "2"] for team in ("control", "learner") for policy in ("bulk-only", "edca", "coorp")
    ]
    assert "Note: control: " in table and "'bulk-only' has nothing to run" in table
    contents = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    rows = list(csv.DictReader((out / "sweep.csv").read_text(encoding="utf-8").splitlines()))
    assert len(contents) == len(rows) == 12
    for content, row in zip(contents, rows, strict=True):
        setting = content["setting"]
        path = teams / f"{content['team']}.toml"
        assert (row["team"], row["policy"], row["seed"]) == (path.stem, setting["policy"], str(setting["seed"]))
        if content["result"] is None:
            assert "has nothing to run" in content["unfit"] and row["loops"] == ""
            continue
        alone = coorp.simulate(path, setting["policy"], duration_s=2.0, seed=setting["seed"]).to_dict()
        assert content["result"] == {name: value for name, value in alone.items() if name != "wall_s"}
        assert int(row["loops"]) == alone["loops"]
    # The same from one process after another.
    assert simulate(teams, tmp_path / "alone", "--workers", "1", "--on", "cores") == 0
    assert files(out) == files(tmp_path / "alone")


def test_a_sweep_of_simulations_is_resumed(teams: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    assert simulate(teams, out, "--on", "cores") == 0
    whole = files(out)
    lost = out / "learner" / "coorp-seed2.json"
    lost.unlink()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("*/*.json")}
    assert simulate(teams, out, "--on", "cores") == 2
    assert "is of an earlier sweep; give --resume" in capsys.readouterr().err and not lost.exists()
    assert simulate(teams, out, "--on", "cores", "--resume") == 0
    assert files(out) == whole
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "finished runs are left"
    assert simulate(teams, out, "--on", "cores", "--resume", "--duration", "3s") == 2
    assert "from a run with another duration_s; give --overwrite" in capsys.readouterr().err
    for content in ("{", "[]", '{"setting": []}'):
        lost.write_text(content, encoding="utf-8")
        assert simulate(teams, out, "--on", "cores", "--resume") == 2
        assert "is not a run of a sweep; delete it" in capsys.readouterr().err
    (teams / "learner.toml").write_text(TEAM + LEARNING.replace("20_000", "30_000"), encoding="utf-8")
    assert simulate(teams, out, "--on", "cores", "--resume") == 2
    assert "from a run with another team file" in capsys.readouterr().err
    assert simulate(teams, out, "--on", "cores", "--overwrite") == 0
    assert files(out).keys() == whole.keys() and files(out) != whole


def test_a_folder_has_one_sweep_at_a_time(teams: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    out.mkdir()
    with alone(out):
        for more in ([], ["--overwrite"]):
            assert simulate(teams, out, "--on", "cores", *more) == 2
            assert f"another run writes to {out}; wait until it has ended" in capsys.readouterr().err
    assert not files(out)
    with alone(out):
        pass


def test_a_run_that_fails_is_named_and_can_be_tried_again(
    teams: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    (out / "learner" / "coorp-seed1.json.part").mkdir(parents=True)
    assert simulate(teams, out, "--on", "cores") == 1
    told = capsys.readouterr()
    assert "failed: learner, coorp, seed 1: [Errno 21] Is a directory" in told.err
    assert "1 run failed; to try again: coorp sim" in told.err and told.err.endswith(" --resume\n")
    assert "11 runs" in told.out
    (out / "learner" / "coorp-seed1.json.part").rmdir()
    assert simulate(teams, out, "--on", "cores", "--resume") == 0
    assert "12 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "coorq"], "there is no policy 'coorq'"),
        (["--duration", "2"], "write it as 600s"),
        (["--seeds", "0"], "not a whole number from 1"),
        (["--seeds", "60000"], "more than 100,000 runs"),
        (["--seed", "-1"], "not a whole number from 0"),
    ],
)
def test_bad_input_of_a_sweep_says_what_to_do(
    teams: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(teams, tmp_path / "runs", *arguments) == 2
    told = capsys.readouterr().err
    assert message in told and "Traceback" not in told


def test_a_folder_without_teams_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(tmp_path, tmp_path / "runs") == 2
    assert "there is no team file (*.toml) in" in capsys.readouterr().err
    (tmp_path / "bad.toml").write_text("[[robot", encoding="utf-8")
    assert simulate(tmp_path, tmp_path / "runs") == 2
    assert "bad.toml" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_command_sweeps(teams: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coorp", "sim", str(teams), "--sweep", "--policy", "edca", "--duration", "500ms"]
    done = subprocess.run([*command, "--out", str(tmp_path / "runs"), "--on", "cores"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 runs: " in done.stdout and done.stderr == ""


def test_figures_that_some_runs_lack_have_a_mean_of_the_others() -> None:
    values = [1.0, float("nan"), 3.0, None]
    assert tables.mean(values) == 2.0 and tables.standard_error(values) == 1.0
    lacking = [float("nan"), float("nan")]
    assert tables.shown(tables.mean(lacking)) == tables.shown(tables.standard_error(lacking)) == "-"


def test_times_have_units() -> None:
    assert [_duration(text) for text in ("600s", "10min", "1.5h", "500ms", ".5m")] == [600.0, 600.0, 5400.0, 0.5, 30.0]


# coorp learn --sweep


@pytest.fixture
def learner(teams: Path) -> tuple[Path, Path]:
    """A folder with a team that learns, and weights to start from."""
    for needed in ("torch", "pettingzoo", "matplotlib"):
        pytest.importorskip(needed)
    import torch

    from coorp.learn import checkpoint, fit

    (teams / "control.toml").unlink()
    torch.manual_seed(3)
    model = teams / "start.pt"
    checkpoint.save_model(model, fit.fresh(), "a test")
    return teams, model


def learn(team: Path, model: Path, out: Path, *more: str) -> int:
    from coorp.learn.main import main as learns

    usual = ["--minutes", "0.1", "--compare", "edca,coorp", "--sync", "bsp,asp", "--no-gif", "--model", str(model)]
    return learns([str(team), *usual, "--out", str(out), *more])


@pytest.mark.parametrize("where", GROUNDS)
def test_a_sweep_learns_what_single_runs_learn(
    learner: tuple[Path, Path], tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    teams, model = learner
    out, alone = tmp_path / "swept", tmp_path / "alone"
    assert learn(teams, model, out, "--sweep", "--seeds", "2", "--workers", "2", "--on", where) == 0
    told = capsys.readouterr().out
    assert f"8 runs: {out / 'sweep.csv'}, {out / 'learner-reward.png'}" in told
    rows = list(csv.DictReader((out / "sweep.csv").read_text(encoding="utf-8").splitlines()))
    keys = [(row["team"], row["seed"], row["policy"], row["sync"]) for row in rows]
    assert keys == [
        ("learner", seed, policy, sync) for seed in "12" for policy in ("edca", "coorp") for sync in ("bsp", "asp")
    ]
    for row in rows:
        assert (row["speed_mps"], row["model"]) == ("4.5", str(model))
        single = json.loads(
            (out / f"learner-seed{row['seed']}" / f"{row['policy']}-{row['sync']}" / "outcome.json").read_text("utf-8")
        )
        for key in ("near_misses", "timeouts", "to_goal_s", "success"):
            assert row[key] == ("" if single[key] is None else str(single[key])), key
    assert "success" in told
    for seed in "12":
        assert learn(teams / "learner.toml", model, alone, "--seed", seed, "--no-report") == 0
    assert len(files(alone)) == 2 * 4 * 3
    swept = files(out)
    for name, content in files(alone).items():
        assert swept[name] == content, name


def test_a_sweep_of_learning_is_resumed(
    learner: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from coorp.learn.main import _parser
    from coorp.learn.run import prepare

    teams, model = learner
    team, out, whole = teams / "learner.toml", tmp_path / "swept", tmp_path / "whole"
    usual = ("--sweep", "--workers", "2", "--on", "cores", "--no-report")
    assert learn(team, model, out, *usual, "--resume") == 2
    assert "there is nothing in" in capsys.readouterr().err
    # A sweep that was interrupted: one run is finished, one has a checkpoint, two have not begun.
    options = _parser().parse_args([str(team), "--minutes", "0.1", "--model", str(model), "--no-gif", "--sweep"])
    first, second, *_ = prepare(options, ["edca", "coorp"], ["bsp", "asp"], out / "learner-seed1")
    for each, stop in ((first, 7), (second, 3)):
        each.folder.mkdir(parents=True)
        assert each.run(lambda at, _note, stop=stop: at < stop) == (stop == 7)
    written = (first.folder / "outcome.json").stat().st_mtime_ns
    assert learn(team, model, out, *usual) == 2
    assert "of an earlier run; give --resume" in capsys.readouterr().err
    assert learn(team, model, out, *usual, "--resume") == 0
    assert "1 of 4 runs are finished" in capsys.readouterr().err
    assert (first.folder / "outcome.json").stat().st_mtime_ns == written
    assert learn(team, model, whole, "--no-report") == 0
    for name, content in files(whole).items():
        # A resumed checkpoint is the same, but pickled otherwise.
        assert name.endswith("checkpoint.pt") or files(out)[name] == content, name
    monkeypatch.setattr(farm, "run", lambda jobs, *_: farm.Ended(stopped=len(jobs) == 4))
    assert learn(team, model, out, *usual, "--overwrite") == 130
    assert "to continue: coorp learn" in capsys.readouterr().err
    assert set(files(out)) == {"sweep.csv"}, "they have been deleted, and would be run again"


def test_what_belongs_to_a_sweep_needs_one(
    learner: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teams, model = learner
    team = teams / "learner.toml"
    for path, more in ((teams, []), (team, ["--seeds", "2"]), (team, ["--on", "ray"])):
        assert learn(path, model, tmp_path / "runs", *more) == 2
        assert "belong to a sweep; add --sweep" in capsys.readouterr().err
    assert learn(team, model, tmp_path / "runs", "--sweep", "--seeds", "60000") == 2
    assert "more than 100,000 runs" in capsys.readouterr().err
    team.unlink()
    assert learn(teams, model, tmp_path / "runs", "--sweep") == 2
    assert "there is no team file" in capsys.readouterr().err


def test_inputs_that_change_during_a_sweep_are_told(learner: tuple[Path, Path], tmp_path: Path) -> None:
    from coorp.learn.main import _parser
    from coorp.learn.run import prepare
    from coorp.learn.sweep import _learn

    teams, model = learner
    team = teams / "learner.toml"
    options = _parser().parse_args([str(team), "--minutes", "0.1", "--model", str(model), "--no-gif", "--sweep"])
    [run] = prepare(options, ["coorp"], ["bsp"], tmp_path)
    with pytest.raises(Mend, match="was changed during the sweep"):
        _learn(run, {**run.setting, "team file": "another"}, lambda _: True)
    assert not (tmp_path / "coorp-bsp").exists()
