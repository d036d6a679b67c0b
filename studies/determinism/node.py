"""One node of the scenario over another middleware: `python -m determinism.node MODULE ROLE FOLDER N PERIOD`.

The door prints `ready` when it has heard from both other nodes, and at the end the messages that it has handled. The
cockpit waits for a line on its standard input before it begins. Until then it sends the number 0. The study ends the
processes.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import select
import signal
import sys
import threading
import time

from determinism.bus import COCKPIT, DOOR, RELAY, Bus

HELLO_S = 0.1
PR_SET_PDEATHSIG = 1
QUIET_S = 2.0
"""After this time without a message, the rest is missing."""


def lead(bus: Bus, rounds: int, period_s: float) -> None:
    """Runs node A."""
    while not select.select([sys.stdin], [], [], HELLO_S)[0]:
        bus.send("disarm", 0)
        bus.send("asked", 0)
    begun = time.monotonic() + HELLO_S
    for number in range(1, rounds + 1):
        time.sleep(max(0.0, begun + number * period_s - time.monotonic()))
        bus.send("disarm", number)
        bus.send("asked", number)
    print(json.dumps({"took_s": time.monotonic() - begun}), flush=True)


def forward(bus: Bus) -> None:
    """Runs node B."""
    bus.receive(lambda _, number: bus.send("open", number))


class Door:
    """Node C."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._lock = threading.Lock()
        self._hello: set[str] = set()
        self._disarmed: set[int] = set()
        self._disarms = self._opens = self._early = 0
        self._at = time.monotonic()

    def handle(self, topic: str, number: int) -> None:
        """Handles messages one at a time, like a callback of ROS 2."""
        with self._lock:
            self._at = time.monotonic()
            if number == 0:
                if topic not in self._hello:
                    self._hello.add(topic)
                    if len(self._hello) == 2:
                        print("ready", flush=True)
                return
            if topic == "disarm":
                self._disarms += 1
                self._disarmed.add(number)
                return
            self._opens += 1
            if number in self._disarmed:
                self._disarmed.remove(number)
            else:
                self._early += 1

    def watch(self) -> None:
        """Reports at the end."""
        while self._disarms + self._opens < 2 * self._rounds:
            time.sleep(0.05)
            if self._disarms + self._opens and time.monotonic() - self._at > QUIET_S:
                break
        with self._lock:
            print(json.dumps({"disarms": self._disarms, "opens": self._opens, "early": self._early}), flush=True)


def main() -> None:
    """Runs one node, which ends with the study."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    module, role, folder, rounds, period_s = sys.argv[1:6]
    bus: Bus = importlib.import_module(f"determinism.peers.{module}").open_bus(role, folder)
    if role == COCKPIT:
        lead(bus, int(rounds), float(period_s))
    elif role == RELAY:
        forward(bus)
    else:
        assert role == DOOR
        door = Door(int(rounds))
        threading.Thread(target=door.watch, daemon=True).start()
        bus.receive(door.handle)


if __name__ == "__main__":
    main()
