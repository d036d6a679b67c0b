"""Lets asyncio wait for a live robot: the other half of `crates/py/src/live/wait.rs`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coorp._native import Waiting


async def wait(waiting: Waiting[Any]) -> Any:  # noqa: ANN401
    """Waits for the result. The file becomes readable when another poll is worthwhile; cancellation loses nothing."""
    loop = asyncio.get_running_loop()
    while (came := waiting.poll()) is None:
        ready = loop.create_future()
        loop.add_reader(waiting.fileno(), _set, ready)
        try:
            await ready
        finally:
            loop.remove_reader(waiting.fileno())
    return came[0]


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
