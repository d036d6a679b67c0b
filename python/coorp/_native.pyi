"""The simulator, live robots and the command line, native (crates/py)."""

import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

__version__: str

class InputError(ValueError):
    """Invalid input: a team file, a policy or an option. The text says what is wrong and how to fix it."""

class BrokenRuleError(RuntimeError):
    """A run violated an invariant: a bug in Coorp. Please report it with this text."""

@final
class Learning:
    """The contents of `[learning]`, read-only."""

    @property
    def parameters(self) -> int:
        """Number of model parameters."""
    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of one parameter on the air."""
    @property
    def sync(self) -> str:
        """How rounds are synchronised: "bsp", "ssp" or "asp"."""
    @property
    def staleness(self) -> int | None:
        """Rounds that a robot may be ahead of the slowest; None unless `sync` is "ssp"."""
    @property
    def batch_loops(self) -> int:
        """MPC loops in a batch."""
    @property
    def rounds(self) -> int:
        """Rounds of training and synchronisation on one batch."""
    @property
    def training_s(self) -> list[float]:
        """Median duration of a training round for each robot, in seconds."""
    @property
    def item_bytes(self) -> int:
        """Size of the training data of one loop, in bytes."""

@final
class Team:
    """The contents of a team file, read-only."""

    @property
    def name(self) -> str:
        """The team's name."""
    @property
    def robots(self) -> list[str]:
        """The robots' names; an event's `robot` is an index into them."""
    @property
    def leader(self) -> int:
        """Index of the leader."""
    @property
    def period_s(self) -> float | None:
        """Time between perceptions of one robot, in seconds. This and the next three are None without `[control]`."""
    @property
    def bound_s(self) -> float | None:
        """The reaction bound, in seconds."""
    @property
    def perception_bytes(self) -> int | None:
        """Size of a perception, in bytes."""
    @property
    def command_bytes(self) -> int | None:
        """Size of a control message to one robot, in bytes."""
    @property
    def learning(self) -> Learning | None:
        """The contents of `[learning]`; None without it."""

@final
class Result:
    """The result of a run. Fields that do not apply to the team file (no control loop, no learning) are None."""

    @property
    def policy(self) -> str:
        """The policy's name."""
    @property
    def violation_rate(self) -> float | None:
        """Share of MPC loops that took longer than the reaction bound, from 0 to 1."""
    @property
    def loops(self) -> int:
        """Number of completed MPC loops."""
    @property
    def reaction_ms(self) -> dict[str, float] | None:
        """Reaction time of those loops: p10, p50, p90, p99, p999 and mean, in ms."""
    @property
    def control_latency_ms(self) -> dict[str, float] | None:
        """Latency of control messages from the sender's stack to the receiver's: as `reaction_ms`, in ms."""
    @property
    def perception_latency_ms(self) -> dict[str, float] | None:
        """Latency of perceptions only, in the same form."""
    @property
    def command_latency_ms(self) -> dict[str, float] | None:
        """Latency of commands only, in the same form."""
    @property
    def bulk_mbps(self) -> float | None:
        """Bulk payload delivered, in Mbit/s, over the time in which bulk was waiting or in flight."""
    @property
    def epochs(self) -> int:
        """Number of completed learning epochs."""
    @property
    def epoch_s(self) -> float | None:
        """Mean duration of an epoch, in seconds; None before the first has ended."""
    @property
    def wnic_ahead(self) -> dict[str, float] | None:
        """Bulk packets in the sender's WNIC when a control packet arrives there: mean, p99, and the share with none."""
    @property
    def window_share(self) -> float:
        """Share of the time that a robot with bulk to send spent inside protection or ST windows, from 0 to 1."""
    @property
    def virtual_s(self) -> float:
        """Simulated seconds."""
    @property
    def wall_s(self) -> float:
        """Wall-clock seconds of the simulation. Not reproducible."""
    @property
    def events(self) -> int:
        """Number of events that the simulator processed."""
    @property
    def flows(self) -> list[dict[str, Any]]:
        """One entry per `[[flow]]`: name, mbps, sent, delivered, latency_ms."""
    @property
    def mac(self) -> dict[str, Any]:
        """MAC statistics: collisions, retries, airtime_share (data, control, idle)."""
    @property
    def reaction_cdf(self) -> npt.NDArray[np.float64]:
        """CDF of the reaction time, of shape (n, 2): ms, share of loops at or below."""
    @property
    def control_cdf(self) -> npt.NDArray[np.float64]:
        """CDF of the control latency, in the same form."""
    @property
    def throughput(self) -> npt.NDArray[np.float64]:
        """Bulk throughput, of shape (n, 2): end of the second, Mbit/s in that second."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers as in `coorp sim --json`."""
    def to_json(self) -> str:
        """Returns the same as JSON."""

@final
class Session:
    """A run that is advanced step by step. A seed gives the same events and the same result for any step sizes.

    `sync` ("bsp", "ssp" or "asp") and `staleness` (rounds, for ssp) override the team file.
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
        """The team of this run."""
    @property
    def now_s(self) -> float:
        """The current virtual time, in seconds."""
    def advance(self, until_s: float) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """Advances to `until_s` (virtual seconds, inclusive) and returns the events up to then as an array of
        `coorp.EVENT_DTYPE`, ordered by time. Its fields are `t_ns` (virtual time in ns), `kind` (`coorp.EventKind`),
        `robot` (index; the leader's if the event concerns the whole team) and `number` (see `coorp.EventKind`).

        Signals such as Ctrl-C are handled in between. If a handler raises, nothing is lost: the next call continues
        from there, and returns all events since the last call that returned.
        """
    def result(self) -> Result:
        """Returns the result so far."""

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

    `team` is the path of a team file, or its text (with line breaks). `duration_s` is in virtual seconds.
    `faults` makes robots die, freeze and restart, messages get lost, and clocks step. `sync` ("bsp", "ssp" or "asp")
    and `staleness` (rounds, for ssp) override the team file.

    Raises InputError for invalid input, with the command line's message.
    """

def check(team: str | os.PathLike[str]) -> Team:
    """Reads a team file (a path or its text) and returns its contents. InputError lists every problem with its line."""

def event_dtype() -> np.dtype[np.void]:
    """Returns the dtype of `Session.advance`'s arrays: `coorp.EVENT_DTYPE`."""

def main(arguments: Sequence[str]) -> int:
    """Runs the command line, without the program's name, and returns its exit code."""

# A robot of a live team. Time arguments are seconds, or text with a unit ("33ms"); ages are in seconds.

class NodeError(RuntimeError):
    """The network, the machine or another robot failed. The text says what happened."""

T = TypeVar("T", covariant=True)

@final
class Waiting(Generic[T]):
    """A result that arrives later. Await it once, on an event loop with a Unix selector (asyncio's own, uvloop)."""

    def __await__(self) -> Generator[Any, None, T]: ...
    def fileno(self) -> int:
        """Returns the file descriptor that becomes readable when another poll is worthwhile."""
    def poll(self) -> tuple[T] | None:
        """Returns the result, in a tuple; None while there is none."""

@final
class Node:
    """A robot that takes part in its team until it is closed.

    If the robot's agent (`coorp up`) runs on this machine, any number of programs may open nodes for the robot, as
    guests of the agent. Without an agent, the first program is the robot itself, and the only one.

    `team` is the path of a team file, or its text (with line breaks), and `robot` a name in it. `insecure` runs without
    the team's keys: anyone on the network can then read messages, impersonate robots and grant permits, and bulk is
    disabled. A RuntimeWarning says so. `state` is the folder for received bulk, by default below `$XDG_STATE_HOME`,
    `~/.local/state`, or `/var/lib/coorp` without a home. If RUST_LOG is set, the robot logs to standard error.

    Every method may be called from any thread. Blocking calls release the GIL, and Ctrl-C interrupts them. `put` and
    `write` release it for more than 64 KiB; no other thread may change the buffer in the meantime. Nodes that are still
    open when the interpreter ends are closed.

    Raises InputError for invalid input, such as missing keys or an agent that does not admit this program, and
    NodeError if ports are taken.
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
    def guest(self) -> bool:
        """Whether this program is a guest of the robot's agent (`coorp up`), and not the robot itself."""
    @property
    def leader(self) -> str | None:
        """The name of the leader, if known."""
    def control_publisher(
        self, name: str, period: str | float | None = None, *, bound: str | float | None = None
    ) -> ControlPublisher:
        """Publishes control messages on a topic: predicted, ahead of bulk, over the best paths. Give `period` if they
        are periodic, so that it need not be learned: "33ms", or seconds; 10 us to 1 h. Give `bound`, the age at which a
        message is late: then bulk is held back only as much as late messages require."""
    def control_subscriber(self, name: str) -> ControlSubscriber:
        """Receives the control messages of all robots on a topic, including this robot's own."""
    def bulk_stream(self, to: str, name: str) -> BulkStream:
        """Starts a bulk message to a robot, or to "leader": the current leader, or the team file's leader if none is
        known. The receiver stays fixed: if it dies and does not return, the message fails after a minute, even if
        another robot leads by then. Raises InputError if this robot itself leads, as it does after taking over."""
    def bulk_receiver(self) -> BulkReceiver:
        """Receives bulk messages of all robots, including those that arrived earlier."""
    def gather(self, name: str, period: str | float, *, many_to_one: bool = False) -> Gather:
        """Gathers the states that robots publish on a topic into one list per period ("33ms", or seconds; 0.5 ms to
        60 s). With `many_to_one` all robots share a topic number, otherwise each has its own; both cost the same."""
    def status(self) -> dict[str, Any]:
        """Returns the robot's status as in `coorp watch`; robots are identified by their index in the team file."""
    def serve_metrics(self, port: int = 0) -> int:
        """Serves Prometheus metrics at http://127.0.0.1:PORT/metrics and returns the port; 0 selects a free one.
        Raises InputError if this program is a guest, as does `record`: the agent's options do the same."""
    def record(self, path: str | os.PathLike[str]) -> None:
        """Records all of this robot's decisions into a new MCAP file until `stop_recording` or `close`. A full disk
        ends the recording; the robot continues."""
    def stop_recording(self) -> None:
        """Ends the recording and writes its index; NodeError if not everything could be written."""
    def close(self) -> None:
        """Leaves the team. Pending waits raise NodeError."""
    def __enter__(self) -> Node: ...
    def __exit__(self, *_raised: object) -> None: ...

@final
class ControlPublisher:
    """Publishes the control messages of one topic, from `Node.control_publisher`."""

    def put(self, message: Buffer | npt.NDArray[Any] | np.generic) -> None:
        """Sends a message of at most 16 MiB: bytes, a contiguous array, or any buffer. Does not block; if the network
        is congested, the message is dropped, because a newer one will follow."""
    def close(self) -> None:
        """Stops publishing."""

@final
class ControlSubscriber:
    """Receives one topic, from `Node.control_subscriber`. A slow receiver gets each robot's newest message."""

    def recv(self, timeout: float | None = None) -> Message:
        """Waits for a message; TimeoutError after `timeout` seconds."""
    def try_recv(self) -> Message | None:
        """Returns the oldest waiting message, if any."""
    def next(self) -> Waiting[Message]:
        """Returns the next message, to be awaited."""

@final
class Message:
    """A received control message."""

    @property
    def sender(self) -> str:
        """The robot that sent the message."""
    @property
    def sequence(self) -> int:
        """Zero-based sequence number within the topic since the sender started."""
    @property
    def path(self) -> str:
        """The path on which the first copy arrived: an interface or an address of this robot, or "any"."""
    @property
    def age(self) -> float | None:
        """Age of the message when it was taken, in seconds; None until both ends know the leader's clock."""
    @property
    def age_error(self) -> float | None:
        """Error bound of `age` from this robot's clock, in seconds; the sender's error adds to it."""
    @property
    def data(self) -> bytes:
        """Content, copied on first access; `numpy.frombuffer(message.data, dtype)` does not copy it again."""
    def __bytes__(self) -> bytes: ...

@final
class BulkStream:
    """A bulk message being written, from `Node.bulk_stream`.

    As a context manager, with `with` or `async with`, it waits at the end until the message is delivered, and raises
    NodeError if delivery fails. If the block itself raises, the message is not sent.
    """

    def write(self, buffer: Buffer | npt.NDArray[Any] | np.generic) -> None:
        """Appends to the message: bytes, a contiguous array, or any buffer. Raises InputError, without writing any of
        it, if the message would exceed 64 GiB."""
    def finish(self) -> Delivery:
        """Completes the message, which is sent as soon as permitted. Does not block. Raises NodeError if 64 messages
        already wait for its receiver; the message is kept, and can be finished once one of those is delivered."""
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
    """The delivery of a bulk message. It proceeds whether or not anyone waits for it."""

    @property
    def state(self) -> Literal["pending", "whole", "failed"]:
        """The state. "whole": delivered, checked, and on the receiver's disk."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits until the message is whole; NodeError if delivery fails, TimeoutError after `timeout` seconds."""
    def __await__(self) -> Generator[Any]: ...

@final
class BulkReceiver:
    """Receives bulk messages, each once, from `Node.bulk_receiver`."""

    def recv(self, timeout: float | None = None) -> BulkMessage:
        """Waits for a message; TimeoutError after `timeout` seconds."""
    def try_recv(self) -> BulkMessage | None:
        """Returns the oldest message not yet received, if any."""
    def next(self) -> Waiting[BulkMessage]:
        """Returns the next message, to be awaited."""

@final
class BulkMessage:
    """A bulk message that has arrived completely. It stays on disk until it is taken, across restarts too.

    If taking it fails with an OSError, the message is still there and can be taken again.
    """

    @property
    def sender(self) -> str:
        """The robot that sent the message."""
    @property
    def name(self) -> str:
        """The name that the sender gave."""
    @property
    def length(self) -> int:
        """Length in bytes."""
    @property
    def path(self) -> Path:
        """The file that contains the message until it is taken."""
    def take(self) -> npt.NDArray[np.uint8]:
        """Moves the message from disk into memory. `.view(dtype)` restores the original array type."""
    def take_to(self, path: str | os.PathLike[str]) -> None:
        """Moves the message to a file, replacing any existing one. On another disk, it is a copy, which gets the file's
        name once it is complete."""

@final
class Gather:
    """A list of all robots' newest states, once per period, from `Node.gather`. Robots may come and go."""

    def recv(self, timeout: float | None = None) -> dict[str, RobotState]:
        """Waits for the newest list not yet taken; TimeoutError after `timeout` seconds. Keyed by robot, in the team
        file's order; a robot appears once it has sent a state."""
    def try_recv(self) -> dict[str, RobotState] | None:
        """Returns the newest list not yet taken, if any."""
    def next(self) -> Waiting[dict[str, RobotState]]:
        """Returns the next list, to be awaited."""
    def updates(self) -> dict[str, tuple[int, int, int]]:
        """Returns, by robot: lists on which a fresh state was due, lists without one, and states that were old or
        duplicates."""

@final
class RobotState:
    """A robot's newest state."""

    @property
    def sender(self) -> str:
        """The robot."""
    @property
    def fresh(self) -> bool:
        """Whether the state arrived since the last list; if not, the robot has missed its update."""
    @property
    def age(self) -> float | None:
        """Age of the state when the list was taken (T4 - T1), in seconds; None until clocks have been compared."""
    @property
    def age_error(self) -> float | None:
        """Error bound of `age`, in seconds."""
    @property
    def stamps_ns(self) -> tuple[int | None, int, int, int]:
        """The times at which the state was created (T1), received (T2), listed (T3) and taken (T4), in ns on this
        robot's clock."""
    @property
    def data(self) -> bytes:
        """Content, copied on first access."""
    def __bytes__(self) -> bytes: ...

def close_all() -> None:
    """Closes every open node."""

# Robots of `coorp emu --demo` with content in their messages. Private, for `coorp.learn.live`.

class _Follower(Protocol):
    def begins(self, at_ns: int, /) -> None: ...
    def perceive(self, sample: int, /) -> tuple[bool, Buffer]: ...
    def on_command(self, number: int, content: bytes, /) -> None: ...
    def on_partition(self, content: bytes, /) -> None: ...
    def on_model(self, content: bytes, /) -> None: ...
    def train(self) -> Buffer: ...

class _Leader(Protocol):
    def begins(self, at_ns: int, /) -> None: ...
    def on_perception(self, robot: int, sample: int, content: bytes, /) -> None: ...
    def infer(self, number: int, /) -> bool: ...
    def command(self, number: int, robot: int, /) -> Buffer: ...
    def on_command(self, number: int, content: bytes, /) -> None: ...
    def on_event(self, kind: int, robot: int, /) -> None: ...
    def to_worker(self, robot: int, /) -> Buffer: ...
    def train(self) -> Buffer: ...
    def on_update(self, robot: int, content: bytes, /) -> None: ...

def prepare_members(team: str | os.PathLike[str], policy: str, folder: str | os.PathLike[str]) -> None:
    """Makes the robots' keys in a run's folder. Raises InputError if the policy has no live form."""

def run_member(
    team: str | os.PathLike[str],
    policy: str,
    folder: str | os.PathLike[str],
    *,
    duration_s: float,
    content: _Follower | _Leader,
    sync: str | None = None,
    staleness: int | None = None,
) -> None:
    """Takes part in a run as the robot that `coorp emu` started this process for, and leaves its record in the folder.

    Calls `content` from several threads: for the content of messages, and when some arrive. The run ends early if
    `perceive` or `infer` says that it does not go on. An exception ends it too, and is raised here.
    """

def member_figures(team: str | os.PathLike[str], policy: str, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns what the robots of a run measured, as in the JSON of `coorp emu --demo`; RuntimeError if a robot left no
    record."""

# The checks of coorp.reactor

class ProgramError(ValueError):
    """A reactor program that cannot run. The text names each problem, with its line of the file if it has one."""

@final
class ReactorGraph:
    """A checked reactor program. Its ids are the native runtime's."""

    def __init__(self, program: str) -> None:
        """Checks a program: the JSON of `coorp_core::logical::Program`, with durations in ns. ProgramError if it cannot
        run."""
    def element(self, name: str) -> int:
        """Returns the id of a port, timer or action, by its full name ("camera.frame"); KeyError if there is none."""
    def reaction(self, name: str) -> int:
        """Returns the id of a reaction, by its full name; KeyError if there is none."""
    def cycles(self) -> list[int | None]:
        """Returns, for each federate, the zero-delay cycle that contains it."""
    def levels(self) -> list[int]:
        """Returns the level of each reaction, by id. At one tag, reactions of one level are independent of each
        other."""

class _ProgramProblem(TypedDict):
    kind: str
    message: str
    names: list[str]

def check_program(program: str) -> list[_ProgramProblem]:
    """Returns every problem of a program, at most 100: its kind ("CausalityCycle"), a message, and the full names
    involved."""

class RunError(RuntimeError):
    """A program that did not run to its end. The text says why, and what to do."""

class PeerError(RunError):
    """A program that did not run to its end because another of its processes died."""

@final
class Runner:
    """Runs one federate of a program. The setting `time_of_day`, which several robots need, makes the time of day its
    clock; otherwise that is the machine's monotonic clock."""

    def __init__(self, graph: ReactorGraph, federate: int, settings: dict[str, Any]) -> None: ...
    def bind(
        self,
        reaction: int,
        body: Callable[[], object],
        late: Callable[[], object] | None,
        reads: list[tuple[int, Any]],
        effects: list[Any],
        moment: object,
        title: str,
    ) -> None:
        """Gives a reaction its code, the objects to set before it runs, the list in which its calls note their effects,
        and its name in errors."""
    def loan(self, output: int, size: int) -> Loan | None:
        """Returns memory for a value of this output, or None if no other process reads it."""
    def schedule(self, action: int, value: object = None) -> None:
        """Makes a physical action happen now. May be called from any thread."""
    def request_stop(self) -> None:
        """Requests the end of the program. May be called from any thread."""
    def run(self) -> dict[str, Any]:
        """Runs until the end of the program, and returns the counters."""

@final
class Coordinator:
    """Coordinates a program on several processes."""

    def __init__(self, graph: ReactorGraph, settings: dict[str, Any]) -> None: ...
    def run(self) -> None:
        """Blocks until the program is over, or until `quit`."""
    def request_stop(self) -> None:
        """Requests the end of the program. May be called from any thread."""
    def quit(self) -> None:
        """Makes `run` return. May be called from any thread."""

@final
class Bridge:
    """Spreads a program over robots. Each robot needs a bridge in the domain of its federates, opened before they
    start.

    `robots` names the robot of each federate. Settings: `domain`, this robot's; `rti`, the robot with the coordinator,
    by default the first federate's; `silence_max_ns`, after which a robot is gone (5 s); `start_max_ns`, the longest
    wait for the coordinator's robot (30 s); `store_bytes`. Values of more than 64 KiB are bulk, so the node needs its
    keys. The federates need the setting `time_of_day`.

    Raises RunError if a federate is already running.
    """

    def __init__(self, graph: ReactorGraph, robots: list[str], node: Node, settings: dict[str, Any]) -> None: ...
    def run(self) -> None:
        """Blocks until the federates of this robot have started and ended; on the coordinator's robot, those of all
        robots. RunError if the coordinator's robot cannot be reached; then a federate here coordinates the remaining
        ones."""
    def quit(self) -> None:
        """Makes `run` return. May be called from any thread."""

def placement_entries(
    text: str,
) -> tuple[list[tuple[str | None, str, int, list[tuple[str, int]]]], list[tuple[int, str]]]:
    """Reads a placement file. Returns robot, process, line, and reactors with their lines; and problems with their
    lines."""

# The hot parts of coorp.envs

@final
class NavigationDynamics:
    """The compiled form of `coorp.envs.dynamics.NumpyDynamics`, with the parameters of a `coorp.envs.Task`."""

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
    nearby: tuple[int, float],
    only: int | None = None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Returns images (n, 64, 64, 3) and vectors (n, 9 + 5 k) of all robots, or of robot `only`. Needs the radii of a
    robot and a goal, the number k of obstacles to measure, and the distance up to which that is possible."""

def surroundings(
    vectors: npt.NDArray[np.float32], limits: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Returns what the driver of `coorp.learn` reads: each robot (teams, n, 17), the objects around it (teams, n, m,
    28), and which of these are there. Needs the robots' vectors (teams, n, 9 + 5 k) and the teams' limits (teams, 6):
    full speed and turn, width, height, a robot's radius, and how near to walls obstacles come."""

@final
class Planner:
    """The search of `coorp.envs.Planner`, with the parameters of a `coorp.envs.Task`."""

    def __init__(self, task: object, choices: npt.NDArray[np.float64]) -> None: ...
    def plan(
        self,
        robots: npt.NDArray[np.float64],
        status: npt.NDArray[np.uint8],
        obstacles: npt.NDArray[np.float64],
        lead_s: float,
    ) -> npt.NDArray[np.float64]:
        """Returns the cost of each first arc for each robot, (n, k): path lengths at full speed."""

# Payloads between the processes of one robot. Private, for `coorp.reactor`. Every class may be used from any
# thread. Blocking calls release the GIL, and Ctrl-C interrupts them within 100 ms.

class ChannelError(RuntimeError):
    """The machine or another process of this robot failed. The text says what happened."""

@final
class Domain:
    """Membership of a domain: the processes of one application, one user and one machine. The first to join creates it.

    Raises InputError for an invalid name, and ChannelError if the others are not reached in time.
    """

    def __new__(cls, name: str, *, timeout: float = 5.0) -> Domain: ...
    def sender(
        self,
        channel: str,
        *,
        when_full: Literal["block", "drop-oldest", "fail"] = "block",
        timeout: float = 1.0,
        store_bytes: int | None = None,
        idle_bytes: int | None = None,
        queue: int | None = None,
        held: int | None = None,
    ) -> Sender:
        """Opens the writing end of a channel, with its own memory of up to `store_bytes` (1 GiB).

        Each reader can be `queue` payloads behind (16), and hold `held` more (48). If one of these limits is reached,
        the sender blocks for up to `timeout` seconds and then raises TimeoutError, drops the oldest payload not yet
        received, or fails with ChannelError. Up to `idle_bytes` (256 MiB) stay allocated for the next payloads.
        """
    def receiver(self, channel: str, *, spin: float | None = None) -> Receiver:
        """Opens the reading end of a channel. It spins for `spin` seconds (100 us) before it sleeps."""

@final
class Sender:
    """The writing end of a channel."""

    def loan(self, parts: Sequence[int], *, header_bytes: int = 4096) -> Loan:
        """Loans memory for parts of these lengths, in bytes, and a header of up to `header_bytes`."""
    def send(self, header: Buffer, parts: Loan | Sequence[Buffer | npt.NDArray[Any]]) -> int:
        """Sends a payload to all current readers, or to none, and returns their number.

        Copies nothing if `parts` is a loan, or if they are whole arrays over all parts of one loan in their order.
        Otherwise copies everything. After an error a loan can be sent again.
        """
    @property
    def readers(self) -> int:
        """Number of readers."""
    @property
    def used_bytes(self) -> int:
        """Bytes of payloads that are loaned, queued, held by readers, or viewed by arrays of this process."""
    @property
    def dropped(self) -> int:
        """Number of payloads dropped because they were the oldest, counted per reader."""
    def wait_for_readers(self, readers: int, timeout: float | None = None) -> bool:
        """Waits until there are at least `readers` readers. Returns False if `timeout` seconds pass first."""

@final
class Receiver:
    """The reading end of a channel: the payloads of all its senders, each sender's in order."""

    def recv(self, timeout: float | None = None) -> Payload:
        """Waits for a payload; TimeoutError after `timeout` seconds."""
    def try_recv(self) -> Payload | None:
        """Returns the next payload, if it has arrived."""
    @property
    def senders(self) -> int:
        """Number of senders."""
    def wait_for_senders(self, senders: int, timeout: float | None = None) -> bool:
        """Waits until there are at least `senders` senders. Returns False if `timeout` seconds pass first."""

@final
class Loan:
    """Memory for a new payload, from which its readers will read. It may still contain bytes of earlier payloads.

    Send it before anything else changes the arrays over it: NumPy cannot be kept from writing to views that were made
    before the send, and readers would see it. The memory is reused once all readers and all views are gone.
    """

    def parts(self) -> list[Part]:
        """Returns the parts; ValueError once the loan was sent."""
    def array(
        self, dtype: npt.DTypeLike, shape: int | Sequence[int], *, part: int = 0
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """Returns a part as an array, to be filled. When the loan is sent, the array becomes read-only."""
    @property
    def sent(self) -> bool:
        """Whether the loan was sent."""

@final
class Payload:
    """A received payload. The sender reuses its memory once this, its parts and all arrays over them are gone."""

    def header(self) -> bytes:
        """Returns a copy of the header."""
    def parts(self) -> list[Part]:
        """Returns the parts, without copying them."""

@final
class Part:
    """Memory of a loan or a payload. `numpy.asarray` makes a view that keeps it. A payload's memory is read-only."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...

def check_header(header: Buffer, depth_max: int, extension_max: int) -> None:
    """Raises ValueError unless the header is one complete MessagePack object within this depth and these extensions."""
