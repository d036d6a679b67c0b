"""The environment: its guarantees, and agreement of its three backends."""

import gc
import math
import pickle
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("pettingzoo", reason="the extra `learn` is not installed")

from pettingzoo.test import parallel_api_test, parallel_seed_test

from coorp.envs import (
    ARCS,
    DRIVING,
    LEVELS,
    NEARBY_FIELDS,
    VECTOR_FIELDS,
    Ending,
    Level,
    Navigation,
    Planner,
    Task,
)
from coorp.envs.navigation import Backend

Floats = npt.NDArray[np.float64]
PERIOD_NS = 33_333_333
BACKENDS = [
    "native",
    "numpy",
    pytest.param("irsim", marks=pytest.mark.skipif(find_spec("irsim") is None, reason="IR-SIM is not installed")),
]


CODE = Task.at(1.5)
"""The world at `code`'s pace, so that the expectations below use `code`'s numbers."""


def alone(
    x: float,
    y: float,
    heading: float,
    goal: tuple[float, float] = (5.0, 5.0),
    task: Task = CODE,
    backend: Backend = "native",
) -> Navigation:
    """Returns an environment with one robot at a given place, and nothing else around."""
    return arranged([(x, y, heading, *goal)], [], task, backend)


def arranged(
    robots: list[tuple[float, ...]],
    obstacles: list[tuple[float, ...]],
    task: Task = CODE,
    backend: Backend = "native",
    nearby: int = 0,
) -> Navigation:
    """Places robots at (x, y, heading, goal x, goal y), and obstacles at (x, y, vx, vy) that always move straight
    ahead."""
    level = Level(obstacles=len(obstacles))
    env = Navigation(level, robots=len(robots), task=task, backend=backend, nearby=nearby)
    env.reset(seed=0)
    state = env.get_state()
    for row, (x, y, heading, goal_x, goal_y) in zip(state["arrays"]["robots"], robots, strict=True):
        row[:] = (x, y, heading, 0, 0, goal_x, goal_y, 0, 0, 0)
    for row, values in zip(state["arrays"]["obstacles"], obstacles, strict=True):
        row[:4] = values
    state["arrays"]["obstacle_turns"][:] = np.iinfo(np.int64).max
    env.set_state(state)
    return env


def drive(env: Navigation, seconds: float, seed: int) -> None:
    """Drives with random velocities, one for each robot and period."""
    rng = np.random.default_rng(seed)
    end_ns = env.now_ns + round(seconds * 1e9)
    while env.now_ns < end_ns:
        for robot in range(len(env.possible_agents)):
            env.set_velocity(robot, (rng.uniform(1, 4.5), rng.uniform(-4.5, 4.5)))
        env.advance_to_ns(min(env.now_ns + PERIOD_NS, end_ns))


def seek(env: Navigation) -> None:
    """Sends every robot towards its goal, slower while it turns."""
    _, numbers = env.observe()
    for robot, (cos, sin) in enumerate(numbers[:, 7:9].tolist()):
        bearing = math.atan2(sin, cos)
        env.set_velocity(robot, (4.5 * max(0.0, math.cos(bearing)) ** 4, 9.0 * bearing))


def everything(env: Navigation) -> bytes:
    """Returns the environment's complete state, for comparison bit for bit."""
    return repr(without_arrays(env.get_state())).encode()


def without_arrays(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_arrays(inner) for key, inner in value.items()}
    return value.tobytes() if isinstance(value, np.ndarray) else value


# The standard interfaces


@pytest.mark.parametrize("level", list(LEVELS))
@pytest.mark.parametrize("endless", [False, True])
def test_passes_pettingzoos_own_tests(level: str, endless: bool) -> None:
    parallel_api_test(Navigation(level, endless=endless), num_cycles=500)
    parallel_seed_test(lambda: Navigation(level, endless=endless), num_cycles=60)


def test_what_is_observed_is_in_its_space() -> None:
    env = Navigation("unknown")
    observations, _ = env.reset(seed=3)
    assert observations["robot-0"]["image"].nbytes == 12_288
    rng = np.random.default_rng(0)
    while env.agents:
        for agent, observation in observations.items():
            assert env.observation_space(agent).contains(observation)
        observations, *_ = env.step({agent: rng.uniform([0.0, -4.5], [4.5, 4.5]) for agent in env.agents})


def test_robots_can_have_names() -> None:
    env = Navigation(robots=["leader", "robot-1"])
    assert list(env.reset(seed=1)[0]) == ["leader", "robot-1"]


def test_an_episode_ends_for_each_robot_by_itself() -> None:
    env = Navigation("known")
    env.reset(seed=5)
    ended: dict[str, str] = {}
    while env.agents:
        acting = set(env.agents)
        _, rewards, terminations, truncations, infos = env.step(dict.fromkeys(acting, (4.5, 0.0)))
        assert acting == set(rewards) == set(terminations) == set(truncations) == set(infos)
        for agent in acting:
            over = terminations[agent] or truncations[agent]
            assert over == (agent not in env.agents) == ("ending" in infos[agent])
            if over:
                ended[agent] = infos[agent]["ending"]
                assert truncations[agent] == (ended[agent] == "timed_out")
    assert set(ended) == set(env.possible_agents)
    assert env.tally().collisions.sum() == 5


def test_the_picture_shows_every_robot() -> None:
    env = Navigation(Level(obstacles=0), render_mode="rgb_array", task=Task(width_m=12.0))
    env.reset(seed=1)
    picture = env.render()
    assert picture is not None and picture.shape == (500, 600, 3) and picture.dtype == np.uint8
    assert Navigation().render() is None
    for (x, y, heading), colour in zip(env.poses, [(68, 119, 170), (238, 102, 119), (34, 136, 51)], strict=False):
        # Behind it.
        x, y = x - 0.1 * math.cos(heading), y - 0.1 * math.sin(heading)
        assert tuple(picture[int(500 - y * 50), int(x * 50)]) == colour


# Motion, endings, reward


def test_a_robot_keeps_its_velocity_until_it_is_given_another() -> None:
    env = alone(2.0, 5.0, 0.0, (9.0, 9.0))
    env.set_velocity(0, (1.0, 0.0))
    env.advance(1.5)
    env.advance(0.5)
    assert env.poses[0] == pytest.approx([4.0, 5.0, 0.0])
    env.set_velocity(0, (1.0, math.pi / 2.2))
    env.advance(1.1)
    # A quarter of a circle to the left, of radius v / w.
    radius = 2.2 / math.pi
    assert env.poses[0] == pytest.approx([4.0 + radius, 5.0 + radius, math.pi / 2], abs=2e-3)


def test_velocities_are_cut_to_what_a_robot_can_do() -> None:
    env = Navigation(robots=2)
    env.reset(seed=1)
    env.set_velocity(0, (9.0, -9.0))
    env.set_velocity(1, (-1.0, 9.0))
    assert env.velocities.tolist() == [[4.5, -4.5], [0.0, 4.5]]


def test_nothing_is_collected_while_an_irsim_world_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    irsim = pytest.importorskip("irsim")
    make, collects = irsim.make, []

    def made(*arguments: object, **options: object) -> object:
        collects.append(gc.isenabled())
        return make(*arguments, **options)

    monkeypatch.setattr(irsim, "make", made)
    Navigation("known", backend="irsim").reset(seed=1)
    assert collects, "no world was made"
    assert not any(collects)
    assert gc.isenabled()


@pytest.mark.parametrize("backend", BACKENDS)
def test_collisions_are_what_they_are_said_to_be(backend: Backend) -> None:
    # Two robots head on, 2 m apart: they touch when their centres are 0.4 m apart, after 0.8 s at 1 m/s each.
    # A robot and a wall, and a robot and an obstacle at rest: 1 m and 1.4 m from the centre to the point of impact.
    robots = [(2, 2, 0, 9, 9), (4, 2, math.pi, 9, 9), (9, 5, 0, 1, 1), (2, 8, 0, 9, 9)]
    env = arranged(robots, [(3.4, 8, 0, 0)], backend=backend)
    for robot in range(4):
        env.set_velocity(robot, (1.0, 0.0))
    env.advance(1.5)
    events = env.take_events()
    assert sorted((robot, Ending(ending)) for _, robot, ending in events.tolist()) == [
        (0, Ending.HIT_ROBOT),
        (1, Ending.HIT_ROBOT),
        (2, Ending.HIT_WALL),
        (3, Ending.HIT_OBSTACLE),
    ]
    # Exact to the tick, or one later because of rounding or IR-SIM's corners.
    assert events["t_ns"] / 1e9 == pytest.approx([0.8, 0.8, 0.8, 1.0], abs=0.0011)
    assert env.tally().collisions.tolist() == [1, 1, 1, 1]
    assert (env.status != DRIVING).all()
    assert (env.velocities == 0).all()
    stopped = env.poses
    env.advance(1.0)
    assert (env.poses == stopped).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_arrival_is_what_it_is_said_to_be(backend: Backend) -> None:
    env = alone(2.0, 5.0, 0.0, (4.0, 5.0), backend=backend)
    env.set_velocity(0, (1.5, 0.0))
    env.advance(3.0)
    ((t_ns, _, ending),) = env.take_events().tolist()
    assert Ending(ending) is Ending.ARRIVED
    assert t_ns / 1e9 == pytest.approx(1.8 / 1.5, abs=0.0011)
    # Full speed towards the goal and nothing in the way: 0.3 for each 0.1 s, and 15 for the arrival.
    assert env.take_rewards()[0] == pytest.approx(0.3 * 12 + 15, abs=0.04)
    assert env.take_rewards()[0] == 0.0
    assert env.tally().arrivals.tolist() == [1]


def test_the_clock_runs_out() -> None:
    env = alone(2.0, 5.0, 0.0, task=replace(CODE, episode_s=2.0))
    env.advance(2.5)
    assert env.take_events().tolist() == [(2_000_000_000, 0, Ending.TIMED_OUT)]
    # Standing still is 1.5 m/s off the wanted velocity, half of the maximum: 0.3 - 3 / 2 for each 0.1 s.
    assert env.take_rewards()[0] == pytest.approx(20 * (0.3 - 1.5))
    assert env.tally().timeouts.tolist() == [1]
    assert env.tally().driven_s.tolist() == [2.0]


def test_a_pace_changes_speeds_and_times() -> None:
    assert Task(
        max_speed_mps=1.5,
        max_turn_radps=1.5,
        episode_s=15.0,
        horizon_s=5.0,
        wall_horizon_s=1.0,
        softening_s=0.2,
        shaping_step_s=0.1,
    ) == Task.at(1.5)
    assert Task.at(4.5) == Task()
    assert Navigation("unknown").level == LEVELS["unknown"]
    assert Navigation("unknown", task=CODE).level.obstacle_speed_mps == pytest.approx((0.4, 0.8))
    own = Level(obstacle_speed_mps=(0.1, 0.2))
    assert Navigation(own, task=CODE).level == own
    for speed_mps in (0.0, math.nan, -1.0):
        with pytest.raises(ValueError, match="full speed"):
            Task.at(speed_mps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_near_misses_are_what_they_are_said_to_be(backend: Backend) -> None:
    # An obstacle at rest, 1 m from edge to edge; a wall, 0.8 m from the edge, after a turn.
    env = arranged([(2, 5, 0, 9, 9)], [(3.4, 5, 0, 0)], backend=backend)
    counted = []
    for velocity, seconds in [
        ((1.0, 0.0), 0.45),  # 0.55 s left
        ((1.0, 0.0), 0.1),  # 0.45 s left
        ((0.3, 0.0), 0.1),  # 1.4 s left: over
        ((1.0, 0.0), 0.02),  # 0.4 s left: another one
        ((0.7, 0.0), 0.02),  # 0.6 s left: still the same
        ((1.0, 0.0), 0.02),
        ((0.0, 0.0), 0.02),  # no collision is expected
        ((1.0, 0.0), 1.0),  # the third ends at the obstacle
    ]:
        env.set_velocity(0, velocity)
        env.advance(seconds)
        counted.append(int(env.tally().near_misses[0]))
    assert counted == [0, 1, 1, 2, 2, 2, 2, 3]
    assert env.tally().collisions.tolist() == [1]
    env = alone(9.0, 5.0, 0.0, backend=backend)
    env.set_velocity(0, (1.5, 0.0))
    env.advance(0.02)
    assert env.tally().near_misses.tolist() == [0], "0.53 s left"
    env.advance(0.1)
    assert env.tally().near_misses.tolist() == [1]


def test_success_and_time_to_goal_count_what_ended() -> None:
    # One arrives after 1.2 s, one hits a wall, one stands still.
    robots = [(2.0, 5.0, 0.0, 4.0, 5.0), (9, 2, 0, 1, 1), (5, 8, 0, 9, 9)]
    env = arranged(robots, [], replace(CODE, episode_s=3.0))
    assert math.isnan(env.tally().success) and math.isnan(env.tally().mean_to_goal_s)
    for robot in range(2):
        env.set_velocity(robot, (1.5, 0.0))
    env.advance(4.0)
    tally = env.tally()
    assert tally.success == pytest.approx(1 / 3)
    assert tally.mean_to_goal_s == pytest.approx(1.2, abs=0.0011)
    assert tally.to_goal_s[1:].tolist() == [0.0, 0.0]


def test_risk_costs_by_the_expected_collision_time() -> None:
    # Both 0.2 m in radius and 0.1 m of margin: 2.5 m between them, closing at 1.5 m/s.
    env = arranged([(2, 5, 0, 9, 5)], [(5.0, 5, -0.5, 0)])
    env.set_velocity(0, (1.0, 0.0))
    env.advance(0.001)
    assert env.take_rewards()[0] == pytest.approx(0.1 * (0.3 - 6 * 0.2 / (2.5 / 1.5 + 0.2)))
    # The same to the side is no risk; the velocity is 0.5 m/s of at most 3 off the wanted one.
    env = arranged([(2, 5, 0, 9, 5)], [(5.0, 7, -0.5, 0)])
    env.set_velocity(0, (1.0, 0.0))
    env.advance(0.001)
    assert env.take_rewards()[0] == pytest.approx(0.1 * (0.3 - 3 * 0.5 / 3))
    # A wall 0.6 m from the robot's assumed edge.
    env = alone(9.1, 5.0, 0.0)
    env.set_velocity(0, (1.5, 0.0))
    env.advance(0.001)
    assert env.take_rewards()[0] == pytest.approx(0.1 * (0.3 - 6 * 0.2 / (0.6 / 1.5 + 0.2)))


# Continuous time


def test_results_do_not_depend_on_how_time_is_cut() -> None:
    whole, cut = Navigation("unknown", endless=True), Navigation("unknown", endless=True)
    whole.reset(seed=11)
    cut.reset(seed=11)
    rng = np.random.default_rng(1)
    for _ in range(300):
        velocity = (rng.uniform(0, 4.5), rng.uniform(-4.5, 4.5))
        robot = int(rng.integers(5))
        until_ns = whole.now_ns + int(rng.integers(1, 300_000_000))
        for env in (whole, cut):
            env.set_velocity(robot, velocity)
        for part_ns in sorted(rng.integers(cut.now_ns, until_ns, 7)):
            cut.advance_to_ns(int(part_ns))
            cut.observe()
        cut.advance_to_ns(until_ns)
        whole.advance_to_ns(until_ns)
    assert everything(whole) == everything(cut)
    assert whole.tally().collisions.sum() > 10


def test_time_is_on_a_grid_of_a_millisecond() -> None:
    env = alone(2.0, 5.0, 0.0, (9.0, 9.0))
    env.set_velocity(0, (1.0, 0.0))
    env.advance_to_ns(10_999_999)
    assert env.poses[0, 0] == pytest.approx(2.010) and env.now_ns == 10_999_999
    # The velocity applies from the last whole millisecond on.
    env.set_velocity(0, (0.5, 0.0))
    env.advance_to(0.013)
    assert env.poses[0, 0] == pytest.approx(2.010 + 0.5 * 0.003)


def test_training_never_stops_where_robots_start_anew() -> None:
    env = Navigation("known", endless=True)
    env.reset(seed=2)
    for _ in range(30 * 120):
        seek(env)
        env.advance_to_ns(env.now_ns + PERIOD_NS)
        assert (env.status == DRIVING).all()
    tally = env.tally()
    events = env.take_events()
    assert tally.driven_s == pytest.approx([env.now_ns / 1e9] * 5, abs=0.001)
    assert tally.arrivals.sum() > 20
    collided = np.array([Ending(ending).collision for ending in events["ending"].tolist()])
    for robot in range(5):
        assert tally.arrivals[robot] == np.sum((events["robot"] == robot) & (events["ending"] == Ending.ARRIVED))
        assert tally.collisions[robot] == np.sum((events["robot"] == robot) & collided)
    assert (np.diff(events["t_ns"].astype(np.int64)) >= 0).all()


def test_a_fresh_start_is_clear_and_its_goal_far() -> None:
    for seed in range(50):
        env = Navigation("unknown")
        env.reset(seed=seed)
        robots, obstacles, goals = env.poses[:, :2], env.obstacles[:, :2], env.goals
        for i in range(5):
            others = np.concatenate([np.delete(robots, i, axis=0), obstacles])
            assert np.hypot(*(others - robots[i]).T).min() >= 1.0
            assert np.hypot(*(goals[i] - robots[i])) >= 4.0
            assert np.hypot(*(np.delete(goals, i, axis=0) - goals[i]).T).min() >= 1.0
    # The maximum number of robots does not fit with that much room, but still finds places.
    crowd = Navigation(Level(obstacles=100), robots=64)
    crowd.reset(seed=1)
    assert (crowd.poses[:, :2] >= 1.0).all() and (crowd.poses[:, :2] <= 9.0).all()


def test_obstacles_stay_inside_and_keep_their_speeds() -> None:
    env = Navigation(Level(obstacles=20, obstacle_speed_mps=(0.5, 2.0)))
    env.reset(seed=1)
    speeds = np.hypot(*env.obstacles[:, 2:4].T)
    turned = np.zeros(20, dtype=bool)
    for _ in range(600):
        before = env.obstacles[:, 2:4]
        env.advance(0.1)
        xy, after = env.obstacles[:, :2], env.obstacles[:, 2:4]
        assert (xy > 0.9).all() and (xy < 9.1).all()
        assert np.hypot(*after.T) == pytest.approx(speeds)
        turned |= (before != after).any(axis=1)
    assert turned.all()


# The backends


def test_the_compiled_dynamics_is_the_reference() -> None:
    native = Navigation("unknown", endless=True, backend="native")
    reference = Navigation("unknown", endless=True, backend="numpy")
    for env in (native, reference):
        env.reset(seed=21)
    for turn in range(30):
        for env in (native, reference):
            drive(env, 0.5, seed=turn)
        mine, theirs = native.get_state()["arrays"], reference.get_state()["arrays"]
        for name in mine:
            np.testing.assert_allclose(mine[name], theirs[name], rtol=0, atol=1e-9, err_msg=name)
    assert (native.take_events() == reference.take_events()).all()
    assert native.tally().collisions.sum() > 10
    assert native.tally().near_misses.sum() > 10


@pytest.mark.parametrize(("level", "seed"), [("known", 2), ("known", 3), ("unknown", 2)])
def test_irsim_agrees_over_whole_episodes(level: str, seed: int) -> None:
    pytest.importorskip("irsim")
    task = Task(episode_s=2.0)
    ours, irsim = Navigation(level, task=task), Navigation(level, task=task, backend="irsim")
    for env in (ours, irsim):
        env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    while ours.agents or irsim.agents:
        # Some drive to their goals, so that there are arrivals; the others drive around.
        seek(ours)
        actions = dict(zip(ours.possible_agents, ours.velocities, strict=True))
        for agent in ours.possible_agents[:2]:
            actions[agent] = rng.uniform([1.5, -4.5], [4.5, 4.5])
        ours_after, irsim_after = (env.step({it: actions[it] for it in env.agents}) for env in (ours, irsim))
        driving = (ours.status == DRIVING) & (irsim.status == DRIVING)
        np.testing.assert_allclose(ours.poses[driving], irsim.poses[driving], rtol=0, atol=1e-9)
        np.testing.assert_allclose(ours.obstacles, irsim.obstacles, rtol=0, atol=1e-9)
        for agent, still in zip(ours.possible_agents, driving, strict=True):
            assert not still or ours_after[1][agent] == pytest.approx(irsim_after[1][agent], abs=1e-9)
    mine, theirs = (sorted((r, e, t) for t, r, e in env.take_events().tolist()) for env in (ours, irsim))
    assert len(mine) == 5
    assert [it[:2] for it in mine] == [it[:2] for it in theirs]
    assert ours.tally().near_misses.tolist() == irsim.tally().near_misses.tolist()
    # IR-SIM's discs have 64 corners and are a quarter of a millimetre short between them: a tick, rarely two.
    assert [it[2] for it in mine] == pytest.approx([it[2] for it in theirs], abs=2e6)


def perceived(env: Navigation, robot: int) -> Floats:
    """Returns the image of one robot by formula: every pixel's distance to everything."""
    task, poses, velocities, goals = env.task, env.poses, env.velocities, env.goals
    x, y, heading = poses[robot]
    rows, columns = np.mgrid[:64, :64]
    ahead, left = (31.5 - rows) * 0.1, (31.5 - columns) * 0.1
    px = x + ahead * math.cos(heading) - left * math.sin(heading)
    py = y + ahead * math.sin(heading) + left * math.cos(heading)

    def capsule(a: Floats, b: Floats, radius_m: float) -> Floats:
        along = b - a
        length2 = float(along @ along)
        share = ((px - a[0]) * along[0] + (py - a[1]) * along[1]) / length2 if length2 else np.zeros_like(px)
        share = np.clip(share, 0, 1)
        off = np.hypot(px - a[0] - share * along[0], py - a[1] - share * along[1])
        return np.clip((radius_m - off) / 0.1 + 0.5, 0, 1)

    def body(at: Floats, velocity: Floats, radius_m: float) -> Floats:
        return np.maximum(128 * capsule(at - 0.17 * velocity, at, radius_m), 255 * capsule(at, at, radius_m))

    image = np.zeros((64, 64, 3))
    red, green, blue = (image[..., channel] for channel in range(3))
    for beyond in (-px, px - task.width_m, -py, py - task.height_m):
        np.maximum(red, 160 * np.clip(beyond / 0.1 + 0.5, 0, 1), out=red)
    for obstacle in env.obstacles:
        np.maximum(red, body(obstacle[:2], obstacle[2:4], obstacle[4]), out=red)
    for other in range(len(poses)):
        if other != robot and env.status[other] == DRIVING:
            facing = np.array([math.cos(poses[other, 2]), math.sin(poses[other, 2])])
            np.maximum(green, body(poses[other, :2], velocities[other, 0] * facing, task.robot_radius_m), out=green)
    goal = goals[robot]
    blue[:] = np.maximum(128 * capsule(np.array([x, y]), goal, 0.075), 255 * capsule(goal, goal, task.goal_radius_m))
    return image


def test_images_show_what_the_formula_says() -> None:
    env = Navigation("unknown", endless=True)
    env.reset(seed=6)
    seen = np.zeros(3)
    for turn in range(40):
        drive(env, 0.4, seed=turn)
        images, numbers = env.observe()
        for robot in range(5):
            assert np.abs(images[robot] - perceived(env, robot)).max() <= 1.0
            seen = np.maximum(seen, images[robot].max(axis=(0, 1)))
        x, y, heading = env.poses.T
        to_goal = env.goals - env.poses[:, :2]
        bearing = np.arctan2(to_goal[:, 1], to_goal[:, 0]) - heading
        columns = [x, y, np.cos(heading), np.sin(heading), *env.velocities.T]
        columns += [np.hypot(*to_goal.T), np.cos(bearing), np.sin(bearing)]
        assert len(columns) == len(VECTOR_FIELDS) == numbers.shape[1]
        np.testing.assert_allclose(numbers, np.stack(columns, axis=1), atol=1e-5)
    assert (seen > 250).all()


def test_a_robot_sees_in_its_own_frame() -> None:
    # An obstacle 1 m ahead of a robot and a goal 2 m to its left, whichever way it faces.
    for heading in (0.0, 1.0, -2.5):
        ahead = np.array([math.cos(heading), math.sin(heading)])
        left = np.array([-math.sin(heading), math.cos(heading)])
        here = np.array([5.0, 5.0])
        env = arranged([(*here, heading, *(here + 2 * left))], [(*(here + ahead), 0, 0)])
        image = env.observe()[0][0].astype(int)
        assert image[21:23, 31:33, 0].min() == 255 and image[:, :, 0].sum() == image[18:26, 28:36, 0].sum()
        assert image[31:33, 11:13, 2].min() == 255
        assert image[:, 34:, 2].max() == 0


def test_measured_obstacles_are_the_nearest_in_the_robots_own_frame() -> None:
    # 1 m ahead and 2 m to the left of a robot, whichever way it faces; the third is out of reach.
    for heading in (0.0, 1.0, -2.5):
        ahead = np.array([math.cos(heading), math.sin(heading)])
        left = np.array([-math.sin(heading), math.cos(heading)])
        here = np.array([5.0, 5.0])
        places = [here + 2 * left, here + ahead, here + 4.1 * ahead]
        velocities = [0.3 * left, 0.5 * ahead - 0.2 * left, 0 * ahead]
        obstacles = [(*at, *velocity) for at, velocity in zip(places, velocities, strict=True)]
        env = arranged([(*here, heading, 9, 9)], obstacles, nearby=3)
        [measured] = env.observe()[1][:, len(VECTOR_FIELDS) :]
        expected = [[1, 0, 0.5, -0.2, 0.2], [0, 2, 0, 0.3, 0.2], [0] * 5]
        np.testing.assert_allclose(measured.reshape(3, len(NEARBY_FIELDS)), expected, atol=1e-6)
    few = arranged([(*here, heading, 9, 9)], obstacles, nearby=1)
    np.testing.assert_allclose(few.observe()[1][0, len(VECTOR_FIELDS) :], expected[0], atol=1e-6)


def test_measured_obstacles_are_in_the_observation() -> None:
    env = Navigation("unknown", nearby=8)
    observations, _ = env.reset(seed=3)
    for agent, observation in observations.items():
        assert env.observation_space(agent).contains(observation)
        assert observation["nearby"].shape == (8, len(NEARBY_FIELDS))
        assert (observation["nearby"][:, 4] > 0).any()
    parallel_api_test(env, num_cycles=50)
    with pytest.raises(ValueError, match="nearby is -1"):
        Navigation(nearby=-1)


# The planner


def follow(env: Navigation, seconds: float, delay_s: float = 0.031) -> None:
    """Drives as the planner says, thirty times a second, after a delay."""
    planner = Planner(env.task)
    for loop in range(round(seconds * 30)):
        chosen = planner.velocities(env, delay_s)
        env.advance_to(loop / 30 + delay_s)
        for robot, velocity in enumerate(chosen):
            env.set_velocity(robot, velocity)
        env.advance_to((loop + 1) / 30)


@pytest.mark.parametrize("level", list(LEVELS))
def test_the_planner_drives(level: str) -> None:
    env = Navigation(level, task=CODE, endless=True)
    env.reset(seed=1)
    follow(env, 60)
    assert env.tally().success > 0.95
    assert env.tally().arrivals.sum() > 40


def test_the_planner_evades_what_comes() -> None:
    # An obstacle comes head on, and one crosses; straight on would hit the first after 2.4 s.
    env = arranged([(1, 5, 0, 9, 5)], [(6.5, 5, -0.8, 0), (5, 3, 0, 0.5)])
    follow(env, 8)
    assert env.take_events()["ending"].tolist() == [Ending.ARRIVED]
    assert env.tally().near_misses.tolist() == [0]


def test_robots_that_meet_make_way() -> None:
    env = arranged([(1, 5, 0, 9, 5), (9, 5, math.pi, 1, 5), (5, 1, math.pi / 2, 5, 9), (5, 9, -math.pi / 2, 5, 1)], [])
    follow(env, 14)
    assert env.take_events()["ending"].tolist() == [Ending.ARRIVED] * 4


def test_the_planner_plans_from_where_the_command_takes_effect() -> None:
    env = arranged([(2, 5, 0.3, 9, 5)], [(4, 5, -0.5, 0)])
    env.set_velocity(0, (1.5, 1.0))
    early = Planner(CODE).costs(env, 0.2)
    env.advance(0.2)
    late = Planner(CODE).costs(env)
    assert early.shape == late.shape == (1, len(ARCS))
    np.testing.assert_allclose(early, late, atol=0.05)
    assert np.ptp(late) > 1.0


def test_the_planner_leaves_out_who_has_ended() -> None:
    # One has crashed where the other has to pass.
    env = arranged([(2, 5, 0, 9, 5), (9.5, 2, 0, 1, 1)], [])
    env.set_velocity(1, (1.5, 0.0))
    env.advance(0.5)
    assert env.status.tolist() == [DRIVING, Ending.HIT_WALL]
    costs = Planner(CODE).costs(env)
    assert (costs[1] == 0).all() and (costs[0] > 0).all()


# Checkpoints


@pytest.mark.parametrize("endless", [False, True])
def test_a_restored_run_is_the_unbroken_one(endless: bool) -> None:
    unbroken = Navigation("unknown", endless=endless)
    unbroken.reset(seed=8)
    drive(unbroken, 3.7771, seed=1)
    saved = pickle.dumps(unbroken.get_state())
    restored = Navigation("unknown", endless=endless)
    restored.set_state(pickle.loads(saved))
    for env in (unbroken, restored):
        drive(env, 6.0, seed=2)
    assert everything(restored) == everything(unbroken)
    assert (restored.observe()[0] == unbroken.observe()[0]).all()
    # A used environment accepts it too, and a saved state does not change.
    restored.set_state(pickle.loads(saved))
    state = restored.get_state()
    before = repr(without_arrays(state))
    drive(restored, 1.0, seed=3)
    assert repr(without_arrays(state)) == before
    assert repr(without_arrays(pickle.loads(saved))) == before


def test_a_state_of_another_environment_is_refused() -> None:
    env = Navigation("known")
    env.reset(seed=1)
    state = env.get_state()
    for other, what in [
        (Navigation("unknown"), "level"),
        (Navigation("known", robots=4), "robots"),
        (Navigation("known", endless=True), "endless"),
        (Navigation("known", task=Task(arrival=1.0)), "task"),
    ]:
        with pytest.raises(ValueError, match=what):
            other.set_state(state)
    with pytest.raises(ValueError, match="version"):
        env.set_state({})
    for part in ("random", "arrays"):
        with pytest.raises(ValueError, match=f"lacks {part}"):
            env.set_state({key: value for key, value in state.items() if key != part})
    with pytest.raises(ValueError, match="lacks robots"):
        env.set_state({**state, "arrays": {key: value for key, value in state["arrays"].items() if key != "robots"}})


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "easy"}, "no level 'easy'.*known, unknown"),
        ({"backend": "stage"}, "no backend 'stage'.*native"),
        ({"robots": 0}, "1 to 64 robots"),
        ({"robots": ["a", "a"]}, "same name"),
        ({"level": Level(obstacle_speed_mps=(2.0, 1.0))}, "obstacle_speed_mps"),
        ({"level": Level(obstacle_radius_m=math.nan)}, "obstacle_radius_m"),
        ({"level": Level(obstacles=-1)}, "obstacles"),
        ({"control_hz": 0.0}, "control_hz"),
        ({"render_mode": "human"}, "rgb_array"),
    ],
)
def test_bad_settings_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Navigation(**arguments)


def test_bad_tasks_are_told() -> None:
    with pytest.raises(ValueError, match="no room"):
        Task(width_m=2.0)
    with pytest.raises(ValueError, match="episode_s"):
        Task(episode_s=math.nan)
    with pytest.raises(ValueError, match="collision"):
        Task(collision=math.inf)


def test_bad_calls_are_told() -> None:
    env = Navigation()
    with pytest.raises(RuntimeError, match="reset"):
        env.advance(1.0)
    env.reset(seed=1)
    for velocity in [(math.nan, 0.0), (1.0, 0.0, 0.0), 1.0]:
        with pytest.raises(ValueError, match="two finite numbers"):
            env.set_velocity(0, velocity)
    with pytest.raises(ValueError, match="no robot 5"):
        env.set_velocity(5, (1.0, 0.0))
    env.advance(1.0)
    with pytest.raises(ValueError, match="cannot go back"):
        env.advance_to(0.5)
