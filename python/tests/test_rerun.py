"""`coorp watch --rerun`: what is in Rerun's file is what the robots' programs see and report. Needs `rerun-sdk`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_node import SOON
from test_web import ROBOTS, Team, rows_of, team

__all__ = ["team"]
if (found := importlib.util.find_spec("rerun")) is None and "CI" in os.environ:
    raise RuntimeError("CI has to run these tests: no rerun-sdk")
pytestmark = [
    pytest.mark.skipif(found is None, reason="no rerun-sdk"),
    # A file that is being written has no index yet.
    pytest.mark.filterwarnings("ignore:RRD file has no footer"),
]

Rows = defaultdict[str, list[Any]]


def rows(file: Path) -> Rows:
    """Each entity's scalars, states or log messages, in the order in which they were logged."""
    from rerun.chunk import RrdReader

    entities: Rows = defaultdict(list)
    for chunk in RrdReader(file).stream():
        batch = chunk.to_record_batch()
        for name in ("Scalars:scalars", "StateChange:state", "TextLog:text"):
            if name in batch.schema.names:
                entities[chunk.entity_path].extend(values[0] for values in batch.column(name).to_pylist())
    return entities


def until_logged(file: Path, entity: str, count: int) -> None:
    """Waits for some rows of an entity while the file grows. What is being written cannot always be read."""
    until, got = time.monotonic() + SOON, 0
    while got < count:
        assert time.monotonic() < until, f"{got} rows of {entity}"
        time.sleep(0.5)
        with contextlib.suppress(RuntimeError):
            got = len(rows(file)[entity])


def finished(file: Path) -> Rows:
    """Returns all rows, once the file does not grow any more."""
    until, size = time.monotonic() + SOON, -1
    while size != (size := file.stat().st_size):
        assert time.monotonic() < until
        time.sleep(1)
    return rows(file)


@pytest.fixture
def watch(team: Team, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`coorp watch --rerun`, and its file."""
    file = tmp_path / "run.rrd"
    process = subprocess.Popen([sys.executable, "-m", "coorp", "watch", str(team.fleet.file), "--rerun", str(file)])
    until = time.monotonic() + SOON
    while not file.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    yield process, file
    process.kill()
    process.wait()


def test_a_file_has_what_the_programs_see_and_the_robots_report(
    team: Team, watch: tuple[subprocess.Popen[bytes], Path]
) -> None:
    process, file = watch
    # Robots are asked from the beginning.
    until_logged(file, "/leads", 1)
    team.drive()
    stream = team.nodes["scout"].bulk_stream(to="base", name="map")
    stream.write(b"x" * 30_000_000)
    delivery = stream.finish()
    received = team.nodes["base"].bulk_receiver().recv(timeout=SOON)
    assert received is not None
    delivery.wait(timeout=SOON)
    # Some seconds of loops, as far as the scout knows that they are some.
    until_logged(file, "/reaction/scout", 60)
    team.rest()
    # All that happened is told, a few tenths of a second later.
    time.sleep(3)
    said = team.once()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=SOON)
    logged = finished(file)
    # Loops, as the scout's program times them, which is told a moment later.
    loops, seen = logged["/reaction/scout"], team.took["scout"]
    assert 60 <= len(loops) < 1.1 * len(seen) + 2
    assert 2.0 < statistics.median(loops) < statistics.median(seen) + 1.0
    assert set(logged["/bound"]) == {33.0}
    # Every control message has an age once clocks were compared.
    counts = sum(int(row[3]) for row in rows_of(said, "control") if row[2] == "scout")
    assert 0.5 * counts < len(logged["/age/scout"]) <= counts
    # 30 MB in rates of about a second each.
    assert 100.0 < sum(logged["/bulk/scout/sent"]) < 1000.0
    assert "permit" in logged["/states/scout/permit"] and logged["/states/scout/permit"][-1] == ""
    leads = re.search(r"3 of 3 robots here, (\w+) leads", said)
    assert leads and logged["/leads"][-1] == leads[1] and leads[1] in ROBOTS
    assert f"{leads[1]} leads" in [message for messages in logged.values() for message in messages]


def test_without_the_package_it_says_what_to_install(team: Team, tmp_path: Path) -> None:
    without = {**os.environ, "COORP_PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    (tmp_path / "rerun.py").write_text("raise ImportError('not here')\n")
    command = [sys.executable, "-m", "coorp", "watch", str(team.fleet.file), "--rerun"]
    got = subprocess.run(command, env=without, capture_output=True, text=True, timeout=SOON)
    assert got.returncode == 2 and "-m pip install" in got.stderr, got.stderr
