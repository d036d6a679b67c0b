"""Learning without the air: network, PPO, synchronisation."""

from __future__ import annotations

import copy

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from coorp.learn import ppo, sync
from coorp.learn.network import Network, flat, load_flat
from coorp.learn.ppo import Batch, Hyper, Optimiser, Transitions

LOOPS, ROBOTS, VECTOR, ACTION = 24, 3, 5, 2
ROUNDS = 4


pytestmark = pytest.mark.usefixtures("one_thread")


def network(seed: int = 1) -> Network:
    torch.manual_seed(seed)
    return Network(VECTOR, ACTION)


def transitions(seed: int = 1, loops: int = LOOPS) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        images=rng.integers(0, 256, (loops, ROBOTS, 64, 64, 3), dtype=np.uint8),
        vectors=rng.standard_normal((loops, ROBOTS, VECTOR), dtype=np.float32),
        actions=rng.standard_normal((loops, ROBOTS, ACTION), dtype=np.float32),
        rewards=rng.standard_normal((loops, ROBOTS), dtype=np.float32),
        dones=rng.random((loops, ROBOTS)) < 0.1,
        last_images=rng.integers(0, 256, (ROBOTS, 64, 64, 3), dtype=np.uint8),
        last_vectors=rng.standard_normal((ROBOTS, VECTOR), dtype=np.float32),
    )


class Robots:
    """The robots' side of an epoch: each computes on the model it has."""

    def __init__(self, paradigm: str, parts: int, staleness: int = 0) -> None:
        self.network = network()
        self.hyper = Hyper(minibatch_loops=4)
        self.batch = ppo.prepare(self.network, transitions(), self.hyper)
        self.leader = sync.make(paradigm, flat(self.network), parts, staleness)
        self.optimisers = [Optimiser(flat(self.network), self.hyper) for _ in range(parts)]
        self.models = [self.leader.model() for _ in range(parts)]

    def update(self, robot: int) -> None:
        """Trains `robot` for one round, and gives the leader its update."""
        share = self.batch.part(robot, len(self.models))
        self.leader.on_update(robot, self.optimisers[robot].update(self.network, self.models[robot], share))

    def fetch(self, robot: int) -> None:
        self.models[robot] = self.leader.model()

    def epoch(self, orders: list[list[int]]) -> torch.Tensor:
        """Runs rounds with a barrier; all updates of a round arrive in the given order."""
        self.leader.begin_epoch()
        for order in orders:
            for robot in order:
                self.update(robot)
            for robot in order:
                self.fetch(robot)
        return self.leader.model()


def test_images_are_seen_as_a_strided_convolution_sees_them() -> None:
    net = network()
    images = torch.from_numpy(transitions().images[0])
    got = net.seen(images, torch.zeros(ROBOTS, VECTOR))[:, :-VECTOR]
    kernel = net.patches.weight.view(-1, 8, 8, 3).permute(0, 3, 1, 2)
    x = images.permute(0, 3, 1, 2) / 255 - 0.5
    x = torch.relu(torch.nn.functional.conv2d(x, kernel, net.patches.bias, stride=8))
    torch.testing.assert_close(got, torch.relu(net.code(x.permute(0, 2, 3, 1).reshape(ROBOTS, -1))))


def test_a_robot_acts_on_its_own_view_and_is_valued_by_the_teams() -> None:
    net = network()
    got = transitions()
    images, vectors = torch.from_numpy(got.images[:1]), torch.from_numpy(got.vectors[:1])
    mean, value = net(images, vectors)
    elsewhere = vectors.clone()
    elsewhere[0, 2] += 1.0
    mean_2, value_2 = net(images, elsewhere)
    assert torch.equal(mean[0, :2], mean_2[0, :2])
    assert not torch.equal(mean[0, 2], mean_2[0, 2])
    assert (value != value_2).all()
    np.testing.assert_allclose(net.act(got.images[0], got.vectors[0]), mean[0].detach(), atol=1e-6)


def test_parameters_survive_being_flat() -> None:
    vector = flat(network(seed=7))
    other = network(seed=8)
    load_flat(other, vector)
    assert torch.equal(flat(other), vector)
    assert len(vector) * 4 < 500_000, "the weights ship in the repository"


def test_advantages_are_the_discounted_sums_of_errors_up_to_an_ending() -> None:
    hyper = Hyper(discount=0.9, trace=0.8, reward_scale=1.0)
    rng = np.random.default_rng(3)
    rewards = rng.standard_normal((6, 1), dtype=np.float32)
    values = rng.standard_normal((7, 1), dtype=np.float32)
    dones = np.zeros((6, 1), dtype=bool)
    dones[3] = True
    to_come = values[1:].copy()
    to_come[3] = values[3]
    errors = rewards + 0.9 * to_come - values[:-1]
    expected = np.zeros(6)
    for start in range(6):
        weight = 1.0
        for loop in range(start, 6):
            expected[start] += weight * errors[loop, 0]
            weight *= 0.72 * (not dones[loop, 0])
    np.testing.assert_allclose(ppo.advantages(rewards, values, dones, hyper)[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_the_surrogate_is_clipped() -> None:
    net, hyper = network(), Hyper(value_weight=0.0, entropy_weight=0.0)
    batch = ppo.prepare(net, transitions(), hyper)
    assert torch.isclose(ppo.loss(net, batch, hyper), -batch.advantages.mean(), atol=1e-5), (
        "ratio 1 under the old model"
    )
    good = Batch(**{**vars(batch), "advantages": torch.ones_like(batch.advantages)})
    likelier = Batch(**{**vars(good), "log_probs": batch.log_probs - 1.0})
    assert torch.isclose(ppo.loss(net, likelier, hyper), torch.tensor(-1.2), atol=1e-5), "no reward beyond the clip"
    assert not ppo.gradient(net, likelier, hyper).any(), "and no gradient"


def test_a_gradient_is_that_of_the_loss() -> None:
    net = network().double()
    hyper = Hyper(gradient_max=1e9)
    got = transitions(loops=4)
    batch = ppo.prepare(network(), got, hyper)
    batch = Batch(*(t if t.dtype == torch.uint8 else t.double() for t in vars(batch).values()))
    vector = flat(net)
    slope = ppo.gradient(net, batch, hyper)
    for place in (len(vector) - 1, len(vector) - 10, 0):
        ends = []
        for step in (1e-4, -1e-4):
            moved = vector.clone()
            moved[place] += step
            load_flat(net, moved)
            ends.append(ppo.loss(net, batch, hyper).item())
        load_flat(net, vector)
        assert float(slope[place]) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-2, abs=1e-6)


def test_partitions_are_the_batch() -> None:
    batch = ppo.prepare(network(), transitions(), Hyper())
    parts = [batch.part(index, 5) for index in range(5)]
    assert sum(len(part) for part in parts) == LOOPS
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1
    together = torch.cat([part.returns for part in parts])
    assert torch.equal(together.flatten().sort().values, batch.returns.flatten().sort().values)


def test_gradients_of_equal_partitions_average_to_that_of_the_batch() -> None:
    net, hyper = network(), Hyper(gradient_max=1e9)
    batch = ppo.prepare(net, transitions(), hyper)
    parts = [ppo.gradient(net, batch.part(index, 3), hyper) for index in range(3)]
    torch.testing.assert_close(torch.stack(parts).mean(0), ppo.gradient(net, batch, hyper), rtol=1e-3, atol=1e-6)


def test_a_pass_makes_a_step_for_each_minibatch() -> None:
    net, start = network(), flat(network())
    batch = ppo.prepare(net, transitions(), Hyper())
    lengths: dict[int, float] = {}
    for loops in (LOOPS, LOOPS // 4, LOOPS * 10):
        hyper = Hyper(minibatch_loops=loops)
        optimiser = Optimiser(start, hyper)
        moved = optimiser.update(net, start, batch)
        state = optimiser.state()["state"]
        assert isinstance(state, dict)
        lengths[loops] = float(state[0]["step"])
        assert 0 < moved.abs().max() <= 1.01 * hyper.rate * lengths[loops], "Adam's step is its rate at most at first"
    assert lengths == {LOOPS: 1, LOOPS // 4: 4, LOOPS * 10: 1}


def test_nothing_to_learn_from_moves_nothing() -> None:
    net, hyper = network(), Hyper()
    empty = ppo.prepare(net, transitions(), hyper).part(LOOPS, LOOPS + 1)
    assert len(empty) == 0
    assert not Optimiser(flat(net), hyper).update(net, flat(net), empty).any()


def test_ppo_learns_what_pays() -> None:
    """If a robot is rewarded for action = (1, -1), its mean is close after some batches."""
    net, hyper = network(), Hyper(rate=3e-3)
    optimiser = Optimiser(flat(net), hyper)
    rng = np.random.default_rng(5)
    goal = np.array([1.0, -1.0], dtype=np.float32)
    blank = transitions(loops=32)
    mean = np.zeros_like(blank.actions)
    for _ in range(30):
        mean = net(torch.from_numpy(blank.images), torch.from_numpy(blank.vectors))[0].detach().numpy()
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        actions = mean + net.deviation().detach().numpy() * noise
        rewards = -np.square(actions - goal).sum(-1)
        ends = np.ones_like(blank.dones)
        got = Transitions(**{**vars(blank), "actions": actions, "rewards": rewards, "dones": ends})
        ppo.train(net, optimiser, ppo.prepare(net, got, hyper), rounds=10)
    assert np.abs(mean.mean((0, 1)) - goal).max() < 0.3


def test_ssp_without_staleness_is_bsp_bit_for_bit() -> None:
    orders = [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]]
    bsp = Robots("bsp", 3).epoch(orders)
    ssp = Robots("ssp", 3, staleness=0).epoch(orders)
    assert torch.equal(bsp, ssp)
    assert torch.equal(bsp, Robots("bsp", 3).epoch([[0, 1, 2]] * ROUNDS)), "in whatever order updates come"
    assert not torch.equal(bsp, flat(network()))


@pytest.mark.parametrize("paradigm", sync.PARADIGMS)
def test_one_robot_is_plain_ppo_bit_for_bit(paradigm: str) -> None:
    alone = Robots(paradigm, 1).epoch([[0]] * ROUNDS)
    net, hyper = network(), Hyper(minibatch_loops=4)
    optimiser = Optimiser(flat(net), hyper)
    ppo.train(net, optimiser, ppo.prepare(net, transitions(), hyper), ROUNDS)
    assert torch.equal(alone, flat(net))


def test_asp_at_equal_speeds_goes_where_bsp_goes() -> None:
    start = flat(network())
    bsp = Robots("bsp", 3).epoch([[0, 1, 2]] * ROUNDS) - start
    robots = Robots("asp", 3)
    asp = robots.epoch([[0, 1, 2]] * ROUNDS) - start
    assert robots.leader.rounds == [ROUNDS] * 3
    assert float(torch.nn.functional.cosine_similarity(asp, bsp, dim=0)) > 0.8
    assert 0.5 < float(asp.norm() / bsp.norm()) < 2.0


def test_ssp_makes_who_is_too_far_ahead_wait() -> None:
    robots = Robots("ssp", 3, staleness=1)
    robots.leader.begin_epoch()
    start = robots.leader.model()
    robots.update(0)
    one = robots.leader.model()
    assert not torch.equal(one, start), "one round ahead is applied at once"
    robots.fetch(0)
    robots.update(0)
    assert torch.equal(robots.leader.model(), one), "two rounds ahead waits"
    robots.update(1)
    assert not torch.equal(robots.leader.model(), one), "until a robot may continue"


def test_a_robot_trains_on_the_model_it_has() -> None:
    fresh, stale = Robots("asp", 2), Robots("asp", 2)
    for robots, fetches in ((fresh, True), (stale, False)):
        robots.leader.begin_epoch()
        robots.update(0)
        if fetches:
            robots.fetch(1)
        robots.update(1)
    assert not torch.equal(fresh.leader.model(), stale.leader.model())


@pytest.mark.parametrize("paradigm", sync.PARADIGMS)
def test_learning_state_goes_on_where_it_was(paradigm: str) -> None:
    unbroken, broken = Robots(paradigm, 3, 1), Robots(paradigm, 3, 1)
    unbroken.epoch([[0, 1, 2]] * 2)
    broken.epoch([[0, 1, 2]])
    saved = broken.leader.state()
    resumed = Robots(paradigm, 3, 1)
    resumed.leader.restore(saved)
    for optimiser, of in zip(resumed.optimisers, broken.optimisers, strict=True):
        optimiser.restore(copy.deepcopy(of.state()))
    resumed.models = [resumed.leader.model() for _ in range(3)]
    resumed.leader.rounds = [0] * 3
    end = resumed.epoch([[0, 1, 2]])
    assert torch.equal(end, unbroken.leader.model())


def test_an_unknown_paradigm_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown paradigm 'bps'.*bsp, ssp, asp"):
        sync.make("bps", torch.zeros(2), 2, 0)
