"""The reference of the package on the site of docs/: python/reference.py."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()


def rendered(page: str) -> str:
    """Runs the preprocessor as mdBook does, on a book with a chapter inside a part."""
    book = {"items": [{"Chapter": {"content": "# Above", "sub_items": [{"Chapter": {"content": page}}]}}]}
    command = [sys.executable, ROOT / "python" / "reference.py"]
    done = subprocess.run(command, input=json.dumps([{}, book]), capture_output=True, text=True, check=True)
    above = json.loads(done.stdout)["items"][0]["Chapter"]
    assert above["content"] == "# Above"
    return above["sub_items"][0]["Chapter"]["content"]


@pytest.mark.parametrize("module", ["coorp", "coorp.reactor", "coorp.envs", "coorp.record"])
def test_every_public_name_has_its_entry_and_its_text(module: str) -> None:
    if module == "coorp.envs":
        pytest.importorskip("pettingzoo")
    names = [name for name in importlib.import_module(module).__all__ if not name.startswith("__")]
    entries = dict(part.split("\n", 1) for part in rendered(PAGE).split("\n### ")[1:])
    assert set(names) == {title.removeprefix(f"{module}.") for title in entries if title.rpartition(".")[0] == module}
    for name in names:
        text = entries[f"{module}.{name}"].split("```")[-1].strip()
        assert text and not text.startswith(("-", "#")), f"{module}.{name} has no docstring"


def test_a_page_of_a_module_that_does_not_exist_fails() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        rendered("<!-- reference: coorp.absent -->")
