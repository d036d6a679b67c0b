"""A program of reactors whose processes send directly to one another, and promise what they will not send."""

from __future__ import annotations

from ipc.place import Transport
from ipc.transports.coorp_rti import Reactors


class Direct(Reactors):
    name = "coorp, decentralised"
    coordination = "decentralised"


TRANSPORT: Transport = Direct()
