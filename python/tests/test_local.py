"""Payloads between processes, as `coorp.reactor` uses them: views, loans, lifetimes, signals."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from itertools import count

import numpy as np
import pytest

from coorp import InputError
from coorp._native import ChannelError, Domain, Receiver, Sender, check_header

# Time limit for anything that should happen at once; no test measures it.
SOON = 60.0
MEGABYTE = 1_000_000
_domains = count()


def domain() -> Domain:
    return Domain(f"python-{os.getpid()}-{next(_domains)}")


def pair(**options: object) -> tuple[Sender, Receiver]:
    member = domain()
    receiver = member.receiver("channel")
    return member.sender("channel", **options), receiver  # pyright: ignore[reportArgumentType]


def test_a_received_part_is_a_read_only_view_that_keeps_its_memory() -> None:
    sender, receiver = pair()
    image = np.arange(MEGABYTE, dtype=np.uint8)
    assert sender.send(b"header", [image, b"", b"small", bytearray(b"mutable")]) == 1
    payload = receiver.recv(SOON)
    assert payload.header() == b"header"
    parts = payload.parts()
    views = [np.asarray(part) for part in parts]
    assert [len(part) for part in parts] == [MEGABYTE, 0, 5, 7]
    assert views[0].base is parts[0]
    assert not views[0].flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        views[0][0] = 1
    assert views[0].ctypes.data % 64 == 0
    row = views[0].reshape(1000, 1000)[3]
    del payload, parts, views
    gc.collect()
    assert sender.used_bytes > MEGABYTE
    np.testing.assert_array_equal(row, image[3000:4000])
    del row
    assert sender.used_bytes == 0


def test_a_full_loan_is_sent_without_a_copy_and_stays_readable() -> None:
    sender, receiver = pair(store_bytes=4 * MEGABYTE, when_full="fail")
    loan = sender.loan([MEGABYTE])
    image = loan.array(np.float32, (500, 500))
    image[:] = 7
    rows = image[100:200]
    sent_at = image.ctypes.data
    # Whole arrays over the loan's parts are recognised; `loan` itself would do as well.
    assert sender.send(b"float32", [image.reshape(-1).view(np.uint8)]) == 1
    assert loan.sent
    assert not image.flags.writeable
    received = receiver.recv(SOON)
    assert received.header() == b"float32"
    view = np.asarray(received.parts()[0]).view(np.float32)
    assert (view == 7).all()
    assert image.ctypes.data == sent_at
    used = sender.used_bytes
    assert used < 1.1 * MEGABYTE, "it was copied"
    del received, view
    gc.collect()
    # The reader is done, but the sender's own views remain.
    assert sender.used_bytes == used
    for _ in range(20):
        sender.send(b"", [np.zeros(MEGABYTE, np.uint8)])
        receiver.recv(SOON)
    assert (image == 7).all()
    del image
    assert (rows == 7).all()
    assert sender.used_bytes == used
    del rows
    assert sender.used_bytes == 0


def test_a_loan_can_be_sent_as_such_and_only_once() -> None:
    sender, receiver = pair()
    loan = sender.loan([3, 0, 5], header_bytes=4)
    first, _, last = (np.asarray(part) for part in loan.parts())
    first[:] = list(b"abc")
    last[:] = list(b"defgh")
    with pytest.raises(ValueError, match="does not fit"):
        sender.send(b"too long", loan)
    assert sender.send(b"fits", loan) == 1
    payload = receiver.recv(SOON)
    assert payload.header() == b"fits"
    assert [bytes(np.asarray(part)) for part in payload.parts()] == [b"abc", b"", b"defgh"]
    with pytest.raises(ValueError, match="has been sent"):
        sender.send(b"", loan)
    with pytest.raises(ValueError, match="has been sent"):
        loan.parts()
    other, _ = pair()
    with pytest.raises(ValueError, match="only the sender that made a loan can send it"):
        other.send(b"", sender.loan([1]))


@pytest.mark.parametrize("which", ["part", "order", "other", "twice"])
def test_what_is_not_exactly_a_loan_is_copied(which: str) -> None:
    sender, receiver = pair()
    loan = sender.loan([1000, 1000])
    one, two = loan.array(np.uint8, 1000), loan.array(np.uint8, 1000, part=1)
    one[:], two[:] = 1, 2
    sent = {"part": [one, two[:-1]], "order": [two, one], "other": [one, np.full(1000, 3, np.uint8)], "twice": [one]}
    sender.send(b"", sent[which])
    assert not loan.sent
    assert one.flags.writeable
    for part, expected in zip(receiver.recv(SOON).parts(), sent[which], strict=True):
        np.testing.assert_array_equal(np.asarray(part), expected)


def test_a_loan_that_is_not_sent_is_used_again_when_its_views_are_gone() -> None:
    sender, _ = pair()
    loan = sender.loan([MEGABYTE])
    view = loan.array(np.uint8, MEGABYTE)
    del loan
    assert sender.used_bytes > MEGABYTE
    view[:] = 1
    del view
    assert sender.used_bytes == 0


def test_views_outlive_the_sender_the_receiver_and_the_domain() -> None:
    member = domain()
    receiver, sender = member.receiver("channel"), member.sender("channel")
    loan = sender.loan([MEGABYTE])
    sent = loan.array(np.uint8, MEGABYTE)
    sent[:] = 9
    sender.send(b"", loan)
    received = np.asarray(receiver.recv(SOON).parts()[0])
    del loan, sender, receiver, member
    gc.collect()
    assert (sent == 9).all()
    assert (received == 9).all()
    # From another thread too.
    views = [sent, received]
    del sent, received
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()


def test_policies_when_full() -> None:
    def fill(sender: Sender, payloads: int) -> None:
        for _ in range(payloads):
            sender.send(b"", [np.zeros(MEGABYTE, np.uint8)])

    blocking, reader = pair(store_bytes=4 * MEGABYTE, timeout=0.13)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="the store has no room"):
        fill(blocking, 5)
    assert 0.13 <= time.monotonic() - began < SOON
    failing, reader = pair(store_bytes=4 * MEGABYTE, when_full="fail")
    with pytest.raises(ChannelError, match="the store has no room"):
        fill(failing, 5)
    dropping, reader = pair(store_bytes=4 * MEGABYTE, when_full="drop-oldest")
    fill(dropping, 9)
    assert dropping.dropped > 0
    reader.recv(SOON)
    # Another thread makes room.
    waiting, reader = pair(store_bytes=4 * MEGABYTE, timeout=SOON)
    fill(waiting, 4)
    held = [reader.recv(SOON) for _ in range(4)]
    timer = threading.Timer(0.2, held.clear)
    timer.start()
    fill(waiting, 1)
    timer.join()


def test_bad_input_is_told() -> None:
    member = domain()
    with pytest.raises(InputError, match="no spaces"):
        Domain("no spaces")
    with pytest.raises(InputError, match="choose block, drop-oldest or fail"):
        member.sender("x", when_full="never")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="store_bytes"):
        member.sender("x", store_bytes=1)
    with pytest.raises(InputError, match="timeout = -1"):
        member.receiver("x").recv(-1)
    sender = member.sender("x", store_bytes=MEGABYTE)
    with pytest.raises(InputError, match="enlarge `store_bytes`"):
        sender.loan([10 * MEGABYTE])
    with pytest.raises(InputError, match="parts"):
        sender.send(b"", [b""] * 2000)
    with pytest.raises(TypeError, match="has no buffer"):
        sender.send(b"", [object()])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="not contiguous"):
        sender.send(b"", [np.zeros((4, 4), np.uint8)[:, 1]])
    assert sender.used_bytes == 0
    loan = sender.loan([10])
    with pytest.raises(ValueError, match="no part 1"):
        loan.array(np.uint8, 10, part=1)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        member.receiver("y").recv(0.01)
    assert not sender.wait_for_readers(1, 0.01)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("what", ["recv", "send", "loan", "readers", "senders"])
def test_a_signal_interrupts_a_blocking_call(what: str) -> None:
    sender, receiver = pair(store_bytes=2 * MEGABYTE, timeout=SOON)
    loan = sender.loan([10])
    full = sender.loan([15 * MEGABYTE // 10])
    calls = {
        "recv": receiver.recv,
        "send": lambda: [sender.send(b"", [b"x"]) for _ in range(100)],
        "loan": lambda: sender.loan([MEGABYTE]),
        "readers": lambda: sender.wait_for_readers(2),
        "senders": lambda: receiver.wait_for_senders(2),
    }
    at: list[float] = []

    def interrupt(*_: object) -> None:
        raise Interrupted

    def send() -> None:
        at.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.1, send)
    try:
        timer.start()
        with pytest.raises(Interrupted):
            calls[what]()
        # 100 ms, plus the delay of a busy machine.
        assert time.monotonic() - at[0] < 2.0
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    del full
    # Nothing is lost.
    while receiver.try_recv() is not None:
        pass
    assert sender.send(b"", loan) == 1


def test_waiting_releases_the_gil_and_threads_share_a_receiver() -> None:
    sender, receiver = pair()
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(receiver.recv(SOON).header())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(3):
        sender.send(bytes([number]), [])
    for thread in threads:
        thread.join()
    assert sorted(got) == [b"\0", b"\1", b"\2"]


def test_a_header_is_checked_before_it_is_unpacked() -> None:
    for sound in (
        b"\x01",
        b"\xc0",
        b"\x93\x01\x02\x03",
        b"\x81\xa1a\x90",
        b"\xc7\x00\x05",
        b"\xd4\x01x",
        b"\xdc\x00\x01\xc4\x01x",
    ):
        check_header(sound, 8, 5)
        for end in range(len(sound)):
            with pytest.raises(ValueError, match="it"):
                check_header(sound[:end], 8, 5)
        with pytest.raises(ValueError, match="continues"):
            check_header(sound + b"\xc0", 8, 5)
    check_header(b"\x91" * 8 + b"\xc0", 8, 5)
    with pytest.raises(ValueError, match="nested too deeply"):
        check_header(b"\x91" * 9 + b"\xc0", 8, 5)
    with pytest.raises(ValueError, match="extension"):
        check_header(b"\xc7\x00\x06", 8, 5)
    with pytest.raises(ValueError, match="ends within a container"):
        check_header(b"\xdd\xff\xff\xff\xff" + bytes(100), 8, 5)
    with pytest.raises(ValueError, match="cannot begin a value"):
        check_header(b"\xc1", 8, 5)
