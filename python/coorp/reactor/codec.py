"""Converts values to bytes and back: arrays as they are in memory, and the rest in MessagePack (Kwok, section IV-C2).

`encode` returns a header and parts. Arrays and tensors become parts without a copy, as do bytes of more than 4 KiB; the
header is the rest. `decode` makes read-only arrays over the parts, which keep the parts' memory alive.

A type that MessagePack lacks becomes a list that begins with an extension, a mark: a tuple is [mark, item, ...]. No
other list begins with an extension, because extensions themselves cannot be sent. A type is named `module:QualName`.

Headers come from other processes, so `decode` does not trust them. Whatever the bytes, it raises at most ValueError or
TypeError, and allocates no more than a multiple of their length. It imports no module. It creates objects of known
dataclasses, named tuples and enumerations without calling their code, apart from enumerations of flags. Pickled values
are the exception, so they need `pickle`.

Left out: subclasses of dict, list and ndarray; arrays of objects, and dtypes from other packages; attributes of a
dataclass that are not fields; tensors on a GPU. Arrays with strides other than C's and Fortran's are copied.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import math
import pickle as pickles
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgpack
import numpy as np
import numpy.typing as npt

from coorp._native import check_header
from coorp.reactor.load import LOADED

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["decode", "encode"]

_DEPTH_MAX = 100
"""Maximum depth of nested containers in a value."""
_WIRE_DEPTH_MAX = 256
"""The same for a header, in which some values are two nested lists."""
_INLINE_BYTES_MAX = 4096
_INLINE_ARRAY_BYTES_MAX = 512
"""Arrays up to this size are in the header: a part costs more than a copy."""
_PARTS_MAX = 1023
"""One fewer than a payload can have. Further arrays are in the header."""
_HEADER_BYTES_MAX = 512 << 10
"""A longer header becomes a part itself."""
_SHAPE_MAX = 32
_PATH_SHOWN_MAX = 200
_KNOWN_MAX = 256
_KNOWN_BYTES_MAX = 256
"""Maximum number of array headers to remember, and their maximum length."""

(
    _TUPLE,
    _SET,
    _FROZENSET,
    _DICT,
    _BYTES,
    _BYTEARRAY,
    _ARRAY,
    _SCALAR,
    _TENSOR,
    _DATACLASS,
    _NAMED_TUPLE,
    _ENUM,
    _PICKLE,
) = (msgpack.ExtType(code, b"") for code in range(1, 14))
_INTEGER = 14
"""An integer of more than 64 bits, in two's complement."""
_AWAY = 15
"""The header is the last part."""
_HEADER_AWAY = cast("bytes", msgpack.packb(msgpack.ExtType(_AWAY, b"")))

_PLAIN = frozenset((type(None), bool, int, float, str))
"""The types that MessagePack has."""
_KEYS = _PLAIN | {bytes}

Handler = Callable[["_Encoder", Any, int], object]
Part = Any
"""Anything with bytes: an array, or an object with a buffer or `__array_interface__`."""


def encode(value: object, *, pickle: bool = False) -> tuple[bytes, list[Buffer]]:
    """Returns the header of a value, and its parts: bytes and C-contiguous arrays of bytes, which share the value's
    memory.

    Raises TypeError, with the place inside the value, if a part of it cannot be sent. With `pickle`, everything that
    pickle accepts can.
    """
    if type(value) is np.ndarray and value.nbytes > _INLINE_ARRAY_BYTES_MAX and value.flags.c_contiguous:
        header = _header_of_array(value.dtype, value.shape)
        if header is not None:
            return header, [cast("Any", value.reshape(-1).view(np.uint8))]
    encoder = _Encoder(pickle)
    try:
        plain = encoder.plain(value, 0)
    except _RefusedError as refused:
        raise TypeError(f"{refused.place()}: {refused.reason}") from refused.__cause__
    packer = _threads.packer
    header = cast("bytes", packer.pack(plain))
    if len(header) > _HEADER_BYTES_MAX:
        # The packer has grown its buffer.
        del _threads.packer
        encoder.parts.append(header)
        header = _HEADER_AWAY
    return header, encoder.parts


def decode(header: bytes | memoryview, parts: Sequence[object], *, pickle: bool = False) -> Any:  # noqa: ANN401
    """Returns the value. Its arrays are read-only views of the parts.

    A tensor is a view too. Torch has no read-only tensors, but the memory is: writing to it ends the process. Write to
    `tensor.clone()`.

    Raises ValueError or TypeError for anything that `encode` did not make, and for pickled values without `pickle`.
    """
    decoder = _Decoder(parts, pickle)
    try:
        header = bytes(header)
        known = _known_arrays.get(header)
        if known is not None and len(parts) == 1:
            return _array_of(decoder.data(0), *known)
        if header == _HEADER_AWAY:
            header = decoder.data(len(parts) - 1).tobytes()
        check_header(header, _WIRE_DEPTH_MAX, _INTEGER)
        value = msgpack.unpackb(
            header,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            ext_hook=decoder.extension,
            list_hook=decoder.listed,
        )
    except (TypeError, ValueError):
        raise
    except Exception as error:
        raise ValueError(f"not a value of this version: {error}") from error
    if decoder.marks:
        raise ValueError("not a value of this version: an unexpected mark")
    if type(value) is np.ndarray and len(header) <= _KNOWN_BYTES_MAX:
        _note_known(header, value)
    return value


@functools.lru_cache(maxsize=_KNOWN_MAX)
def _header_of_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes | None:
    """Returns the header of an array in C order that is the only part; None if it needs more care.

    Such arrays come by the thousand, and after each one the caches are cold: the less code runs, the sooner they
    arrive.
    """
    if dtype.hasobject or not dtype.itemsize or dtype.fields is not None:
        return None
    try:
        wire = _dtype_out(dtype)
    except _RefusedError:
        return None
    return cast("bytes", _threads.packer.pack([_ARRAY, 0, wire, list(shape), False]))


_known_arrays: dict[bytes, tuple[np.dtype[Any], tuple[int, ...]]] = {}
"""The contents of headers that were decoded before and equal `_header_of_array`."""


def _note_known(header: bytes, array: npt.NDArray[Any]) -> None:
    if len(_known_arrays) < _KNOWN_MAX and header == _header_of_array(array.dtype, array.shape):
        _known_arrays[header] = array.dtype, array.shape


def _array_of(data: npt.NDArray[np.uint8], dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if math.prod(shape) * dtype.itemsize != data.nbytes:
        raise ValueError(f"an array of shape {shape} and {data.nbytes} bytes")
    array = data.view(dtype).reshape(shape)
    array.setflags(write=False)
    return array


class _Threads(threading.local):
    """A packer for each thread: making one costs more than packing a small value."""

    def __getattr__(self, name: str) -> msgpack.Packer:
        if name != "packer":
            raise AttributeError(name)
        self.packer = msgpack.Packer(strict_types=True, unicode_errors="surrogatepass", default=_integer)
        return self.packer


_threads = _Threads()


def _integer(value: object) -> msgpack.ExtType:
    """Packs an integer that the packer cannot pack. Everything else that it cannot pack was replaced before."""
    assert type(value) is int
    return msgpack.ExtType(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


class _RefusedError(Exception):
    """A value that cannot be sent. Each container adds the value's place in it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def place(self) -> str:
        path = "value" + "".join(reversed(self.path))
        half = _PATH_SHOWN_MAX // 2
        return path if len(path) <= _PATH_SHOWN_MAX else f"{path[:half]} ... {path[-half:]}"


def _shown(key: object) -> str:
    try:
        text = repr(key)
    except Exception:
        text = f"<{type(key).__qualname__}>"
    return f"[{text if len(text) <= 60 else text[:57] + '...'}]"


def _kind(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


class _Encoder:
    """Replaces what MessagePack does not have."""

    __slots__ = ("parts", "pickle")

    def __init__(self, pickle: bool) -> None:
        self.parts: list[Any] = []
        self.pickle = pickle

    def plain(self, value: Any, depth: int) -> object:  # noqa: ANN401
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is np.ndarray:
            return self.array(value)
        if kind is bytes:
            return value if len(value) <= _INLINE_BYTES_MAX else [_BYTES, self.place(value)]
        if depth >= _DEPTH_MAX:
            raise _RefusedError(f"nested deeper than {_DEPTH_MAX} levels, or within itself")
        depth += 1
        if kind is dict:
            return self.mapping(value, depth)
        if kind is list:
            return self.items(value, [], depth)
        if kind is tuple:
            return self.items(value, [_TUPLE], depth)
        return _handler(kind)(self, value, depth)

    def mapping(self, value: dict[Any, Any], depth: int) -> object:
        at: object = None
        try:
            if not _KEYS.issuperset(map(type, value)):
                result: list[object] = [_DICT]
                for at, item in value.items():
                    result += (self.plain(at, depth), self.plain(item, depth))
                return result
            if _PLAIN.issuperset(map(type, value.values())):
                return value
            plain = {}
            for at, item in value.items():
                plain[at] = item if type(item) in _PLAIN else self.plain(item, depth)
            return plain
        except _RefusedError as refused:
            refused.path.append(_shown(at))
            raise

    def items(self, values: Iterable[Any], result: list[object], depth: int) -> list[object]:
        """Appends the items of a container to the list that stands for it."""
        values = list(values)
        if _PLAIN.issuperset(map(type, values)):
            result += values
            return result
        before = len(result)
        try:
            for item in values:
                result.append(item if type(item) in _PLAIN else self.plain(item, depth))
        except _RefusedError as refused:
            refused.path.append(f"[{len(result) - before}]")
            raise
        return result

    def members(self, value: set[Any] | frozenset[Any], depth: int) -> object:
        # Sorted if possible, so that the order does not depend on the process's hashes.
        try:
            items = sorted(value)
        except Exception:
            items = list(value)
        try:
            return self.items(items, [_SET if type(value) is set else _FROZENSET], depth)
        except _RefusedError as refused:
            refused.path[-1] = "{...}"
            raise

    def mutable(self, value: bytearray, _depth: int) -> object:
        return [_BYTEARRAY, self.place(value) if len(value) > _INLINE_BYTES_MAX else bytes(value)]

    def place(self, data: Any) -> object:  # noqa: ANN401
        """Makes bytes a part, and returns its number; or returns the bytes themselves if there is no room."""
        if len(self.parts) >= _PARTS_MAX:
            return bytes(data)
        self.parts.append(data)
        return len(self.parts) - 1

    def array(self, value: npt.NDArray[Any]) -> object:
        if value.dtype.hasobject and self.pickle:
            return self.pickled(value)
        dtype = _dtype_out(value.dtype)
        if not value.itemsize:
            raise _RefusedError("an array whose items have no bytes")
        flags, is_fortran = value.flags, False
        if flags.c_contiguous:
            flat = value.reshape(-1)
        elif flags.f_contiguous:
            flat, is_fortran = value.T.reshape(-1), True
        else:
            flat = np.ascontiguousarray(value).reshape(-1)
        if value.nbytes <= _INLINE_ARRAY_BYTES_MAX:
            return [_ARRAY, flat.tobytes(), dtype, list(value.shape), is_fortran]
        return [_ARRAY, self.place(flat.view(np.uint8)), dtype, list(value.shape), is_fortran]

    def scalar(self, value: np.generic, _depth: int) -> object:
        if type(value) is not value.dtype.type:
            return self.other(value, 0)
        # NumPy has four bytes for an empty text.
        return [_SCALAR, _dtype_out(value.dtype), value.tobytes()[: value.itemsize]]

    def tensor(self, value: Any, _depth: int) -> object:  # noqa: ANN401
        torch = sys.modules["torch"]
        if type(value) is not torch.Tensor or value.requires_grad:
            raise _RefusedError(
                f"{_kind(type(value))} with a gradient or a type of its own; pass value.detach().clone()"
            )
        if value.device.type != "cpu":
            raise _RefusedError(f"a tensor on {value.device}; only tensors in main memory are sent: pass value.cpu()")
        if value.layout is not torch.strided or value.is_quantized:
            raise _RefusedError("a sparse or quantized tensor; pass a dense one")
        data = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        place = data.tobytes() if data.nbytes <= _INLINE_ARRAY_BYTES_MAX else self.place(data)
        return [_TENSOR, place, str(value.dtype).removeprefix("torch."), list(value.shape)]

    def dataclass(self, value: Any, depth: int) -> object:  # noqa: ANN401
        at, plain = "", {}
        try:
            for field in dataclasses.fields(value):
                at = field.name
                plain[at] = self.plain(getattr(value, at), depth)
        except AttributeError as error:
            raise _RefusedError(f"its field '{at}' has no value") from error
        except _RefusedError as refused:
            refused.path.append(f".{at}")
            raise
        return [_DATACLASS, _name(type(value)), plain]

    def named_tuple(self, value: Any, depth: int) -> object:  # noqa: ANN401
        return self.items(value, [_NAMED_TUPLE, _name(type(value))], depth)

    def choice(self, value: enum.Enum, _depth: int) -> object:
        return [_ENUM, _name(type(value)), value.value if isinstance(value, enum.Flag) else value.name]

    def other(self, value: object, _depth: int) -> object:
        if self.pickle:
            return self.pickled(value)
        raise _RefusedError(f"{_kind(type(value))}; send its contents{_mends(type(value))}")

    def pickled(self, value: object) -> object:
        try:
            data = pickles.dumps(value, protocol=5)
        except Exception as error:
            raise _RefusedError(f"{_kind(type(value))}, which cannot be pickled: {error}") from error
        return [_PICKLE, data if len(data) <= _INLINE_BYTES_MAX else self.place(data)]


def _mends(kind: type) -> str:
    if issubclass(kind, np.ndarray):
        return ", as numpy.asarray(value)"
    for base in (dict, list, tuple, set, str, bytes, int, float):
        if issubclass(kind, base):
            return f", as {base.__name__}(value)"
    if kind.__module__ != "builtins":
        return ", as a dataclass for example"
    return ""


@functools.lru_cache(maxsize=1024)
def _handler(kind: type) -> Handler:
    torch = sys.modules.get("torch")
    if kind in (set, frozenset):
        return _Encoder.members
    if kind is bytearray:
        return _Encoder.mutable
    if issubclass(kind, np.generic):
        return _Encoder.scalar
    if issubclass(kind, enum.Enum):
        return _Encoder.choice
    if dataclasses.is_dataclass(kind):
        # Objects are created without calling the class.
        return _Encoder.dataclass if kind.__new__ is object.__new__ else _Encoder.other
    if _is_named_tuple(kind):
        return _Encoder.named_tuple
    # A tensor class exists only if torch is loaded.
    if torch is not None and issubclass(kind, getattr(torch, "Tensor", ())):
        return _Encoder.tensor
    return _Encoder.other


def can_encode(kind: type) -> bool:
    """Returns whether objects of this very class can be encoded without pickle, as far as the class tells."""
    if kind in _PLAIN or kind in (np.ndarray, bytes, dict, list, tuple):
        return True
    return _handler(kind) is not _Encoder.other


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


# Types by their names.


@functools.lru_cache(maxsize=1024)
def _name(kind: type) -> str:
    # The user's script has different names in different processes.
    module = "__main__" if kind.__module__ in ("__main__", LOADED) else kind.__module__
    name = f"{module}:{kind.__qualname__}"
    if kind not in _candidates(name):
        raise _RefusedError(f"{_kind(kind)}, which other processes cannot find; define it at the top of a module")
    return name


def _candidates(name: str) -> list[object]:
    """Returns the objects of this name. Imports no module: a sender must not choose which code runs here."""
    module_name, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        return []
    found = []
    for module in (LOADED, "__main__") if module_name == "__main__" else (module_name,):
        try:
            target: object = sys.modules.get(module)
            for part in path.split("."):
                target = getattr(target, part)
        except Exception:
            continue
        found.append(target)
    return found


@functools.lru_cache(maxsize=1024)
def _found(name: str, what: str) -> Any:  # noqa: ANN401
    """Returns the class of this name. If there is none, raises ValueError, which is not cached."""
    matches: Callable[[type], bool] = {
        "dataclass": dataclasses.is_dataclass,
        "named tuple": _is_named_tuple,
        "enumeration": lambda kind: issubclass(kind, enum.Enum),
    }[what]
    for candidate in _candidates(name):
        if isinstance(candidate, type) and matches(candidate):
            return candidate
    shown = repr(name[:_PATH_SHOWN_MAX])
    raise ValueError(f"{shown} names no {what} in this process; import its module in the program's file")


# dtypes: NumPy's own text, or [itemsize, [name, offset, dtype, shape], ...].

_DTYPE = re.compile(r"[<>|](?:[biufcSUV]\d{1,9}|[mM]8(?:\[\d{0,9}(?:[YMWDhms]|ms|us|ns|ps|fs|as)\])?)")


@functools.lru_cache(maxsize=1024)
def _dtype_out(dtype: np.dtype[Any]) -> Any:  # noqa: ANN401
    if dtype.hasobject:
        raise _RefusedError("an array of Python objects; send a list of them")
    if dtype.fields is None:
        wire: Any = dtype.str
    else:
        wire = [dtype.itemsize]
        for name, (field, offset, *_) in dtype.fields.items():
            wire.append([name, offset, _dtype_out(field.base), list(field.shape)])
    try:
        same = _dtype_in(wire) == dtype
    except ValueError:
        same = False
    if not same:
        raise _RefusedError(f"of dtype {dtype}, which is not one of NumPy's own")
    return wire


def _dtype_in(wire: Any) -> np.dtype[Any]:  # noqa: ANN401
    if type(wire) is str and _DTYPE.fullmatch(wire):
        try:
            return np.dtype(wire)
        except Exception as error:
            raise ValueError(f"there is no dtype {wire}") from error
    if type(wire) is not list or not wire or type(wire[0]) is not int or len(wire) > 1024:
        raise ValueError("this is not a dtype")
    names, formats, offsets = [], [], []
    for field in wire[1:]:
        name, offset, base, shape = _fields(field, 4)
        if type(name) is not str or type(offset) is not int:
            raise ValueError("this is not a field of a dtype")
        names.append(name)
        offsets.append(offset)
        formats.append((_dtype_in(base), _shape(shape)) if shape else _dtype_in(base))
    try:
        return np.dtype(
            cast("Any", {"names": names, "formats": formats, "offsets": offsets, "itemsize": wire[0]}),
        )
    except Exception as error:
        raise ValueError(f"there is no such dtype: {error}") from error


def _fields(items: Any, count: int) -> list[Any]:  # noqa: ANN401
    if type(items) is not list or len(items) != count:
        raise ValueError(f"{count} fields were expected")
    return items


def _shape(wire: Any) -> tuple[int, ...]:  # noqa: ANN401
    if type(wire) is not list or len(wire) > _SHAPE_MAX:
        raise ValueError("this is not a shape")
    if not all(type(side) is int and 0 <= side < 1 << 62 for side in wire):
        raise ValueError("this is not a shape")
    return tuple(wire)


class _Mark:
    """The first item of a list, which says what the list stands for."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


_MARKS = [_Mark(code) for code in range(_INTEGER)]


class _Decoder:
    """Turns lists that begin with a mark back into the objects that they stand for, innermost first."""

    __slots__ = ("marks", "parts", "pickle")

    def __init__(self, parts: Sequence[Part], pickle: bool) -> None:
        self.parts = parts
        self.pickle = pickle
        self.marks = 0
        """The number of marks that were decoded, but not yet seen at the beginning of a list."""

    def extension(self, code: int, data: bytes) -> object:
        if code == _INTEGER:
            return int.from_bytes(data, "little", signed=True)
        self.marks += 1
        return _MARKS[code]

    def listed(self, items: list[Any]) -> object:
        if not items or type(items[0]) is not _Mark:
            return items
        self.marks -= 1
        return _BUILDERS[items[0].code](self, items)

    def mapping(self, items: list[Any]) -> object:
        if len(items) % 2 == 0:
            raise ValueError("a key without a value")
        return dict(zip(items[1::2], items[2::2], strict=True))

    def data(self, place: object) -> npt.NDArray[np.uint8]:
        """Returns the bytes in the header, or the bytes of the part."""
        if type(place) is int and 0 <= place < len(self.parts):
            place = self.parts[place]
            if hasattr(place, "__array_interface__"):
                return np.asarray(cast("Any", place)).reshape(-1).view(np.uint8)
        elif type(place) is not bytes:
            raise ValueError("there is no such part")
        view = memoryview(cast("bytes", place))
        return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)

    def copied(self, items: list[Any]) -> bytes:
        return self.data(_fields(items, 2)[1]).tobytes()

    def array(self, items: list[Any]) -> npt.NDArray[Any]:
        _, place, dtype, shape, is_fortran = _fields(items, 5)
        dtype, shape, data = _dtype_in(dtype), _shape(shape), self.data(place)
        if not dtype.itemsize or math.prod(shape) * dtype.itemsize != data.nbytes:
            raise ValueError(f"an array of shape {shape} and {data.nbytes} bytes")
        flat = data.view(dtype)
        array = flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
        array.setflags(write=False)
        return array

    def scalar(self, items: list[Any]) -> object:
        _, dtype, data = _fields(items, 3)
        dtype = _dtype_in(dtype)
        if type(data) is not bytes or len(data) != dtype.itemsize:
            raise ValueError("a scalar of another length")
        return np.frombuffer(data, dtype)[0] if data else np.zeros((), dtype)[()]

    def tensor(self, items: list[Any]) -> object:
        _, place, name, shape = _fields(items, 4)
        try:
            torch = importlib.import_module("torch")
        except ImportError as error:
            raise ValueError("a tensor was received, and torch is not installed here") from error
        dtype, shape, data = getattr(torch, str(name), None), _shape(shape), self.data(place)
        if dtype is None or not isinstance(dtype, torch.dtype) or math.prod(shape) * dtype.itemsize != data.nbytes:
            raise ValueError(f"a tensor of shape {shape} and {data.nbytes} bytes")
        if not data.nbytes:
            return torch.empty(shape, dtype=dtype)
        # Torch cannot see that the memory is read-only, and would warn.
        return torch.from_numpy(np.asarray(_Writeable(data))).view(dtype).reshape(shape)

    def dataclass(self, items: list[Any]) -> object:
        _, name, values = _fields(items, 3)
        kind = _found(str(name), "dataclass")
        fields = [field.name for field in dataclasses.fields(kind)]
        if type(values) is not dict or sorted(map(str, values)) != sorted(fields):
            raise ValueError(f"{name} has other fields in this process: {', '.join(fields)}")
        made = object.__new__(kind)
        for field, value in values.items():
            object.__setattr__(made, field, value)
        return made

    def named_tuple(self, items: list[Any]) -> object:
        if len(items) < 2:
            raise ValueError("a named tuple without a name")
        kind = _found(str(items[1]), "named tuple")
        if len(items) - 2 != len(kind._fields):
            raise ValueError(f"{items[1]} has other fields in this process: {', '.join(kind._fields)}")
        return tuple.__new__(kind, items[2:])

    def choice(self, items: list[Any]) -> object:
        _, name, member = _fields(items, 3)
        kind = _found(str(name), "enumeration")
        if type(member) is int and issubclass(kind, enum.Flag):
            return kind(member)
        if type(member) is not str or member not in kind.__members__:
            raise ValueError(f"{name} has no such member in this process")
        return kind.__members__[member]

    def pickled(self, items: list[Any]) -> object:
        if not self.pickle:
            raise ValueError("a pickled value; it can run any code, so it is accepted only on request")
        return pickles.loads(self.copied(items))


class _Writeable:
    """Presents memory as writeable, and keeps it alive."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.data = data
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": data.shape,
            "data": (data.ctypes.data, False),
        }


_BUILDERS: dict[int, Callable[[_Decoder, list[Any]], object]] = {
    _TUPLE.code: lambda _, items: tuple(items[1:]),
    _SET.code: lambda _, items: set(items[1:]),
    _FROZENSET.code: lambda _, items: frozenset(items[1:]),
    _DICT.code: _Decoder.mapping,
    _BYTES.code: _Decoder.copied,
    _BYTEARRAY.code: lambda decoder, items: bytearray(decoder.copied(items)),
    _ARRAY.code: _Decoder.array,
    _SCALAR.code: _Decoder.scalar,
    _TENSOR.code: _Decoder.tensor,
    _DATACLASS.code: _Decoder.dataclass,
    _NAMED_TUPLE.code: _Decoder.named_tuple,
    _ENUM.code: _Decoder.choice,
    _PICKLE.code: _Decoder.pickled,
}
