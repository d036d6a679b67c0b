"""Checks the two wheels, `coorp` and `coorp-live`, in a fresh virtual environment.

    python3 packaging/wheels.py dist     # make wheels

- `coorp` alone simulates, and says what to install for the live half;
- with `coorp-live`, the tests of the module's stub and of the documented example pass, with two robots;
- without `coorp-live` again, all is as it was;
- a `coorp` of another version refuses `coorp-live`.

Needs a registry for NumPy, msgpack and pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TEAM = REPOSITORY / "examples" / "navigation.toml"
TESTS = (
    "test_node.py::test_the_documented_example_runs",
    "test_native.py::test_the_stub_describes_the_module_as_it_is",
)
INSTALL = "in Coorp's source: pip install . ./live"


class Environment:
    """A virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)

    def run(self, program: str, *arguments: str | Path, fails: int = 0) -> str:
        """Returns the output of one of its programs, which has to end with that code."""
        command = [self.folder / "bin" / program, *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=REPOSITORY
        )
        if done.returncode != fails:
            raise SystemExit(f"FAILED: {' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def pip(self, *arguments: str | Path) -> None:
        self.run("python", "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def check(what: str, holds: object, seen: object) -> None:
    if not holds:
        raise SystemExit(f"FAILED: {what}: {seen}")
    print(f"ok: {what}", flush=True)


def check_alone(environment: Environment) -> None:
    """Checks `coorp` without `coorp-live`."""
    script = f"import coorp; print(coorp.simulate({str(TEAM)!r}, 'coorp', duration_s=2.0, seed=1).violation_rate)"
    said = environment.run("python", "-c", script)
    check("coorp alone simulates", 0 <= float(said) <= 1, said)
    said = environment.run("coorp", "sim", TEAM, "--policy", "coorp", "--duration", "2s")
    check("its command simulates", "\ncoorp " in said, said)
    for arguments in (["up", "team.toml"], ["emu", "team.toml", "--demo"]):
        said = environment.run("coorp", *arguments, fails=2)
        check(f"'coorp {arguments[0]}' says what to install", INSTALL in said, said)
    said = environment.run("python", "-c", "from coorp import Node", fails=1)
    check("so does coorp.Node", said.rstrip().endswith(INSTALL), said)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__))
    wheels = [sorted(folder.glob(f"{name}-*.whl"), key=os.path.getmtime) for name in ("coorp", "coorp_live")]
    if not all(wheels):
        sys.exit(f"{folder} does not have both wheels: pip wheel . ./live --no-deps --wheel-dir {folder}")
    coorp, live = (found[-1] for found in wheels)
    with tempfile.TemporaryDirectory() as place:
        environment = Environment(Path(place))
        environment.pip("install", coorp, "pytest", "pytest-timeout")
        check_alone(environment)
        environment.pip("install", live)
        environment.run("python", "-m", "pytest", "-q", *(f"python/tests/{test}" for test in TESTS))
        print("ok: with coorp-live, two robots exchange control and bulk", flush=True)
        said = environment.run("coorp", "up", "--help")
        check("and its command has the live half", "--protect" in said, said)
        (halves,) = Path(place).glob("lib/python*/site-packages/coorp/_halves.py")
        text = halves.read_text()
        halves.write_text(text.replace('VERSION = "', 'VERSION = "9.'))
        said = environment.run("python", "-c", "import coorp", fails=1)
        check("another version is refused", "pip uninstall coorp-live" in said, said)
        halves.write_text(text)
        environment.pip("uninstall", "--yes", "coorp-live")
        check_alone(environment)


if __name__ == "__main__":
    main()
