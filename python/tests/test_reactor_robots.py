"""A program of coorp.reactor on two robots, with real keys and sockets: on loopback, and over emulated WiFi."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from reactor_robots import FRAMES, program

LIMIT_S = 120.0
SCRIPT = Path(__file__).with_name("reactor_robots.py")


def alone() -> list[list[int | None]]:
    """Returns the log's entries from a run in one process."""
    made, log = program()
    made.run(fast=True)
    assert len(log.lines) == FRAMES
    return [list(line) for line in log.lines]


def free_port() -> int:
    with socket.socket(type=socket.SOCK_DGRAM) as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1] // 16 * 16


def keys(file: Path) -> None:
    subprocess.run([sys.executable, "-m", "coorp", "keys", "init", file], check=True, capture_output=True)


def test_the_result_is_that_of_one_process(tmp_path: Path) -> None:
    text = ""
    for name in ("base", "rover"):
        text += f'[[robot]]\nname = "{name}"\nleader = {str(name == "base").lower()}\n'
        text += f'addresses = ["127.0.0.1"]\nport = {free_port()}\n'
    (tmp_path / "team.toml").write_text(text)
    keys(tmp_path / "team.toml")
    command = [sys.executable, SCRIPT, tmp_path]
    robots = [subprocess.Popen(command, env=os.environ | {"COORP_ROBOT": name}) for name in ("base", "rover")]
    assert [robot.wait(LIMIT_S) for robot in robots] == [0, 0]
    assert json.loads((tmp_path / "log.json").read_text()) == alone()


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="needs root and /dev/net/tun")
def test_the_result_is_the_same_over_emulated_wifi(tmp_path: Path) -> None:
    team = tmp_path / "team.toml"
    team.write_text('[[robot]]\nname = "base"\nleader = true\n\n[[robot]]\nname = "rover"\n\n[air]\nmcs = 5\n')
    keys(team)
    command = [sys.executable, "-m", "coorp", "emu", team, "--duration", "60s", "--", sys.executable, SCRIPT, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "log.json").read_text()) == alone()
