"""Programs that are guests of their robot's agent: real processes, killed, stopped and refused."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_node import SOON, Fleet, ended

import coorp

PROGRAM = """
    import coorp, sys
    node = coorp.Node("team.toml", robot="r1", state="state/r1")
    assert node.guest
"""
"""The beginning of a guest of r1."""
ECHO = """
    ticks, echoes = node.control_subscriber("tick"), node.control_publisher("{name}")
    echoes.put(b"here")
    print("here", flush=True)
    while True:
        echoes.put(ticks.recv().data)
"""
"""The rest of a guest that answers each tick once."""


class Agent:
    """`coorp up` for a robot."""

    def __init__(self, fleet: Fleet, robot: str) -> None:
        self.place = fleet.folder / "state" / robot / "agent.sock"
        command = [sys.executable, "-m", "coorp", "up", "team.toml", "--robot", robot, "--state", f"state/{robot}"]
        self.process = subprocess.Popen(command, cwd=fleet.folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert re.search(r"r1 is up .* programs join it at .*agent\.sock", said), said

    def kill(self) -> None:
        """Kills the agent, which the test may already have done."""
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, "base", "r1", "absent")


@pytest.fixture
def agent(fleet: Fleet) -> Iterator[Agent]:
    agent = Agent(fleet, "r1")
    yield agent
    agent.kill()


@pytest.fixture
def programs(fleet: Fleet) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts guests, which are killed at the end."""
    started = []

    def start(*texts: str) -> subprocess.Popen[str]:
        started.append(fleet.program("".join(textwrap.dedent(text) for text in (PROGRAM, *texts))))
        return started[-1]

    yield start
    for program in started:
        program.kill()
        program.communicate()


def line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


class Ticks:
    """Ticks from base, each answered by all living programs."""

    def __init__(self, base: coorp.Node, *names: str) -> None:
        self.ticks = base.control_publisher("tick")
        self.echoes = {name: base.control_subscriber(name) for name in names}
        self.number = 0

    def meet(self) -> None:
        """Waits until all programs are here."""
        for name, echoes in self.echoes.items():
            began = time.monotonic()
            while True:
                self.tick()
                try:
                    heard = echoes.recv(timeout=0.05)
                except TimeoutError:
                    assert time.monotonic() < began + SOON, f"{name} is not heard"
                    continue
                if heard.data == str(self.number).encode():
                    break

    def tick(self) -> None:
        self.number += 1
        self.ticks.put(str(self.number).encode())

    def answered(self, *names: str) -> None:
        """Checks that these programs answer the next tick, which is sent only once."""
        self.tick()
        for name in names:
            while self.echoes[name].recv(timeout=SOON).data != str(self.number).encode():
                pass


def test_programs_are_one_robot(fleet: Fleet, agent: Agent, programs) -> None:  # noqa: ANN001
    with fleet.node("base") as base:
        assert not base.guest
        driver = programs(ECHO.format(name="drive"))
        learner = programs("""
            poses, table = node.control_publisher("pose", "20ms"), node.gather("state", "20ms")
            models, state = node.bulk_receiver(), node.control_publisher("state", "20ms")
            print("here", flush=True)
            while "base" not in (states := table.recv()) or "r1" not in states:
                state.put(b"of r1")
            print(states["base"].data, states["r1"].data, states["base"].age is not None)
            model = models.recv()
            print(model.sender, model.name, model.take().sum())
            with node.bulk_stream(to="base", name="gradients") as stream:
                stream.write(bytes(range(256)) * 10_000)
            print(node.status()["robot"], [robot for robot in node.status()["alive"]])
            try:
                node.serve_metrics()
            except coorp.InputError as error:
                print(error)
        """)
        assert (line(driver), line(learner)) == ("here", "here")
        ticks, state, bulk = Ticks(base, "drive"), base.control_publisher("state", "20ms"), base.bulk_receiver()
        ticks.meet()
        with base.bulk_stream(to="r1", name="model") as stream:
            stream.write(b"\x01" * 3_000_000)
        assert learner.poll() is None
        sent: list[coorp.BulkMessage] = []
        began = time.monotonic()
        while not sent:
            assert time.monotonic() < began + SOON
            state.put(b"of base")
            ticks.answered("drive")
            if (message := bulk.try_recv()) is not None:
                sent.append(message)
        assert (sent[0].sender, sent[0].name) == ("r1", "gradients")
        assert sent[0].take().tobytes() == bytes(range(256)) * 10_000
        states, model, status, refused = ended(learner).splitlines()
        assert states == "b'of base' b'of r1' True"
        assert model == "base model 3000000"
        assert status == "r1 [0, 1]"
        assert "only the robot's agent itself serves metrics" in refused
        ticks.answered("drive")


def test_a_program_that_is_killed_takes_nothing_with_it(fleet: Fleet, agent: Agent, programs) -> None:  # noqa: ANN001
    with fleet.node("base") as base:
        other = programs(ECHO.format(name="other"))
        dies = programs(
            """
            pose, table, plans = node.control_publisher("pose"), node.gather("state", "20ms"), node.bulk_receiver()
            half = node.bulk_stream(to="base", name="half")
            half.write(bytes(50_000_000))
            with node.bulk_stream(to="base", name="whole") as stream:
                stream.write(b"whole")
            plan = plans.recv()
            print("holds", plan.name, flush=True)
            """,
            ECHO.format(name="dies"),
        )
        assert line(other) == "here"
        bulk, ticks = base.bulk_receiver(), Ticks(base, "other", "dies")
        assert bulk.recv(timeout=SOON).take().tobytes() == b"whole"
        with base.bulk_stream(to="r1", name="plan") as stream:
            stream.write(b"straight on")
        assert (line(dies), line(dies)) == ("holds plan", "here")
        ticks.meet()
        for number in range(400):
            # In the middle of the message.
            if number == 100:
                dies.kill()
            ticks.answered("other", *(["dies"] if number < 100 else []))
        said = ended(
            programs("""
                import time
                while (topics := [entry["topic"] for entry in node.status()["published"]]) != ["other"]:
                    time.sleep(0.01)
                table, plan = node.gather("state", "20ms"), node.bulk_receiver().recv()
                print(topics, plan.name, plan.take().tobytes())
            """)
        )
        assert said == "['other'] plan b'straight on'\n"
        assert bulk.try_recv() is None, "an unfinished message is not sent"


def test_a_program_that_does_not_read_holds_up_nobody(fleet: Fleet, agent: Agent, programs) -> None:  # noqa: ANN001
    with fleet.node("base") as base:
        text = 'images = node.control_subscriber("image")\n'
        reads, sleeps = programs(text, ECHO.format(name="reads")), programs(text, ECHO.format(name="sleeps"))
        assert (line(reads), line(sleeps)) == ("here", "here")
        ticks, image = Ticks(base, "reads", "sleeps"), base.control_publisher("image")
        ticks.meet()
        sleeps.send_signal(signal.SIGSTOP)
        for _ in range(300):
            # More than the program's socket holds.
            image.put(bytes(100_000))
            ticks.answered("reads")
        sleeps.send_signal(signal.SIGCONT)
        ticks.answered("reads", "sleeps")


def test_programs_outlive_their_agent(fleet: Fleet, agent: Agent, programs) -> None:  # noqa: ANN001
    with fleet.node("base") as base:
        drives = programs(ECHO.format(name="drives"))
        asks = programs("""
            delivery = node.bulk_stream(to="absent", name="map").finish()
            print("sends", flush=True)
            try:
                delivery.wait()
            except coorp.NodeError as error:
                print(error, flush=True)
            try:
                node.status()
            except coorp.NodeError as error:
                print(error, flush=True)
            sys.stdin.readline()
            print(node.status()["robot"])
        """)
        ticks = Ticks(base, "drives")
        assert (line(drives), line(asks)) == ("here", "sends")
        ticks.meet()
        agent.kill()
        assert "not confirmed before r1's agent ended" in line(asks)
        assert "r1's agent is not running" in line(asks)
        again = Agent(fleet, "r1")
        try:
            ticks.meet()
            for _ in range(20):
                ticks.answered("drives")
            assert drives.poll() is None
            said, _ = asks.communicate("\n", timeout=SOON)
            assert said.splitlines()[-1] == "r1", said
        finally:
            again.kill()


def test_another_user_is_refused(fleet: Fleet, agent: Agent) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    # The state folder keeps other users out, so it is opened here: the agent still refuses them.
    agent.place.parent.chmod(0o711)
    opened = os.open(agent.place.parent, os.O_PATH)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65_534)
            os.setuid(65_534)
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(f"/proc/self/fd/{opened}/agent.sock")
                stranger.sendall(bytes(64))
                while said := stranger.recv(4096):
                    os.write(writes, said)
        except OSError as error:
            os.write(writes, str(error).encode())
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads, "rb") as said:
        assert b"its user is neither the agent's, nor root" in said.read()
    assert agent.process.poll() is None


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="needs root and /dev/net/tun")
def test_programs_under_the_emulator_join_the_agents_that_protect_them(tmp_path: Path) -> None:
    team = tmp_path / "team.toml"
    team.write_text('[[robot]]\nname = "base"\nleader = true\n\n[[robot]]\nname = "rover"\n')
    command = [sys.executable, "-m", "coorp"]
    subprocess.run([*command, "keys", "init", team], check=True, capture_output=True)
    program = (
        "import os, coorp; robot = os.environ['COORP_ROBOT']; "
        "node = coorp.Node(os.environ['COORP_TEAM'], robot, state=os.environ['COORP_AGENT']); "
        "print(robot, 'is a guest:', node.guest)"
    )
    command += ["emu", str(team), "--protect", "--quiet", "--", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = sorted(line for line in done.stdout.splitlines() if "is a guest" in line)
    assert told == [f"[{name}] {name} is a guest: True" for name in ("base", "rover")]
