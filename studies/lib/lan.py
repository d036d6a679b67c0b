"""A LAN for studies: network namespaces on one bridge, and the robots of a team in them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from lib.simulator import REPOSITORY

HUB = "hub"
"""The namespace of the bridge, which has a card to each of the other namespaces, and sees all frames."""


def address(place: int) -> str:
    return f"10.97.0.{place + 1}"


def hardware(place: int) -> bytes:
    return bytes((2, 0, 0, 0, 0, place + 1))


def card(place: int) -> str:
    """Returns the name of the hub's card to a namespace."""
    return f"p{place}"


def is_possible() -> bool:
    """Returns whether namespaces can be created; prints why not."""
    possible = os.geteuid() == 0 and shutil.which("ip") is not None
    if not possible:
        print("SKIPPED: the namespaces need root and ip")
    return possible


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Lan:
    """Network namespaces on one bridge, which are removed at the end."""

    def __init__(self, names: list[str]) -> None:
        self.names = {name: f"door-{os.getpid()}-{name.replace(' ', '-')}" for name in [*names, HUB]}

    def __enter__(self) -> Lan:
        *inside, hub = self.names.values()
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        ip("-n", hub, "link", "set", "bridge", "up")
        for place, name in enumerate(inside):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            own, cable = hardware(place).hex(":"), ("type", "veth", "peer", "name", card(place), "netns", hub)
            ip("-n", name, "link", "add", "eth0", "address", own, *cable)
            ip("-n", hub, "link", "set", card(place), "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{address(place)}/24", "brd", "+", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "route", "add", "224.0.0.0/4", "dev", "eth0")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def part(self, names: list[str]) -> None:
        """Moves namespaces to a second bridge."""
        hub, places = self.names[HUB], list(self.names)
        ip("-n", hub, "link", "add", "apart", "type", "bridge", "mcast_snooping", "0")
        ip("-n", hub, "link", "set", "apart", "up")
        for name in names:
            ip("-n", hub, "link", "set", card(places.index(name)), "master", "apart")

    def run(self, name: str, *command: str) -> subprocess.Popen[str]:
        """Runs a program in a namespace, with pipes."""
        inside = ["ip", "netns", "exec", self.names[name], *command]
        pipe = subprocess.PIPE
        return subprocess.Popen(inside, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, cwd=REPOSITORY)


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Writes a line to a program."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line + "\n")
        process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> Any:  # noqa: ANN401
    """Returns a program's next answer."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit("a program of the study ended before it answered")
    return json.loads(line)


def ask(process: subprocess.Popen[str], line: str) -> Any:  # noqa: ANN401
    tell(process, line)
    return answer(process)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


class Robots(contextlib.ExitStack):
    """A team in its namespaces, given by its robots' names; the first robot leads. Each runs this study with `--robot`
    and `--folder`."""

    def __init__(self, lan: Lan, folder: Path, program: Path, names: dict[str, str], more: str = "") -> None:
        super().__init__()
        self.lan, self.folder, self.names = lan, folder, names
        self.running: dict[str, subprocess.Popen[str]] = {}
        folder.mkdir()
        robots = (
            f'[[robot]]\nname = "{name}"\nleader = {str(place == 0).lower()}\n' for place, name in enumerate(names)
        )
        (folder / "team.toml").write_text("\n".join([*robots, more]))
        subprocess.run([str(program), "keys", "init", str(folder / "team.toml")], check=True, capture_output=True)

    def start(self, name: str) -> None:
        own = [sys.executable, str(Path(sys.argv[0]).resolve()), "--robot", name, "--folder", str(self.folder)]
        process = self.lan.run(self.names[name], *own)
        self.running[name] = process
        self.callback(end, process)

    def kill(self, name: str) -> None:
        end(self.running.pop(name))
