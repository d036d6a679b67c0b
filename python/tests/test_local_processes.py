"""Values from process to process, through shared memory: copies, the freeing of memory, and remains of killed
processes."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coorp._native import ChannelError, Domain, Sender
from coorp.reactor.codec import decode, encode

# Time limit for anything that should happen at once; no test measures it.
SOON = 60.0
SHAPE = (1000, 1250)
BYTES = 4 * 1000 * 1250
"""Size of an image. Two of them, with their overhead, do not fit into a small store."""
SMALL = 9_000_000
_domains = count()

# A process that receives or sends, as lines on its standard input demand.
PROGRAM = """
import gc, json, sys
import numpy as np
from coorp._native import Domain
from coorp.reactor.codec import decode, encode

domain, role = sys.argv[1:]
member = Domain(domain)
receiver, sender = member.receiver("images"), member.sender("copies") if role == "writer" else None
held = []

def facts(image):
    address = image.ctypes.data
    for line in open("/proc/self/maps"):
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= address < end:
            return {"sum": float(image.sum()), "writeable": image.flags.writeable, "map": line.split(None, 5)}

def share(image):
    import torch
    tensor = torch.from_numpy(image)
    back = np.from_dlpack(torch.from_dlpack(tensor))
    return {"torch": tensor.data_ptr() - image.ctypes.data, "dlpack": back.ctypes.data - image.ctypes.data}

print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    match line.split():
        case ["recv"]:
            payload = receiver.recv(60)
            value = decode(payload.header(), payload.parts())
            held.append(value["image"][::2])
            answer = facts(value["image"]) | {"rest": value["rest"], "dtype": str(value["image"].dtype)}
            del payload, value
        case ["torch"]:
            answer = share(held[-1])
        case ["tensor"]:
            payload = receiver.recv(60)
            tensor = decode(payload.header(), payload.parts())
            held.append(tensor)
            answer = facts(tensor.numpy()) | {"type": str(type(tensor)), "dtype": str(tensor.dtype)}
            del payload, tensor
        case ["sum"]:
            answer = float(held[-1].sum())
        case ["drop"]:
            held.clear()
            gc.collect()
            answer = None
        case ["send"]:
            loan = sender.loan([5_000_000])
            image = loan.array(np.float32, (1000, 1250))
            image[:] = 3
            held.append(image)
            answer = sender.send(*encode({"image": image, "rest": None}))
    print(json.dumps(answer), flush=True)
"""


class Process:
    def __init__(self, domain: str, role: str = "reader") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, domain, role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    def _answer(self) -> Any:  # noqa: ANN401
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def __call__(self, order: str) -> Any:  # noqa: ANN401
        assert self.process.stdin
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


@pytest.fixture
def name() -> str:
    return f"processes-{os.getpid()}-{next(_domains)}"


@pytest.fixture
def member(name: str) -> Domain:
    return Domain(name)


@pytest.fixture
def reader(member: Domain, name: str) -> Iterator[Process]:
    process = Process(name)
    yield process
    process.kill()


def small(member: Domain) -> Sender:
    return member.sender("images", store_bytes=SMALL, when_full="fail")


def image() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)


def check(told: dict[str, Any], sent: np.ndarray[Any, Any], name: str) -> None:
    assert told["sum"] == float(sent.sum())
    assert not told["writeable"]
    assert told["dtype"] == str(sent.dtype)
    permissions, path = told["map"][1], told["map"][5]
    assert permissions == "r--s", "the kernel allows the reader to write"
    assert f"memfd:coorp-local/{name}/payloads" in path, "it is not the sender's memory"


def test_a_private_array_is_copied_once_and_read_where_it_was_written(
    member: Domain, reader: Process, name: str
) -> None:
    sender, sent = small(member), image()
    assert sender.send(*encode({"image": sent, "rest": {"stamp": 1.5, "ids": [1, 2]}})) == 1
    sent_sum = reader("recv")
    check(sent_sum, sent, name)
    assert sent_sum["rest"] == {"stamp": 1.5, "ids": [1, 2]}
    assert BYTES < sender.used_bytes < 1.01 * BYTES


def test_a_loaned_array_is_not_copied_at_all(member: Domain, reader: Process, name: str) -> None:
    sender = small(member)
    loan = sender.loan([BYTES])
    sent = loan.array(np.float32, SHAPE)
    sent[:] = image()
    used = sender.used_bytes
    # A copy would not fit.
    assert sender.send(*encode({"image": sent, "rest": [True, None]})) == 1
    assert loan.sent
    assert sender.used_bytes == used
    told = reader("recv")
    check(told, image(), name)
    assert told["rest"] == [True, None]
    np.testing.assert_array_equal(sent, image())
    with pytest.raises(ValueError, match="read-only"):
        sent[0] = 1


@pytest.mark.parametrize("loaned", [False, True])
def test_memory_is_used_again_when_the_last_view_is_dropped(member: Domain, reader: Process, loaned: bool) -> None:
    sender = small(member)

    def send() -> None:
        if loaned:
            loan = sender.loan([BYTES])
            sent = loan.array(np.float32, SHAPE)
            sent[:] = 1
        else:
            sent = np.ones(SHAPE, np.float32)
        assert sender.send(*encode({"image": sent, "rest": None})) == 1

    for _ in range(6):
        send()
        reader("recv")
        # The reader holds a view of every second row, and neither the payload nor its part.
        with pytest.raises(ChannelError, match="the store has no room"):
            send()
        assert reader("sum") == SHAPE[0] // 2 * SHAPE[1]
        reader("drop")
    until(lambda: sender.used_bytes == 0, "something is kept")


def test_a_payload_stays_until_the_sender_itself_has_dropped_it(member: Domain, reader: Process) -> None:
    sender = small(member)
    loan = sender.loan([BYTES])
    sent = loan.array(np.float32, SHAPE)
    sent[:] = 5
    row = sent[7]
    sender.send(*encode({"image": sent, "rest": None}))
    reader("recv")
    reader("drop")
    del sent, loan
    gc.collect()
    with pytest.raises(ChannelError, match="the store has no room"):
        sender.loan([BYTES])
    assert (row == 5).all()
    del row
    sender.loan([BYTES])


@pytest.mark.parametrize("held", [False, True])
def test_memory_is_freed_when_its_reader_is_killed(member: Domain, reader: Process, held: bool) -> None:
    sender = small(member)
    sender.send(*encode({"image": image(), "rest": None}))
    if held:
        reader("recv")
    assert sender.used_bytes > BYTES
    reader.kill()
    until(lambda: sender.used_bytes == 0 and sender.readers == 0, "a killed reader holds memory")
    sender.send(*encode({"image": image(), "rest": None}))


def test_a_view_outlives_a_sender_that_was_killed(member: Domain, name: str) -> None:
    receiver = member.receiver("copies")
    writer = Process(name, "writer")
    assert writer("send") == 1
    payload = receiver.recv(SOON)
    view = decode(payload.header(), payload.parts())["image"]
    writer.kill()
    until(lambda: receiver.senders == 0, "a killed sender is still there")
    del payload
    assert view.shape == SHAPE
    assert (view == 3).all()
    # No other process has the memory now; the kernel frees it with the last view.
    del view
    assert receiver.try_recv() is None
    until(lambda: f"memfd:coorp-local/{name}/" not in Path("/proc/self/maps").read_text(), "it is still mapped")


def test_nothing_remains_when_all_are_killed(name: str) -> None:
    before = set(os.listdir("/dev/shm"))

    def remains() -> tuple[list[str], bool]:
        # Other programs have files there too.
        files = [file for file in os.listdir("/dev/shm") if file not in before and "coorp" in file]
        return files, name in Path("/proc/net/unix").read_text()

    processes = [Process(name, "writer"), Process(name, "writer")]
    for process in processes:
        process("send")
        of_process = Path("/proc", str(process.process.pid))
        links = [os.readlink(link) for link in (of_process / "fd").iterdir()]
        assert not any("/dev/shm" in text for text in [*links, (of_process / "maps").read_text()])
    assert remains() == ([], True)
    for process in processes:
        process.process.send_signal(signal.SIGKILL)
    for process in processes:
        process.kill()
    until(lambda: remains() == ([], False), f"{remains()} remains")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_shares_the_senders_memory(member: Domain, reader: Process, name: str) -> None:
    import torch

    sender = small(member)
    sender.send(*encode({"image": image(), "rest": None}))
    reader("recv")
    assert reader("torch") == {"torch": 0, "dlpack": 0}
    reader("drop")
    tensor = torch.ones(SHAPE, dtype=torch.float32)
    sender.send(*encode(tensor))
    told = reader("tensor")
    assert told["type"] == "<class 'torch.Tensor'>"
    check(told | {"dtype": "float32", "writeable": False}, tensor.numpy(), name)
    reader("drop")
    until(lambda: sender.used_bytes == 0, "the tensor's memory is kept")
