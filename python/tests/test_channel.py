"""Environments over the channel."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="coorp.envs needs '.[learn]'")

from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test

import coorp
from coorp.envs import OverChannel

REPOSITORY = Path(__file__).resolve().parents[2]
TEAM = (REPOSITORY / "examples" / "navigation.toml").read_text()
AGENTS = [f"agent_{place}" for place in range(5)]


class Count(ParallelEnv[str, Any, Any]):
    """Observes the number of steps, pays 1 a step, and records the actions. Each agent ends at its own step, if any."""

    metadata = {"name": "count"}  # noqa: RUF012 - PettingZoo's

    def __init__(self, ends: dict[str, int] | None = None, agents: list[str] = AGENTS) -> None:
        self.possible_agents, self.ends = list(agents), ends or {}
        self.steps, self.acted = 0, []

        self.observation_spaces = {agent: spaces.Box(0, np.inf, (1,), np.float64) for agent in agents}
        self.action_spaces = {agent: spaces.Discrete(1_000_000) for agent in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:  # noqa: ANN401
        self.agents, self.steps, self.acted = list(self.possible_agents), 0, []
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self) -> dict[str, Any]:
        return {agent: np.array([self.steps]) for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:  # noqa: ANN401
        self.steps += 1
        self.acted.append(dict(actions))
        seen, acting = self.seen(), self.agents
        ended = {agent: self.ends.get(agent, -1) == self.steps for agent in acting}
        self.agents = [agent for agent in acting if not ended[agent]]
        no = dict.fromkeys(acting, False)
        return seen, dict.fromkeys(acting, 1.0), ended, no, {agent: {"steps": self.steps} for agent in acting}


def test_the_world_follows_the_channel_and_commands_come_late() -> None:
    env = Count()
    world = OverChannel(env, TEAM, "coorp", step_s=0.005)
    seen, infos = world.reset(seed=1)
    before, rewards = env.steps, []
    for loop in range(1, 100):
        seen, reward, _, _, infos = world.step(dict.fromkeys(world.agents, loop))
        rewards.append(reward["agent_0"])
    # The world has made each of its steps once, whatever the loops took, and paid for it.
    assert env.steps == int(world.now_s / 0.005) and 2.0 < world.now_s < 10.0
    assert sum(rewards) == env.steps - before
    # Observations are as old as they say: of the last step before that.
    for agent in AGENTS:
        made_s = world.now_s - infos[agent]["age_s"]
        assert seen[agent][0] == pytest.approx(made_s / 0.005, abs=1.0)
    leader, others = AGENTS[0], AGENTS[1:]
    assert coorp.check(TEAM).leader == 0 and infos[leader]["age_s"] == 0.0
    assert all(0.0 < infos[agent]["age_s"] < 0.2 for agent in others)
    # Each robot acts on every command for as long as the next one takes, in order, and begins idle.
    for agent in AGENTS:
        acted = [actions[agent] for actions in env.acted]
        assert acted[0] == 0 and acted == sorted(acted) and max(acted) >= 97
    # The leader has its commands at once, and the others later.
    since = {
        agent: sum([actions[agent] for actions in env.acted].index(loop) for loop in range(1, 98)) for agent in AGENTS
    }
    assert all(since[agent] > since[leader] for agent in others)


def test_a_seed_determines_everything() -> None:
    def run(seed: int) -> tuple[list[Any], float]:
        env = Count()
        world = OverChannel(env, TEAM, "edca", step_s=0.005)
        world.reset(seed=seed)
        for loop in range(1, 50):
            world.step(dict.fromkeys(world.agents, loop))
        return env.acted, world.now_s

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_worse_policy_makes_commands_later() -> None:
    def ages(policy: str) -> float:
        world = OverChannel(Count(), TEAM, policy, step_s=0.005)
        world.reset(seed=1)
        for loop in range(1, 1_000):
            world.step(dict.fromkeys(world.agents, loop))
        return world.result().violation_rate or 0.0

    assert ages("edca") > 2.0 * ages("coorp")


def test_agents_end_one_by_one() -> None:
    env = Count({"agent_1": 40, "agent_0": 43, "agent_2": 45, "agent_3": 60, "agent_4": 60})
    world = OverChannel(env, TEAM, step_s=0.005)
    world.reset(seed=1)
    ended: dict[str, float] = {}
    for loop in range(1, 100):
        if not world.agents:
            break
        acting = list(world.agents)
        seen, _, terminated, truncated, infos = world.step(dict.fromkeys(acting, loop))
        assert set(seen) == set(terminated) == set(truncated) == set(infos) == set(acting)
        for agent in acting:
            if terminated[agent]:
                ended[agent] = seen[agent][0]
                assert infos[agent]["steps"] == ended[agent], "its own last one, though others step on"
    assert ended == {"agent_1": 40.0, "agent_0": 43.0, "agent_2": 45.0, "agent_3": 60.0, "agent_4": 60.0}
    assert world.agents == [] and world.step({}) == ({}, {}, {}, {}, {})
    # And again from the start.
    world.reset(seed=1)
    assert world.agents == AGENTS


def test_it_is_a_parallel_env() -> None:
    parallel_api_test(OverChannel(Count({"agent_2": 100}), TEAM, step_s=0.01), num_cycles=200)


def test_a_scenario_of_vmas_is_a_parallel_env() -> None:
    pytest.importorskip("vmas")
    from coorp.envs.vmas import Scenario

    parallel_api_test(Scenario("wheel", agents=3, max_steps=50), num_cycles=120)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="4 agents, but the team file 5 robots"):
        OverChannel(Count(agents=AGENTS[:4]), TEAM, step_s=0.01)
    with pytest.raises(ValueError, match="step_s is the time of one step"):
        OverChannel(Count(), TEAM, step_s=0.0)
    with pytest.raises(ValueError, match="step_s is the time of one step"):
        OverChannel(Count(), TEAM, step_s=float("inf"))
    with pytest.raises(coorp.InputError):
        OverChannel(Count(), TEAM, "no-such-policy", step_s=0.01).reset(seed=1)
    with pytest.raises(RuntimeError, match="call reset before step"):
        OverChannel(Count(), TEAM, step_s=0.01).step({})


@pytest.mark.parametrize(
    ("example", "options", "needs"),
    [("pursuit", ["1"], ["pygame", "scipy"]), ("vmas", ["2"], ["vmas", "torch"])],
)
def test_an_example_runs(example: str, options: list[str], needs: list[str]) -> None:
    for package in needs:
        pytest.importorskip(package)
    script = REPOSITORY / "examples" / f"over_channel_{example}.py"
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["mpc-only", "edca", "coorp"]
