"""Teams drawn at random, for claims that should hold on teams nobody looked at.

A draw is kept where the control loop is not hopeless from the start; who draws decides that by a run.
"""

from __future__ import annotations

import random

from lib.simulator import Team

STANDARDS = ("802.11n", "802.11ac", "802.11ax")
_MCS_MOST = {"802.11n": 7, "802.11ac": 8, "802.11ax": 9}


def draw(seed: int) -> Team:
    """One team: 2 to 12 robots, any width, rates, WNIC, phases, period, sizes, inference and kind of bulk."""
    rng = random.Random(seed)
    standard = rng.choice(STANDARDS)
    robots = rng.randint(2, 12)
    parts = [_robots(rng, standard, robots), _air(rng, standard), _control(rng), _bulk(rng, robots)]
    return Team(f"random-{seed}", "\n".join(parts))


def _robots(rng: random.Random, standard: str, robots: int) -> str:
    text = '[[robot]]\nname = "leader"\nleader = true\n'
    for robot in range(1, robots):
        text += f'\n[[robot]]\nname = "robot-{robot}"\nmcs = {rng.randint(2, _MCS_MOST[standard])}\n'
    return text


def _air(rng: random.Random, standard: str) -> str:
    width = rng.choice((20, 40) if standard == "802.11n" else (20, 40, 80))
    interval = rng.choice((800, 1600)) if standard == "802.11ax" else rng.choice((400, 800))
    return (
        f'[air]\nstandard = "{standard}"\nwidth_mhz = {width}\nstreams = {rng.choice((1, 2))}\n'
        f"guard_interval_ns = {interval}\nmcs = {rng.randint(4, 7)}\nloss = {rng.choice((0.0, 0.0, 0.01, 0.05))}\n"
        f'rts_cts = {rng.choice(("true", "false"))}\nwnic = "{rng.choice(("ideal", "mt7612u"))}"\n'
    )


def _control(rng: random.Random) -> str:
    period_ms = rng.choice((20.0, 25.0, 33.3, 50.0, 100.0))
    bound_ms = round(period_ms * rng.uniform(0.6, 1.0), 1)
    return (
        f'[control]\nperiod = "{period_ms}ms"\nbound = "{bound_ms}ms"\n'
        f'perception = "{rng.choice((500, 1500, 4096, 12288, 20480))}B"\n'
        f'command = "{rng.choice((100, 300, 1024, 2000))}B"\n'
        f'inference = "{round(bound_ms * rng.uniform(0.1, 0.8), 1)}ms"\n'
        f'inference_spread = {rng.choice((0.03, 0.07, 0.15))}\njitter = "{rng.choice((100, 300, 500, 1000))}us"\n'
        f"synchronised = {rng.choice(('true', 'true', 'false'))}\n"
    )


def _bulk(rng: random.Random, robots: int) -> str:
    if rng.random() < 0.5:
        return (
            f'[learning]\nparameters = {rng.randint(1, 10)}_000_000\nsync = "{rng.choice(("BSP", "SSP", "ASP"))}"\n'
            f"batch_loops = {rng.choice((100, 200, 300))}\nrounds = {rng.choice((4, 10))}\n"
            f'training = "{rng.choice((300, 1000, 2000))}ms"\ntraining_spread = {rng.choice((0.05, 0.1, 0.3))}\n'
        )
    senders = [robot for robot in range(1, robots) if rng.random() < 0.7] or [1]
    flows = [
        f'[[flow]]\nname = "bulk-{robot}"\nfrom = "robot-{robot}"\nto = "leader"\ntransport = "tcp"\nsaturated = true\n'
        for robot in senders
    ]
    return "\n".join(flows)
