"""The simulator and the command line, native (crates/py)."""

import os
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

__version__: str

class InputError(ValueError):
    """Something for you to mend: a team file, a policy, an option. The text says what and how."""

class BrokenRuleError(RuntimeError):
    """A run broke a rule that always holds: a defect of Coorp. Please report it with the text."""

@final
class Learning:
    """What `[learning]` says, read only."""

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of one parameter on the air."""
    @property
    def sync(self) -> str:
        """How rounds are kept in step: "bsp", "ssp" or "asp"."""
    @property
    def staleness(self) -> int | None:
        """Rounds that a robot may be ahead of the slowest; None but for "ssp"."""
    @property
    def batch_loops(self) -> int:
        """MPC loops in a batch."""
    @property
    def rounds(self) -> int:
        """Rounds of training and synchronisation on one batch."""
    @property
    def training_s(self) -> list[float]:
        """Median time of a round of training, robot by robot, seconds."""
    @property
    def item_bytes(self) -> int:
        """Size of the training data of one loop, bytes."""

@final
class Team:
    """What the team file says, read only."""

    @property
    def name(self) -> str:
        """The team's name."""
    @property
    def robots(self) -> list[str]:
        """The robots' names; an event's `robot` is an index into them."""
    @property
    def leader(self) -> int:
        """Index of the robot that leads."""
    @property
    def period_s(self) -> float | None:
        """Time between perceptions of one robot, seconds; None without `[control]`, as for the next three."""
    @property
    def bound_s(self) -> float | None:
        """The reaction bound, seconds."""
    @property
    def perception_bytes(self) -> int | None:
        """Size of a perception, bytes."""
    @property
    def command_bytes(self) -> int | None:
        """Size of a control message to one robot, bytes."""
    @property
    def learning(self) -> Learning | None:
        """What `[learning]` says; None without it."""

@final
class Result:
    """What a run gave. Fields that the team file gives no ground for (no control loop, no learning) are None."""

    @property
    def policy(self) -> str:
        """The policy's name."""
    @property
    def violation_rate(self) -> float | None:
        """Share of MPC loops that took longer than the reaction bound, 0 to 1."""
    @property
    def loops(self) -> int:
        """MPC loops that ended."""
    @property
    def reaction_ms(self) -> dict[str, float] | None:
        """Reaction time of those loops: p10, p50, p90, p99, p999 and mean, ms."""
    @property
    def control_latency_ms(self) -> dict[str, float] | None:
        """Latency of control messages, sender's stack to receiver's: as `reaction_ms`, ms."""
    @property
    def bulk_mbps(self) -> float | None:
        """Bulk payload delivered a second of time in which some was waiting or under way, Mbit/s."""
    @property
    def epochs(self) -> int:
        """Learning epochs that ended."""
    @property
    def epoch_s(self) -> float | None:
        """Mean time of an epoch, seconds; None before the first has ended."""
    @property
    def wnic_ahead(self) -> dict[str, float] | None:
        """Bulk packets in the sender's WNIC when a control packet reaches it: mean and p99."""
    @property
    def window_share(self) -> float:
        """Share of time in which a robot that had bulk to send was inside a protection or ST window, 0 to 1."""
    @property
    def virtual_s(self) -> float:
        """Simulated seconds."""
    @property
    def wall_s(self) -> float:
        """Seconds that the simulation took. Not reproducible."""
    @property
    def events(self) -> int:
        """Events that the simulator processed."""
    @property
    def flows(self) -> list[dict[str, Any]]:
        """One entry a `[[flow]]`: name, mbps, sent, delivered, latency_ms."""
    @property
    def mac(self) -> dict[str, Any]:
        """What the MAC did: collisions, retries, airtime_share (data, control, idle)."""
    @property
    def reaction_cdf(self) -> npt.NDArray[np.float64]:
        """Reaction time's CDF, of shape (n, 2): ms, share of loops at or below."""
    @property
    def control_cdf(self) -> npt.NDArray[np.float64]:
        """Control latency's CDF, likewise."""
    @property
    def throughput(self) -> npt.NDArray[np.float64]:
        """Bulk throughput, of shape (n, 2): the second's end, Mbit/s in that second."""
    def to_dict(self) -> dict[str, Any]:
        """The numbers as `coorp sim --json` has them."""
    def to_json(self) -> str:
        """The same as JSON."""

@final
class Session:
    """A run that is taken step by step. However it is stepped, a seed gives the same events and the same result.

    `sync` ("bsp", "ssp" or "asp") and `staleness` (rounds, for ssp) replace what the team file says.
    """

    def __new__(
        cls,
        team: str | os.PathLike[str],
        policy: str = "coorp",
        *,
        seed: int = 1,
        sync: str | None = None,
        staleness: int | None = None,
    ) -> Session: ...
    @property
    def team(self) -> Team:
        """The team that runs."""
    @property
    def now_s(self) -> float:
        """The virtual time that it has come to, seconds."""
    def advance(self, until_s: float) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """Lets everything up to `until_s` (virtual seconds, inclusive) happen, and returns it as an array of
        `coorp.EVENT_DTYPE`, ordered by time: `t_ns` (virtual time, ns), `kind` (`coorp.EventKind`), `robot` (index;
        the leader's where it is about the whole team), `number` (see `coorp.EventKind`).

        A signal such as Ctrl-C is seen in between. If its handler raises, nothing is lost: the next call goes on from
        there, and returns what has happened since the last one that returned.
        """
    def result(self) -> Result:
        """The run so far."""

def simulate(
    team: str | os.PathLike[str],
    policy: str = "coorp",
    *,
    duration_s: float = 60.0,
    seed: int = 1,
    faults: bool = False,
    sync: str | None = None,
    staleness: int | None = None,
) -> Result:
    """Simulates a team under a policy.

    `team` is the path of a team file, or the text of one (which has line breaks). `duration_s` is virtual seconds.
    `faults` lets robots die, freeze and restart, messages get lost, and clocks step. `sync` ("bsp", "ssp" or "asp")
    and `staleness` (rounds, for ssp) replace what the team file says.

    Raises InputError, with the command line's text, where there is something to mend.
    """

def check(team: str | os.PathLike[str]) -> Team:
    """Reads a team file (a path, or a text) and says what is in it; InputError names every problem with its line."""

def event_dtype() -> np.dtype[np.void]:
    """The dtype of `Session.advance`'s arrays: `coorp.EVENT_DTYPE`."""

def main(arguments: Sequence[str]) -> int:
    """Runs the command line, without the program's name, and returns its exit code."""

# The hot parts of coorp.envs

@final
class NavigationDynamics:
    """`coorp.envs.dynamics.NumpyDynamics`, compiled. Reads its numbers off a `coorp.envs.Task`."""

    def __init__(self, task: object) -> None: ...
    def advance(
        self,
        robots: npt.NDArray[np.float64],
        status: npt.NDArray[np.uint8],
        obstacles: npt.NDArray[np.float64],
        tick: int,
        ticks: int,
    ) -> int: ...

def perceive(
    robots: npt.NDArray[np.float64],
    status: npt.NDArray[np.uint8],
    obstacles: npt.NDArray[np.float64],
    size_m: Sequence[float],
    radii_m: Sequence[float],
    only: int | None = None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Images (n, 64, 64, 3) and numbers (n, 9) of all robots, or of one `only`; radii of a robot and of a goal."""
