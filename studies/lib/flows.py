"""Runs a robot's part of a team file's `[[flow]]`s over real sockets, for `coorp emu`.

    coorp emu team.toml -- python3 studies/lib/flows.py --start MONOTONIC_S --duration S --folder SHARED

Each end of a flow is a separate process, so that no flow delays another. All robots of an emulation share a clock, so
the receiver knows how long a message took. Each receiver prints a line of JSON. A message fits in one packet.

A socket on a real card blocks its sender while the card is full. A TAP does not, so a saturated UDP flow limits itself:
it stays ahead of its receiver by as many datagrams as in the simulator, and learns the receiver's progress from a file.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import random
import socket
import struct
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

PORT = 7100
"""Port of the first flow."""
HEADER = struct.Struct("!QQ")
"""A message's number and sending time in ns."""
SATURATED_UDP_BYTES = 1472
SATURATED_TCP_BYTES = 1448
AHEAD = 640
"""Number of datagrams by which a saturated UDP flow is ahead of its receiver, as in the simulator."""
COUNT = struct.Struct("=Q")
TOS = {"AC_VO": 46 << 2, "AC_VI": 34 << 2, "AC_BE": 0, "AC_BK": 8 << 2}
UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def seconds(text: str) -> float:
    """Returns a time from a team file, in seconds."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number) * UNITS_S[text[len(number) :].strip()]


def sleep_until(at: float) -> None:
    """Waits for a point of the monotonic clock."""
    time.sleep(max(0.0, at - time.monotonic()))


def is_tcp(flow: dict[str, Any]) -> bool:
    """Returns whether a flow goes over TCP."""
    return flow.get("transport", "udp") == "tcp"


def sender(flow: dict[str, Any]) -> socket.socket:
    """Returns a socket of the flow's kind and category."""
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM if is_tcp(flow) else socket.SOCK_DGRAM)
    own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS[flow.get("ac", "AC_BE")])
    return own


def shared(folder: Path, port: int) -> mmap.mmap:
    """Maps the number of a flow's datagrams that the receiver has seen or knows to be lost."""
    with (folder / str(port)).open("a+b") as file:
        file.truncate(COUNT.size)
        return mmap.mmap(file.fileno(), COUNT.size)


def send(flow: dict[str, Any], port: int, start: float, stop: float, folder: Path) -> None:
    """Runs the sender's side."""
    own = sender(flow)
    # Before the start, so that address resolution does not count; the receiver may take a while to appear.
    while own.connect_ex((flow["to"], port)) != 0:
        time.sleep(0.05)
        own.close()
        own = sender(flow)
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
    if flow.get("saturated", False):
        arrived = shared(folder, port)
        while time.monotonic() < stop:
            if number < COUNT.unpack_from(arrived)[0] + AHEAD:
                own.send(HEADER.pack(number, time.monotonic_ns()).ljust(SATURATED_UDP_BYTES, b"\0"))
                number += 1
            else:
                time.sleep(0.0002)
        return
    period, jitter = seconds(flow["period"]), seconds(flow.get("jitter", "0s"))
    draw = random.Random(port)
    for tick in range(int((stop - start) / period)):
        sleep_until(start + tick * period + draw.gauss(0.0, jitter))
        own.send(HEADER.pack(tick, time.monotonic_ns()).ljust(int(flow["size"]), b"\0"))


def receive(flow: dict[str, Any], port: int, start: float, stop: float, folder: Path) -> None:
    """Runs the receiver's side, and prints its findings."""
    got_bytes, latencies_ms, arrived = 0, [], shared(folder, port)
    own = sender(flow)
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
            number, sent_ns = HEADER.unpack_from(data)
            latencies_ms.append((now_ns - sent_ns) / 1e6)
            COUNT.pack_into(arrived, 0, number + 1)
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
    # In one write, because several processes share the output.
    os.write(1, f"{json.dumps(found)}\n".encode())


def main() -> None:
    """Runs all flows that begin or end here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", type=float, required=True)
    parser.add_argument("--duration", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    robot = os.environ["COORP_ROBOT"]
    team = tomllib.loads(Path(os.environ["COORP_TEAM"]).read_text())
    ends = []
    for place, flow in enumerate(team["flow"]):
        start = arguments.start + seconds(flow.get("start", "0s"))
        stop = min(arguments.start + arguments.duration, arguments.start + seconds(flow.get("stop", "1000s")))
        for end, what in ((flow["to"], receive), (flow["from"], send)):
            if end == robot:
                ends.append(
                    multiprocessing.Process(target=what, args=(flow, PORT + place, start, stop, arguments.folder))
                )
    for process in ends:
        process.start()
    for process in ends:
        process.join()
    if any(process.exitcode for process in ends):
        sys.exit(1)


if __name__ == "__main__":
    main()
