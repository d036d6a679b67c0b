"""Proximal policy optimisation (Schulman et al., 2017), as a gradient that any robot can compute on its share.

What it decides: advantages (generalised, lambda-discounted), the clipped surrogate, the value loss and the entropy
bonus, and the step that the leader's optimiser makes with a combined gradient. Robots hold partitions of *loops*: one
item is what all robots perceived, did and got in one MPC loop (001, section I), since the critic needs all of them.

Left out: minibatches. A round (001: training, update, model) is one gradient over a robot's partition, and a batch
goes through `rounds` of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coorp.learn.network import Network, flat, load_flat


@dataclass(frozen=True)
class Hyper:
    """Settings of learning that are nobody's but PPO's."""

    rate: float = 1e-3
    """Adam's step size."""
    discount: float = 0.97
    """Looks a second ahead, at thirty loops a second."""
    trace: float = 0.95
    """Lambda of the generalised advantage."""
    clip: float = 0.2
    reward_scale: float = 0.1
    """What rewards are multiplied with, so that values are of the order of one."""
    value_weight: float = 0.5
    entropy_weight: float = 0.001
    gradient_max: float = 1.0
    """Norm above which a robot's gradient is scaled down."""

    def slowed(self, share: float) -> Hyper:
        """The same with this share of the step size."""
        return replace(self, rate=self.rate * share)


@dataclass(frozen=True)
class Transitions:
    """What a batch of loops gathered, in order; arrays begin (loops, robots)."""

    images: NDArray[np.uint8]
    """(loops, robots, 64, 64, 3): what each robot's perception showed that the loop used."""
    vectors: NDArray[np.float32]
    """(loops, robots, k)."""
    actions: NDArray[np.float32]
    """(loops, robots, a)."""
    rewards: NDArray[np.float32]
    """(loops, robots): accrued from this perception to the next that was used."""
    dones: NDArray[np.bool_]
    """(loops, robots): the robot's episode ended before its next perception."""
    last_images: NDArray[np.uint8]
    """(robots, 64, 64, 3): the perceptions after the last loop, for the value of what is yet to come."""
    last_vectors: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True)
class Batch:
    """Loops ready to learn from: tensors that begin (loops, robots)."""

    images: Tensor
    vectors: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.returns)

    def part(self, index: int, parts: int) -> Batch:
        """Every `parts`-th loop from `index` on: shares of the same size, within one loop, from all of the batch."""
        return Batch(*(tensor[index::parts] for tensor in vars(self).values()))

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(tensor.to(device) for tensor in vars(self).values()))


def joined(batches: list[Batch]) -> Batch:
    """Several teams' loops as one batch."""
    return Batch(*(torch.cat(tensors) for tensors in zip(*(vars(batch).values() for batch in batches), strict=True)))


def log_prob(mean: Tensor, deviation: Tensor, action: Tensor) -> Tensor:
    """Log density of actions under the Gaussian policy, summed over the action's axis."""
    z = (action - mean) / deviation
    return (-0.5 * z * z - deviation.log() - 0.5 * math.log(2 * math.pi)).sum(-1)


def advantages(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    dones: NDArray[np.bool_],
    hyper: Hyper,
) -> NDArray[np.float32]:
    """Generalised advantages (loops, robots). `values` has one row more than `rewards`: the value after the last.

    A robot whose drive ended starts anew at once and is rewarded further, so an ending cuts the trace but not the
    value of what comes. If endings were worth nothing after them, a robot that is mostly punished would do best to
    crash soon."""
    assert len(values) == len(rewards) + 1, f"{len(values)} values for {len(rewards)} loops"
    result = np.zeros_like(rewards)
    ahead = np.zeros(rewards.shape[1:], dtype=np.float32)
    for loop in range(len(rewards) - 1, -1, -1):
        goes_on = 1.0 - dones[loop].astype(np.float32)
        error = hyper.reward_scale * rewards[loop] + hyper.discount * values[loop + 1] - values[loop]
        ahead = error + hyper.discount * hyper.trace * goes_on * ahead
        result[loop] = ahead
    return result


@torch.no_grad()
def prepare(network: Network, got: Transitions, hyper: Hyper) -> Batch:
    """What the leader does with a full batch: log-probabilities and values under the model that acted, advantages."""
    images, vectors, actions = (torch.from_numpy(array) for array in (got.images, got.vectors, got.actions))
    mean, values = network(images, vectors)
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
    """Clipped surrogate, value loss and entropy bonus over a batch or a part of one."""
    mean, values = network(batch.images, batch.vectors)
    deviation = network.deviation()
    ratio = (log_prob(mean, deviation, batch.actions) - batch.log_probs).exp()
    clipped = ratio.clamp(1 - hyper.clip, 1 + hyper.clip)
    surrogate = torch.minimum(ratio * batch.advantages, clipped * batch.advantages).mean()
    value_loss = 0.5 * (values - batch.returns).square().mean()
    entropy = (deviation.log() + 0.5 * math.log(2 * math.pi * math.e)).sum()
    return hyper.value_weight * value_loss - surrogate - hyper.entropy_weight * entropy


def gradient(network: Network, batch: Batch, hyper: Hyper) -> Tensor:
    """The gradient of the loss over this share as one flat vector: a robot's update. Zero where the share is empty."""
    if len(batch) == 0:
        return torch.zeros_like(flat(network))
    parameters = list(network.parameters())
    pieces = torch.autograd.grad(loss(network, batch, hyper), parameters)
    vector = torch.cat([piece.reshape(-1) for piece in pieces])
    norm = vector.norm()
    return vector * (hyper.gradient_max / norm) if norm > hyper.gradient_max else vector


class Optimiser:
    """The leader's model as one flat vector, and Adam on it."""

    def __init__(self, parameters: Tensor, hyper: Hyper) -> None:
        self.parameters = parameters.clone()
        self.hyper = hyper
        self._adam = torch.optim.Adam([self.parameters], lr=hyper.rate)

    def step(self, update: Tensor, share: float = 1.0) -> None:
        """One step along a gradient. `share` is the part of the team that it stands for, and scales the step."""
        self._adam.param_groups[0]["lr"] = self.hyper.rate * share
        self.parameters.grad = update
        self._adam.step()

    def state(self) -> dict[str, object]:
        """All that goes into a checkpoint."""
        return {"parameters": self.parameters.clone(), "adam": self._adam.state_dict()}

    def restore(self, state: dict[str, object]) -> None:
        """Puts back what `state` gave."""
        parameters, adam = state["parameters"], state["adam"]
        assert isinstance(parameters, Tensor) and isinstance(adam, dict)
        self.parameters.copy_(parameters)
        self._adam.load_state_dict(adam)


def train(network: Network, optimiser: Optimiser, batch: Batch, rounds: int) -> None:
    """Plain PPO in one place: what a team of one robot must come to, and what pre-training runs."""
    for _ in range(rounds):
        load_flat(network, optimiser.parameters)
        optimiser.step(gradient(network, batch, optimiser.hyper))
    load_flat(network, optimiser.parameters)
