"""A program of reactors, coordinated by an RTI: a message passes through it, and its array through shared memory."""

from __future__ import annotations

from ipc.place import Place, Receiver, Sender, Transport


class Reactors(Transport):
    name = "coorp, RTI"
    module = "coorp._native"
    interpreter = "own"
    loans = True
    ours = True
    coordination = "centralised"

    def commands(self, places: list[Place], python: str) -> list[list[str]]:
        return [[python, "-m", "ipc.reactors", self.coordination, *(str(place.path) for place in places)]]

    def sender(self, place: Place) -> Sender:
        raise NotImplementedError("the launcher of the program starts its nodes")

    def receiver(self, place: Place) -> Receiver:
        raise NotImplementedError("the launcher of the program starts its nodes")


TRANSPORT: Transport = Reactors()
