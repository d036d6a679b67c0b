"""Recordings of a run as MCAP, with the message types of ROS 2, which Foxglove, Rerun and `coorp import` open.

    with Recorder("run.mcap") as recorder:
        recorder.pose("robot_1", 0.5, x=1.0, y=2.0, theta=0.1)
        recorder.image("robot_1", 0.5, camera)

A robot's topics are `/robot_1/pose` (`geometry_msgs/msg/PoseStamped`), `/robot_1/camera` (`sensor_msgs/msg/Image`) and
`/robot_1/cmd_vel` (`geometry_msgs/msg/Twist`); a scalar's topic is its own (`std_msgs/msg/Float64`). Payloads are CDR,
times are seconds since the start of the run. Left out: what ROS 2 stores in addition to the messages (quality of
service, a bag's `metadata.yaml`).
"""

import atexit
import contextlib
import errno
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from mcap_ros2.writer import Writer
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"coorp.record needs the Python package '{missing.name}', which is not installed; "
        "in Coorp's source: pip install '.[learn]'",
        name=missing.name,
    ) from missing

__all__ = ["Recorder", "RecordingError", "topic_names"]

_RULE = "=" * 80
_TIME = f"{_RULE}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
_HEADER = f"{_RULE}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n{_TIME}"
_VECTOR = "float64 x\nfloat64 y\nfloat64 z\n"
_DEFINITIONS = {
    "geometry_msgs/msg/PoseStamped": "std_msgs/Header header\ngeometry_msgs/Pose pose\n"
    f"{_RULE}\nMSG: geometry_msgs/Pose\ngeometry_msgs/Point position\ngeometry_msgs/Quaternion orientation\n"
    f"{_RULE}\nMSG: geometry_msgs/Point\n{_VECTOR}"
    f"{_RULE}\nMSG: geometry_msgs/Quaternion\n{_VECTOR}float64 w\n{_HEADER}",
    "geometry_msgs/msg/Twist": "geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular\n"
    f"{_RULE}\nMSG: geometry_msgs/Vector3\n{_VECTOR}",
    "sensor_msgs/msg/Image": "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\n"
    f"uint8 is_bigendian\nuint32 step\nuint8[] data\n{_HEADER}",
    "std_msgs/msg/Float64": "float64 data\n",
}

# The frame of poses.
_WORLD = "world"
# By number of channels; an image without a third dimension has one.
_ENCODINGS = {1: "mono8", 3: "rgb8", 4: "rgba8"}
# The seconds of a ROS 2 stamp are an int32.
_SECONDS_MAX = 2**31 - 1
# Maximum amount kept before it is passed to the writer.
_PENDING_MESSAGES_MAX = 1_000
_PENDING_BYTES_MAX = 1 << 20
_BESIDES_BYTES = 100


class RecordingError(OSError):
    """The recording could not be written. The part written before can still be read, but is incomplete."""

    def __str__(self) -> str:
        # Without the number that OSError prepends.
        return self.strerror or super().__str__()


class Recorder:
    """Writes one recording.

    The file is complete after `close`, which runs at the end of a `with` block, however it ends, and otherwise at the
    end of the program. Ctrl-C cannot corrupt it: it is delayed while a part is being written. A killed program leaves a
    file without its end, of which `coorp import` reads all but the last moments.

    Give a robot by its name, in which characters invalid in a ROS 2 topic (`robot-1`) become `_`, or by its number
    (`1` is `robot_1`). Times may go back; readers sort.

    Raises RecordingError if the file cannot be created or written: the folder is missing, the disk is full.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._failure: RecordingError | None = None
        self._robots: dict[str | int, str] = {}
        self._pending: list[tuple[str, str, int, dict[str, Any]]] = []
        self._pending_bytes = 0
        try:
            self._file = open(self._path, "wb")  # noqa: SIM115, closed by `close`
        except OSError as error:
            raise _told(self._path, error) from error
        with self._writing():
            self._writer = Writer(self._file)
            self._schemas = {name: self._writer.register_msgdef(name, text) for name, text in _DEFINITIONS.items()}
        # In case the caller does not close it.
        atexit.register(self.close)

    def pose(self, robot: str | int, t_s: float, x: float, y: float, theta: float) -> None:
        """Records a robot's position in metres, and its heading in radians from the x axis."""
        at_ns = _nanoseconds(t_s)
        orientation = {"x": 0.0, "y": 0.0, "z": math.sin(theta / 2), "w": math.cos(theta / 2)}
        pose = {"position": {"x": float(x), "y": float(y), "z": 0.0}, "orientation": orientation}
        message = {"header": _header(at_ns, _WORLD), "pose": pose}
        self._add(f"/{self._robot(robot)}/pose", "geometry_msgs/msg/PoseStamped", at_ns, message)

    def image(self, robot: str | int, t_s: float, array: npt.NDArray[np.uint8]) -> None:
        """Records a robot's camera image: uint8, height x width, or height x width x 1 (grey), 3 (RGB) or 4 (RGBA)."""
        array = np.asarray(array)
        channels = array.shape[2] if array.ndim == 3 else 1
        if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in _ENCODINGS:
            raise ValueError(
                f"an image must be an array of uint8 of height x width (x 1, 3 or 4), but this is {array.dtype} of "
                f"{' x '.join(map(str, array.shape)) or 'no size'}; convert it, e.g. (255 * array).astype('uint8')"
            )
        at_ns, name = _nanoseconds(t_s), self._robot(robot)
        height, width = array.shape[:2]
        message = {
            "header": _header(at_ns, f"{name}/camera"),
            "height": height,
            "width": width,
            "encoding": _ENCODINGS[channels],
            "is_bigendian": 0,
            "step": width * channels,
            # A copy, because the caller may draw the next image into the same array.
            "data": array.tobytes(),
        }
        self._add(f"/{name}/camera", "sensor_msgs/msg/Image", at_ns, message, array.nbytes)

    def velocity(self, robot: str | int, t_s: float, v: float, w: float) -> None:
        """Records a robot's velocity command: forward in metres per second, turn in radians per second."""
        message = {
            "linear": {"x": float(v), "y": 0.0, "z": 0.0},
            "angular": {"x": 0.0, "y": 0.0, "z": float(w)},
        }
        self._add(f"/{self._robot(robot)}/cmd_vel", "geometry_msgs/msg/Twist", _nanoseconds(t_s), message)

    def scalar(self, topic: str, t_s: float, value: float) -> None:
        """Records a number that changes over time, such as `reward` or `robot_1/reaction_ms`."""
        name = topic.strip("/")
        if not re.fullmatch(r"[A-Za-z_]\w*(/[A-Za-z_]\w*)*", name, re.ASCII):
            raise ValueError(f"'{topic}' is not a valid topic: use letters, digits and '_', and '/' between its parts")
        self._add(f"/{name}", "std_msgs/msg/Float64", _nanoseconds(t_s), {"data": float(value)})

    def close(self) -> None:
        """Writes the rest and the file's end. A second call does nothing."""
        if self._file.closed:
            return
        atexit.unregister(self.close)
        try:
            if self._failure is None:
                self._flush()
                with self._writing():
                    self._writer.finish()
                    self._file.close()
        finally:
            # Data that could not be written is still in the buffer, and would fail again.
            with contextlib.suppress(OSError):
                self._file.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _robot(self, robot: str | int) -> str:
        known = self._robots.get(robot)
        if known is not None:
            return known
        name = self._robots[robot] = _topic_name(robot, self._robots)
        return name

    def _add(self, topic: str, schema: str, at_ns: int, message: dict[str, Any], payload_bytes: int = 0) -> None:
        if self._failure is not None:
            raise self._failure
        if self._file.closed:
            raise ValueError(f"the recording {self._path} is closed")
        # A single step, which Ctrl-C cannot interrupt.
        self._pending.append((topic, schema, at_ns, message))
        self._pending_bytes += payload_bytes + _BESIDES_BYTES
        if self._pending_bytes >= _PENDING_BYTES_MAX or len(self._pending) >= _PENDING_MESSAGES_MAX:
            self._flush()

    def _flush(self) -> None:
        with self._writing():
            pending, self._pending, self._pending_bytes = self._pending, [], 0
            for topic, schema, at_ns, message in pending:
                self._writer.write_message(topic, self._schemas[schema], message, log_time=at_ns)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Delays Ctrl-C, because the file's parts must stay together, and converts system errors for the user."""
        with _undisturbed():
            try:
                yield
            except OSError as error:
                self._failure = _told(self._path, error)
                raise self._failure from error


def topic_names(robots: Sequence[str | int]) -> dict[str | int, str]:
    """Returns the name of each of these robots in a recording; ValueError if a name is invalid."""
    names: dict[str | int, str] = {}
    for robot in robots:
        names[robot] = _topic_name(robot, names)
    return names


def _topic_name(robot: str | int, known: Mapping[str | int, str]) -> str:
    name = f"robot_{robot}" if isinstance(robot, int) else re.sub(r"\W", "_", robot, flags=re.ASCII)
    if not re.match(r"[A-Za-z_]", name):
        raise ValueError(f"'{robot}' is not a valid robot name: start it with a letter, as in 'robot_1'")
    for other, taken in known.items():
        if taken == name and other != robot:
            raise ValueError(f"robots {robot!r} and {other!r} would both be recorded as '/{name}'; rename one")
    return name


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Delays Ctrl-C until the end of the block. It only ever interrupts the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    restore: Callable[[int, FrameType | None], Any] = handler
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, restore)
        if came:
            restore(*came[0])


def _nanoseconds(t_s: float) -> int:
    if not 0 <= t_s <= _SECONDS_MAX:
        raise ValueError(f"a time of {t_s} s cannot be recorded: give seconds since the start of the run")
    return round(t_s * 1e9)


def _header(at_ns: int, frame: str) -> dict[str, Any]:
    seconds, nanoseconds = divmod(at_ns, 1_000_000_000)
    return {"stamp": {"sec": seconds, "nanosec": nanoseconds}, "frame_id": frame}


def _told(path: Path, error: OSError) -> RecordingError:
    folder = path.parent
    mends = {
        errno.ENOSPC: "the disk is full; free some space, or record to another disk",
        errno.EDQUOT: "your quota on this disk is used up; free some space, or record to another disk",
        errno.ENOENT: f"the folder {folder} does not exist; create it (mkdir -p {folder})",
        errno.EACCES: f"no permission to write in {folder}; give another path, or change the permissions",
        errno.EISDIR: "the path is a folder; give the name of a file in it",
        errno.ENOTDIR: f"{folder} is not a folder; give another path",
        errno.EROFS: f"{folder} is on a read-only disk; give another path",
    }
    why = mends.get(error.errno or 0, f"{error.strerror or error}; give another path")
    return RecordingError(error.errno, f"cannot write the recording {path}: {why}")
