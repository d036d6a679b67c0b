"""The driver: what it reads, and how it is taught."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

for needed in ("torch", "pettingzoo"):
    pytest.importorskip(needed)

import torch  # noqa: E402

from coorp.envs import ARCS, VECTOR_FIELDS, Navigation, Planner, Task  # noqa: E402
from coorp.learn import checkpoint, fit, imitate, look  # noqa: E402
from coorp.learn.checkpoint import CheckpointError  # noqa: E402
from coorp.learn.driver import ACTIONS, NEARBY, Driver, inputs, limits  # noqa: E402
from coorp.learn.eyes import APART_M, Eyes  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def world(seed: int, speed_mps: float = 1.5, robots: int = 5) -> Navigation:
    """Returns a world in which everything moves."""
    env = Navigation("unknown", robots=robots, task=Task.at(speed_mps), endless=True, nearby=NEARBY)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for robot in range(robots):
        env.set_velocity(robot, rng.uniform([0, -1], [1, 1]) * speed_mps)
    env.advance(0.3 / speed_mps)
    return env


def seen(env: Navigation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the network's input for one world."""
    return inputs(env.observe()[1][None], limits(env.task)[None])


def driver() -> Driver:
    torch.manual_seed(2)
    return Driver()


def test_objects_are_described_as_the_world_has_them() -> None:
    env = world(4)
    own, objects, there = seen(env)
    assert own.shape == (1, 5, 17) and objects.shape == (1, 5, 4 + 8 + 4, 28)
    assert torch.isfinite(own).all() and torch.isfinite(objects).all()
    poses, velocities = env.poses, env.velocities
    for robot in range(5):
        x, y, heading = poses[robot]
        facing = np.array([math.cos(heading), math.sin(heading)])
        turn = np.array([facing, [-facing[1], facing[0]]])
        places = [pose[:2] for other, pose in enumerate(poses) if other != robot]
        near = sorted(env.obstacles.tolist(), key=lambda it: math.hypot(it[0] - x, it[1] - y))
        near = [it for it in near if math.hypot(it[0] - x, it[1] - y) <= env.task.region_m]
        assert there[0, robot].tolist() == [1] * 4 + [1] * len(near) + [0] * (8 - len(near)) + [1] * 4
        places += [np.array(it[:2]) for it in near]
        for place, row in zip(places, objects[0, robot, : len(places)], strict=True):
            np.testing.assert_allclose(row[:2], turn @ (place - [x, y]) / 2, atol=1e-5)
        for it, row in zip(near, objects[0, robot, 4:], strict=False):
            np.testing.assert_allclose(row[2:4], turn @ it[2:4] / 1.5, atol=1e-5)
            # When it is nearest, and how near, by trying.
            times = np.linspace(0, 4, 40_001)
            closing = np.array(it[2:4]) - velocities[robot, 0] * facing
            gaps = np.hypot(*(np.array(it[:2]) - [x, y] + closing * times[:, None]).T) - it[4] - 0.2
            assert float(row[24]) == pytest.approx(np.clip(gaps.min(), -0.5, 2), abs=2e-3)
            touched = times[gaps <= 0][0] if (gaps <= 0).any() else math.inf
            assert float(row[22]) == pytest.approx(math.exp(-1.5 * touched), abs=2e-3)
        walls = objects[0, robot, -4:, 17] * 6
        np.testing.assert_allclose(walls, np.minimum([x, 10 - x, y, 10 - y], 100), atol=1e-4)


def test_every_pace_looks_the_same_but_for_full_speed() -> None:
    slow, fast = (seen(world(6, speed_mps)) for speed_mps in (1.5, 4.5))
    np.testing.assert_allclose(np.delete(slow[0], 15, axis=2), np.delete(fast[0], 15, axis=2), atol=1e-2)
    np.testing.assert_allclose(slow[1], fast[1], atol=1e-2)
    assert not np.allclose(slow[0][..., 15], fast[0][..., 15])


def test_a_robot_is_led_by_its_surroundings_only() -> None:
    """Neither the order of robots nor that of obstacles matters, and any number of robots can be driven."""
    env, net = world(5, robots=7), driver()
    [vectors] = env.observe()[1][None]
    net.adapt(env.task)
    logits = net(*seen(env))[0]
    order = [3, 0, 6, 2, 5, 1, 4]
    swapped = vectors[order].reshape(7, -1)
    measured = swapped[:, len(VECTOR_FIELDS) :].reshape(7, NEARBY, -1)[:, ::-1].reshape(7, -1)
    swapped = np.concatenate([swapped[:, : len(VECTOR_FIELDS)], measured], axis=1)
    again = net(*inputs(swapped[None], limits(env.task)[None]))[0]
    torch.testing.assert_close(again, logits[order], rtol=1e-4, atol=1e-5)
    actions = net.act(env.observe()[0], vectors)
    np.testing.assert_array_equal(actions, ACTIONS[logits.argmax(-1)])
    assert ACTIONS.min() == -1 and ACTIONS.max() == 1
    np.testing.assert_allclose(fit.velocities(ACTIONS, env.task), ARCS * 1.5, atol=1e-6)


def moved(env: Navigation, way: str) -> Navigation:
    """Returns a world turned by a quarter, or upside down."""
    state = env.get_state()
    robots, obstacles = state["arrays"]["robots"], state["arrays"]["obstacles"]
    for array, places in ((robots, (0, 5)), (obstacles, (0,))):
        for place in places:
            x, y = array[:, place].copy(), array[:, place + 1].copy()
            array[:, place], array[:, place + 1] = (10 - y, x) if way == "turned" else (x, 10 - y)
    vx, vy = obstacles[:, 2].copy(), obstacles[:, 3].copy()
    obstacles[:, 2], obstacles[:, 3] = (-vy, vx) if way == "turned" else (vx, -vy)
    if way == "turned":
        robots[:, 2] += np.pi / 2
    else:
        robots[:, [2, 4]] *= -1
    result = world(0)
    result.set_state(state)
    return result


class Quarter:
    """Always a quarter."""

    def integers(self, _most: int, size: tuple[int, int]) -> np.ndarray:
        return np.ones(size, dtype=int)


def test_worlds_are_turned_and_mirrored_with_what_is_right_in_them() -> None:
    for seed in range(5):
        env = world(seed)
        vectors, costs = env.observe()[1][None], Planner(env.task).costs(env, 0.03)[None]
        turned = moved(env, "turned")
        np.testing.assert_allclose(imitate.turned(vectors, 10.0, Quarter()), turned.observe()[1][None], atol=1e-4)  # type: ignore[arg-type]
        np.testing.assert_allclose(Planner(env.task).costs(turned, 0.03)[None], costs, atol=1e-6)
        upside_down = moved(env, "upside down")
        mirrored, their_costs = imitate.mirrored(vectors, costs.astype(np.float32), 10.0)
        np.testing.assert_allclose(mirrored, upside_down.observe()[1][None], atol=1e-4)
        np.testing.assert_allclose(Planner(env.task).costs(upside_down, 0.03)[None], their_costs, rtol=1e-5)


def test_the_loss_is_least_for_the_cheapest() -> None:
    regrets = torch.tensor([[0.0, 0.5, 8.0]])
    of = {best: float(imitate.loss(10 * torch.eye(3)[best][None], regrets)) for best in range(3)}
    assert of[0] < of[1] < of[2]
    assert of[2] > 7


def test_a_short_training_learns_and_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitate, "LOOPS", 4)
    monkeypatch.setattr(imitate, "STEPS", 3)
    monkeypatch.setattr(imitate, "FINAL_STEPS", 20)
    training = imitate.Imitation(2, seed=1)
    training.gather(np.ones(imitate.TEAMS, dtype=bool))
    training.gather(np.zeros(imitate.TEAMS, dtype=bool))
    first, last = training.train(2), training.train(24)
    assert last < first
    path = tmp_path / "driver.pt"
    checkpoint.save_model(path, training.driver, "a test")
    loaded = fit.load(path, Task.at(1.5))
    assert isinstance(loaded, Driver)
    env = world(1)
    training.driver.adapt(env.task)
    np.testing.assert_array_equal(loaded.act(*env.observe()), training.driver.act(*env.observe()))
    with pytest.raises(CheckpointError, match="a different shape: it takes 49 numbers"):
        checkpoint.load_model(path, fit.SHAPE)


class Told(Eyes):
    """Eyes that say what they are told of the obstacles, and see no robots."""

    def __init__(self, there: torch.Tensor, numbers: torch.Tensor) -> None:
        super().__init__()
        self._says = torch.cat(((there[:, None] - 0.5) * 20, numbers), dim=1)
        self._says = torch.cat((self._says, torch.full_like(self._says, -10)))

    def forward(self, pictures: np.ndarray) -> torch.Tensor:
        return self._says


def test_eyes_are_taught_what_a_robot_would_measure() -> None:
    rng = np.random.default_rng(3)
    count = 0
    for _ in range(5):
        images, obstacles = look.views(rng)
        there, numbers = look.wanted(obstacles)
        found = Told(there, numbers).measure(images, look.OBSTACLES)
        for mine, theirs in zip(found, obstacles, strict=True):
            shown = theirs[(np.abs(theirs[:, :2]) < 3.2).all(axis=1)]
            apart = np.hypot(*(shown[:, None, :2] - shown[None, :, :2]).transpose(2, 0, 1)) + np.eye(len(shown))
            alone = shown[apart.min(axis=1, initial=1.0) > 0.6]  # no two of them in one cell
            for it in alone:
                assert np.abs(mine - it).max(axis=1).min() < 1e-3
            assert len(alone) <= np.count_nonzero(mine[:, 4]) <= len(shown)
            away = np.hypot(*mine[mine[:, 4] > 0, :2].T)
            assert (np.diff(away) >= 0).all() and not mine[len(away) :].any()
            count += len(alone)
    assert count > 300


def test_an_obstacle_that_two_cells_have_found_is_one() -> None:
    there, numbers = torch.zeros(1, 16, 16), torch.zeros(1, 4, 16, 16)
    there[0, 4, 7:9] = 1
    for off_px, obstacles in ((2.0 - 4 * APART_M, 1), (2.0 - 6 * APART_M, 2)):
        numbers[0, 1, 4, 7], numbers[0, 1, 4, 8] = off_px, -off_px
        [found] = Told(there, numbers).measure(np.zeros((1, 64, 64, 3), dtype=np.uint8), NEARBY)
        assert np.count_nonzero(found[:, 4]) == obstacles


def test_eyes_learn_and_the_driver_sees_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "WORLDS", 1)
    torch.manual_seed(1)
    eyes = Eyes()
    images, obstacles = look.views(np.random.default_rng(4))

    def error() -> float:
        return look.errors(eyes(images[..., 0]), *look.wanted(obstacles))[0].item()

    before = error()
    look.train(eyes, steps=30, seed=1)
    assert error() < 0.5 * before
    # As if the eyes had learnt: what they find is what the driver reads.
    env, net = world(5), driver()
    images, vectors = env.observe()
    net.adapt(env.task)
    path = tmp_path / "images.pt"
    sighted = Driver(eyes)
    sighted.load_state_dict(sighted.state_dict() | net.state_dict())
    checkpoint.save_model(path, sighted, "a test")
    loaded = fit.load(path, env.task)
    assert isinstance(loaded, Driver) and loaded.eyes is not None and loaded.nearby == 0
    own = vectors[:, : len(VECTOR_FIELDS)]
    measured = np.concatenate([own, eyes.measure(images, NEARBY).reshape(5, -1)], axis=1)
    alone = [net.act(images, row[None])[0] for row in measured]
    np.testing.assert_array_equal(loaded.act(images, own), alone)
    with pytest.raises(CheckpointError, match="belong to another network"):
        checkpoint.load_model(path, fit.SHAPE)
