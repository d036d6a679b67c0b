"""Coorp's memory with receivers that spin for a while before they sleep. Only for hops: it needs a core for each."""

from __future__ import annotations

from ipc.place import HOP, Transport
from ipc.transports.coorp_memory import Memory

SPIN_S = 2e-3
"""Spinning time, longer than the time between two hops of this study."""


class Spinning(Memory):
    name = "coorp, memory alone, spinning"
    patterns = (HOP,)
    spin_s = SPIN_S


TRANSPORT: Transport = Spinning()
