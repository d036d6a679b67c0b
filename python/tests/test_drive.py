"""The example that drives by camera: frames, weights, and the same commands in every placement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "drive"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns the example's modules."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import camera
    import detector
    import nodes
    import train

    return {"camera": camera, "detector": detector, "nodes": nodes, "train": train}


def facing(example: dict[str, Any], ahead: float, left: float) -> Any:  # noqa: ANN401
    """Returns a camera in the middle of the world, looking along x, with one obstacle."""
    from coorp.envs import Level, Navigation

    env = Navigation(Level(obstacles=1), robots=1)
    env.reset(seed=1)
    env._robots[0, :7] = (5.0, 5.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    env._obstacles[0] = (5.0 + ahead, 5.0 + left, 0.0, 0.0, 0.2)
    return example["camera"].Camera(env)


def test_an_obstacle_is_drawn_where_it_stands(example: dict[str, Any]) -> None:
    camera = facing(example, 2.2, 0.0)
    frame = np.empty(example["camera"].FRAME_SHAPE, np.uint8)
    camera.take(frame)
    red = (frame[..., 0].astype(int) - frame[..., 1]) > 60
    columns = np.flatnonzero(red.any(axis=1))
    # 0.2 m at 2.2 m, seen with a focal length of 640 pixels: the tangents meet it slightly nearer.
    half = 640 * 0.2 / np.sqrt(2.2**2 - 0.2**2)
    assert columns[0] == pytest.approx(640 - half, abs=1.5)
    assert columns[-1] == pytest.approx(639 + half, abs=1.5)
    rows = np.flatnonzero(red[640])
    # Its front is 2 m away; the camera is 0.25 m and the obstacle 0.4 m high.
    assert rows[0] == pytest.approx(400 - 640 * 0.15 / 2, abs=1)
    assert rows[-1] == pytest.approx(399 + 640 * 0.25 / 2, abs=1)
    assert camera.nearest()[640] == pytest.approx(2.0, abs=0.01)
    assert np.isinf(camera.nearest()[:500]).all()


def test_left_is_left(example: dict[str, Any]) -> None:
    assert np.flatnonzero(np.isfinite(facing(example, 2.0, 1.0).nearest())).max() < 640
    assert not np.isfinite(facing(example, -2.0, 0.0).nearest()).any()


def test_the_fusion_slows_down_only_for_what_is_in_the_way(example: dict[str, Any]) -> None:
    nodes = example["nodes"]
    obstacles = np.tile(np.array([0.0, 4.0], np.float32), (10, 1))
    assert nodes.fuse((3.0, 1.0), obstacles) == (3.0, 1.0)
    obstacles[0] = (1.0, 1.0)
    assert nodes.fuse((3.0, 1.0), obstacles) == (3.0, 1.0)
    obstacles[5] = (1.0, 1.0)
    slowed, turn = nodes.fuse((3.0, 1.0), obstacles)
    assert 1.0 < slowed < 3.0 and turn == 1.0
    obstacles[5] = (1.0, 0.3)
    assert nodes.fuse((3.0, 1.0), obstacles) == (0.0, 1.0)


def test_the_shipped_weights_are_small_and_good(example: dict[str, Any]) -> None:
    train, nodes = example["train"], example["nodes"]
    assert nodes.WEIGHTS.stat().st_size < 5_000_000
    detector = nodes.Detector()
    right = []
    for frame, nearest in train.frames(seed=77, count=100):
        right.append((detector.find(frame)[:, 0] > 0.5) == (example["detector"].truth(nearest)[:, 0] > 0.5))
    assert np.mean(right) > 0.95


def test_training_learns_to_detect(example: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    train = example["train"]
    torch.manual_seed(1)
    train.train_detector(example["detector"].DetectorNetwork(), 128, 4)
    lost = [float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines()]
    assert lost[-1] < lost[0]


def test_every_placement_gives_the_same_commands() -> None:
    pytest.importorskip("msgpack")
    said = set()
    for options in ("", "--place processes"):
        command = [sys.executable, "-m", "coorp", "run", str(EXAMPLE / "app.py"), "--fast", "--timeout", "4s"]
        got = subprocess.run([*command, *options.split()], capture_output=True, text=True, check=False, timeout=120)
        assert got.returncode == 0, got.stderr
        lines = got.stdout.splitlines()
        assert any(line.startswith("61 commands, 0 of them late") for line in lines), lines
        said.add(frozenset(lines))
    assert len(said) == 1, said
