"""Proximal policy optimisation (Schulman et al., 2017), as a gradient that any robot can compute on its share.

This module defines advantages (generalised, lambda-discounted), the clipped surrogate, the value loss and the entropy
bonus, and a robot's update. Robots hold partitions of *loops*: one item contains what all robots perceived, did and
earned in one MPC loop (Deng 2022, section I), because the critic needs all of them.

A round (Deng 2022: training, update, model) is one pass over a robot's partition in minibatches, each one step of the
robot's own Adam. The robot's update is the distance by which that moved the model (local SGD: Stich, ICLR 2019). The
air has room for some ten rounds in two minutes, and as many single steps would teach too little. A partition of one
minibatch is one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coorp.learn.network import Network, flat, load_flat

PIECE_LOOPS = 64
"""Loops that the network processes at once, so that what it computes of their images fits a core's cache."""


@dataclass(frozen=True)
class Hyper:
    """Settings specific to PPO."""

    rate: float = 1e-3
    """Adam's step size."""
    discount: float = 0.97
    """Discount factor: a horizon of one second, at thirty loops per second."""
    trace: float = 0.95
    """Lambda of the generalised advantage."""
    clip: float = 0.2
    reward_scale: float = 0.05
    """The factor for rewards, so that values are of the order of one."""
    value_weight: float = 0.5
    entropy_weight: float = 0.001
    gradient_max: float = 1.0
    """Norm above which a minibatch's gradient is scaled down."""
    minibatch_loops: int = 64
    """Approximate number of loops in a minibatch."""

    def slowed(self, share: float) -> Hyper:
        """Returns the same settings with this share of the step size."""
        return replace(self, rate=self.rate * share)


@dataclass(frozen=True)
class Transitions:
    """A collected batch of loops, in order; arrays start with (loops, robots)."""

    images: NDArray[np.uint8]
    """(loops, robots, 64, 64, 3): the image of each robot's perception used in the loop."""
    vectors: NDArray[np.float32]
    """(loops, robots, k)."""
    actions: NDArray[np.float32]
    """(loops, robots, a)."""
    rewards: NDArray[np.float32]
    """(loops, robots): reward accrued from this perception to the next one used."""
    dones: NDArray[np.bool_]
    """(loops, robots): the robot's episode ended before its next perception."""
    last_images: NDArray[np.uint8]
    """(robots, 64, 64, 3): the perceptions after the last loop, for the value of the future."""
    last_vectors: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True)
class Batch:
    """Loops ready for learning: tensors that start with (loops, robots)."""

    images: Tensor
    vectors: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.returns)

    def part(self, index: int, parts: int) -> Batch:
        """Returns every `parts`-th loop from `index` on: shares of equal size, to within one loop, from the whole
        batch."""
        return Batch(*(tensor[index::parts] for tensor in vars(self).values()))

    def to(self, device: torch.device) -> Batch:
        """Returns the same batch on another device."""
        return Batch(*(tensor.to(device) for tensor in vars(self).values()))


def joined(batches: list[Batch]) -> Batch:
    """Returns several teams' loops as one batch."""
    return Batch(*(torch.cat(tensors) for tensors in zip(*(vars(batch).values() for batch in batches), strict=True)))


def log_prob(mean: Tensor, deviation: Tensor, action: Tensor) -> Tensor:
    """Returns the log density of actions under the Gaussian policy, summed over the action axis."""
    z = (action - mean) / deviation
    return (-0.5 * z * z - deviation.log() - 0.5 * math.log(2 * math.pi)).sum(-1)


def advantages(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    dones: NDArray[np.bool_],
    hyper: Hyper,
) -> NDArray[np.float32]:
    """Returns generalised advantages (loops, robots). `values` has one row more than `rewards`: the value after the
    last loop.

    A robot whose drive ended restarts at once, elsewhere. Its actions do not determine where, so an ending cuts the
    trace and counts only through its own reward: the value after it is taken to be the value before it. If that value
    were zero, or the new start's, a robot in trouble would do best to crash soon."""
    assert len(values) == len(rewards) + 1, f"{len(values)} values for {len(rewards)} loops"
    result = np.zeros_like(rewards)
    ahead = np.zeros(rewards.shape[1:], dtype=np.float32)
    for loop in range(len(rewards) - 1, -1, -1):
        goes_on = 1.0 - dones[loop].astype(np.float32)
        to_come = np.where(dones[loop], values[loop], values[loop + 1])
        error = hyper.reward_scale * rewards[loop] + hyper.discount * to_come - values[loop]
        ahead = error + hyper.discount * hyper.trace * goes_on * ahead
        result[loop] = ahead
    return result


@torch.no_grad()
def prepare(network: Network, got: Transitions, hyper: Hyper) -> Batch:
    """Processes a full batch at the leader: log-probabilities and values under the acting model, and advantages."""
    images, vectors, actions = (torch.from_numpy(array) for array in (got.images, got.vectors, got.actions))
    pieces = [network(*piece) for piece in zip(images.split(PIECE_LOOPS), vectors.split(PIECE_LOOPS), strict=True)]
    mean, values = (torch.cat(part) for part in zip(*pieces, strict=True))
    _, after = network(torch.from_numpy(got.last_images), torch.from_numpy(got.last_vectors))
    all_values = torch.cat((values, after[None])).numpy()
    gains = torch.from_numpy(advantages(got.rewards, all_values, got.dones, hyper))
    spread = gains.std(correction=0).clamp_min(1e-6)
    return Batch(
        images=images,
        vectors=vectors,
        actions=actions,
        log_probs=log_prob(mean, network.deviation(), actions),
        advantages=(gains - gains.mean()) / spread,
        returns=gains + values,
    )


def loss(network: Network, batch: Batch, hyper: Hyper) -> Tensor:
    """Returns clipped surrogate, value loss and entropy bonus over a batch or part of one."""
    mean, values = network(batch.images, batch.vectors)
    deviation = network.deviation()
    ratio = (log_prob(mean, deviation, batch.actions) - batch.log_probs).exp()
    clipped = ratio.clamp(1 - hyper.clip, 1 + hyper.clip)
    surrogate = torch.minimum(ratio * batch.advantages, clipped * batch.advantages).mean()
    value_loss = 0.5 * (values - batch.returns).square().mean()
    entropy = (deviation.log() + 0.5 * math.log(2 * math.pi * math.e)).sum()
    return hyper.value_weight * value_loss - surrogate - hyper.entropy_weight * entropy


def gradient(network: Network, batch: Batch, hyper: Hyper) -> Tensor:
    """Returns the gradient of the loss over these loops as one flat vector."""
    parameters = list(network.parameters())
    pieces = torch.autograd.grad(loss(network, batch, hyper), parameters)
    vector = torch.cat([piece.reshape(-1) for piece in pieces])
    norm = vector.norm()
    return vector * (hyper.gradient_max / norm) if norm > hyper.gradient_max else vector


class Optimiser:
    """A robot's Adam optimiser: its state from step to step."""

    def __init__(self, parameters: Tensor, hyper: Hyper) -> None:
        self.hyper = hyper
        self._moved = parameters.clone()
        self._adam = torch.optim.Adam([self._moved], lr=hyper.rate)

    def update(self, network: Network, model: Tensor, share: Batch) -> Tensor:
        """Returns the distance by which one pass over a share of the batch moves the model, per parameter; zero if the
        share is empty. `network` is used for the computation; its weights are overwritten."""
        self._moved.copy_(model)
        self._adam.param_groups[0]["lr"] = self.hyper.rate
        parts = min(len(share), max(1, round(len(share) / self.hyper.minibatch_loops)))
        for index in range(parts):
            load_flat(network, self._moved)
            self._moved.grad = gradient(network, share.part(index, parts), self.hyper).to(self._moved.device)
            self._adam.step()
        return self._moved - model

    def state(self) -> dict[str, object]:
        """Returns the state for a checkpoint."""
        return self._adam.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a result of `state`."""
        self._adam.load_state_dict(state)


def train(network: Network, optimiser: Optimiser, batch: Batch, rounds: int) -> None:
    """Trains by plain PPO in one place: equivalent to a team of one robot, and used for pre-training."""
    model = flat(network)
    for _ in range(rounds):
        model += optimiser.update(network, model, batch)
    load_flat(network, model)
