"""Runs with every event of the control loop, from the Python package: distributions, and the parts of a reaction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from lib.published import on_testbed
from lib.simulator import Team

Times = np.ndarray[tuple[int], np.dtype[np.float64]]
PERIOD_MS = 1000.0 / 30.0
SAMPLES = 300
"""Samples of an arrival model, as in `coorp-paper`."""


@dataclass(frozen=True)
class Trace:
    """One run, in ms."""

    reaction: Times
    """From the first perception of a loop to its last command."""
    exchange: Times
    """Its parts: until the leader has all perceptions, ..."""
    inference: Times
    dissemination: Times
    """... and from the first command to the last."""
    perceptions: Times
    """Latencies of messages, from making them to having them."""
    commands: Times
    made: dict[int, Times]
    """When each robot made its perceptions."""
    bulk_mbps: float

    @property
    def messages(self) -> Times:
        return np.concatenate([self.perceptions, self.commands])


@cache
def trace(team: Team, policy: str, seed: int, duration_s: float) -> Trace:
    """Simulates a team, with what a policy saw on the testbed."""
    import coorp

    session = coorp.Session(on_testbed(team, policy).text, policy, seed=seed)
    events = session.advance(duration_s)
    kinds = coorp.EventKind
    at_ms, kind, robot, number = events["t_ns"] / 1e6, events["kind"], events["robot"], events["number"]

    def of(wanted: int) -> dict[tuple[int, int], float]:
        chosen = np.flatnonzero(kind == wanted)
        return {(int(robot[i]), int(number[i])): float(at_ms[i]) for i in chosen}

    made, come = of(kinds.PERCEPTION), of(kinds.PERCEPTION_IN)
    infer, inferred = ({n: t for (_, n), t in of(k).items()} for k in (kinds.INFER, kinds.INFERRED))
    ended = {n: t for (_, n), t in of(kinds.LOOP_ENDED).items()}
    commands = of(kinds.COMMAND_IN)
    starts = _starts(made, come, infer)
    rounds = [n for n in sorted(ended) if n in starts and n in inferred]
    return Trace(
        reaction=np.array([ended[n] - starts[n] for n in rounds]),
        exchange=np.array([infer[n] - starts[n] for n in rounds]),
        inference=np.array([inferred[n] - infer[n] for n in rounds]),
        dissemination=np.array([ended[n] - inferred[n] for n in rounds]),
        perceptions=np.array([t - made[key] for key, t in come.items() if key in made]),
        commands=np.array([t - inferred[n] for (_, n), t in commands.items() if t > inferred[n]]),
        made={r: np.array([t for (own, _), t in made.items() if own == r]) for r in {r for r, _ in made}},
        bulk_mbps=session.result().bulk_mbps or 0.0,
    )


def _starts(
    made: dict[tuple[int, int], float], come: dict[tuple[int, int], float], infer: dict[int, float]
) -> dict[int, float]:
    """When the first of each loop's perceptions was made: each robot's newest that the leader has when it infers."""
    arrivals = sorted((t, key) for key, t in come.items() if key in made)
    starts: dict[int, float] = {}
    newest: dict[int, float] = {}
    place = 0
    for n, at in sorted(infer.items(), key=lambda pair: pair[1]):
        while place < len(arrivals) and arrivals[place][0] <= at:
            key = arrivals[place][1]
            newest[key[0]] = made[key]
            place += 1
        if newest:
            starts[n] = min(newest.values())
    return starts


def prediction_errors(made: Times) -> Times:
    """How far each arrival is from its prediction by a line through the newest ones before it (section IV-B)."""
    # Numbered by time, as a late loop may skip periods. The median phase is that of the samples that no loop delayed.
    phase = float(np.median((made - made[0] + PERIOD_MS / 2.0) % PERIOD_MS)) - PERIOD_MS / 2.0
    places = np.round((made - made[0] - phase) / PERIOD_MS)
    errors: list[float] = []
    for end in range(SAMPLES, len(made)):
        window, before = (
            made[end - SAMPLES : end] - made[end - SAMPLES],
            places[end - SAMPLES : end] - places[end - SAMPLES],
        )
        slope, intercept = np.polyfit(before, window, 1)
        predicted = made[end - SAMPLES] + intercept + slope * (places[end] - places[end - SAMPLES])
        errors.append(float(made[end] - predicted))
    return np.array(errors)
