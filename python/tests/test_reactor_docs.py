"""The examples of docs/reactor.md and docs/start/extend.md run, and print what the pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reactor.md").read_text()
EXAMPLE = ROOT / "examples" / "brake.py"
LIMIT_S = 60.0


def ran(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coorp", "run", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done


def block(text: str, marker: str) -> str:
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if marker in code]
    return found


def test_the_example_prints_the_same_in_every_placement() -> None:
    # Without the deadline, which a busy machine may miss: fast runs have no lag.
    one = ran(EXAMPLE, "--fast", "--timeout", "1s", "--digest").stdout
    (shown,) = re.findall(r"((?:    \d+ ms: .*\n)+)", PAGE)
    assert shown.replace("    ", "") in one and one.splitlines()[-2] == "motors off"
    assert ran(EXAMPLE, "--fast", "--timeout", "1s", "--digest", "--place", "processes").stdout == one


def test_a_press_of_the_button_stops_the_robot_and_is_replayed(tmp_path: Path) -> None:
    run = ran(EXAMPLE, "--timeout", "1s", "--record", tmp_path / "run", "--", "/dev/stdin", stdin="x")
    assert run.stdout.splitlines()[-2] == "1000 ms: 0.0 m/s"
    assert ran(EXAMPLE, "--replay", tmp_path / "run").stdout == run.stdout


def test_the_steps_of_the_page_make_a_program(tmp_path: Path) -> None:
    imports = "import numpy as np\nfrom coorp.reactor import Input, Output, Program, Reactor, Timer, reaction\n"
    steps = imports + block(PAGE, "class Brake(Reactor)") + block(PAGE, "class Lidar(Reactor)")
    app = tmp_path / "app.py"
    app.write_text(steps)
    done = ran(app, "--fast", "--digest", "--timeout", "1s")
    assert re.fullmatch(r"digest [0-9a-f]{16}\n", done.stdout)


def test_the_program_of_the_start_page_prints_what_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "start" / "extend.md").read_text()
    app = tmp_path / "app.py"
    app.write_text(block(page, "class Viewer(Reactor)"))
    printed = ran(app, "--fast", "--timeout", "100ms", "--place", "processes").stdout
    (shown,) = re.findall(r"((?:    \d+ \d+\.\d\n)+)", page)
    assert shown.replace("    ", "") == printed


def test_the_page_breaks_where_it_says() -> None:
    (line,) = re.findall(r"b examples/brake\.py:(\d+)", PAGE)
    assert "scan.min() < self.stop_at" in EXAMPLE.read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize("names", re.findall(r"\]\((\.\./[^)#]+|decisions/[^)#]+|[a-z-]+\.(?:md|svg))", PAGE))
def test_links_lead_somewhere(names: str) -> None:
    assert (ROOT / "docs" / names).exists()
