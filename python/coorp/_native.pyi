"""The simulator, live robots and the command line, native (crates/py)."""

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

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

# A robot of a live team. Times that are given are seconds, or a text with a unit ("33ms"); ages are seconds.

class NodeError(RuntimeError):
    """The network, the machine or another robot did not do its part. The text says what happened."""

T = TypeVar("T", covariant=True)

@final
class Waiting(Generic[T]):
    """Something that comes some time. Await it once, on an event loop of a Unix selector (asyncio's own, uvloop)."""

    def __await__(self) -> Generator[Any, None, T]: ...
    def fileno(self) -> int:
        """The file that becomes readable when it is worth another poll."""
    def poll(self) -> tuple[T] | None:
        """What has come, in a tuple; None while nothing has."""

@final
class Node:
    """A robot that takes part in its team, until it is closed. There is one a robot, in one process.

    `team` is the path of a team file, or the text of one (which has line breaks), and `robot` a name in it. `insecure`
    does without the team's keys: anyone who reaches the network may then read, speak for robots and hand out permits,
    and there is no bulk; a RuntimeWarning says so. `state` is the folder for bulk that has come; by default below
    `$XDG_STATE_HOME` or `~/.local/state`. Where RUST_LOG is set, what the robot does is written to standard error.

    Every method may be called from any thread. What blocks lets go of the GIL, and a Ctrl-C ends it. `put` and `write`
    let go of it for more than 64 KiB, which no other thread may change meanwhile. Nodes that are open when the
    interpreter ends are closed.

    Raises InputError where there is something to mend, such as missing keys, and NodeError where ports are taken.
    """

    def __new__(
        cls,
        team: str | os.PathLike[str],
        robot: str,
        *,
        policy: str = "coorp",
        insecure: bool = False,
        state: str | os.PathLike[str] | None = None,
    ) -> Node: ...
    @property
    def robot(self) -> str:
        """This robot's name."""
    @property
    def leader(self) -> str | None:
        """The name of the robot that leads, as far as is known."""
    def control_publisher(self, name: str, period: str | float | None = None) -> ControlPublisher:
        """Sends control messages on a topic: predicted, ahead of bulk, over the paths that are best. `period`
        where they come at one, which saves learning it: "33ms", or seconds; 10 us to 1 h."""
    def control_subscriber(self, name: str) -> ControlSubscriber:
        """Receives the control messages of all robots on a topic, this robot's own included."""
    def bulk_stream(self, to: str, name: str) -> BulkStream:
        """Begins a bulk message to a robot, or to "leader": whoever leads now, or else the team file's leader. It stays
        addressed to that robot: where that dies, and does not come back, it fails after a minute, though another one
        leads. InputError where this robot is the one that leads, as it is once it has taken over."""
    def bulk_receiver(self) -> BulkReceiver:
        """Receives bulk messages of all robots, those that came before included."""
    def gather(self, name: str, period: str | float, *, many_to_one: bool = False) -> Gather:
        """Gathers the states that robots publish on a topic, into one list a period ("33ms", or seconds; 0.5 ms to
        60 s). With `many_to_one` all robots have one topic's number, else each its own; they cost the same."""
    def status(self) -> dict[str, Any]:
        """The robot as `coorp watch` sees it; robots are numbers, by their place in the team file."""
    def serve_metrics(self, port: int = 0) -> int:
        """Serves metrics for Prometheus at http://127.0.0.1:<port>/metrics, and returns the port; 0 is a free one."""
    def record(self, path: str | os.PathLike[str]) -> None:
        """Records all that this robot decides into a new MCAP file, until `stop_recording` or `close`. A disk that
        takes no more ends it; the robot goes on."""
    def stop_recording(self) -> None:
        """Ends the recording with its index; NodeError where not all could be written."""
    def close(self) -> None:
        """Leaves the team. Whoever waits for something gets a NodeError."""
    def __enter__(self) -> Node: ...
    def __exit__(self, *_raised: object) -> None: ...

@final
class ControlPublisher:
    """Sends the control messages of one topic, from `Node.control_publisher`."""

    def put(self, message: Buffer | npt.NDArray[Any] | np.generic) -> None:
        """Sends a message of at most 16 MiB: bytes, an array without gaps, any buffer. Does not wait; where the network
        takes no more it is dropped, as a newer one will follow."""
    def close(self) -> None:
        """Ends the topic."""

@final
class ControlSubscriber:
    """Receives one topic, from `Node.control_subscriber`. Whoever is slow gets each robot's newest message."""

    def recv(self, timeout: float | None = None) -> Message:
        """Waits for a message; TimeoutError after `timeout` seconds."""
    def try_recv(self) -> Message | None:
        """The message that waits longest, if any does."""
    def next(self) -> Waiting[Message]:
        """The same to await."""

@final
class Message:
    """A control message that came."""

    @property
    def sender(self) -> str:
        """The robot that sent it."""
    @property
    def sequence(self) -> int:
        """The how manieth of its topic since its sender started, from 0."""
    @property
    def path(self) -> str:
        """The path that brought it first: an interface or an address of this robot, or "any"."""
    @property
    def age(self) -> float | None:
        """How old it was when it was taken, seconds; None before the leader's clock is known to both ends."""
    @property
    def age_error(self) -> float | None:
        """By how much that may be off, seconds, as this robot's clock is known; the sender's comes on top."""
    @property
    def data(self) -> bytes:
        """Its content, copied when it is first asked for; `numpy.frombuffer(message.data, dtype)` does not copy it."""
    def __bytes__(self) -> bytes: ...

@final
class BulkStream:
    """A bulk message that is being written, from `Node.bulk_stream`.

    As a context manager, `with` or `async with`, it waits at the end until the message is delivered, and raises
    NodeError where it has failed. Where the block itself raises, the message is not sent.
    """

    def write(self, buffer: Buffer | npt.NDArray[Any] | np.generic) -> None:
        """More of the message: bytes, an array without gaps, any buffer. InputError where it would be longer than
        64 GiB; then nothing of this is written."""
    def finish(self) -> Delivery:
        """That was all: the message goes as soon as it may. Does not wait. NodeError where 64 wait for its receiver
        already; it is kept then, to be finished once one of them is delivered."""
    def __enter__(self) -> BulkStream: ...
    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Waiting[BulkStream]: ...
    def __aexit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> Waiting[None]: ...

@final
class Delivery:
    """What becomes of a bulk message. It goes on its way whether anybody waits or not."""

    @property
    def state(self) -> Literal["pending", "whole", "failed"]:
        """Whole: delivered, checked, and on its receiver's disk."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is whole; NodeError where it has failed, TimeoutError after `timeout` seconds."""
    def __await__(self) -> Generator[Any]: ...

@final
class BulkReceiver:
    """Receives bulk messages, each once, from `Node.bulk_receiver`."""

    def recv(self, timeout: float | None = None) -> BulkMessage:
        """Waits for a message; TimeoutError after `timeout` seconds."""
    def try_recv(self) -> BulkMessage | None:
        """The oldest message that nobody has received, if there is one."""
    def next(self) -> Waiting[BulkMessage]:
        """The same to await."""

@final
class BulkMessage:
    """A bulk message that has arrived whole. It stays on disk until it is taken, over restarts too.

    Where it cannot be taken, which is an OSError, it is still there, and may be taken again.
    """

    @property
    def sender(self) -> str:
        """The robot that sent it."""
    @property
    def name(self) -> str:
        """What its sender calls it."""
    @property
    def length(self) -> int:
        """Bytes."""
    @property
    def path(self) -> Path:
        """The file that it is in, until it is taken."""
    def take(self) -> npt.NDArray[np.uint8]:
        """Takes it into memory, off the disk. `.view(dtype)` makes it what it was."""
    def take_to(self, path: str | os.PathLike[str]) -> None:
        """Moves it to a file, which is replaced; to another disk it is copied, and has the file's name once all of it
        is there."""

@final
class Gather:
    """A list of all robots' newest states once a period, from `Node.gather`. Robots may come and go."""

    def recv(self, timeout: float | None = None) -> dict[str, RobotState]:
        """Waits for the newest list that was not taken yet; TimeoutError after `timeout` seconds. By robot, in the team
        file's order; a robot is on it once it has sent a state."""
    def try_recv(self) -> dict[str, RobotState] | None:
        """That list, if there is one."""
    def next(self) -> Waiting[dict[str, RobotState]]:
        """The same to await."""
    def updates(self) -> dict[str, tuple[int, int, int]]:
        """By robot: lists on which a fresh state was due, those that had none, and states that were old or copies."""

@final
class RobotState:
    """A robot's newest state."""

    @property
    def sender(self) -> str:
        """The robot."""
    @property
    def fresh(self) -> bool:
        """Whether it came since the last list; if not, the robot has missed its update."""
    @property
    def age(self) -> float | None:
        """How old it was when the list was taken (T4 - T1), seconds; None before clocks were compared."""
    @property
    def age_error(self) -> float | None:
        """By how much that may be off, seconds."""
    @property
    def stamps_ns(self) -> tuple[int | None, int, int, int]:
        """When it was made (T1), received (T2), listed (T3) and taken (T4), on this robot's clock, ns."""
    @property
    def data(self) -> bytes:
        """Its content, copied when it is first asked for."""
    def __bytes__(self) -> bytes: ...

def close_all() -> None:
    """Closes every node that is open."""

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
