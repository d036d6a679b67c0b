"""Generated traffic of robots' programs, from a seed: the rates, sizes and irregularities of common topics."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from lib.recordings import Topic

EF = 46 << 2
CYCLONE_BYTES = 1_344
"""Maximum size of a message's part in one of Cyclone DDS's datagrams."""
RATES_HZ = (100, 50, 30, 10)
SHARES = (0.01, 0.03, 0.05, 0.08, 0.10, 0.15, 0.20, 0.33)
"""Jitters, as shares of the period."""
QUICK_RATES_HZ, QUICK_SHARES = (100,), (0.01, 0.33)


@dataclass(frozen=True)
class Mix:
    """Topics that one robot sends together."""

    name: str
    topics: list[Topic]
    busy: bool
    """Whether another robot fills the channel."""


class Draw:
    """Times of messages, drawn from a seed."""

    def __init__(self, seed: str, span_s: float) -> None:
        self.random, self.span_s = random.Random(seed), span_s

    def timer(self, hz: float, late_s: float) -> list[float]:
        """Draws a timer whose messages are each a little late, and one in a hundred ten times as late."""
        return self._times(
            tick / hz + self.random.expovariate(1.0 / (late_s * (10.0 if self.random.random() < 0.01 else 1.0)))
            for tick in range(int(self.span_s * hz))
        )

    def normal(self, hz: float, deviation_s: float) -> list[float]:
        """Draws a timer whose messages deviate normally."""
        return self._times(tick / hz + self.random.gauss(0.0, deviation_s) for tick in range(int(self.span_s * hz)))

    def sleeper(self, hz: float, work_s: float) -> list[float]:
        """Draws a loop that sleeps for a period after its work, and so drifts."""
        return self._times(self._walk(lambda: 1.0 / hz + self.random.expovariate(1.0 / work_s)))

    def events(self, hz: float) -> list[float]:
        """Draws messages at random."""
        return self._times(self._walk(lambda: self.random.expovariate(hz)))

    def ticks(self, hz: float, tick_s: float) -> list[float]:
        """Draws a timer that is served at the ticks of another one."""
        return self._times(int(number / hz / tick_s) * tick_s for number in range(int(self.span_s * hz)))

    def drifting(self, hz: float, share: float) -> list[float]:
        """Draws a timer whose rate rises by a share over the run."""
        times_s = [0.0]
        while times_s[-1] < self.span_s:
            times_s.append(times_s[-1] + 1.0 / (hz * (1.0 + share * times_s[-1] / self.span_s)))
        return self._times(times_s)

    def pausing(self, times_s: list[float], every_s: float, pause_s: float, *, caught_up: bool) -> list[float]:
        """Draws a program that stalls now and then; missed messages are left out, or sent at once after the stall."""
        out = []
        for at in times_s:
            into = at % every_s
            if into >= pause_s:
                out.append(at)
            elif caught_up:
                out.append(at - into + pause_s)
        return out

    def bursts(self, every_s: float, count: int, gap_s: float) -> list[float]:
        """Draws repeated bursts of messages."""
        begins = self._walk(lambda: every_s * self.random.uniform(0.8, 1.2))
        return self._times(begin + number * gap_s for begin in begins for number in range(count))

    def sizes(self, times_s: list[float], low: int, high: int) -> list[int]:
        return [self.random.randint(low, high) for _ in times_s]

    def _times(self, times_s: Iterable[float]) -> list[float]:
        phase = self.random.uniform(0.0, 0.1)
        return sorted(phase + at for at in times_s if 0.0 <= phase + at < self.span_s)

    def _walk(self, gap: Callable[[], float]) -> Iterator[float]:
        at = 0.0
        while at < self.span_s:
            yield at
            at += gap()


def mixes(seed: int, span_s: float, *, quick: bool) -> list[Mix]:
    """Returns all mixes; with `quick`, only the first, and a small part of the mix of jitters."""
    plain = robot(Draw(f"robot {seed}", span_s))
    if quick:
        few = ladder(Draw(f"jitter {seed}", span_s), QUICK_RATES_HZ, QUICK_SHARES)
        return [Mix("robot", [*plain, *few], busy=True)]
    marked = [replace(topic, tos=EF) if topic.control else topic for topic in plain]
    return [
        Mix("robot", plain, busy=True),
        Mix("robot, control marked EF", marked, busy=True),
        Mix("odd programs", odd(Draw(f"odd {seed}", span_s)), busy=False),
        Mix(JITTERS, ladder(Draw(f"jitter {seed}", span_s), RATES_HZ, SHARES), busy=False),
    ]


JITTERS = "jitter"


def robot(draw: Draw) -> list[Topic]:
    """Returns the topics of a robot with ROS 2."""

    def topic(name: str, times_s: list[float], sizes: tuple[int, int], *, control: bool, tcp: bool = False) -> Topic:
        return Topic(name, control, times_s, draw.sizes(times_s, *sizes), tcp)

    return [
        topic("odom", draw.timer(50, 0.000_3), (724, 724), control=True),
        topic("imu", draw.timer(200, 0.000_1), (324, 324), control=True),
        topic("cmd_vel", draw.timer(20, 0.001), (60, 60), control=True),
        topic("joint_states", draw.timer(100, 0.000_2), (420, 420), control=True),
        topic("tf", draw.timer(50, 0.000_5), (124, 612), control=True),
        topic("telemetry, TCP", draw.timer(10, 0.001), (240, 320), control=True, tcp=True),
        topic("scan", draw.timer(10, 0.001), (3_900, 4_000), control=True),
        topic("diagnostics", draw.timer(1, 0.002), (900, 1_300), control=False),
        topic("rosout", draw.events(3), (120, 400), control=False),
        topic("camera/compressed", draw.timer(30, 0.002), (60_000, 200_000), control=False),
        topic("points", draw.timer(10, 0.003), (1_000_000, 1_000_000), control=False),
        topic("map, TCP", draw.events(0.5), (2_000_000, 2_000_000), control=False, tcp=True),
        # As fast as possible.
        topic("log upload, TCP", [0.3 * draw.span_s] * 400, (100_000, 100_000), control=False, tcp=True),
    ]


def odd(draw: Draw) -> list[Topic]:
    """Returns programs that are hard to classify: they are irregular, stall, drift, or look like something else."""

    def topic(name: str, times_s: list[float], size: int, *, control: bool, tos: int = 0) -> Topic:
        return Topic(name, control, times_s, [size] * len(times_s), tos=tos)

    steady = draw.normal(30, 0.000_3)
    return [
        topic("30 Hz, stalls for 0.5 s", draw.pausing(steady, 4.0, 0.5, caught_up=False), 200, control=True),
        topic("30 Hz, stalls and catches up", draw.pausing(steady, 4.0, 0.5, caught_up=True), 200, control=True),
        topic("50 Hz, drifts to 60 Hz", draw.drifting(50, 0.2), 200, control=True),
        topic("50 Hz, a sleeping loop, work 1 ms", draw.sleeper(50, 0.001), 200, control=True),
        topic("20 Hz, a sleeping loop, work 10 ms", draw.sleeper(20, 0.01), 200, control=True),
        topic("30 Hz at ticks of 10 ms", draw.ticks(30, 0.01), 200, control=True),
        topic("joystick, 20 Hz in strokes of 1 s", draw.pausing(draw.normal(20, 0.001), 2.0, 1.0, caught_up=False), 60,
              control=True),
        topic("keys of an operator", draw.events(5), 60, control=True),
        topic("keys of an operator, EF", draw.events(5), 60, control=True, tos=EF),
        topic("250 Hz torques", draw.timer(250, 0.000_05), 96, control=True),
        topic("perceptions, 12 KiB, 30 Hz", draw.normal(30, 0.000_5), 12_288, control=True),
        topic("perceptions, 12 KiB, 30 Hz, EF", draw.normal(30, 0.000_5), 12_288, control=True, tos=EF),
        replace(topic("scan in pieces of 1344 B", draw.normal(10, 0.001), 3_600, control=True),
                piece_bytes=CYCLONE_BYTES),
        topic("heartbeat, 1 Hz", draw.timer(1, 0.000_5), 48, control=False),
        topic("service calls, in pairs", draw.bursts(0.5, 2, 0.000_2), 120, control=False),
        topic("bursts of ten, every second", draw.bursts(1.0, 10, 0.001), 300, control=False),
        topic("audio, 50 Hz", draw.timer(50, 0.000_2), 1_200, control=True),
        replace(topic("video, 30 Hz, in pieces of 1344 B", draw.timer(30, 0.001), 30_000, control=False),
                piece_bytes=CYCLONE_BYTES),
        replace(topic("video, marked EF", draw.timer(30, 0.001), 16_000, control=False, tos=EF),
                piece_bytes=CYCLONE_BYTES),
    ]  # fmt: skip


def ladder(draw: Draw, rates_hz: Iterable[int], shares: Iterable[float]) -> list[Topic]:
    """Returns control of several rates, with more and more jitter."""
    topics = []
    for share in shares:
        for hz in rates_hz:
            times_s = draw.normal(hz, share / hz)
            topics.append(Topic(rung(hz, share), True, times_s, [200] * len(times_s)))
    return topics


def rung(hz: int, share: float) -> str:
    return f"{hz} Hz, {share:.0%} jitter"
