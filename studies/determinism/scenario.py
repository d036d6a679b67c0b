"""The scenario of Bateni (2023) as a program of reactors: `python -m determinism.scenario --rounds N --period 1ms`.

In each round, the cockpit tells the door to disarm its slide, and the relay to open the door. The relay passes that on
to the door. A door that opens before it was disarmed inflates its slide. Each reactor is a separate process.

Prints the messages that the door handled, and the reported violations, as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass

from coorp.reactor import Input, Output, Program, Reactor, Timer, reaction, shutdown

BEGIN = "100ms"
"""The time of the first round, by which no process is busy with its start."""


@dataclass
class Options(argparse.Namespace):
    """The program's options, in every process."""

    rounds: int = 0
    period: str = "1ms"
    coordination: str = "centralised"
    offset: str | None = None
    fast: bool = False
    door: str = ""
    """The file for the messages that the door has handled."""


def parsed() -> Options:
    """Returns the options of the command line, even of another program that imports this file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--period", default="1ms")
    parser.add_argument("--coordination", default="centralised")
    parser.add_argument("--offset")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--door", default="")
    return parser.parse_known_args(namespace=Options())[0]


options = parsed()


class Cockpit(Reactor):
    """Node A: begins each round."""

    disarm, open = Output[int](), Output[int]()
    tick = Timer(period=options.period, offset=BEGIN)

    def __init__(self) -> None:
        self.round = 0

    @reaction(tick, effects=[disarm, open])
    def begin(self) -> None:
        if self.round == options.rounds:
            self.stop()
            return
        self.round += 1
        self.disarm.set(self.round)
        self.open.set(self.round)


class Relay(Reactor):
    """Node B: passes on."""

    asked, open = Input[int](), Output[int]()

    @reaction(asked, effects=open)
    def forward(self) -> None:
        number = self.asked.get()
        assert number is not None
        self.open.set(number)


class Door(Reactor):
    """Node C: has to disarm before it opens."""

    disarm, open = Input[int](), Input[int]()

    def __init__(self) -> None:
        self.disarmed = 0
        self.disarms = self.opens = self.early = 0

    @reaction(disarm)
    def on_disarm(self) -> None:
        self.disarms += 1
        self.disarmed = self.disarm.get()

    @reaction(open)
    def on_open(self) -> None:
        self.opens += 1
        self.early += self.disarmed != self.open.get()

    @reaction(shutdown)
    def tell(self) -> None:
        with open(options.door, "w") as file:
            json.dump({"disarms": self.disarms, "opens": self.opens, "early": self.early}, file)


app = Program()
cockpit, relay, door = app.add(Cockpit()), app.add(Relay()), app.add(Door())
app.connect(cockpit.disarm, door.disarm)
app.connect(cockpit.open, relay.asked)
app.connect(relay.open, door.open)


def main() -> None:
    """Runs the program."""
    with tempfile.TemporaryDirectory() as folder:
        options.door = os.path.join(folder, "door.json")
        # The reactors' processes get the same options.
        sys.argv += ["--door", options.door]
        offset = {} if options.offset is None else {"offset": options.offset}
        begun = time.monotonic()
        result = app.run(coordination=options.coordination, place="processes", fast=options.fast, **offset)  # type: ignore[arg-type]
        took_s = time.monotonic() - begun
        with open(options.door) as file:
            handled = json.load(file)
    print(json.dumps({**handled, "took_s": took_s, "violations": dict(getattr(result, "violations", {}))}))


if __name__ == "__main__":
    main()
