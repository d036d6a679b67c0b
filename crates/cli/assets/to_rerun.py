"""Logs what `coorp watch --rerun` tells to Rerun: a viewer that it starts unless one listens, or a file.

Reads lines of JSON from stdin. The first one says where to log and what the team is. Each other one is a message of a
channel as Foxglove gets it, and an empty line ends what is logged at once. Exits with 2 if `rerun-sdk` is missing.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

# Run as a command, Python would first import from the folder where it runs.
sys.path[:] = [folder for folder in sys.path if folder]

NO_PACKAGE = 2
PLOTS_S, STATES_S = 20.0, 3.0
"""How much time plots show, and states, which change faster."""
QUIET_S = 5.0
"""How long Rerun may take to take what is left at the end."""
START = "import sys, rerun_cli.__main__ as viewer; sys.exit(viewer.main())"
"""Runs the viewer. As `-m rerun_cli`, it would not say whether it could."""
VIEWER = ["--bind", "127.0.0.1", "--expect-data-soon", "--memory-limit", "2GiB", "--server-memory-limit", "256MiB"]
"""How a viewer is started: for this machine alone, and with the newest data that fits."""

try:
    import numpy as np
    import rerun as rr
    import rerun.blueprint as rrb
    import rerun_cli
    from rerun import StateChange, StateConfiguration
    from rerun.blueprint import StateTimelineView
except ImportError as error:
    print(f"rerun-sdk: {error}", file=sys.stderr)
    sys.exit(NO_PACKAGE)

LEVELS = {2: rr.TextLogLevel.INFO, 3: rr.TextLogLevel.WARN, 4: rr.TextLogLevel.ERROR}
LATE = [179, 0, 27]
STATES = {"permit": [244, 220, 140], "window": [86, 180, 233], "held": [176, 84, 138]}
"""What is shown in a colour of its own, as on the page."""


def blueprint(has_paths: bool) -> rrb.Blueprint:
    """Returns the views: plots above, states, and alarms."""

    def last(seconds: float) -> rrb.TimeAxis:
        start = rrb.TimeRangeBoundary.cursor_relative(seconds=-seconds)
        return rrb.TimeAxis(view_range=rr.TimeRange(start=start, end=rrb.TimeRangeBoundary.cursor_relative()))

    def plot(contents: list[str], name: str) -> rrb.TimeSeriesView:
        return rrb.TimeSeriesView(origin="/", contents=contents, name=name, axis_x=last(PLOTS_S))

    def states(contents: list[str], name: str) -> StateTimelineView:
        return StateTimelineView(origin="/", contents=contents, name=name, time_view=last(STATES_S))

    return rrb.Blueprint(
        rrb.Vertical(
            rrb.Horizontal(
                plot(["/bound", "/reaction/**"], "Reaction time, ms"),
                plot(["/age/**"], "Age of control, ms"),
                plot(["/bulk/**"], "Bulk, Mbit/s"),
            ),
            states(["/leads", "/states/**"], "Permits, windows, gates"),
            rrb.Horizontal(
                rrb.TextLogView(origin="/alarms", name="Alarms"),
                *([states(["/paths/**"], "Paths")] if has_paths else []),
                plot(["/air/**"], "In the card or on the air, ms"),
            ),
            row_shares=[3, 5, 2],
        ),
        rrb.TimePanel(state="collapsed", timeline="time", play_state="following"),
        rrb.SelectionPanel(state="collapsed"),
        rrb.BlueprintPanel(state="collapsed"),
    )


class Log:
    """Messages by entity, until they are sent together."""

    def __init__(self, team: dict[str, Any]) -> None:
        self.bound_ms: float | None = team["bound_ms"]
        self.scalars: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self.states: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self.styled: set[str] = set()
        self.newest_loop_ns = 0
        if self.bound_ms is not None:
            rr.log("bound", rr.SeriesLines(colors=LATE, names="bound", widths=1.5), static=True)

    def take(self, topic: str, at_ns: int, value: dict[str, Any]) -> None:
        """Takes a message; those of channels that Rerun has no view for are left out."""
        if topic == "/coorp/alarms":
            rr.set_time("time", timestamp=np.datetime64(at_ns, "ns"))
            level = LEVELS.get(value["level"], rr.TextLogLevel.INFO)
            rr.log(f"alarms/{part(value['name'])}", rr.TextLog(value["message"], level=level))
            return
        robot = part(value["robot"])
        match topic:
            case "/coorp/loops":
                self.newest_loop_ns = max(self.newest_loop_ns, at_ns)
                self.scalar("reaction", robot, at_ns, value["reaction_ms"])
            case "/coorp/ages":
                self.scalar("age", robot, at_ns, value["age_ms"])
            case "/coorp/air":
                self.scalar("air", f"{robot}/{value['what']}", at_ns, value["took_ms"])
            case "/coorp/bulk":
                for name in ("sent", "received"):
                    self.scalars[f"bulk/{robot}/{name}"].append((at_ns, value[f"{name}_mbps"]))
            case "/coorp/permits":
                self.state(f"states/{robot}/permit", at_ns, "permit" if value["event"] == "permitted" else "")
            case "/coorp/window":
                self.state(f"states/{robot}/window", at_ns, "window" if value["open"] else "")
            case "/coorp/gate":
                self.state(f"states/{robot}/gate_{part(value['path'])}", at_ns, "" if value["open"] else "held")
            case "/coorp/leader":
                if value["event"] == "leads":
                    self.states["leads"].append((at_ns, value["robot"]))
            case "/coorp/paths":
                says = f"{value['state']}, {value['carries']}" + (", bulk" if value["bulk"] else "")
                self.states[f"paths/{robot}/{part(value['to'])}/{part(value['path'])}"].append((at_ns, says))

    def scalar(self, kind: str, name: str, at_ns: int, value: float) -> None:
        """A value of its own, which no line connects to the next."""
        entity = f"{kind}/{name}"
        if entity not in self.styled:
            self.styled.add(entity)
            rr.log(entity, rr.SeriesPoints(markers="circle", marker_sizes=1.5), static=True)
        self.scalars[entity].append((at_ns, value))

    def state(self, entity: str, at_ns: int, state: str) -> None:
        """A state of a robot, or none."""
        if entity not in self.styled:
            self.styled.add(entity)
            rr.log(entity, StateConfiguration(values=list(STATES), colors=list(STATES.values())), static=True)
        self.states[entity].append((at_ns, state))

    def send(self) -> None:
        """Sends what has come."""
        if self.bound_ms is not None and self.newest_loop_ns:
            self.scalars["bound"].append((self.newest_loop_ns, self.bound_ms))
        self.newest_loop_ns = 0
        for entity, rows in self.scalars.items():
            rr.send_columns(entity, [times(rows)], rr.Scalars.columns(scalars=[value for _, value in rows]))
        for entity, rows in self.states.items():
            rr.send_columns(entity, [times(rows)], StateChange.columns(state=[state for _, state in rows]))
        self.scalars.clear()
        self.states.clear()


def part(name: str) -> str:
    """Returns a name as part of an entity's path."""
    return rr.escape_entity_path_part(name)


def times(rows: list[tuple[int, Any]]) -> rr.TimeColumn:
    return rr.TimeColumn("time", timestamp=np.array([at_ns for at_ns, _ in rows], dtype="datetime64[ns]"))


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def connect(port: int) -> subprocess.Popen[bytes] | None:
    """Connects to the viewer at a port. If none listens, starts and returns one, for this machine alone."""
    viewer = None
    if not listens(port):
        command = [sys.executable, "-c", START, "--port", str(port), *VIEWER]
        # Its window stays when this ends, and the folder where this runs has no part in what is imported.
        folder, apart = Path(rerun_cli.__file__).parents[1], {"RERUN_APP_ONLY": "true", **os.environ}
        viewer = subprocess.Popen(command, cwd=folder, env=apart, stdin=subprocess.DEVNULL, start_new_session=True)
    rr.connect_grpc(f"rerun+http://127.0.0.1:{port}/proxy")
    return viewer


def main() -> int:
    # Ctrl-C ends the program that tells; this ends when there is nothing more to read.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    team = json.loads(sys.stdin.readline())
    rr.init("coorp")
    viewer = None
    if team["file"] is None:
        viewer = connect(team["port"])
    else:
        rr.save(team["file"])
    rr.send_recording_name(team["team"])
    rr.send_blueprint(blueprint(team["has_paths"]))
    log = Log(team)
    for line in sys.stdin:
        if line != "\n":
            message = json.loads(line)
            log.take(message["topic"], message["at_ns"], message["value"])
            continue
        log.send()
        if viewer is not None and (code := viewer.poll()) is not None:
            if code:
                print("Rerun's viewer does not run here; '--rerun FILE.rrd' writes a file instead", file=sys.stderr)
            return int(code != 0)
    log.send()
    recording = rr.get_global_data_recording()
    if recording is not None:
        recording.flush(timeout_sec=QUIET_S)
    rr.disconnect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
