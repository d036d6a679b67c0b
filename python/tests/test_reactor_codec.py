"""Values to bytes and back: nothing changes, nothing is copied unnecessarily, and hostile bytes do no harm."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import pickle
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest

from coorp.reactor.codec import decode, encode


@dataclasses.dataclass
class Pose:
    x: float
    y: float
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    poses: tuple[Pose, ...]
    grid: np.ndarray[Any, Any] | None = None
    length: int = dataclasses.field(init=False, default=3)

    def __post_init__(self) -> None:
        assert self.length == 3, "decoding must not call it"


class Point(NamedTuple):
    x: int
    y: object = None


class Colour(enum.Enum):
    RED = "red"
    BLUE = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Ordinary:
    def __init__(self, *inside: object) -> None:
        self.inside = inside

    def __eq__(self, other: object) -> bool:
        return type(other) is Ordinary and other.inside == self.inside

    __hash__ = None  # pyright: ignore[reportAssignmentType]


STRUCTURED = np.dtype([("id", "<u2"), ("at", "<f4", (2, 3)), ("more", [("name", "S5"), ("t", "<M8[ns]")])], align=True)


def same(one: object, other: object) -> bool:
    """Returns whether two objects are equal in value and in type, at every place."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        equal = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return equal and one.flags.f_contiguous == other.flags.f_contiguous
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one) and dataclasses.is_dataclass(other):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, float | np.floating):
        return np.array(one).tobytes() == np.array(other).tobytes()
    return bool(one == other)


def transported(value: object, **options: bool) -> Any:  # noqa: ANN401
    """Encodes and decodes a value through copies of the bytes, as in another process."""
    header, parts = encode(value, **options)
    assert type(header) is bytes
    assert all(memoryview(part).c_contiguous for part in parts)
    return decode(header, [bytes(part) for part in parts], **options)


VALUES: list[object] = [
    *(None, True, False, 0, -1, 2**63, 2**64 - 1, -(2**63), 2**64, -(2**63) - 1, 10**40, -(10**40)),
    *(0.0, -0.0, 1e300, math.inf, math.nan, "", "é\0🚀", "\ud800", b"", b"x", b"x" * 100_000, bytearray(b"yes")),
    *(bytearray(5000), [], (), {}, set(), frozenset(), [[]], [()], ((),), {"": {}}, [1, [2, (3, [4])], {5}]),
    *({1: 2, False: 3, 2.5: None, b"k": "v"}, {(1, (2,)): [3]}, {frozenset({1}): {"a": (None,)}}, {None: 1}),
    *(Pose(1.0, -0.0, ["a"]), Plan((Pose(1, 2), Pose(3, 4)), np.arange(3)), Point(1), Point(1, Point(2, [3]))),
    # A named tuple like any other, not a mark.
    [msgpack.ExtType(1, b""), 5],
    *(Colour.RED, Colour.BLUE, Level.LOW, Access.READ, Access.READ | Access.WRITE, Access(0), [Colour.RED] * 3),
    *(np.float32(1.1), np.float64(math.nan), np.int8(-1), np.bool_(True), np.complex64(1j), np.str_(""), np.str_("é")),
    *(np.bytes_(b"a"), np.datetime64("2026-01-01T00:00:00", "us"), np.timedelta64(5, "h"), np.float16(2)),
    *(np.zeros(0), np.zeros((0, 3), np.int8), np.array(5), np.arange(1000.0), np.arange(12).reshape(3, 4)),
    *(np.asfortranarray(np.arange(9000).reshape(90, 100)), np.asfortranarray(np.arange(12.0).reshape(2, 3, 2))),
    *(np.zeros(300, STRUCTURED), np.zeros(3, STRUCTURED), np.array(["ab", "c"]), np.array([True, False])),
    *(np.arange(5, dtype=">i4"), np.zeros(500, "<M8[25us]"), np.zeros((2,) * 20, np.int8), np.array([b"a", b"bc"])),
    {"image": np.zeros((100, 100, 3), np.uint8), "plan": [Plan(()), (np.float64(1), {"deep": [np.ones(9)] * 3})]},
    [np.full(200, number) for number in range(1500)],
    ["x" * 1000] * 1000,
    [b"z" * 5000] * 3,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40])
def test_a_value_is_the_same_afterwards(value: object) -> None:
    result = transported(value)
    assert same(result, value), f"{result!r:.500}"


def test_arrays_are_not_copied_and_arrive_read_only() -> None:
    image, big = np.zeros((500, 500, 3), np.uint8), b"b" * 10_000
    mutable = bytearray(10_000)
    grid = np.asfortranarray(np.ones((300, 400), np.float32))
    value = {"image": image, "list": [grid, big, mutable]}
    header, parts = encode(value)
    assert len(header) < 200
    views: list[Any] = list(parts)
    assert [memoryview(part).nbytes for part in parts] == [image.nbytes, grid.nbytes, 10_000, 10_000]
    assert np.shares_memory(views[0], image)
    assert np.shares_memory(views[1], grid)
    assert views[2] is big
    assert views[3] is mutable
    # Even if the memory could be written.
    received = decode(header, [np.array(part, np.uint8) for part in views[:2]] + views[2:])
    assert not received["image"].flags.writeable
    assert not received["list"][0].flags.writeable
    memory = bytearray(memoryview(views[0]))
    shared = decode(header, [memory, *views[1:]])
    memory[5] = 7
    assert shared["image"][0, 1, 2] == 7
    assert not shared["image"].flags.writeable
    small = transported([np.arange(3), np.float64(1)])[0]
    assert not small.flags.writeable


def test_other_strides_are_copied_to_c_order() -> None:
    image = np.arange(60_000, dtype=np.int32).reshape(200, 300)
    for view in (image[::2, ::3], image[:, 5], image[::-1], np.broadcast_to(np.arange(300), (200, 300))):
        result = transported(view)
        assert result.flags.c_contiguous
        np.testing.assert_array_equal(result, view)
        assert result.dtype == view.dtype


def test_a_long_header_and_many_arrays_stay_within_a_payloads_limits() -> None:
    for value in ([np.full(200, n) for n in range(3000)], list(map(str, range(300_000)))):
        header, parts = encode(value)
        assert len(header) < 1 << 20
        assert len(parts) <= 1024
        assert same(transported(value), value)


def test_sets_are_encoded_in_an_order_that_no_hash_changes() -> None:
    script = "import sys; from coorp.reactor.codec import encode\n"
    script += "sys.stdout.buffer.write(encode(set(map(str, range(99))))[0])"
    ran = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(ran) == 1


def local_class() -> type:
    @dataclasses.dataclass
    class Local:
        x: int = 1

    return Local


@dataclasses.dataclass
class OfList(list):  # pyright: ignore[reportMissingTypeArgument]
    x: int = 1


@dataclasses.dataclass
class Unset:
    x: object = None


def unset() -> object:
    value = Unset()
    del value.__dict__["x"]
    del Unset.x
    return value


def cyclic() -> object:
    value: list[object] = []
    value.append({"again": value})
    return value


class Matrix(np.ndarray[Any, Any]):
    pass


REFUSED: list[tuple[object, str]] = [
    ({"plan": [0, 1, 2, Unset(threading.Lock())]}, r"^value\['plan'\]\[3\]\.x: a _thread\.lock; "),
    (object(), "^value: an object; send its contents"),
    (Ordinary(), r"^value: a .*Ordinary; send its contents, as a dataclass"),
    ((1, Point(2, [lambda: 0])), r"^value\[1\]\[1\]\[0\]: a function"),
    ({(1, 2): [{3j}]}, r"^value\[\(1, 2\)\]\[0\]\{\.\.\.\}: a complex"),
    ({1j: 2}, r"^value\[1j\]: a complex"),
    ({"a": collections.OrderedDict()}, r"^value\['a'\]: a collections\.OrderedDict; .*, as dict\(value\)"),
    (np.array([object()]), "^value: an array of Python objects"),
    (np.array([1]).view(Matrix), r"^value: a .*Matrix; .*as numpy\.asarray\(value\)"),
    (np.ma.masked_array([1]), "MaskedArray"),
    (np.zeros(3, "V0"), "no bytes"),
    (local_class()(), "which other processes cannot find"),
    (OfList(), "OfList"),
    (memoryview(b"x"), "a memoryview"),
    (msgpack.Timestamp(1), "Timestamp"),
    (range(3), "a range"),
]


@pytest.mark.parametrize(("value", "told"), REFUSED, ids=lambda value: repr(value)[:40])
def test_what_cannot_be_sent_is_refused_with_its_place(value: object, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        encode(value)
    # And nothing of it remains.
    assert transported([1]) == [1]


def test_values_within_themselves_and_unset_fields_are_refused() -> None:
    with pytest.raises(TypeError, match=r"value\[0\]\['again'\].* \.\.\. .*: nested deeper than 100 levels"):
        encode(cyclic())
    with pytest.raises(TypeError, match="its field 'x' has no value"):
        encode([unset()])
    deep: Any = []
    for _ in range(99):
        deep = Point(1, deep)
    assert same(transported(deep), deep)


def test_pickle_is_opt_in_at_both_ends() -> None:
    value = {"a": [Ordinary(1, "x"), 3j], "o": np.array([None, 1]), "big": Ordinary(b"x" * 10_000)}
    header, parts = encode(value, pickle=True)
    result = decode(header, parts, pickle=True)
    assert result["a"] == value["a"]
    assert result["big"] == value["big"]
    assert list(result["o"]) == [None, 1]
    with pytest.raises(ValueError, match="only on request"):
        decode(header, parts)
    with pytest.raises(TypeError, match=r"value\['x'\]: a _thread\.lock, which cannot be pickled"):
        encode({"x": threading.Lock()}, pickle=True)


def marked(code: int, *items: object) -> bytes:
    return msgpack.packb([msgpack.ExtType(code, b""), *items]) or b""


def test_only_dataclasses_named_tuples_and_enumerations_are_created_by_name() -> None:
    header, _ = encode(Pose(1, 2))
    name = msgpack.unpackb(header, ext_hook=lambda *_: None)[1]
    assert name == f"{__name__}:Pose"
    for code, what in ((10, {}), (11, 1), (12, "x")):
        for bad in (
            "os:system",
            "subprocess:Popen",
            "builtins:eval",
            "nowhere:Pose",
            f"{__name__}:unset",
            "",
            ":",
            "a b:c",
        ):
            with pytest.raises(ValueError, match=r"names no .* in this process"):
                decode(marked(code, bad, what), [])
    with pytest.raises(ValueError, match="other fields in this process: x, y, tags"):
        decode(marked(10, name, {"x": 1, "y": 2}), [])
    with pytest.raises(ValueError, match="other fields"):
        decode(marked(10, name, {"x": 1, "y": 2, "__class__": 3}), [])
    with pytest.raises(ValueError, match="no such member"):
        decode(marked(12, f"{__name__}:Colour", "mro"), [])


def test_the_users_script_has_one_name_in_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("__main__", "__coorp_main__"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, sys.modules[__name__])
            patch.setattr(Point, "__module__", module)
            import coorp.reactor.codec as codec

            codec._name.cache_clear()
            header, _ = encode(Point(1))
            assert b"__main__:Point" in header
            assert b"coorp" not in header
            assert decode(header, []) == Point(1)
    codec._name.cache_clear()


def test_foreign_bytes_are_refused() -> None:
    part = bytes(1000)
    for header in (
        b"",
        b"\xc1",
        b"\xc7\x00\x0f",
        marked(7, 0, "<f8", [4], False),
        marked(7, 0, "<f8", [-1, -125], False),
        marked(7, 0, "<f8", [1 << 63], False),
        marked(7, 0, "|O", [125], False),
        marked(7, 0, "<f8", [125] + [1] * 40, False),
        marked(7, 1, "<f8", [125], False),
        marked(7, -1, "<f8", [125], False),
        marked(7, True, "<f8", [125], False),
        marked(7, 0, ["x"], [125], False),
        marked(7, 0, [8, ["a", 10**9, "<f8", []]], [125], False),
        marked(7, 0, [1 << 40], [125], False),
        marked(7, b"", "|V0", [1 << 60], False),
        marked(8, "<f8", b"x"),
        marked(4, 1),
        marked(4, [], 1),
        marked(2, {}),
        marked(11),
        msgpack.packb(msgpack.ExtType(1, b"")) or b"",
        msgpack.packb([1, msgpack.ExtType(1, b"")]) or b"",
        msgpack.packb({"a": msgpack.ExtType(1, b"")}) or b"",
        msgpack.packb(msgpack.Timestamp(1)) or b"",
        b"\x81\x90\x01",
        b"\xa2\xff\xff",
        b"\x91" * 300 + b"\x01",
    ):
        with pytest.raises((ValueError, TypeError)):
            decode(header, [] if header.endswith(b"\x0f") else [part])
    assert decode(marked(7, 0, "<f8", [125], False), [part]).shape == (125,)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_bytes_give_an_error_or_a_value(seed: int) -> None:
    """Decoding raises no other exception, and uses no more memory than a multiple of the bytes."""
    draw = random.Random(seed)
    # Without long values, so that a mutation changes something relevant; and without pickles, which are not for
    # strangers.
    encoded = [(header, parts) for header, parts in map(encode, VALUES) if 0 < len(header) < 2000]
    alphabet = bytes([0xC7, 0xD4, 0xDD, 0xDF, 0xDC, 0xC6, 0x91, 0x81, 0x00, 0x01, 0x0F, 0xFF, 0x7F, 0xC4, 0xDB])
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_virtual_bytes() + (1 << 30), limit[1]))
    outcomes = {True: 0, False: 0}
    try:
        for _ in range(15_000):
            header, parts = draw.choice(encoded)
            mutated = bytearray(header)
            for _ in range(draw.choice((1, 1, 2, 5))):
                at = draw.randrange(len(mutated) + 1)
                action = draw.randrange(4)
                if action == 0:
                    mutated[at:at] = draw.randbytes(draw.randrange(4)) + bytes([draw.choice(alphabet)])
                elif action == 1:
                    del mutated[at : at + draw.randrange(1, 4)]
                elif at < len(mutated):
                    mutated[at] = draw.choice(alphabet) if action == 2 else draw.randrange(256)
            given: list[object] = [bytes(part)[: draw.choice((10**9, 7))] for part in parts[: draw.choice((9, 0))]]
            try:
                decode(bytes(mutated), given)
                outcomes[True] += 1
            except (ValueError, TypeError):
                outcomes[False] += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert min(outcomes.values()) > 100


def _virtual_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def test_lists_that_are_only_announced_cost_nothing() -> None:
    import tracemalloc

    for nest in (b"\xdd\x00\x10\x00\x00", b"\xdf\x00\x08\x00\x00"):
        hostile = (nest * 200).ljust(1 << 20, b"\xc0")
        tracemalloc.start()
        with pytest.raises(ValueError):
            decode(hostile, [])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


def test_torch_is_neither_needed_nor_imported() -> None:
    script = (
        "import sys, numpy as np; from coorp.reactor.codec import decode, encode\n"
        "assert decode(*encode({'a': np.arange(9), 'b': (1,)}))['b'] == (1,)\n"
        "try: encode(object())\n"
        "except TypeError: pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensors = [
        torch.arange(1000.0).reshape(10, 100),
        torch.zeros((0, 3), dtype=torch.int16),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.ones(1000, dtype=torch.bfloat16),
        torch.tensor([True, False] * 400),
        torch.arange(600).reshape(20, 30).T,
        torch.tensor([1 + 2j]).conj(),
    ]
    for tensor in tensors:
        header, parts = encode({"t": tensor})
        result = decode(header, parts)["t"]
        assert type(result) is torch.Tensor
        assert result.dtype == tensor.dtype
        assert result.device == tensor.device
        assert result.shape == tensor.shape
        assert torch.equal(result, tensor.resolve_conj())
        if tensor.numel() > 600 and tensor.is_contiguous():
            assert result.data_ptr() == tensor.data_ptr(), "it was copied"
    for tensor, told in (
        (torch.zeros(3, requires_grad=True), r"value\.detach\(\)"),
        (torch.nn.Parameter(torch.zeros(3)), "Parameter"),
        (torch.zeros(3, device="meta"), "a tensor on meta"),
        (torch.zeros(3).to_sparse(), "sparse"),
    ):
        with pytest.raises(TypeError, match=told):
            encode(tensor)
    for hostile in ("load", "float32", "", "Tensor", 1):
        with pytest.raises(ValueError, match="tensor"):
            decode(marked(9, b"123", hostile, [3]), [])


def test_tensors_on_a_gpu_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    with pytest.raises(TypeError, match=r"a tensor on cuda:0; .*value\.cpu\(\)"):
        encode(torch.zeros(3, device="cuda"))


def test_many_threads_encode_at_once() -> None:
    failed: list[object] = []

    def work(number: int) -> None:
        value = {"n": [number, (number, "x" * number)], "a": np.full(1000, number)}
        for _ in range(300):
            if not same(transported(value), value):
                failed.append(number)

    run: Callable[[int], threading.Thread] = lambda number: threading.Thread(target=work, args=(number,))  # noqa: E731
    threads = [run(number) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_nothing_here_was_pickled() -> None:
    for value in VALUES:
        assert pickle.PROTO + b"\x05" not in encode(value)[0]


def test_a_header_that_was_decoded_before_is_checked_too() -> None:
    image = np.arange(1000, dtype=np.uint16).reshape(20, 50)
    header, parts = encode(image)
    for _ in range(3):
        again = decode(header, parts)
        assert again.dtype == image.dtype and np.array_equal(again, image)
        assert not again.flags.writeable and np.shares_memory(again, image)
    for wrong in ([], [bytes(1998)], [np.zeros(2002, np.uint8)]):
        with pytest.raises(ValueError):
            decode(header, wrong)
