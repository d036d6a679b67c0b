"""The native checks of a reactor program: ids, levels and problems."""

import json
from typing import Any

import pytest

from coorp._native import ProgramError, ReactorGraph, check_program


def reactor(name: str, **parts: object) -> dict[str, Any]:
    empty: dict[str, Any] = {"inputs": [], "outputs": [], "timers": [], "actions": [], "reactions": []}
    return {"name": name, "federate": 0, **empty, **parts}


def reaction(name: str, *triggers: object, effects: tuple[str, ...] = ()) -> dict[str, Any]:
    named = [trigger if trigger in ("Startup", "Shutdown") else {"Element": trigger} for trigger in triggers]
    return {"name": name, "triggers": named, "sources": [], "effects": list(effects), "deadline": 10_000_000}


def program(*reactors: dict[str, Any], connections: tuple[tuple[str, str, int], ...] = ()) -> str:
    linked = [{"from": a, "to": b, "after": after, "physical": False} for a, b, after in connections]
    return json.dumps({"federates": ["main"], "reactors": reactors, "connections": linked})


CAMERA = reactor(
    "cam",
    outputs=["frame"],
    timers=[{"name": "tick", "offset": 0, "period": 33_000_000}],
    reactions=[reaction("grab", "Startup", "tick", effects=("frame",))],
)
VIEWER = reactor("view", inputs=["image"], reactions=[reaction("show", "image")])


def test_ids_and_levels() -> None:
    graph = ReactorGraph(program(CAMERA, VIEWER, connections=(("cam.frame", "view.image", 0),)))
    assert graph.levels() == [0, 1]
    assert (graph.reaction("cam.grab"), graph.reaction("view.show")) == (0, 1)
    ids = [graph.element(name) for name in ("cam.frame", "cam.tick", "view.image")]
    assert len(set(ids)) == 3
    for find in (graph.element, graph.reaction):
        with pytest.raises(KeyError, match=r"cam\.nothing"):
            find("cam.nothing")


def test_a_delayed_connection_orders_nothing() -> None:
    graph = ReactorGraph(program(CAMERA, VIEWER, connections=(("cam.frame", "view.image", 1),)))
    assert graph.levels() == [0, 0]


def test_problems() -> None:
    def echo(name: str) -> dict[str, Any]:
        return reactor(name, inputs=["i"], outputs=["o"], reactions=[reaction("r", "i", effects=("o",))])

    looped = program(echo("a"), echo("b"), connections=(("a.o", "b.i", 0), ("b.o", "a.i", 0)))
    (cycle,) = check_program(looped)
    assert cycle["kind"] == "CausalityCycle"
    assert set(cycle["names"]) == {"a.r", "a.i", "a.o", "b.r", "b.i", "b.o"}
    assert cycle["names"][0] == cycle["names"][-1]
    with pytest.raises(ProgramError, match="causality cycle"):
        ReactorGraph(looped)

    loose = check_program(program(echo("a")))
    assert [(problem["kind"], problem["names"]) for problem in loose] == [("UnconnectedInput", ["a.i"])]
    twice = check_program(program(CAMERA, VIEWER, connections=(("cam.frame", "view.image", 0),) * 2))
    assert [problem["names"] for problem in twice] == [["view.image", "cam.frame", "cam.frame"]]
    unknown = check_program(program(CAMERA, connections=(("cam.frame", "x.i", 0),)))
    assert [(problem["kind"], problem["names"]) for problem in unknown] == [("Unknown", ["x.i", "cam.frame"])]
    assert check_program(program(CAMERA)) == []


def test_text_that_is_no_program() -> None:
    for check in (check_program, ReactorGraph):
        with pytest.raises(ProgramError, match="not a reactor program: missing field `connections`"):
            check('{"federates": [], "reactors": []}')
