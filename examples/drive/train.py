"""Trains the agent and the detector of the drive: `python examples/drive/train.py`. Needs: pip install '.[learn]'

The agent is the policy of `coorp learn`, trained by PPO without obstacles, and trained on here for one robot among
obstacles. The detector learns from frames of robots that drive at random. Both are then compared with simpler ways, on
seeds that training never saw. The same torch on the same kind of processor gives the same weights, byte for byte. On
another one, its convolutions may round differently. Then the detector's weights differ, and the agent's do not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from camera import FRAME_SHAPE, Camera, Floats, Frame
from detector import RANGE_M, SMALL, DetectorNetwork, reduced, truth
from nodes import LEVEL, PERIOD_NS, WEIGHTS, Agent, Command, Detector, View, World, fuse, load_weights, one_thread
from torch.nn import functional

from coorp.envs import Navigation
from coorp.learn import ppo
from coorp.learn.checkpoint import load_model
from coorp.learn.fit import PRETRAINED, SHAPE, TASK, velocities
from coorp.learn.network import Network, flat
from coorp.learn.ppo import Hyper, Optimiser, Transitions

SEED = 1
TURN = TASK.max_turn_radps
ROBOTS = 32
"""Each robot is alone in its world."""
STEPS = 128
"""Steps of each robot in a batch."""
BATCHES = 300
PASSES = 3
HYPER = Hyper(minibatch_loops=512)
FRAMES, HELD_OUT = 4_000, 1_000
"""For training and for validation."""
BETWEEN_FRAMES = 7
"""Periods between two frames, so that they differ."""
EPOCHS, BATCH, RATE = 6, 64, 2e-3
TEST_SEEDS = range(9_001, 9_005)
TEST_STEPS = 1_800
"""One minute of each seed."""


class Robots:
    """Robots that drive in parallel, each in its own world; arrays start with (robots, 1)."""

    def __init__(self) -> None:
        self.envs = [Navigation(LEVEL, robots=1, endless=True) for _ in range(ROBOTS)]
        for number, env in enumerate(self.envs):
            env.reset(seed=SEED * 1_000 + number)
        self._now_ns = 0

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the views of all robots."""
        seen = [env.observe() for env in self.envs]
        return np.stack([images for images, _ in seen]), np.stack([vectors for _, vectors in seen])

    def drive(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Drives for a period; the actions take effect at its end. Returns rewards, and which drives ended."""
        self._now_ns += PERIOD_NS
        rewards = np.zeros((ROBOTS, 1), np.float32)
        ended = np.zeros((ROBOTS, 1), np.bool_)
        for number, env in enumerate(self.envs):
            env.advance_to_ns(self._now_ns)
            env.set_velocity(0, velocities(actions[number])[0])
            rewards[number] = env.take_rewards()
            ended[number] = len(env.take_events()) > 0
        return rewards, ended


def gather(network: Network, robots: Robots, rng: np.random.Generator) -> list[Transitions]:
    """Returns a batch from each robot."""
    deviation = network.deviation().detach().numpy()
    columns: list[list[np.ndarray]] = [[], [], [], [], []]
    images, vectors = robots.observe()
    for _ in range(STEPS):
        with torch.inference_mode():
            mean = network.policy(network.seen(torch.from_numpy(images), torch.from_numpy(vectors))).numpy()
        actions = mean + deviation * rng.standard_normal(mean.shape, dtype=np.float32)
        rewards, ended = robots.drive(actions)
        for column, value in zip(columns, (images, vectors, actions, rewards, ended), strict=True):
            column.append(value)
        images, vectors = robots.observe()
    seen, numbers, done, gained, ends = (np.stack(column) for column in columns)
    return [
        Transitions(seen[:, i], numbers[:, i], done[:, i], gained[:, i], ends[:, i], images[i], vectors[i])
        for i in range(ROBOTS)
    ]


def train_agent(network: Network, batches: int) -> None:
    """Trains the policy by PPO."""
    rng = np.random.default_rng([SEED, 0x64])
    optimiser, robots = Optimiser(flat(network), HYPER), Robots()
    gained: list[float] = []
    for number in range(batches):
        gathered = gather(network, robots, rng)
        gained.append(float(np.mean([got.rewards.mean() for got in gathered])) * 1e9 / PERIOD_NS)
        optimiser.hyper = HYPER.slowed(1 - number / batches)
        ppo.train(network, optimiser, ppo.joined([ppo.prepare(network, got, HYPER) for got in gathered]), PASSES)
        if (number + 1) % 50 == 0:
            print(f"batch {number + 1} of {batches}: reward per second {np.mean(gained[-50:]):.2f}", flush=True)


def frames(seed: int, count: int) -> Iterator[tuple[Frame, Floats]]:
    """Yields frames of a randomly driving robot, in the same memory, and each column's distance to an obstacle."""
    env = Navigation(LEVEL, robots=1, endless=True)
    env.reset(seed=seed)
    camera, frame, rng = Camera(env), np.empty(FRAME_SHAPE, np.uint8), np.random.default_rng([seed, 0x66])
    for number in range(1, count + 1):
        env.set_velocity(0, velocities(rng.uniform(-1, 1, (1, 2)).astype(np.float32))[0])
        env.advance_to_ns(number * BETWEEN_FRAMES * PERIOD_NS)
        camera.take(frame)
        yield frame, camera.nearest()


def examples(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the detector's inputs for some frames, and the right results."""
    images, answers = np.empty((count, *SMALL), np.uint8), []
    for number, (frame, nearest) in enumerate(frames(seed, count)):
        images[number] = reduced(frame)
        answers.append(truth(nearest))
    return torch.from_numpy(images), torch.from_numpy(np.stack(answers))


def train_detector(network: DetectorNetwork, count: int, epochs: int) -> None:
    """Trains on presence, and on the distance if there is an obstacle."""
    images, answers = examples(SEED, count)
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    rng = np.random.default_rng([SEED, 0x73])
    steps, done = epochs * (count // BATCH), 0
    for epoch in range(epochs):
        order = torch.from_numpy(rng.permutation(count))
        lost: list[float] = []
        for start in range(0, count - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            present, distance = answers[chosen, :, 0], answers[chosen, :, 1] / RANGE_M
            logits, shares = network(images[chosen])
            loss = functional.binary_cross_entropy_with_logits(logits, present)
            loss = loss + 5 * ((shares - distance).abs() * present).sum() / present.sum().clamp_min(1)
            for group in optimiser.param_groups:
                group["lr"] = RATE * (1 - done / steps)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            lost.append(float(loss.detach()))
            done += 1
        print(f"epoch {epoch + 1} of {epochs}: loss {np.mean(lost):.4f}", flush=True)


@torch.inference_mode()
def check_detector(network: DetectorNetwork, count: int) -> None:
    """Prints the detector's accuracy on frames of another seed."""
    images, answers = examples(SEED + 1, count)
    found = [network(part) for part in images.split(BATCH)]
    present = torch.cat([logits for logits, _ in found]) > 0
    distance = torch.cat([shares for _, shares in found]) * RANGE_M
    true = answers[..., 0] > 0
    hits = present & true
    off = (distance - answers[..., 1]).abs()[true].mean()
    print(
        f"detector, {count} frames: {float((present == true).float().mean()):.2%} of sectors right "
        f"(always none: {float((~true).float().mean()):.2%}), precision {float(hits.sum() / present.sum()):.2%}, "
        f"recall {float(hits.sum() / true.sum()):.2%}, distance off by {100 * float(off):.1f} cm on average "
        f"(always the mean: {100 * float((answers[..., 1][true] - answers[..., 1][true].mean()).abs().mean()):.1f} cm)"
    )


Decide = Callable[[View, Frame], Command]


def straight(view: View) -> Command:
    """Drives at full speed towards the goal, ignoring obstacles."""
    bearing = float(np.arctan2(view["vector"][-1], view["vector"][-2]))
    return (TASK.max_speed_mps * max(0.0, float(np.cos(bearing))), float(np.clip(6.0 * bearing, -TURN, TURN)))


def check_drives() -> None:
    """Compares ways to drive, with every command a period late as in `app.py`."""
    agent, detector = Agent(), Detector()
    rng = np.random.default_rng(SEED)
    ways: dict[str, Decide] = {
        "standing still": lambda view, frame: (0.0, 0.0),
        "at random": lambda view, frame: (float(rng.uniform(0, TASK.max_speed_mps)), float(rng.uniform(-TURN, TURN))),
        "straight to the goal": lambda view, frame: straight(view),
        "straight, fused with the detector": lambda view, frame: fuse(straight(view), detector.find(frame)),
        "the agent": lambda view, frame: agent.act(view),
        "the agent, fused with the detector": lambda view, frame: fuse(agent.act(view), detector.find(frame)),
    }
    hours = len(TEST_SEEDS) * TEST_STEPS * PERIOD_NS / 3.6e12
    for name, decide in ways.items():
        reward, arrivals, collisions = 0.0, 0, 0
        for seed in TEST_SEEDS:
            world, command, frame = World(seed), None, np.empty(FRAME_SHAPE, np.uint8)
            for _ in range(TEST_STEPS):
                world.step(command)
                command = decide(world.look(frame), frame)
            tally = world.env.tally()
            reward += float(world.env.take_rewards()[0])
            arrivals, collisions = arrivals + int(tally.arrivals[0]), collisions + int(tally.collisions[0])
        print(
            f"{name}: reward per second {reward / hours / 3600:.2f}, arrivals per hour {arrivals / hours:.0f}, "
            f"collisions per hour {collisions / hours:.0f}",
            flush=True,
        )


def save(networks: dict[str, torch.nn.Module], path: Path) -> None:
    """Writes all weights into one file."""
    arrays = {
        f"{name}.{key}": tensor.numpy()
        for name, network in networks.items()
        for key, tensor in network.state_dict().items()
    }
    np.savez_compressed(path, **arrays)
    print(f"{path}: {path.stat().st_size:,} bytes")


def main() -> None:
    """Trains, saves and checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="check the saved weights instead of training")
    arguments = parser.parse_args()
    one_thread()
    begun = time.monotonic()
    if not arguments.check:
        torch.manual_seed(SEED)
        agent, detector = load_model(PRETRAINED, SHAPE), DetectorNetwork()
        train_agent(agent, BATCHES)
        train_detector(detector, FRAMES, EPOCHS)
        save({"agent": agent, "detector": detector}, WEIGHTS)
        print(f"trained in {time.monotonic() - begun:.0f} s, {time.process_time():.0f} s of them of one processor")
    detector = DetectorNetwork()
    load_weights(detector, "detector")
    check_detector(detector, HELD_OUT)
    check_drives()


if __name__ == "__main__":
    main()
