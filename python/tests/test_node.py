"""`coorp.Node`: robots in separate processes, on loopback, with real keys and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coorp

ROOT = Path(__file__).parents[2]
# Time limit for anything that should happen at once; no test measures it.
SOON = 120.0
_blocks = count()


def free_ports() -> int:
    """Returns the first of 16 ports that are free now and not used by any other robot of these tests."""
    while True:
        base = 30_000 + (os.getpid() % 16 * 160 + next(_blocks) * 16) % 2_720
        try:
            for port in range(base, base + 16):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    with socket.socket(type=kind) as tried:
                        tried.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base


class Fleet:
    """A team on loopback whose first robot leads, in its own folder."""

    def __init__(self, folder: Path, *robots: str) -> None:
        self.folder, self.file = folder, folder / "team.toml"
        folder.mkdir(exist_ok=True)
        text = ""
        for place, name in enumerate(robots):
            text += f'[[robot]]\nname = "{name}"\nleader = {str(place == 0).lower()}\n'
            text += f'addresses = ["127.0.0.1"]\nport = {free_ports()}\n'
        self.file.write_text(text)
        self.keys()

    def keys(self) -> None:
        subprocess.run([sys.executable, "-m", "coorp", "keys", "init", self.file], check=True, capture_output=True)

    def node(self, robot: str, *, insecure: bool = False) -> coorp.Node:
        return coorp.Node(self.file, robot=robot, insecure=insecure, state=self.folder / "state" / robot)

    def program(self, text: str) -> subprocess.Popen[str]:
        """Starts a Python program in a separate process, in the folder of `team.toml`."""
        environment = os.environ | {"XDG_STATE_HOME": str(self.folder / "state")}
        return subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(text)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, "base", "r1")


def ended(program: subprocess.Popen[str]) -> str:
    """Returns the output of a program, which must succeed."""
    said, _ = program.communicate(timeout=SOON)
    assert program.returncode == 0, said
    return said


@pytest.fixture
def repeatedly() -> Iterator[object]:
    """Calls a function every 5 ms in a thread until the test has ended."""
    stop, threads = threading.Event(), []

    def begin(what: object) -> None:
        def go_on() -> None:
            # Until the test or its node has ended.
            with contextlib.suppress(coorp.NodeError):
                while not stop.wait(0.005):
                    what()  # type: ignore[operator]

        threads.append(threading.Thread(target=go_on))
        threads[-1].start()

    yield begin
    stop.set()
    for thread in threads:
        thread.join()


def documented() -> str:
    """Returns the example of docs/live.md, which is also in the README."""
    block = re.compile(r"```python\n(.*?coorp\.Node.*?)```", re.DOTALL)
    (in_docs,) = block.findall((ROOT / "docs" / "live.md").read_text())
    (in_readme,) = block.findall((ROOT / "README.md").read_text())
    # Its first lines are enough there, for the robot whose keys the README has installed.
    assert set(in_readme.replace('robot="scout"', 'robot="r1"').splitlines()) <= set(in_docs.splitlines())
    return in_docs


def test_the_documented_example_runs(fleet: Fleet, repeatedly) -> None:  # noqa: ANN001
    base = fleet.node("base")
    poses, plans = base.control_subscriber("pose"), base.control_publisher("plan")
    repeatedly(lambda: plans.put(b"straight on"))
    prelude = """
        import coorp, hashlib, numpy
        array = numpy.arange(3.0)
        big_array = numpy.random.default_rng(1).integers(0, 256, 20_000_000, dtype=numpy.uint8)
        print(hashlib.sha256(big_array).hexdigest())
    """
    # Messages sent before the robots had found each other were lost; newer ones follow.
    more = "print(msg.sender, bytes(msg), msg.sequence >= 0, msg.path)\nwhile not table.recv(): pose.put(array)\n"
    program = fleet.program(textwrap.dedent(prelude) + documented() + more)
    message = base.bulk_receiver().recv(timeout=SOON)
    assert (message.sender, message.name, message.length) == ("r1", "gradients", 20_000_000)
    assert message.path.stat().st_size == message.length
    pose = poses.recv(timeout=SOON)
    assert (pose.sender, pose.path) == ("r1", "127.0.0.1")
    assert np.frombuffer(pose.data).tolist() == [0, 1, 2]
    said = ended(program)
    digest, last = said.splitlines()[0], said.splitlines()[-1]
    assert hashlib.sha256(message.take().tobytes()).hexdigest() == digest
    assert last == "base b'straight on' True 127.0.0.1"
    with pytest.raises(FileNotFoundError, match="already been taken"):
        message.take()
    base.close()


def test_the_newest_message_wins_and_knows_its_age(fleet: Fleet) -> None:
    program = fleet.program("""
        import coorp, time
        with coorp.Node("team.toml", robot="r1") as node:
            pose = node.control_publisher("pose", 0.033)
            for number in range(10_000):
                pose.put(number.to_bytes(4, "little"))
                time.sleep(0.002)
                if number % 50 == 0:
                    print(number, flush=True)
    """)
    with fleet.node("base") as base:
        poses = base.control_subscriber("pose")
        first = poses.recv(timeout=SOON)
        beside = base.control_subscriber("pose")
        while beside.recv(timeout=SOON).sequence < first.sequence + 20:
            pass
        second = poses.recv(timeout=SOON)
        # Only the newest of the many messages in between was kept.
        assert int.from_bytes(second.data, "little") == second.sequence > first.sequence + 10
        third = poses.recv(timeout=SOON)
        assert third.sequence > second.sequence
        while (pose := poses.recv(timeout=SOON)).age is None:
            pass
        assert pose.age >= 0 and pose.age_error is not None and pose.age_error >= 0
        assert "old" in repr(pose)
        heard = base.status()["heard"]
        assert [entry["from"] for entry in heard] == [1, 1], "one for each subscriber"
        port = base.serve_metrics()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SOON) as page:
            metrics = page.read().decode()
        received = re.search(r'coorp_control_received_total\{topic="pose",from="r1"\} (\d+)', metrics)
        assert received is not None and int(received[1]) > 3
        assert base.serve_metrics(port) == port
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SOON)
    program.kill()
    program.communicate()


def test_asyncio_waits_as_threads_do_and_loses_nothing(fleet: Fleet) -> None:
    program = fleet.program("""
        import asyncio, coorp, sys
        async def main():
            with coorp.Node("team.toml", robot="r1") as node:
                ticks, echoes = node.control_subscriber("tick"), node.control_publisher("echo")
                while (tick := await ticks.next()).data != b"end":
                    echoes.put(b"<" + tick.data + b">")
                async with node.bulk_stream(to="base", name="log") as stream:
                    stream.write(b"first ")
                    stream.write(bytearray(b"second"))
                delivery = node.bulk_stream(to="leader", name="map").finish()
                await delivery
                assert delivery.state == "whole"
                try:
                    async with node.bulk_stream(to="base", name="half") as stream:
                        stream.write(b"half of it")
                        raise ArithmeticError
                except ArithmeticError:
                    pass
                await node.bulk_stream(to="base", name="last").finish()
        asyncio.run(main())
    """)

    async def talk() -> None:
        with fleet.node("base") as base:
            ticks, echoes = base.control_publisher("tick"), base.control_subscriber("echo")
            bulk, table = base.bulk_receiver(), base.gather("echo", "5ms")
            echo = asyncio.ensure_future(echoes.next())
            while not echo.done():
                ticks.put(b"tick")
                await asyncio.sleep(0.01)
            assert (await echo).data == b"<tick>"
            # A waiter that gives up does not consume a message.
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(bulk.next(), 0.05)
            two = asyncio.gather(echoes.next(), echoes.next())
            states: dict[str, coorp.RobotState] = {}
            while not (two.done() and "r1" in states):
                ticks.put(b"tock")
                states = await asyncio.wait_for(table.next(), SOON)
            (state,) = states.values()
            made, received, listed, taken = state.stamps_ns
            assert received <= listed <= taken and made is not None and bytes(state) in (b"<tick>", b"<tock>")
            assert state.age is not None and state.age_error is not None
            # T1 is only as accurate as the clocks, but no age is negative.
            assert abs(state.age - max(0, taken - made) / 1e9) < 1e-9
            while not any(missed for due, missed, _ in table.updates().values()):
                await table.next()
            ticks.put(b"end")
            came = [await asyncio.wait_for(bulk.next(), SOON) for _ in range(3)]
            assert [(message.name, message.take().tobytes()) for message in came] == [
                ("log", b"first second"),
                ("map", b""),
                ("last", b""),
            ]
            late = asyncio.ensure_future(bulk.next())
            await asyncio.sleep(0)
            base.close()
            with pytest.raises(coorp.NodeError, match="has been closed"):
                await late

    asyncio.run(talk())
    ended(program)


def test_a_message_that_could_not_be_taken_is_taken_later(fleet: Fleet, tmp_path: Path) -> None:
    with fleet.node("base") as base, fleet.node("r1") as r1:
        bulk = base.bulk_receiver()

        def came() -> coorp.BulkMessage:
            with r1.bulk_stream(to="base", name="map") as stream:
                stream.write(b"the map")
            return bulk.recv(timeout=SOON)

        message, target = came(), tmp_path / "elsewhere" / "map"
        with pytest.raises(OSError, match=f"to {target}: No such file or directory"):
            message.take_to(target)
        aside = message.path.rename(tmp_path / "aside")
        with pytest.raises(OSError, match="No such file or directory"):
            message.take()
        aside.rename(message.path)
        target.parent.mkdir()
        message.take_to(target)
        assert target.read_bytes() == b"the map" and not message.path.exists()
        with pytest.raises(FileNotFoundError, match="already been taken"):
            message.take_to(target)
        message, memory = came(), Path("/dev/shm")
        if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip(f"{memory} is not on another disk than {tmp_path}")
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            message.take_to(Path(folder) / "map")
            assert [(file.name, file.read_bytes()) for file in Path(folder).iterdir()] == [("map", b"the map")]
        assert not message.path.exists()


def test_a_message_for_which_there_is_no_room_is_kept_and_goes_later(fleet: Fleet, tmp_path: Path) -> None:
    # A sparse file larger than the maximum message.
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, (64 << 30) + 1)
    with fleet.node("r1") as r1:
        before: list[coorp.Delivery] = []
        while True:
            stream = r1.bulk_stream(to="base", name=f"map.{len(before)}")
            stream.write(b"the map")
            try:
                before.append(stream.finish())
            except coorp.NodeError as error:
                assert "64 bulk messages already wait for base" in str(error)
                break
        with pytest.raises(coorp.InputError, match="would have 68719476744 bytes"):
            stream.write(np.memmap(huge, np.uint8, mode="r"))
        stream.write(b", and more")
        with fleet.node("base") as base:
            before[0].wait(timeout=SOON)
            stream.finish().wait(timeout=SOON)
            bulk = base.bulk_receiver()
            came = [bulk.recv(timeout=SOON) for _ in range(len(before) + 1)]
            assert [message.name for message in came] == [f"map.{number}" for number in range(len(before) + 1)]
            assert came[-1].take().tobytes() == b"the map, and more"


def test_gathered_robots_come_and_go(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "base", "r1", "r2")
    text = """
        import coorp, time
        node = coorp.Node("team.toml", robot="{0}")
        pose = node.control_publisher("pose", period="10ms")
        while True:
            pose.put(b"{0}")
            time.sleep(0.01)
    """
    with fleet.node("base") as base:
        table = base.gather("pose", period="10ms", many_to_one=True)
        with pytest.raises(coorp.InputError, match='already gathers "pose"'):
            base.gather("pose", period="10ms")
        programs = {robot: fleet.program(text.format(robot)) for robot in ("r1", "r2")}
        began, states = time.monotonic(), {}
        while {robot: state.data for robot, state in states.items()} != {"r1": b"r1", "r2": b"r2"}:
            assert time.monotonic() < began + SOON
            states = table.recv(timeout=SOON)
        assert list(states) == ["r1", "r2"]
        programs["r2"].kill()
        while "r2" in table.recv(timeout=SOON):
            assert time.monotonic() < began + SOON
        assert list(table.updates()) == ["r1"]
    for program in programs.values():
        program.kill()
        program.communicate()


def test_nobody_without_the_teams_keys_is_heard(fleet: Fleet, tmp_path: Path, repeatedly) -> None:  # noqa: ANN001
    other = Fleet(tmp_path / "other", "base", "r1")
    other.file.write_text(fleet.file.read_text())
    with fleet.node("base") as base:
        poses, bulk = base.control_subscriber("pose"), base.bulk_receiver()
        for insecure in (False, True):
            told = pytest.warns(RuntimeWarning, match="r1 is insecure") if insecure else contextlib.nullcontext([])
            with told as warnings:
                stranger = other.node("r1", insecure=insecure)
            assert [warning.filename for warning in warnings] == [__file__] * insecure
            with stranger:
                poses_of_stranger = stranger.control_subscriber("pose")
                ours, theirs = base.control_publisher("pose"), stranger.control_publisher("pose")
                began = time.monotonic()
                while time.monotonic() < began + 1.5:
                    theirs.put(b"mine is here")
                    ours.put(b"ours")
                    time.sleep(0.01)
                assert poses.recv(timeout=SOON).sender == "base"
                assert poses.try_recv() is None
                heard = poses_of_stranger.try_recv()
                assert heard is not None and heard.sender == "r1"
                assert poses_of_stranger.try_recv() is None
                if insecure:
                    with pytest.raises(coorp.InputError, match=r"bulk needs the team's keys.* insecure=True"):
                        stranger.bulk_stream(to="base", name="map")
                else:
                    delivery = stranger.bulk_stream(to="base", name="map").finish()
                    with pytest.raises(TimeoutError, match=r"was not delivered within 0\.5 s"):
                        delivery.wait(timeout=0.5)
                    assert delivery.state == "pending"
        assert bulk.try_recv() is None
        # A robot with keys is heard where the stranger was not.
        with fleet.node("r1") as friend:
            pose = friend.control_publisher("pose")
            repeatedly(lambda: pose.put(b"here"))
            while poses.recv(timeout=SOON).sender != "r1":
                pass


def test_whoever_is_wrong_is_told_what_to_mend(fleet: Fleet) -> None:
    with pytest.raises(coorp.InputError, match='no robot "r7"; its robots are base, r1'):
        fleet.node("r7")
    with pytest.raises(coorp.InputError, match="cannot read"):
        coorp.Node("nowhere.toml", robot="r1")
    with pytest.raises(coorp.InputError, match="there is no policy 'fast'"):
        coorp.Node(fleet.file, robot="r1", policy="fast")
    with pytest.raises(coorp.InputError, match=r"'schedwifi' does not run on real sockets: .*; choose one of edca, "):
        coorp.Node(fleet.file, robot="r1", policy="schedwifi")
    with fleet.node("r1") as node:
        with pytest.raises(coorp.NodeError, match=r"port \d+ is taken"):
            fleet.node("r1")
        for name in ("", "a/b", "*", "x" * 65):
            with pytest.raises(coorp.InputError, match="cannot be a name"):
                node.control_subscriber(name)
        for period in ("33", "33 parsecs", "", -1.0, float("nan"), 0, b"33ms"):
            with pytest.raises(coorp.InputError, match="period = "):
                node.control_publisher("pose", period=period)  # type: ignore[arg-type]
        for period in ("0ms", "9us", "3601s", 1e-8, 3601.0):
            with pytest.raises(coorp.InputError, match="use 10us to 3600s"):
                node.control_publisher("pose", period=period)
        for period in ("10us", 3600.0):
            node.control_publisher("pose", period=period).close()
        with pytest.raises(coorp.InputError, match="use 500us to 60s"):
            node.gather("pose", period="1us")
        with pytest.raises(coorp.InputError, match="bound = "):
            node.control_publisher("pose", bound="soon")
        pose = node.control_publisher("pose", period="33ms", bound="20ms")
        for fitting in (b"", b"x", bytearray(3), memoryview(b"abc"), np.zeros((3, 4)), np.zeros(0), np.float32(1)):
            pose.put(fitting)
        with pytest.raises(coorp.InputError, match="not contiguous"):
            pose.put(np.zeros((4, 4))[:, ::2])
        for wrong in ("text", 7, None, [1, 2]):
            with pytest.raises(TypeError, match="has no buffer"):
                pose.put(wrong)  # type: ignore[arg-type]
        with pytest.raises(coorp.InputError, match="send it as bulk"):
            pose.put(bytes((16 << 20) + 1))
        subscriber = node.control_subscriber("plan")
        with pytest.raises(TimeoutError, match=r'no message arrived on "plan" within 0\.01 s'):
            subscriber.recv(timeout=0.01)
        for timeout in (-1.0, float("nan")):
            with pytest.raises(coorp.InputError, match="timeout = "):
                subscriber.recv(timeout=timeout)
        for to in ("r7", "r1", ""):
            with pytest.raises(coorp.InputError):
                node.bulk_stream(to=to, name="map")
        with pytest.raises(ArithmeticError), node.bulk_stream(to="base", name="map") as stream:
            raise ArithmeticError
        with pytest.raises(coorp.NodeError, match="abandoned"):
            stream.finish()
        stream = node.bulk_stream(to="base", name="map")
        stream.finish()
        with pytest.raises(coorp.NodeError, match="is finished"):
            stream.write(b"more")
        pose.close()
        with pytest.raises(coorp.NodeError, match="this publisher has been closed"):
            pose.put(b"")
    assert repr(node) == "<coorp.Node 'r1', closed>"
    for late in (subscriber.try_recv, node.status, lambda: node.control_subscriber("x"), lambda: subscriber.recv(1)):
        with pytest.raises(coorp.NodeError, match="has been closed"):
            late()
    node.close()
    fleet.node("r1").close()


def test_without_keys_it_says_how_to_make_them(tmp_path: Path) -> None:
    (tmp_path / "team.toml").write_text('[[robot]]\nname = "a"\nleader = true\n[[robot]]\nname = "b"\n')
    with pytest.raises(coorp.InputError, match=r"coorp keys init.* in Python insecure=True"):
        coorp.Node(tmp_path / "team.toml", robot="a")


def recorded(path: Path, *, whole: bool) -> dict[str, list[dict[str, Any]]]:
    """Returns the messages of a recording by topic, as read by the `mcap` package."""
    from mcap.exceptions import McapError
    from mcap.reader import NonSeekingReader, make_reader

    messages: dict[str, list[dict[str, Any]]] = {}
    with path.open("rb") as file:
        reader = make_reader(file) if whole else NonSeekingReader(file)
        if whole:
            assert reader.get_summary() is not None
        # A truncated file ends early.
        with contextlib.suppress(*(() if whole else (McapError,))):
            for schema, channel, message in reader.iter_messages(log_time_order=whole):
                assert schema is not None and (schema.encoding, channel.message_encoding) == ("jsonschema", "json")
                known = json.loads(schema.data)["properties"]
                value = json.loads(message.data)
                if channel.topic != "/coorp/status":
                    assert value.keys() <= known.keys()
                messages.setdefault(channel.topic, []).append(value)
    return messages


def test_what_a_robot_decides_is_recorded(fleet: Fleet) -> None:
    up = [sys.executable, "-m", "coorp", "up", "--robot", "base", "--record", "base.mcap"]
    base = subprocess.Popen(up, cwd=fleet.folder, stdout=subprocess.PIPE, text=True)
    assert base.stdout is not None and "is up" in base.stdout.readline()
    file, killed = fleet.folder / "r1.mcap", fleet.folder / "killed.mcap"
    with fleet.node("r1") as node:
        node.record(file)
        with pytest.raises(coorp.InputError, match="already being recorded"):
            node.record(killed)
        with node.bulk_stream(to="base", name="map") as stream:
            stream.write(bytes(1_000_000))
        node.stop_recording()
        node.stop_recording()
        with pytest.raises(coorp.InputError, match="already exists"):
            node.record(file)
        events = [said["event"] for said in recorded(file, whole=True)["/coorp/permits"]]
        assert events.index("request") < events.index("grant") < events.index("permitted")
        # A signal completes a recording; a killed process leaves an incomplete one.
        base.send_signal(signal.SIGTERM)
        assert base.wait(SOON) == -signal.SIGTERM
        said = recorded(fleet.folder / "base.mcap", whole=True)["/coorp/permits"]
        assert any("r1" in (word.get("from"), word.get("to")) for word in said if word["event"] == "grant")
    program = fleet.program("""
        import coorp, time
        node = coorp.Node("team.toml", robot="r1")
        node.record("killed.mcap")
        time.sleep(60)
    """)
    began = time.monotonic()
    while not (killed.exists() and "/coorp/status" in recorded(killed, whole=False)):
        assert time.monotonic() < began + SOON
        time.sleep(0.1)
    program.kill()
    program.communicate()
    assert recorded(killed, whole=False)["/coorp/status"][0]["robot"] == "r1"


@pytest.mark.parametrize("what", ["write", "put"])
def test_other_threads_go_on_while_much_is_taken_in(fleet: Fleet, what: str) -> None:
    much, interval = np.zeros(16 << 20, np.uint8), sys.getswitchinterval()
    taken_in: list[bool] = []
    with fleet.node("r1") as node:
        take_in = node.control_publisher("map").put if what == "put" else node.bulk_stream(to="base", name="map").write

        def look(go: threading.Event, saw: list[bool]) -> None:
            go.wait()
            saw.append(not taken_in)

        # A thread keeps the GIL until it releases it by itself.
        sys.setswitchinterval(1_000.0)
        try:
            began = time.monotonic()
            while True:
                go, saw = threading.Event(), []
                thread = threading.Thread(target=look, args=(go, saw))
                thread.start()
                taken_in.clear()
                go.set()
                take_in(much)
                taken_in.append(True)
                thread.join()
                if saw == [True]:
                    break
                # A thread that woke up late saw only the end.
                assert time.monotonic() < began + SOON
                if what == "write":
                    take_in = node.bulk_stream(to="base", name="map").write
        finally:
            sys.setswitchinterval(interval)


@pytest.mark.parametrize("wait", ["plans.recv()", "bulk.recv()", "table.recv()", "delivery.wait()"])
def test_ctrl_c_ends_what_waits(fleet: Fleet, wait: str) -> None:
    program = fleet.program(f"""
        import coorp
        node = coorp.Node("team.toml", robot="r1")
        plans, bulk, table = node.control_subscriber("plan"), node.bulk_receiver(), node.gather("pose", "60s")
        delivery = node.bulk_stream(to="base", name="map").finish()
        try:
            print("waiting", flush=True)
            {wait}
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert program.stdout is not None and program.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    program.send_signal(signal.SIGINT)
    assert ended(program) == "interrupted\n"


def test_the_interpreter_ends_whatever_waits(fleet: Fleet) -> None:
    said = ended(
        fleet.program("""
            import asyncio, coorp, threading, time
            node = coorp.Node("team.toml", robot="r1")
            pose, plans, bulk = node.control_publisher("pose"), node.control_subscriber("plan"), node.bulk_receiver()
            echoes, table = node.control_subscriber("pose"), node.gather("pose", "1ms")
            stream = node.bulk_stream(to="base", name="map")
            delivery = stream.finish()
            for waits in (plans.recv, bulk.recv, delivery.wait, table.recv):
                threading.Thread(target=waits, daemon=True).start()
            def busy():
                while True:
                    pose.put(b"state")
            threading.Thread(target=busy, daemon=True).start()
            async def give_up():
                waiting = asyncio.ensure_future(plans.next())
                await asyncio.sleep(0.2)
            asyncio.run(give_up())
            print("done")
        """)
    )
    assert "done" in said
