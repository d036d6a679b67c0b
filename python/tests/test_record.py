"""Recordings: files from `coorp.record`, read by other tools, and imports of these files and of foreign bags."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.exceptions import McapError
from mcap.reader import NonSeekingReader, make_reader
from mcap.records import Schema
from mcap_ros2.decoder import DecoderFactory
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from coorp import record
from coorp.record import Recorder, RecordingError

ROBOTS = 3
RATE_HZ = 30
CAMERA = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)


def coorp(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "coorp", *arguments], capture_output=True, text=True)


def imported(path: Path) -> str:
    """Returns the team file from a good recording, which `coorp check` accepts."""
    run = coorp("import", path)
    assert run.returncode == 0, run.stderr
    team = path.parent / "imported.toml"
    team.write_text(run.stdout)
    check = coorp("check", team)
    assert check.returncode == 0, check.stderr
    return run.stdout


def flow(team: str, name: str) -> dict[str, str]:
    """Returns the keys of a flow in a team file's text."""
    (table,) = re.findall(rf'^\[\[flow\]\]\n(name = "{re.escape(name)}"\n(?:.+\n?)*)', team, re.MULTILINE)
    return dict(line.replace('"', "").split(" = ") for line in table.splitlines())


def messages(path: Path) -> list[tuple[str, str, int, Any]]:
    """Returns topic, type, time and content of each message."""
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        assert reader.get_header().profile == "ros2"
        rows = reader.iter_decoded_messages()
        return [
            (row.channel.topic, row.schema.name if row.schema else "", row.message.log_time, row.decoded_message)
            for row in rows
        ]


def drive(recorder: Recorder, seconds: float) -> None:
    """Records a drive, like the learning environment."""
    for tick in range(round(seconds * RATE_HZ)):
        t_s = tick / RATE_HZ
        for robot in range(ROBOTS):
            recorder.image(robot, t_s, CAMERA)
            recorder.pose(robot, t_s, t_s, -t_s, 0.5)
            recorder.velocity(robot, t_s + 0.025, 0.7, -0.1)
        recorder.scalar("reward", t_s, -1.5)


def test_what_is_recorded_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    grey, alpha = CAMERA[:, :, 0], np.dstack([CAMERA, CAMERA[:, :, :1]])
    with Recorder(path) as recorder:
        recorder.pose("robot-1", 1.25, 3.0, -4.0, math.pi / 2)
        recorder.image(2, 1.5, CAMERA)
        recorder.image("grey", 1.6, grey[:10])
        recorder.image("alpha", 1.7, alpha)
        recorder.velocity("robot-1", 2.0, 0.5, -0.25)
        recorder.scalar("/robot_1/reaction_ms", 3.0, 31.5)
    read = {topic: (schema, at, message) for topic, schema, at, message in messages(path)}
    assert len(read) == 6
    schema, at, pose = read["/robot_1/pose"]
    assert (schema, at) == ("geometry_msgs/msg/PoseStamped", 1_250_000_000)
    assert (pose.header.stamp.sec, pose.header.stamp.nanosec, pose.header.frame_id) == (1, 250_000_000, "world")
    assert (pose.pose.position.x, pose.pose.position.y) == (3.0, -4.0)
    turn = pose.pose.orientation
    assert 2 * math.atan2(turn.z, turn.w) == pytest.approx(math.pi / 2)
    schema, at, image = read["/robot_2/camera"]
    assert (schema, at, image.encoding, image.step) == ("sensor_msgs/msg/Image", 1_500_000_000, "rgb8", 192)
    assert (np.frombuffer(image.data, np.uint8).reshape(64, 64, 3) == CAMERA).all()
    assert (read["/grey/camera"][2].height, read["/grey/camera"][2].encoding) == (10, "mono8")
    assert bytes(read["/alpha/camera"][2].data) == alpha.tobytes()
    schema, _, velocity = read["/robot_1/cmd_vel"]
    assert (schema, velocity.linear.x, velocity.angular.z) == ("geometry_msgs/msg/Twist", 0.5, -0.25)
    schema, _, scalar = read["/robot_1/reaction_ms"]
    assert (schema, scalar.data) == ("std_msgs/msg/Float64", 31.5)


def test_payload_and_definitions_are_those_of_ros_2(tmp_path: Path) -> None:
    """The reference is another library's own type definitions."""
    path = tmp_path / "run.mcap"
    with Recorder(path) as recorder:
        drive(recorder, 0.1)
    store = get_typestore(Stores.ROS2_HUMBLE)
    seen = set()
    with path.open("rb") as file:
        for schema, _, message in make_reader(file).iter_messages():
            assert schema is not None
            decoded = store.deserialize_cdr(message.data, schema.name)
            assert bytes(store.serialize_cdr(decoded, schema.name)) == message.data
            defined = get_types_from_msg(schema.data.decode(), schema.name)
            assert {name: store.fielddefs[name] for name in defined} == defined
            seen.add(schema.name)
    assert len(seen) == 4


def test_the_callers_array_may_change_after_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    canvas = np.zeros((2, 2, 3), np.uint8)
    with Recorder(path) as recorder:
        for shade in range(3):
            canvas[:] = shade
            recorder.image(0, shade, canvas)
    assert [set(message.data) for *_, message in messages(path)] == [{0}, {1}, {2}]


def test_a_recording_becomes_a_team_and_drives_it(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    with Recorder(path) as recorder:
        drive(recorder, 5.0)
    team = imported(path)
    assert team.count("[[robot]]") == ROBOTS + 1
    for robot in range(ROBOTS):
        for topic, size, towards in [
            ("camera", 12_000, "base"),
            ("pose", 80, "base"),
            ("cmd_vel", 50, f"robot_{robot}"),
        ]:
            made = flow(team, f"robot_{robot}.{topic}")
            assert made["ac"] == "AC_VO", "small and periodic: control"
            assert made["to"] == towards
            assert made["period"] == "33.333ms"
            assert size <= int(made["size"]) <= size * 1.1
    run = coorp("sim", tmp_path / "imported.toml", "--policy", "edca", "--duration", "2s", "--replay", path)
    assert run.returncode == 0, run.stderr
    assert f"{ROBOTS * 3} of {ROBOTS * 3} flows replay" in run.stderr


# SQLite itself has no compression.
BAGS = [
    (storage, mode)
    for storage in StoragePlugin
    for mode in CompressionMode
    if (storage, mode) != (StoragePlugin.SQLITE3, CompressionMode.STORAGE)
]


def write_bag(path: Path, storage: StoragePlugin, mode: CompressionMode, seconds: float = 6.0) -> None:
    """Writes a bag of one robot: odometry with jitter, laser, camera, and some log."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    types = store.types
    stamp = types["builtin_interfaces/msg/Time"](sec=0, nanosec=0)
    header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="base_link")
    twist = types["geometry_msgs/msg/Twist"]
    vector = types["geometry_msgs/msg/Vector3"](x=0.5, y=0.0, z=0.0)
    image = types["sensor_msgs/msg/Image"](
        header=header,
        height=240,
        width=320,
        encoding="rgb8",
        is_bigendian=0,
        step=960,
        data=np.tile(CAMERA.ravel(), 19)[: 240 * 960],
    )
    text = types["std_msgs/msg/String"]
    random = np.random.default_rng(2)
    rows = [
        (tick * 20e6 + random.normal(0, 1e6), "/cmd_vel", twist(linear=vector, angular=vector))
        for tick in range(round(seconds * 50))
    ]
    rows += [(tick * 100e6, "/image_raw", image) for tick in range(round(seconds * 10))]
    rows += [(at * 1e9, "/rosout", text(data="a line")) for at in random.uniform(0, seconds, 40)]
    rows += [(0.0, "/robot_description", text(data="<robot/>" * 1000))]
    bag = BagWriter(path, version=9, storage_plugin=storage)
    if mode is not CompressionMode.NONE:
        bag.set_compression(mode, CompressionFormat.ZSTD)
    with bag:
        connections = {}
        for at_ns, topic, message in sorted(rows, key=lambda row: row[0]):
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = bag.add_connection(topic, kind, typestore=store)
            data = store.serialize_cdr(message, kind)
            bag.write(connections[topic], 1_700_000_000_000_000_000 + round(at_ns), data)


@pytest.mark.parametrize(("storage", "mode"), BAGS)
def test_a_bag_becomes_a_team(tmp_path: Path, storage: StoragePlugin, mode: CompressionMode) -> None:
    bag = tmp_path / "run"
    write_bag(bag, storage, mode)
    if (storage, mode) == (StoragePlugin.SQLITE3, CompressionMode.FILE):
        run = coorp("import", bag)
        assert run.returncode == 2
        assert "zstd -d" in run.stderr
        return
    team = imported(bag)
    assert team.count("[[robot]]") == 2
    command = flow(team, "cmd_vel")
    assert (command["ac"], command["from"], command["to"]) == ("AC_VO", "base", "robot")
    assert command["size"] == "52"
    assert 19.9 < float(command["period"].removesuffix("ms")) < 20.1
    jitter = command["jitter"]
    jitter_ms = float(jitter.removesuffix("us")) / 1e3 if jitter.endswith("us") else float(jitter.removesuffix("ms"))
    assert 0.8 < jitter_ms < 1.2
    camera = flow(team, "image_raw")
    assert (camera["bulk"], camera["transport"], camera["period"]) == ("true", "tcp", "100ms")
    assert int(camera["size"]) > 240 * 960, "as it is without the bag's compression"
    assert flow(team, "rosout")["bulk"] == "true"
    assert "/robot_description (std_msgs/msg/String): 1 message" in team
    run = coorp("sim", tmp_path / "imported.toml", "--policy", "edca", "--duration", "1s", "--replay", bag)
    assert run.returncode == 0, run.stderr


def test_a_truncated_recording_gives_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    with Recorder(path) as recorder:
        drive(recorder, 10.0)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    run = coorp("import", path)
    assert run.returncode == 0
    assert f"{path} is truncated" in run.stderr
    assert flow(run.stdout, "robot_0.camera")["period"] == "33.333ms"
    path.write_bytes(whole[:100])
    run = coorp("import", path)
    assert run.returncode == 2
    assert str(path) in run.stderr


@pytest.mark.parametrize(
    "content", [b"", b"\x89MCAP", b"\x89PNG\r\n\x1a\n" + bytes(100), b"\x89MCAP0\r\n" + b"\xff" * 500]
)
def test_what_is_no_recording_is_told_from_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.mcap"
    path.write_bytes(content)
    run = coorp("import", path)
    assert run.returncode == 2
    assert run.stderr.startswith(f"error: {path} ")
    assert run.stdout == ""


# A program that reports its start, and then records forever.
ENDLESS = """
import sys
import numpy as np
from coorp.record import Recorder
image = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
recorder = Recorder(sys.argv[1])
tick = 0
while True:
    recorder.image(0, tick / 30, image)
    recorder.scalar("reward", tick / 30, 1.0)
    tick += 1
    if tick == 300:
        print("under way", flush=True)
"""


def record_until(path: Path, number: signal.Signals, after_s: float) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "under way\n"
    time.sleep(after_s)
    program.send_signal(number)
    program.wait(300)
    program.stdout.close()


def test_ctrl_c_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    for attempt in range(4):
        record_until(path, signal.SIGINT, 0.017 * attempt)
        read = messages(path)
        assert len(read) >= 600
        images = [at for topic, _, at, _ in read if topic == "/robot_0/camera"]
        assert images == [round(tick / 30 * 1e9) for tick in range(len(images))], "none is missing or duplicated"


def test_ctrl_c_in_the_middle_of_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    recorder = Recorder(path)
    write = recorder._writer.write_message

    def interrupted(topic: str, schema: Schema, message: object, log_time: int) -> None:
        signal.raise_signal(signal.SIGINT)
        write(topic, schema, message, log_time=log_time)

    recorder._writer.write_message = interrupted  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(KeyboardInterrupt), recorder:
        drive(recorder, 60.0)
    recorder._writer.write_message = write
    read = messages(path)
    assert len(read) > 80
    assert [row[2] for row in read if row[0] == "/reward"] == [
        round(tick / RATE_HZ * 1e9) for tick in range(len(read) // 10)
    ]


def test_a_killed_program_leaves_what_can_be_recovered(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    record_until(path, signal.SIGKILL, 0.0)
    with pytest.raises(McapError), path.open("rb") as file:
        list(NonSeekingReader(file).iter_messages())
    run = coorp("import", path)
    assert run.returncode == 0, run.stderr
    assert "is truncated" in run.stderr
    assert "robot_0.camera" in run.stdout


def test_ctrl_c_waits_while_a_part_is_written() -> None:
    done = False
    with pytest.raises(KeyboardInterrupt), record._undisturbed():
        signal.raise_signal(signal.SIGINT)
        done = True
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_the_block_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    with pytest.raises(ZeroDivisionError), Recorder(path) as recorder:
        recorder.scalar("reward", 0.0, 1.0)
        recorder.scalar("reward", 1.0, 1 / 0)
    assert [message.data for *_, message in messages(path)] == [1.0]
    recorder.close()
    with pytest.raises(ValueError, match="is closed"):
        recorder.scalar("reward", 2.0, 1.0)


def test_a_thread_of_its_own_can_record(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"

    def work() -> None:
        with Recorder(path) as recorder:
            drive(recorder, 2.0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(messages(path)) == 60 * (3 * ROBOTS + 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full disk to offer")
def test_a_full_disk_is_told_with_what_to_do() -> None:
    with pytest.raises(RecordingError) as told, Recorder("/dev/full") as recorder:
        drive(recorder, 10.0)
    assert "/dev/full" in str(told.value)
    assert "the disk is full; free some space" in str(told.value)
    recorder = Recorder("/dev/full")
    recorder.scalar("reward", 0.0, 1.0)
    with pytest.raises(RecordingError, match="the disk is full"):
        recorder.close()
    with pytest.raises(RecordingError, match="the disk is full"):
        recorder.scalar("reward", 0.0, 1.0)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="mkdir -p") as told:
        Recorder(tmp_path / "nowhere" / "run.mcap")
    assert str(tmp_path / "nowhere") in str(told.value)
    with pytest.raises(RecordingError, match="is a folder"):
        Recorder(tmp_path)


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.mcap") as recorder:
        for image in (np.zeros((4, 4, 3)), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8), np.uint8(1)):
            with pytest.raises(ValueError, match="array of uint8"):
                recorder.image(0, 0.0, image)  # pyright: ignore[reportArgumentType]
        for t_s in (-0.1, math.nan, math.inf, 1e12):
            with pytest.raises(ValueError, match="cannot be recorded"):
                recorder.scalar("reward", t_s, 0.0)
        for topic in ("", "a b", "/", "a//b", "1st", "ü"):
            with pytest.raises(ValueError, match="is not a valid topic"):
                recorder.scalar(topic, 0.0, 0.0)
        recorder.pose("robot-1", 0.0, 0.0, 0.0, 0.0)
        with pytest.raises(ValueError, match="rename one"):
            recorder.pose("robot_1", 0.0, 0.0, 0.0, 0.0)
        for robot in ("", "1st"):
            with pytest.raises(ValueError, match="not a valid robot name"):
                recorder.pose(robot, 0.0, 0.0, 0.0, 0.0)
    assert len(messages(tmp_path / "run.mcap")) == 1


def test_names_can_be_tried_before_there_is_a_file() -> None:
    assert record.topic_names(["robot-1", "b", 2]) == {"robot-1": "robot_1", "b": "b", 2: "robot_2"}
    with pytest.raises(ValueError, match="would both be recorded as '/a_b'"):
        record.topic_names(["a-b", "a.b"])
    with pytest.raises(ValueError, match="not a valid robot name"):
        record.topic_names(["1st"])
