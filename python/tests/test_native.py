"""The native module from a user's view, compared with the command line."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import coorp
from coorp import EventKind, _native

ROOT = Path(__file__).parents[2]
TEAM = ROOT / "examples" / "navigation.toml"
# Small batches and models, so that epochs end within seconds.
LEARNER = TEAM.read_text().replace("10_000_000", "20_000").replace("batch_loops = 300", "batch_loops = 15")


def command(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """Runs the program `coorp` if there is one, as in `make test`; otherwise the package's command line."""
    program = [os.environ["COORP"]] if "COORP" in os.environ else [sys.executable, "-m", "coorp"]
    return subprocess.run([*program, *arguments], capture_output=True, text=True, cwd=ROOT)


def package(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """Runs the package's command line."""
    return subprocess.run([sys.executable, "-m", "coorp", *arguments], capture_output=True, text=True, cwd=ROOT)


def reproducible(result: coorp.Result) -> dict[str, object]:
    return {name: value for name, value in result.to_dict().items() if name != "wall_s"}


@pytest.mark.parametrize("policy", ["mpc-only", "edca", "coorp"])
def test_a_seed_gives_what_it_gives_on_the_command_line(policy: str) -> None:
    run = command("sim", TEAM, "--policy", policy, "--duration", "3s", "--seed", "7", "--quiet", "--json", "-")
    (expected,) = json.loads(run.stdout)["results"]
    result = coorp.simulate(TEAM, policy, duration_s=3.0, seed=7)
    expected["wall_s"] = result.wall_s
    assert json.loads(result.to_json()) == expected
    assert result.to_dict() == expected
    assert result.loops > 0
    for name in ("violation_rate", "loops", "reaction_ms", "control_latency_ms", "bulk_mbps", "epochs", "epoch_s"):
        assert getattr(result, name) == expected[name]
    for name in ("perception_latency_ms", "command_latency_ms"):
        assert getattr(result, name) == expected[name]
    for name in ("wnic_ahead", "window_share", "virtual_s", "events", "flows", "mac", "policy", "wall_s"):
        assert getattr(result, name) == expected[name]


def test_faults_are_those_of_the_command_line() -> None:
    file = ROOT / "examples" / "faults.toml"
    run = command("sim", file, "--policy", "coorp", "--faults", "--duration", "5s", "--quiet", "--json", "-")
    (expected,) = json.loads(run.stdout)["results"]
    result = coorp.simulate(file, "coorp", duration_s=5.0, faults=True)
    assert {**expected, "wall_s": 0} == {**result.to_dict(), "wall_s": 0}


def test_series_are_arrays_that_agree_with_the_numbers() -> None:
    result = coorp.simulate(TEAM, "edca", duration_s=20.0)
    assert result.reaction_ms is not None
    assert result.bulk_mbps is not None
    for cdf in (result.reaction_cdf, result.control_cdf):
        assert cdf.dtype == np.float64
        assert cdf.shape[1] == 2
        assert (np.diff(cdf, axis=0) >= 0).all()
        assert cdf[-1, 1] == 1.0
    median = result.reaction_cdf[np.searchsorted(result.reaction_cdf[:, 1], 0.5), 0]
    assert median == pytest.approx(result.reaction_ms["p50"])
    assert result.throughput.shape == (20, 2)
    assert (result.throughput[:, 0] == np.arange(1, 21)).all()
    assert 0 < result.throughput[:, 1].mean() <= result.bulk_mbps


def test_a_team_is_a_path_or_its_text() -> None:
    by_path = coorp.simulate(str(TEAM), "edca", duration_s=1.0)
    by_text = coorp.simulate(TEAM.read_text(), "edca", duration_s=1.0)
    assert reproducible(by_path) == reproducible(by_text)


def test_steps_of_any_length_give_the_same_events_and_the_same_result() -> None:
    whole = coorp.Session(LEARNER, "coorp", seed=3)
    events = whole.advance(20.0)
    assert whole.advance(20.0).shape == (0,)
    stepped = coorp.Session(LEARNER, "coorp", seed=3)
    parts = []
    for step in range(401):
        parts.append(stepped.advance(step / 20))
        assert stepped.now_s == step / 20
        assert (parts[-1]["t_ns"] <= step / 20 * 1e9).all()
    assert (np.concatenate(parts) == events).all()
    assert reproducible(stepped.result()) == reproducible(whole.result())
    at_once = coorp.simulate(LEARNER, "coorp", duration_s=20.0, seed=3)
    assert reproducible(at_once) == reproducible(whole.result())
    assert (at_once.reaction_cdf == whole.result().reaction_cdf).all()
    assert (at_once.throughput == stepped.result().throughput).all()


def test_a_seed_gives_the_same_events_and_another_seed_others() -> None:
    first, same, other = (coorp.Session(LEARNER, "edca", seed=seed).advance(5.0) for seed in (1, 1, 2))
    assert (first == same).all()
    assert first.shape != other.shape or (first != other).any()


def test_events_are_ordered_and_match_the_result() -> None:
    session = coorp.Session(LEARNER, "coorp")
    events = session.advance(20.0)
    assert events.dtype == coorp.EVENT_DTYPE
    assert (np.diff(events["t_ns"].astype(np.int64)) >= 0).all()
    assert events["robot"].max() < len(session.team.robots)
    count = {kind: int((events["kind"] == kind).sum()) for kind in EventKind}
    assert sum(count.values()) == len(events)
    assert count[EventKind.LOOP_ENDED] == session.result().loops > 0
    assert count[EventKind.EPOCH] == session.result().epochs > 0
    assert count[EventKind.PARTITION_IN] >= 5 * count[EventKind.EPOCH]


def test_a_policy_without_bulk_has_no_events_of_learning() -> None:
    events = coorp.Session(LEARNER, "mpc-only").advance(5.0)
    assert len(events)
    assert (events["kind"] <= EventKind.LOOP_ENDED).all()


def test_the_paradigm_can_be_replaced() -> None:
    def events(sync: str | None = None, staleness: int | None = None) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        return coorp.Session(LEARNER, "edca", sync=sync, staleness=staleness).advance(12.0)

    bsp = events("BSP")
    assert np.array_equal(bsp, events())
    assert np.array_equal(bsp, events("ssp", 0))
    assert not np.array_equal(bsp, events("asp"))
    learning = coorp.Session(LEARNER, sync="ssp", staleness=3).team.learning
    assert learning is not None
    assert (learning.sync, learning.staleness, learning.batch_loops) == ("ssp", 3, 15)
    plain = coorp.simulate(LEARNER, "edca", duration_s=12.0, sync="asp")
    assert plain.epochs == (events("asp")["kind"] == EventKind.EPOCH).sum()


def test_the_team_says_what_the_file_says() -> None:
    team = coorp.check(TEAM)
    assert (team.name, team.robots[0], len(team.robots), team.leader) == ("navigation", "leader", 5, 0)
    assert team.period_s == pytest.approx(1 / 30)
    assert (team.bound_s, team.perception_bytes, team.command_bytes) == (0.033, 12 * 1024, 1024)
    assert team.learning is not None
    assert (team.learning.parameters, team.learning.sync, team.learning.rounds) == (10_000_000, "bsp", 10)
    assert team.learning.training_s == [1.0] * 5
    assert coorp.check(NOT_LEARNING).learning is None


def test_python_goes_on_while_the_simulator_runs() -> None:
    def longest_gap() -> float:
        """Returns the longest time for which this thread stood still, as a share of a run's duration."""
        span: list[float] = []

        def simulate() -> None:
            span.append(time.perf_counter())
            coorp.simulate(TEAM, "edca", duration_s=300.0)
            span.append(time.perf_counter())

        thread = threading.Thread(target=simulate)
        seen = []
        thread.start()
        while thread.is_alive():
            seen.append(time.perf_counter())
            time.sleep(0.002)
        start, end = span
        during = [start, *(at for at in seen if start < at < end), end]
        return max(np.diff(during)) / (end - start)

    # If the GIL were held throughout, one gap would take the whole of each run. In some runs the machine itself may
    # stall.
    assert any(longest_gap() < 0.5 for _ in range(10))


def test_seeds_on_threads_give_what_they_give_alone() -> None:
    def run(seed: int) -> dict[str, object]:
        return reproducible(coorp.simulate(TEAM, "coorp", duration_s=5.0, seed=seed))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(4))) == [run(seed) for seed in range(4)]


def test_threads_may_share_a_session() -> None:
    session, alone = coorp.Session(TEAM, "edca"), coorp.Session(TEAM, "edca")

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(session.advance, [5.0] * 4))
    assert sorted(map(len, parts)) == [0, 0, 0, len(alone.advance(5.0))]


def test_an_interrupt_ends_a_step_and_loses_nothing() -> None:
    session = coorp.Session(TEAM, "edca")
    timer = threading.Timer(0.1, interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        session.advance(24 * 3600.0)
    now_s = session.now_s
    assert 0 < now_s < 24 * 3600
    again = coorp.Session(TEAM, "edca")
    assert np.array_equal(session.advance(now_s), again.advance(now_s))
    assert np.array_equal(session.advance(now_s + 1), again.advance(now_s + 1))


NO_TEAM = "[[robot]]\nname = 3\n[controll]\n"
NOT_LEARNING = "[[robot]]\nname='a'\nleader=true\n[[robot]]\nname='b'\n[control]\nrate_hz=30\n"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: coorp.simulate("no.toml"), "cannot read no.toml"),
        (lambda: coorp.simulate(ROOT), "cannot read"),
        (lambda: coorp.Session(NO_TEAM), "team:2:8"),
        (lambda: coorp.simulate(TEAM, "edcaa"), "'edcaa'; choose one of mpc-only, bulk-only"),
        (lambda: coorp.simulate(TEAM, duration_s=0), "at least 1ms"),
        (lambda: coorp.simulate(TEAM, duration_s=float("nan")), "at least 1ms"),
        (lambda: coorp.simulate(TEAM, duration_s=1e9), "at most 24h"),
        (lambda: coorp.simulate(TEAM, seed=-1), "seed = -1"),
        (lambda: coorp.simulate(TEAM, seed=2**64), "a seed is between 0 and 18446744073709551615"),
        (lambda: coorp.simulate(TEAM, sync="bps"), "'bps'; choose bsp, ssp or asp"),
        (lambda: coorp.simulate(TEAM, sync="asp", staleness=1), "staleness applies only to ssp"),
        (lambda: coorp.simulate(TEAM, staleness=1), "staleness applies only to ssp"),
        (lambda: coorp.Session(TEAM, sync="ssp", staleness=-1), "staleness = -1"),
        (lambda: coorp.Session(NOT_LEARNING, sync="ssp"), "add [learning]"),
        (lambda: coorp.Session(NOT_LEARNING, "bulk-only"), "has nothing to run"),
        (lambda: coorp.Session(TEAM).advance(-1.0), "until_s = -1"),
        (lambda: coorp.Session(TEAM).advance(float("nan")), "until_s = NaN"),
        (lambda: coorp.Session(TEAM).advance(float("inf")), "24h"),
    ],
)
def test_bad_input_is_told_as_such(call: Callable[[], object], text: str) -> None:
    with pytest.raises(coorp.InputError) as raised:
        call()
    assert isinstance(raised.value, ValueError)
    assert str(raised.value).startswith("error: ")
    assert text in str(raised.value)


def test_time_does_not_go_back_and_the_session_lives_on() -> None:
    session = coorp.Session(TEAM)
    session.advance(2.0)
    with pytest.raises(coorp.InputError, match="is already at 2 s"):
        session.advance(1.0)
    assert len(session.advance(3.0))


def test_what_is_no_team_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="path of a team file"):
        coorp.simulate(3)  # pyright: ignore[reportArgumentType]


def test_errors_have_the_command_lines_text(tmp_path: Path) -> None:
    broken, lonely = tmp_path / "broken.toml", tmp_path / "lonely.toml"
    broken.write_text(NO_TEAM)
    lonely.write_text(NOT_LEARNING)
    for file, policy in ((broken, "edca"), (tmp_path / "none.toml", "edca"), (lonely, "bulk-only")):
        run = command("sim", file, "--policy", policy, "--quiet")
        assert run.returncode == 2
        with pytest.raises(coorp.InputError) as raised:
            coorp.simulate(file, policy)
        assert str(raised.value).strip() == run.stderr.strip()


def test_the_package_has_the_whole_command_line(tmp_path: Path) -> None:
    fine = package("check", TEAM)
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "5 robots" in fine.stdout
    page = tmp_path / "page.html"
    assert package("sim", TEAM, "--policy", "edca", "--duration", "1s", "--quiet", "--html", page).returncode == 0
    assert f"coorp sim {TEAM} --policy edca" in page.read_text()
    usage = package("sim", TEAM, "--polcy", "edca")
    assert usage.returncode == 2
    assert "--policy" in usage.stderr
    help_text = package("--help")
    assert help_text.returncode == 0
    assert re.search(r"^  learn ", help_text.stdout, re.MULTILINE)
    assert package("--version").stdout == f"coorp {coorp.__version__}\n"


def test_importing_the_package_imports_nothing_large() -> None:
    code = "import sys, coorp; print([m for m in ('numpy', 'torch', 'matplotlib', 'irsim') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_event_kinds_are_those_of_the_simulator() -> None:
    source = (ROOT / "crates" / "sim" / "src" / "events.rs").read_text()
    pairs = re.findall(r"^    ([A-Z]\w+) = (\d+),$", source, re.MULTILINE)
    native = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper(): int(value) for name, value in pairs}
    assert native == {kind.name: kind.value for kind in EventKind}


def test_the_stub_describes_the_module_as_it_is() -> None:
    stub = ast.parse((ROOT / "python" / "coorp" / "_native.pyi").read_text())

    def public(names: object) -> set[str]:
        return {name for name in dir(names) if not name.startswith("_")}

    def described(body: list[ast.stmt]) -> set[str]:
        return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}

    # Private types of dictionaries exist only in the stub.
    nodes = [node for node in stub.body if not getattr(node, "name", "_").startswith("_")]
    assert described(nodes) == public(_native)
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            kind = getattr(_native, node.name)
            inherited = {name for base in kind.__mro__[1:] for name in public(base)}
            special = {name for name in described(node.body) if name.startswith("_")}
            assert described(node.body) - special == public(kind) - inherited, node.name
            assert all(hasattr(kind, name) for name in special), node.name
    assert all(hasattr(coorp, name) for name in coorp.__all__)
