"""Which native module is loaded, with a stand-in for `coorp-live`. packaging/wheels.py tests the real wheels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import coorp
from coorp import _halves, _native

ROOT = Path(__file__).parents[2]


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """The folder of a package `coorp_live`, which is still empty."""
    folder = tmp_path / "coorp_live"
    folder.mkdir()
    (folder / "__init__.py").touch()
    return folder


def python(live: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script where that package is installed."""
    environment = os.environ | {"PYTHONPATH": str(live.parent)}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=live.parent
    )


def test_the_module_of_coorp_live_takes_the_place_of_the_own_one(live: Path) -> None:
    own = Path(str(_native.__file__))
    (live / own.name).symlink_to(own)
    got = python(live, "import coorp; native = coorp._native; print(native.__name__, native.__file__)")
    assert got.stdout.split() == ["coorp._native", str(live / own.name)], got.stderr


def test_a_folder_that_an_uninstalled_coorp_live_has_left_does_no_harm(live: Path) -> None:
    got = python(live, "from coorp import _native; print(_native.__file__)")
    assert Path(got.stdout).parent == Path(coorp.__file__).parent, got.stderr


def test_another_version_is_refused_with_what_to_do(live: Path) -> None:
    other = live / "_native.py"
    other.write_text('__version__ = "0.0.9"\n')
    got = python(live, "import coorp")
    said = got.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: {other} has version 0.0.9, but coorp has {coorp.__version__};"), said
    assert "pip install . ./live;" in said and "pip uninstall coorp-live" in said


def test_without_the_live_half_its_names_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_native, "Node")
    with pytest.raises(ImportError, match=r"coorp\.Node needs the live half, .*: pip install \. \./live$"):
        coorp.Node("team.toml", robot="r1")
    with pytest.raises(ImportError, match=r"coorp\.Node needs the live half"):
        from coorp import Node  # noqa: F401


def test_the_files_that_name_the_version_agree() -> None:
    def named(file: str, pattern: str) -> list[str]:
        return re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)

    version = named("Cargo.toml", r'^version = "(.*)"$')
    assert version == [coorp.__version__] == [_halves.VERSION]
    assert named("pyproject.toml", r'"coorp-live==(.*)"') == version
    assert named("live/pyproject.toml", r'"coorp==(.*)"') == version
    assert named("packaging/libcoorp-dev/coorp.pc", r"^Version: (.*)$") == version
    # Versions with the same first part that is not 0 are compatible.
    (compatible,) = re.findall(r"^0\.\d+|^[1-9]\d*", version[0])
    for file in ("Makefile", "crates/c/Cargo.toml"):
        assert set(named(file, r"libcoorp\.so\.([\d.]*\d)")) == {compatible}, file
