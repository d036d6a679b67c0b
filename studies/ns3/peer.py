"""Finds ns-3, compiles its scenario, and runs it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cases import Case, ns3_arguments

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("scenario.cc")
VERSION = "3.44"
CACHE = REPOSITORY / "target" / "studies"
LIBRARIES = [
    "core",
    "network",
    "internet",
    "wifi",
    "mobility",
    "propagation",
    "spectrum",
    "antenna",
    "applications",
    "traffic-control",
    "stats",
    "bridge",
    "energy",
    "config-store",
]
# The macros with which the wheel's libraries were built: they determine the class layouts in its headers.
MACROS = ["-DNS3_BUILD_PROFILE_RELEASE", "-DNS3_LOG_ENABLE", "-DNS3_ASSERT_ENABLE"]


class Missing(Exception):
    """A reason why the study cannot run here, in the message."""


@dataclass(frozen=True)
class Run:
    """The output of one ns-3 process."""

    total_mbps: float
    latency_ms: list[float]
    sent: int
    delivered: int
    virtual_s: float
    wall_s: float


def _package() -> Path:
    spec = importlib.util.find_spec("ns3")
    try:
        version = importlib.metadata.version("ns3")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    if version and not version.startswith(f"{VERSION}."):
        raise Missing(f"ns3 {version} is installed, but the study needs {VERSION} (pip install ns3=={VERSION}.post0)")
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (Path(location) / "include" / "ns3" / "wifi-module.h").is_file():
            return Path(location)
    raise Missing(f"the package ns3 is not installed (pip install ns3=={VERSION}.post0)")


def compile_scenario() -> Path:
    """Compiles the scenario into the cache, unless it is already there for this source and this ns-3."""
    root = _package()
    compiler = shutil.which("g++")
    if compiler is None:
        raise Missing("g++ is not installed")
    key = hashlib.sha256(SOURCE.read_bytes() + str(root).encode()).hexdigest()[:16]
    binary = CACHE / f"ns3-scenario-{key}"
    if binary.is_file():
        return binary
    CACHE.mkdir(parents=True, exist_ok=True)
    libraries = root / "lib64"
    partial = binary.with_suffix(".partial")
    command = [compiler, "-std=c++20", "-O2", *MACROS, f"-I{root / 'include'}", str(SOURCE), "-o", str(partial)]
    command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", *(f"-lns{VERSION}-{name}" for name in LIBRARIES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the scenario does not compile against {root}:\n{done.stderr[-2000:]}")
    partial.rename(binary)
    return binary


def run(binary: Path, case: Case, duration_s: float, seed: int, *, stock: bool = False) -> Run:
    """Runs one case. `stock` keeps ns-3's own behaviour: no EIFS after a collision, and the BlockAckReq."""
    command = [str(binary), *ns3_arguments(case), f"--duration={duration_s}", f"--seed={seed}"]
    command += [f"--stock={int(stock)}", f"--explicitBar={int(stock)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ns-3 failed: {' '.join(command)}\n{done.stderr[-2000:]}")
    printed = json.loads(done.stdout)
    return Run(
        total_mbps=printed["total_mbps"],
        latency_ms=printed.get("latency_ms", []),
        sent=printed.get("sent", 0),
        delivered=printed.get("delivered", 0),
        virtual_s=printed["virtual_s"],
        wall_s=printed["wall_s"],
    )


def pool(runs: list[Run]) -> Run:
    """Combines runs of one case with several seeds."""
    return Run(
        total_mbps=sum(r.total_mbps for r in runs) / len(runs),
        latency_ms=[ms for r in runs for ms in r.latency_ms],
        sent=sum(r.sent for r in runs),
        delivered=sum(r.delivered for r in runs),
        virtual_s=sum(r.virtual_s for r in runs),
        wall_s=sum(r.wall_s for r in runs),
    )


def quantile(samples: list[float], q: float) -> float:
    """Returns the smallest sample that a share q of the samples does not exceed."""
    ordered = sorted(samples)
    return ordered[max(1, -int(-q * len(ordered) // 1)) - 1]
