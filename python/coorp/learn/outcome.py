"""The outcome of a run: numbers, in a form that is saved, resumed, compared and drawn.

Left out: PNG and HTML, which are in report.py.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coorp.envs import Tally

Z_95 = 1.959964


@dataclass
class History:
    """One row per virtual second; totals since the start, over all robots."""

    t_s: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    collisions: list[int] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    timeouts: list[int] = field(default_factory=list)
    near_misses: list[int] = field(default_factory=list)
    to_goal_s: list[float] = field(default_factory=list)
    """Driving time of the drives that have arrived."""
    epochs_s: list[float] = field(default_factory=list)
    """The end of each epoch; not one per second."""

    def add(self, t_s: float, reward: float, tally: Tally) -> None:
        """Adds a second."""
        self.t_s.append(t_s)
        self.reward.append(reward)
        self.collisions.append(int(tally.collisions.sum()))
        self.arrivals.append(int(tally.arrivals.sum()))
        self.timeouts.append(int(tally.timeouts.sum()))
        self.near_misses.append(int(tally.near_misses.sum()))
        self.to_goal_s.append(float(tally.to_goal_s.sum()))


@dataclass
class Outcome:
    """One run under one policy and one paradigm."""

    team: str
    policy: str
    sync: str
    seed: int
    frozen: bool
    robots: int
    minutes: float
    loops: int
    violation_rate: float
    bulk_mbps: float
    history: History
    setting: dict[str, Any] = field(default_factory=dict)
    """The run's settings, to check whether this is the requested run."""
    live: dict[str, Any] | None = None
    """For a live run, whether the emulator kept up, its lateness in us, and the share of the time in which some program
    waited for a core."""
    model: str = ""
    """The weights from which it started: a file, or the name of shipped ones. Empty in outcomes of earlier versions."""

    @property
    def label(self) -> str:
        """The name that distinguishes this run within a comparison."""
        words = (self.policy, "" if self.sync == "none" else self.sync.upper(), "live" if self.live else "")
        return ", ".join(word for word in words if word)

    @property
    def speed_mps(self) -> float:
        """Robots' full speed; NaN if its settings do not say."""
        return self.setting.get("--speed", math.nan)

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return run_name(self.policy, self.sync, frozen=self.frozen, live=self.live is not None)

    @property
    def robot_hours(self) -> float:
        """Robot-hours driven."""
        return self.robots * self.minutes / 60

    @property
    def collisions(self) -> int:
        """Total number of collided robots."""
        return _last(self.history.collisions)

    @property
    def arrivals(self) -> int:
        """Goals reached."""
        return _last(self.history.arrivals)

    @property
    def timeouts(self) -> int:
        """Drives that ran out of time."""
        return _last(self.history.timeouts)

    @property
    def near_misses(self) -> int:
        """Near misses that have begun, see `coorp.envs.task.NEAR_MISS_S`."""
        return _last(self.history.near_misses)

    @property
    def success(self) -> float:
        """Share of ended drives that arrived."""
        ended = self.collisions + self.arrivals + self.timeouts
        return self.arrivals / ended if ended else math.nan

    @property
    def to_goal_s(self) -> float:
        """Mean duration of the drives that arrived; NaN if none did."""
        return self.history.to_goal_s[-1] / self.arrivals if self.arrivals else math.nan

    @property
    def epoch_s(self) -> float:
        """Mean duration of an epoch, including collection; NaN if none ended."""
        ends = self.history.epochs_s
        return ends[-1] / len(ends) if ends else math.nan

    @property
    def collision_rate(self) -> tuple[float, float, float]:
        """Collisions per robot-hour and its 95 % confidence interval."""
        return self._hourly(self.collisions)

    @property
    def near_miss_rate(self) -> tuple[float, float, float]:
        """Near misses per robot-hour and its 95 % confidence interval."""
        return self._hourly(self.near_misses)

    def _hourly(self, count: int) -> tuple[float, float, float]:
        low, high = poisson_interval(count)
        return count / self.robot_hours, low / self.robot_hours, high / self.robot_hours

    @property
    def violation_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the violation rate."""
        return share_interval(self.violation_rate, self.loops)

    def mean_reward(self, first: float, last: float) -> float:
        """Returns the reward per robot and second from share `first` to share `last` of the run, over at least a
        second."""
        count = len(self.history.t_s)
        a = max(min(int(first * count), count - 2), 0)
        b = min(max(int(last * count), a + 2), count) - 1
        span = self.history.t_s[b] - self.history.t_s[a]
        return (self.history.reward[b] - self.history.reward[a]) / (span * self.robots) if span > 0 else math.nan

    def save(self, path: Path) -> None:
        """Writes the outcome as JSON, together with the values computed from it."""
        low, high = self.violation_interval
        rate, rate_low, rate_high = self.collision_rate
        derived = {
            "violation_rate_95": [low, high],
            "collisions": self.collisions,
            "collisions_per_robot_hour": rate,
            "collisions_per_robot_hour_95": [rate_low, rate_high],
            "near_misses": self.near_misses,
            "near_misses_per_robot_hour": self.near_miss_rate[0],
            "near_misses_per_robot_hour_95": list(self.near_miss_rate[1:]),
            "arrivals": self.arrivals,
            "timeouts": self.timeouts,
            "success": _or_none(self.success),
            "to_goal_s": _or_none(self.to_goal_s),
            "epoch_s": _or_none(self.epoch_s),
        }
        path.write_text(json.dumps({**asdict(self), **derived}, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Outcome:
        """Reads a file from `save`."""
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        content.setdefault("live", None)  # Earlier versions had simulated runs only,
        content.setdefault("model", "")  # and did not say what they started from.
        fields = {name: content[name] for name in Outcome.__dataclass_fields__ if name != "history"}
        return Outcome(**fields, history=History(**content["history"]))


def run_name(policy: str, sync: str, *, frozen: bool, live: bool = False) -> str:
    """Returns a run's folder within its comparison. A frozen run has its own, because it may use what another run
    learnt."""
    name = policy if sync == "none" else f"{policy}-{sync}{'-frozen' if frozen else ''}"
    return f"{name}-live" if live else name


def _last(counts: list[int]) -> int:
    return counts[-1] if counts else 0


def _or_none(number: float) -> float | None:
    return None if math.isnan(number) else number


def poisson_interval(count: int, z: float = Z_95) -> tuple[float, float]:
    """Returns the confidence interval of a Poisson mean after `count` events (Byar's approximation of the exact
    one)."""
    low = 0.0 if count == 0 else count * (1 - 1 / (9 * count) - z / (3 * math.sqrt(count))) ** 3
    more = count + 1
    return low, more * (1 - 1 / (9 * more) + z / (3 * math.sqrt(more))) ** 3


def share_interval(share: float, count: int, z: float = Z_95) -> tuple[float, float]:
    """Returns Wilson's confidence interval of a share of `count`. Loops are not independent, so it is somewhat too
    narrow."""
    if count == 0:
        return 0.0, 1.0
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
