"""Trains the driver's eyes: they learn to say what the simulator knows, from images of random worlds.

    python -m coorp.learn.look [--steps 5000] [--seed 1] [--out images.pt]

In Coorp's source, `--out python/coorp/learn/pretrained/images.pt` replaces the shipped weights. They contain the
shipped driver too, which then drives by what the eyes have found.

No robot has to drive for it: each image is that of a robot at a random place. Half of the robots have an obstacle near
them, as this is where the eyes matter. No image is used twice, so there is nothing to keep.

Prints a line now and then, which ships as images.log beside the weights.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from coorp import _native
from coorp.envs import LEVELS, NEARBY_FIELDS, VECTOR_FIELDS, Task
from coorp.learn import checkpoint
from coorp.learn.driver import Driver
from coorp.learn.eyes import AFTERGLOW_S, CELL, CELLS, PIXEL_M, RADIUS_M, SIDE, Eyes, middles
from coorp.learn.fit import DRIVER, IMAGES, load

ROBOTS, OBSTACLES = 32, 12
"""Of a world. Robots are as many as look at it; they are not in each other's way."""
WORLDS = 4
"""In a gradient step."""
PACES = (1.0, 1.0, 2.0, 3.0)
"""A world's obstacles are this much faster than at 1.5 m/s."""
RATE = 3e-3
GRADIENT_MAX = 5.0
REPORT_EVERY = 250
Floats = NDArray[np.float32]


def views(rng: np.random.Generator) -> tuple[NDArray[np.uint8], Floats]:
    """Returns what robots of a random world see: images (n, 64, 64, 3) and all obstacles (n, m, 5), nearest first."""
    task = Task.at(1.5 * rng.choice(PACES))
    size, margin = np.array([task.width_m, task.height_m]), task.clearance_m
    least, most = LEVELS["unknown"].at(task.max_speed_mps).obstacle_speed_mps
    obstacles = np.zeros((OBSTACLES, 5))
    obstacles[:, :2] = rng.uniform(margin, size - margin, (OBSTACLES, 2))
    ways = rng.uniform(-np.pi, np.pi, OBSTACLES)
    obstacles[:, 2:4] = np.stack([np.cos(ways), np.sin(ways)], axis=1) * rng.uniform(least, most, (OBSTACLES, 1))
    obstacles[:, 4] = RADIUS_M
    robots = np.zeros((ROBOTS, 10))
    robots[:, :2] = rng.uniform(task.robot_radius_m, size - task.robot_radius_m, (ROBOTS, 2))
    near = obstacles[rng.integers(OBSTACLES, size=ROBOTS // 2), :2]
    bearings = rng.uniform(-np.pi, np.pi, len(near))
    near = near + np.stack([np.cos(bearings), np.sin(bearings)], axis=1) * rng.uniform(0.4, 1.5, (len(near), 1))
    robots[: len(near), :2] = np.clip(near, task.robot_radius_m, size - task.robot_radius_m)
    robots[:, 2] = rng.uniform(-np.pi, np.pi, ROBOTS)
    status = np.zeros(ROBOTS, dtype=np.uint8)
    radii = [task.robot_radius_m, task.goal_radius_m]
    images, vectors = _native.perceive(robots, status, obstacles, size.tolist(), radii, (OBSTACLES, float(size.sum())))
    return images, vectors[:, len(VECTOR_FIELDS) :].reshape(ROBOTS, OBSTACLES, len(NEARBY_FIELDS))


def wanted(obstacles: Floats) -> tuple[Tensor, Tensor]:
    """Returns what `Eyes` should say of obstacles (n, m, 5): whether one is in a cell (n, 16, 16), and its four numbers
    (n, 4, 16, 16). Of several in a cell, the nearest one counts."""
    there = np.zeros((len(obstacles), CELLS, CELLS), dtype=np.float32)
    numbers = np.zeros((len(obstacles), 4, CELLS, CELLS), dtype=np.float32)
    places = SIDE / 2 - obstacles[..., :2] / PIXEL_M
    view, number = np.nonzero(((places >= 0) & (places < SIDE)).all(axis=-1))
    view, number = view[::-1], number[::-1]
    place = places[view, number]
    row, column = (place // CELL).astype(int).T
    there[view, row, column] = 1
    numbers[view, :2, row, column] = place - middles(np.stack([row, column], axis=1))
    numbers[view, 2:, row, column] = obstacles[view, number, 2:4] * (AFTERGLOW_S / PIXEL_M)
    return torch.from_numpy(there), torch.from_numpy(numbers)


def errors(cells: Tensor, there: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Returns, for what `Eyes` said: how wrong it is about where obstacles are (cross-entropy per image), and the mean
    errors of their four numbers in pixels."""
    wrong = functional.binary_cross_entropy_with_logits(cells[:, 0], there, reduction="sum") / len(cells)
    off = ((cells[:, 1:] - numbers).abs() * there[:, None]).sum((0, 2, 3)) / there.sum()
    return wrong, off


def train(eyes: Eyes, steps: int, seed: int) -> None:
    """Trains, and prints how it goes."""
    rng = np.random.default_rng([seed, 0x65796573])
    adam = torch.optim.Adam(eyes.parameters(), lr=RATE)
    began_s, lines = time.monotonic(), []
    for step in range(steps):
        adam.param_groups[0]["lr"] = RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
        images, obstacles = (np.concatenate(part) for part in zip(*(views(rng) for _ in range(WORLDS)), strict=True))
        wrong, off = errors(eyes(images[..., 0]), *wanted(obstacles))
        adam.zero_grad()
        (wrong + off.sum()).backward()
        torch.nn.utils.clip_grad_norm_(eyes.parameters(), GRADIENT_MAX)
        adam.step()
        lines.append([wrong.item(), *off.tolist()])
        if len(lines) == REPORT_EVERY or step + 1 == steps:
            mean, lines = np.mean(lines, axis=0), []
            place_mm = 1e3 * PIXEL_M * mean[1:3].mean()
            velocity_mps = PIXEL_M / AFTERGLOW_S * mean[3:].mean()
            print(
                f"step {step + 1} of {steps}, {time.monotonic() - began_s:.0f} s: cross-entropy {mean[0]:.3f}; "
                f"mean errors along an axis {place_mm:.1f} mm and {velocity_mps:.3f} m/s",
                flush=True,
            )


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Train the eyes of the driver, which find obstacles in images.")
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out", type=checkpoint.new_model, default=IMAGES.name, help=f"file for the weights [{IMAGES.name}]"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    eyes = Eyes()
    train(eyes, options.steps, options.seed)
    driver = Driver(eyes)
    driver.load_state_dict(driver.state_dict() | load(DRIVER, Task()).state_dict())
    made_by = f"python -m coorp.learn.look --steps {options.steps} --seed {options.seed}"
    checkpoint.save_model(options.out, driver, made_by)
    print(f"{options.out.name}: {options.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
