"""Starts two teams of twelve robots with different keys together on one LAN: measures how soon they are up, and checks
that they leave each other alone.

    sudo python studies/teams.py [--quick] [--markdown]

24 processes, each in its own network namespace, all on one bridge. No robot has `addresses`, so they find each other by
multicast. The processes load first, and then open their nodes at the same time. A robot is up when it sees its whole
team and a leader. After that, a packet socket on the bridge counts the unicast frames within the teams and between them
(ARP aside), for 10 s (60 s without `--quick`).

Needs root for the namespaces, and says so without. Exits with 1 if a team is not up 5 s after the last start, or if
afterwards there is a frame between the teams, a refusal, or a robot with more descriptors than before.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from lib.lan import HUB, Lan, Robots, answer, ask, hardware, is_possible, tell
from lib.simulator import binary
from lib.table import number, show

TEAMS = ("first", "second")
ROBOTS = tuple(f"r{place}" for place in range(12))
QUICK_S = 10.0
FULL_S = 60.0
UP_MAX_S = 5.0
GIVE_UP_S = 60.0
"""Time for which a robot waits for its team."""
POLL_S = 0.05
DESCRIPTORS_MORE = 2
"""Maximum number of additional descriptors of a robot at the end, for a link that is replaced."""
ARP = b"\x08\x06"


def be_robot(name: str, folder: Path) -> None:
    """Runs a robot's program, which says when it has loaded, and then answers commands, one per line."""
    import coorp

    print(json.dumps("loaded"), flush=True)
    sys.stdin.readline()
    began_s = time.time()
    node = coorp.Node(folder / "team.toml", robot=name, state=folder / "state" / name)
    while time.time() < began_s + GIVE_UP_S:
        status = node.status()
        if len(status["alive"]) == len(ROBOTS) and status["leader"] is not None:
            break
        time.sleep(POLL_S)
    print(json.dumps([began_s, time.time()]), flush=True)
    for _ in sys.stdin:
        status = node.status()
        marks = {
            "alive": len(status["alive"]),
            "leader": status["leader"],
            "descriptors": len(os.listdir("/proc/self/fd")),
            # The handshake of an own robot may not finish in time where 24 of them share a few cores.
            "refused": sum(count for reason, count in status["door"]["totals"] if reason != "Unfinished")
            + status["refused"]["strangers"],
        }
        print(json.dumps(marks), flush=True)
    os._exit(0)


def count_frames() -> None:
    """Counts unicast frames in the hub, within the teams and between them. Answers each line with both counts."""
    teams = {hardware(place): place // len(ROBOTS) for place in range(len(TEAMS) * len(ROBOTS))}
    own, other = 0, 0
    # All protocols, on all cards.
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)

    def answers() -> None:
        for _ in sys.stdin:
            print(json.dumps([own, other]), flush=True)
        os._exit(0)

    threading.Thread(target=answers, daemon=True).start()
    while True:
        frame, (_, _, kind, _, _) = listener.recvfrom(64)
        to, sender = teams.get(frame[:6]), teams.get(frame[6:12])
        # A frame is seen when it comes in, and again when it goes out.
        if kind == socket.PACKET_OUTGOING or to is None or sender is None or frame[12:14] == ARP:
            continue
        if to == sender:
            own += 1
        else:
            other += 1


def measure(folder: Path, program: Path, span_s: float) -> tuple[list[list[str]], list[str]]:
    """Returns the rows of the table, and the problems."""
    places = [(team, name) for team in TEAMS for name in ROBOTS]
    with Lan([f"{team} {name}" for team, name in places]) as lan:
        command = [sys.executable, str(Path(__file__).resolve()), "--count"]
        counter = lan.run(HUB, *command)
        teams = {
            team: Robots(lan, folder / team, program, {name: f"{team} {name}" for name in ROBOTS}) for team in TEAMS
        }
        with teams["first"], teams["second"]:
            processes = []
            for team, name in places:
                teams[team].start(name)
                processes.append(teams[team].running[name])
            for process in processes:
                answer(process)
            for process in processes:
                tell(process, "go")
            times = [answer(process) for process in processes]
            start, before = ask(counter, ""), [ask(process, "") for process in processes]
            time.sleep(span_s)
            stop, after = ask(counter, ""), [ask(process, "") for process in processes]
        counter.kill()
        counter.wait()
    last_s = max(began_s for began_s, _ in times)
    rows, problems = [], []
    within, between = (after - before for before, after in zip(start, stop, strict=True))
    for place, team in enumerate(TEAMS):
        part = slice(place * len(ROBOTS), (place + 1) * len(ROBOTS))
        up_s = max(up_s for _, up_s in times[part]) - last_s
        found, then = after[part], before[part]
        refused = sum(marks["refused"] for marks in found)
        held = [(max(marks["descriptors"] for marks in all_marks)) for all_marks in (then, found)]
        rows.append([team, number(up_s, 2), f"{refused}", f"{held[0]} / {held[1]}"])
        if not up_s <= UP_MAX_S:
            problems.append(f"{team}: up {number(up_s, 2)} s after the last start, not within {UP_MAX_S:g} s")
        if any(marks["alive"] != len(ROBOTS) for marks in found) or len({marks["leader"] for marks in found}) != 1:
            problems.append(f"{team}: not whole, or not of one leader: {found}")
        if refused:
            problems.append(f"{team}: {refused} refused")
        more = [new["descriptors"] - old["descriptors"] for new, old in zip(found, then, strict=True)]
        if max(more) > DESCRIPTORS_MORE:
            problems.append(f"{team}: descriptors grew: {more}")
    rows = [[*row, f"{within:,}", f"{start[1]:,}", f"{between:,}"] for row in rows]
    if between:
        problems.append(f"{between} frames between the teams")
    if not within:
        problems.append("no frames were seen: nothing was counted")
    return rows, problems


TITLES = [
    "team",
    "up, s",
    "refused",
    "descriptors, most",
    "frames within both teams",
    "between them before",
    "between them after",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short spans, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--robot", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.robot:
        be_robot(arguments.robot, arguments.folder)
    if arguments.count:
        count_frames()
    program = binary()
    if program is None or not is_possible():
        return 0
    span_s = QUICK_S if arguments.quick else FULL_S
    with tempfile.TemporaryDirectory() as folder:
        rows, problems = measure(Path(folder), program, span_s)
    print(f"Two teams of {len(ROBOTS)} on one bridge, {span_s:g} s after both are up.\n")
    show(TITLES, rows, markdown=arguments.markdown)
    for problem in problems:
        print(f"FAIL: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
