"""A robot that plays its part of a team file's `[[flow]]`s over real sockets, for `coorp emu`.

    coorp emu team.toml -- python3 studies/lib/flows.py --start MONOTONIC_S --duration S

Every end of a flow is a process of its own, so that no flow waits for another's turn. All robots of an emulation have
one clock, so the receiver knows how long a message took. Each receiver prints a line of JSON. Messages fit one packet.
A saturated UDP flow offers more than the channel takes, as a TAP does not tell its sender to wait.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import struct
import time
import tomllib
from pathlib import Path
from typing import Any

PORT = 7100
"""Of the first flow."""
HEADER = struct.Struct("!QQ")
"""A message's number, and when it was sent, ns."""
SATURATED_UDP_BYTES = 1472
SATURATED_TCP_BYTES = 1448
OFFERED_A_MS = 25
"""Datagrams that a saturated UDP flow sends each millisecond: 294 Mbit/s."""
TOS = {"AC_VO": 46 << 2, "AC_VI": 34 << 2, "AC_BE": 0, "AC_BK": 8 << 2}
UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def seconds(text: str) -> float:
    """A team file's time."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number) * UNITS_S[text[len(number) :].strip()]


def sleep_until(at: float) -> None:
    """Waits for a point of the monotonic clock."""
    time.sleep(max(0.0, at - time.monotonic()))


def is_tcp(flow: dict[str, Any]) -> bool:
    """What carries it."""
    return flow.get("transport", "udp") == "tcp"


def send(flow: dict[str, Any], port: int, start: float, stop: float) -> None:
    """The sender's side."""
    kind = socket.SOCK_STREAM if is_tcp(flow) else socket.SOCK_DGRAM
    own = socket.socket(socket.AF_INET, kind)
    own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS[flow.get("ac", "AC_BE")])
    # Before the start, so that nobody is looked for while it counts.
    own.connect((flow["to"], port))
    sleep_until(start)
    number = 0
    if is_tcp(flow):
        piece = bytes(64 * SATURATED_TCP_BYTES)
        own.settimeout(0.1)
        while time.monotonic() < stop:
            try:
                own.send(piece)
            except TimeoutError:
                continue
        return
    saturated = flow.get("saturated", False)
    period = 1e-3 if saturated else seconds(flow["period"])
    size = SATURATED_UDP_BYTES if saturated else int(flow["size"])
    jitter = seconds(flow.get("jitter", "0s"))
    draw = random.Random(port)
    for tick in range(int((stop - start) / period)):
        sleep_until(start + tick * period + draw.gauss(0.0, jitter))
        for _ in range(OFFERED_A_MS if saturated else 1):
            own.send(HEADER.pack(number, time.monotonic_ns()).ljust(size, b"\0"))
            number += 1


def receive(flow: dict[str, Any], port: int, start: float, stop: float) -> None:
    """The receiver's side, and what it found."""
    got_bytes, latencies_ms = 0, []
    kind = socket.SOCK_STREAM if is_tcp(flow) else socket.SOCK_DGRAM
    own = socket.socket(socket.AF_INET, kind)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if not is_tcp(flow):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    own.bind(("", port))
    if is_tcp(flow):
        own.listen()
        own.settimeout(stop - time.monotonic())
        own, _ = own.accept()
    while (left := stop + 0.5 - time.monotonic()) > 0.0:
        own.settimeout(left)
        try:
            data = own.recv(1 << 16)
        except TimeoutError:
            break
        if not data:
            break
        now_ns = time.monotonic_ns()
        if not is_tcp(flow):
            latencies_ms.append((now_ns - HEADER.unpack_from(data)[1]) / 1e6)
        if start * 1e9 <= now_ns <= stop * 1e9:
            got_bytes += len(data)
    latencies_ms.sort()
    found: dict[str, Any] = {"flow": flow["name"], "mbps": got_bytes * 8e-6 / (stop - start)}
    found["delivered"] = len(latencies_ms)
    if latencies_ms:
        found["latency_ms"] = {
            name: latencies_ms[min(int(share * len(latencies_ms)), len(latencies_ms) - 1)]
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        }
    print(json.dumps(found), flush=True)


def main() -> None:
    """Plays all flows that begin or end here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", type=float, required=True)
    parser.add_argument("--duration", type=float, required=True)
    arguments = parser.parse_args()
    robot = os.environ["COORP_ROBOT"]
    team = tomllib.loads(Path(os.environ["COORP_TEAM"]).read_text())
    ends = []
    for place, flow in enumerate(team["flow"]):
        start = arguments.start + seconds(flow.get("start", "0s"))
        stop = min(arguments.start + arguments.duration, arguments.start + seconds(flow.get("stop", "1000s")))
        for end, what in ((flow["to"], receive), (flow["from"], send)):
            if end == robot:
                ends.append(multiprocessing.Process(target=what, args=(flow, PORT + place, start, stop)))
    # Those who listen come first.
    for process in ends:
        if process._target is send:  # type: ignore[attr-defined]
            time.sleep(0.3)
        process.start()
    for process in ends:
        process.join()


if __name__ == "__main__":
    main()
