"""Checkpoints: the complete state of a run in one file, which is replaced atomically.

This module decides how state is written, so that a Ctrl-C, a crash or a full disk leaves the last good checkpoint. It
also decides from which files a run may resume. Reading a file executes nothing in it: only tensors, numbers, text and
containers are accepted.

Left out: the state of the simulator. It is deterministic, so it is run again up to the checkpoint's time.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from coorp.learn.driver import Driver
from coorp.learn.errors import Mend
from coorp.learn.eyes import Eyes
from coorp.learn.network import Network, Shape
from coorp.sweep.files import replace

KIND = "coorp learn"
VERSION = 2
"""Version of a run's checkpoint. In version 1 only the leader had an optimiser."""
MODEL_VERSION = 1
"""Version of a weights file, such as the shipped one."""
_ARRAY = "numpy array"
Model = TypeVar("Model", Network, Driver)


class CheckpointError(Mend):
    """A checkpoint or model file cannot be used; the text says why, and what to do."""


def save(path: Path, content: dict[str, Any], version: int = VERSION) -> None:
    """Writes `content` (tensors, arrays, numbers, text and containers of them) so that `path` is never half written."""
    whole = io.BytesIO()
    torch.save({"kind": KIND, "version": version, "content": _pack(content)}, whole)
    replace(path, whole.getbuffer())


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint from `save`; raises if it is missing, damaged, foreign or of another version."""
    anew = "give another --out, or --overwrite to start again"
    version, content = _read(path, anew)
    if version == 1:
        raise CheckpointError(
            f"{path} has version 1, from before each robot had its own optimiser, and cannot be resumed; {anew}"
        )
    if version != VERSION:
        raise CheckpointError(
            f"{path} has version {version}, but this coorp reads version {VERSION}; "
            f"resume with the coorp that wrote it, or {anew}"
        )
    return content


def _read(path: Path, mend: str) -> tuple[object, dict[str, Any]]:
    """Returns a file's version and content; `mend` says what to do if it has none."""
    try:
        with path.open("rb") as file:
            # Torch does not look at the checksums.
            if zipfile.ZipFile(file).testzip() is not None:
                raise ValueError("a checksum differs")
            file.seek(0)
            whole = torch.load(file, map_location="cpu", weights_only=True)
        content = _unpack(whole["content"])
        if whole["kind"] != KIND or not isinstance(content, dict):
            raise ValueError("foreign")
        return whole["version"], content
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}; {mend}") from None
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}; {mend}") from problem
    except Exception as problem:  # Foreign bytes fail anywhere.
        raise CheckpointError(f"{path} is damaged or not a file of `coorp learn`; {mend}") from problem


def save_model(path: Path, network: Network | Driver, made_by: str) -> None:
    """Writes only the weights, with the command that produced them."""
    save(path, {"shape": dict(network.shape), "weights": network.state_dict(), "made_by": made_by}, MODEL_VERSION)


def new_model(name: str) -> Path:
    """Returns the file of an option, with its folder made. Raises if nothing can be written there, so that this shows
    before the training."""
    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        raise ArgumentTypeError(f"{path} cannot be written: {problem.strerror or problem}") from problem
    if path.is_dir():
        raise ArgumentTypeError(f"{path} is a folder; give a file")
    return path


def load_model(path: Path, shape: Shape) -> Network:
    """Returns a network with the weights of a file, which must fit this environment's observations and actions."""
    found, weights = _read_model(path)
    _check_shape(path, found, shape)
    return _loaded(path, Network(**shape), weights)


def load_any_model(path: Path, shape: Shape) -> Network | Driver:
    """The same, but the weights can also be a driver's, with or without eyes."""
    found, weights = _read_model(path)
    driver = Driver(Eyes() if any(name.startswith("eyes.") for name in weights) else None)
    if found == driver.shape:
        return _loaded(path, driver, weights)
    _check_shape(path, found, shape)
    return _loaded(path, Network(**shape), weights)


def _read_model(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a model file's shape and weights."""
    version, content = _read(path, "set --model to the model.pt of a run, or omit it")
    found, weights = content.get("shape"), content.get("weights")
    if not isinstance(found, dict) or not isinstance(weights, dict):
        raise CheckpointError(f"{path} contains no model; give the model.pt of a run, not its checkpoint")
    if version != MODEL_VERSION:
        raise CheckpointError(
            f"{path} is a model of version {version}, but this coorp reads version {MODEL_VERSION}; "
            "drive it with the coorp that wrote it"
        )
    return found, weights


def _check_shape(path: Path, found: dict[str, Any], shape: Shape) -> None:
    if found != shape:
        raise CheckpointError(
            f"{path} has a different shape: it takes {found.get('vector')} numbers per robot and returns "
            f"{found.get('action')}, but this environment has {shape['vector']} and {shape['action']}; "
            "pre-train one for it with: python -m coorp.learn.pretrain, then give --model navigation.pt"
        )


def _loaded(path: Path, network: Model, weights: dict[str, Any]) -> Model:
    try:
        network.load_state_dict(weights)
    except RuntimeError as problem:
        raise CheckpointError(
            f"the weights in {path} belong to another network; "
            "pre-train one with: python -m coorp.learn.pretrain, then give --model navigation.pt"
        ) from problem
    return network


def _pack(value: Any) -> Any:  # noqa: ANN401
    """Converts arrays to bytes in a tensor, so that every dtype survives."""
    if isinstance(value, np.ndarray):
        raw = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.size else torch.zeros(0)
        return {_ARRAY: str(value.dtype), "shape": list(value.shape), "bytes": raw}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _pack(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_pack(item) for item in value)
    return value


def _unpack(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        if _ARRAY in value:
            raw = value["bytes"].numpy().tobytes() if value["bytes"].numel() else b""
            return np.frombuffer(raw, dtype=np.dtype(value[_ARRAY])).reshape(value["shape"]).copy()
        return {key: _unpack(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_unpack(item) for item in value)
    return value
