"""The nodes of this study as reactors: `python -m ipc.reactors COORDINATION PLACE.json ...`, each in its own process.

A sender is a reactor whose physical action follows the study's commands. Its reaction sets the output, and there the
clock begins. A receiver has an input for each sender, over a connection without a delay, and takes the present values.

If several nodes send, a receiver must know that nothing earlier comes from the others. So the actions then have a
minimum delay, like sensors with an exposure time, and federates promise that far ahead.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

from coorp.reactor import Input, Output, PhysicalAction, Program, Reactor, reaction, startup
from ipc.node import Reports, Sending
from ipc.place import GATHER, Place, Sender

coordination, places = sys.argv[1], [Place.load(path) for path in sys.argv[2:]]
PROMISE = "20ms" if places[0].pattern == GATHER else "0s"
"""Twice the interval at which federates repeat their promises."""
LOOK_S = 2e-3


class FromReaction(Sender):
    """Makes the reactor send, and returns once it has."""

    def __init__(self, reactor: Source) -> None:
        self._reactor = reactor
        self._loaned: np.ndarray | None = None

    def send(self, array: np.ndarray) -> None:
        # `set` would make the array itself read-only.
        self._schedule(array[:])

    def load(self, array: np.ndarray) -> None:
        self._loaned = self._reactor.frame.loan(len(array), np.uint8)
        self._loaned[:] = array

    def send_loaded(self) -> None:
        assert self._loaned is not None
        self._schedule(self._loaned)
        self._loaned = None

    def _schedule(self, array: np.ndarray) -> None:
        self._reactor.begun_ns = 0
        self._reactor.asked.schedule(array)
        # An event of `threading` would wake this thread while the reactor's thread still has work that is timed.
        while not self._reactor.begun_ns:
            time.sleep(LOOK_S)
        self.begun_ns = self._reactor.begun_ns


class Source(Reactor):
    """A sender."""

    frame = Output[np.ndarray]()
    asked = PhysicalAction[np.ndarray](delay_min=PROMISE)

    def __init__(self, place: Place) -> None:
        self.place = place
        self.begun_ns = 0

    @reaction(startup)
    def begin(self) -> None:
        sending = Sending(self.place, FromReaction(self))
        threading.Thread(target=sending.run, daemon=True).start()

    @reaction(asked, effects=frame)
    def send(self) -> None:
        array = self.asked.get()
        assert array is not None
        begun_ns = time.monotonic_ns()
        self.frame.set(array)
        self.begun_ns = begun_ns


class Sink(Reactor):
    """A receiver."""

    frame_0, frame_1, frame_2 = (Input[np.ndarray](optional=index > 0) for index in range(3))

    def __init__(self, place: Place) -> None:
        self.place = place

    @reaction(startup)
    def begin(self) -> None:
        self.reports = Reports(self.place)

    @reaction(frame_0, frame_1, frame_2)
    def take(self) -> None:
        for port in (self.frame_0, self.frame_1, self.frame_2)[: self.place.senders]:
            if not port.is_present():
                continue
            view = port.get()
            assert view is not None
            try:
                if not self.reports.take(view):
                    self.stop()
            except Exception:
                self.reports.failed()
                raise


app = Program()
sources = [app.add(Source(place), f"source_{place.index}") for place in places if place.role == "sender"]
sinks = [app.add(Sink(place), f"sink_{place.index}") for place in places if place.role == "receiver"]
for sink in sinks:
    for source, frame in zip(sources, (sink.frame_0, sink.frame_1, sink.frame_2), strict=False):
        app.connect(source.frame, frame)

if __name__ == "__main__":
    app.run(coordination=coordination, place="processes")  # type: ignore[arg-type]
