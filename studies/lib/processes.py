"""Helpers of the studies: free ports, and the processor time of a process."""

from __future__ import annotations

import socket
import sys
from pathlib import Path


def free_ports(count: int) -> int:
    """Returns the first of a range of free ports."""
    for base in range(14_000, 30_000, count):
        try:
            for port in range(base, base + count):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    with socket.socket(socket.AF_INET, kind) as probe:
                        probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    sys.exit("no ports are free")


def ticks(process: int) -> int:
    """Returns the processor time that a process has used, in clock ticks."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
