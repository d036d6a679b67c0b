"""Measures what waiting for the permit costs connections of unchanged programs: how soon they have their rate again.

    cargo build --release -p coorp-cli
    sudo python studies/hold.py [--quick] [--markdown]

Three robots in network namespaces on one bridge, each with `coorp up --protect`. `one` and `two` have cards of 60
Mbit/s and send bulk to `lead` without end, so their permits take turns. A permit lasts 2 s in some runs and 15 s in
others, and `one` is held for as long while `two` sends. The agent holds packets in order; TCP and QUIC are not told.

- `iperf3` over TCP with CUBIC and with BBR. `ss` tells how many segments were sent twice, and slow start's threshold;
- QUIC of `aioquic`, with its defaults, in place of `iperf3`;
- short connections: `lead` fetches a file of 100 kB from Python's `http.server` at `one`, five times a second.

What arrives is counted in spans of 0.1 s. 'Full' is its median while `one` may send. After a pause, a connection is at
full rate with the first span of at least nine tenths of that. For short connections, the study shows how many failed,
how long those took that met no pause, how many met one pause and how many met more, how long these took from the last
one's end, and how long the longest took.

Fails if a connection breaks, or if `one` is never held. `--quick` has one pause of 1 s of one connection, if any. Cases
are skipped if their requirements are missing: `iperf3`, `ss`, the congestion control, the package `aioquic`. Needs root
for the namespaces, and says so without.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import importlib.util
import itertools
import json
import re
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lib.lan import Lan, address, end, is_possible
from lib.simulator import binary
from lib.table import number, percent, show

ROBOTS = ("lead", "one", "two")
LEAD, ONE = ROBOTS.index("lead"), ROBOTS.index("one")
MBPS = 60
SHAPE = ("tbf", "rate", f"{MBPS}mbit", "burst", "32k", "limit", "300k")
PORT, OTHER_PORT, QUIC_PORT, WEB_PORT = 5201, 5202, 5203, 5204
SPAN_S = 0.1
PAUSES_S = {2.0: 4, 15.0: 2}
"""The lengths of pauses, each with the number of them in a run."""
QUICK_S = 1.0
SETTLE_S = 3.0
FIRST = 10
"""The number of spans in the first second after a pause."""
FULL_SHARE, HELD_SHARE = 0.9, 0.5
"""The share of the full rate that counts as full, and that of a permit's length that counts as a pause: the other robot
may give its permit back early."""
FILE_BYTES, FETCH_EVERY_S = 100_000, 0.2
CHUNK, CHUNKS_MAX = bytes(64 << 10), 32
"""What the sender over QUIC writes at once, and how much of it may be on its way."""
CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
DEFAULT = "/proc/sys/net/ipv4/tcp_congestion_control"


@dataclass
class Sample:
    """What `ss` tells of a connection."""

    at_s: float
    acknowledged: int
    ssthresh: int | None
    sent_twice: int


@dataclass
class Run:
    """What arrived at `lead` in each span, and what the sender's kernel told."""

    arrived: list[float]
    samples: list[Sample] = field(default_factory=list)


@dataclass
class Back:
    """One pause: from and until which span, and the spans until the full rate after it."""

    begin: int
    end: int
    spans: int


def pauses(arrived: Sequence[float], pause_s: float) -> tuple[float, list[Back]]:
    """Returns what arrives per span at full rate, and the pauses of at least half this length."""
    busy = [one for one in arrived if one > 0.02 * max(arrived, default=0.0)]
    full = statistics.median(busy) if busy else 0.0
    found, begin = [], None
    for place, one in enumerate([*arrived, full]):
        if one <= 0.02 * full:
            begin = place if begin is None else begin
            continue
        if begin is not None and (place - begin) * SPAN_S >= HELD_SHARE * pause_s:
            after = [later >= FULL_SHARE * full for later in arrived[place : place + int(pause_s / SPAN_S)]]
            if True in after:
                found.append(Back(begin, place, after.index(True)))
        begin = None
    # A pause at the start is the wait for the first permit: there is no earlier rate to return to. A sender that ends
    # in a pause has too little left to show one afterwards.
    return full, [back for back in found if back.begin > 0 and back.end + FIRST <= len(arrived)]


@contextlib.contextmanager
def agents(lan: Lan, program: Path, pause_s: float) -> Iterator[None]:
    """Runs the robots' agents, with permits of this length, and bulk from `two`."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        team = Path(name) / "team.toml"
        robots = [
            f'[[robot]]\nname = "{robot}"\nleader = {str(place == LEAD).lower()}\naddresses = ["{address(place)}"]\n'
            f'interfaces = ["eth0"]\n'
            for place, robot in enumerate(ROBOTS)
        ]
        rule = f'[[protect]]\nas = "bulk"\nports = "{PORT}-{WEB_PORT}"\n'
        team.write_text("\n".join([*robots, rule, f'[policy]\nslice = "{pause_s:g}s"\n']))
        subprocess.run([str(program), "keys", "init", str(team)], capture_output=True, check=True)
        for robot in ROBOTS:
            agent = [str(program), "up", str(team), "--robot", robot, "--protect", "--state", str(Path(name) / robot)]
            running = lan.run(robot, *agent)
            ends.callback(end, running)
            assert running.stdout is not None
            running.stdout.readline()
        time.sleep(SETTLE_S)
        server = listening(lan, OTHER_PORT)
        ends.callback(end, server)
        client = lan.run("two", "iperf3", "--client", address(LEAD), "--port", str(OTHER_PORT), "--time", "600")
        ends.callback(end, client)
        yield


def listening(lan: Lan, port: int, *options: str) -> subprocess.Popen[str]:
    server = lan.run("lead", "iperf3", "--server", "--one-off", "--port", str(port), "--forceflush", *options)
    time.sleep(0.5)
    return server


def tcp(lan: Lan, control: str, span_s: float) -> Run:
    """Sends by `iperf3` from `one` to `lead`."""
    server = listening(lan, PORT, "--json", "--interval", f"{SPAN_S}")
    # A socket that was made for BBR stays paced with CUBIC, so the default is set.
    lan.run("one", "sh", "-c", f"echo {control} > {DEFAULT}").wait()
    client = lan.run("one", "iperf3", "--client", address(LEAD), "--port", str(PORT), "--time", f"{span_s:g}")
    run, began_s = Run([]), time.monotonic()
    while client.poll() is None and time.monotonic() < began_s + 3 * span_s + 30:
        said = lan.run("one", "ss", "-tinOH", "dst", address(LEAD), "dport", "=", f":{PORT}").communicate()[0]
        # The busiest of the two connections is the data's.
        lines = sorted(said.splitlines(), key=lambda line: int(of(r"bytes_sent:(\d+)", line) or 0))
        if lines:
            threshold = of(r"ssthresh:(\d+)", lines[-1])
            twice = int(of(r"retrans:\d+/(\d+)", lines[-1]) or 0)
            acknowledged = int(of(r"bytes_acked:(\d+)", lines[-1]) or 0)
            sample = Sample(time.monotonic(), acknowledged, int(threshold) if threshold else None, twice)
            # At the end, only the other connection is left.
            if not run.samples or acknowledged >= run.samples[-1].acknowledged:
                run.samples.append(sample)
        time.sleep(SPAN_S)
    if client.poll() is None:
        end(client)
        end(server)
        sys.exit(f"iperf3 with {control} does not end")
    code, report = client.poll(), json.loads(server.communicate()[0])
    if code != 0 or "error" in report:
        sys.exit(f"iperf3 with {control} ended with {code}: {report.get('error', 'no reason')}")
    run.arrived = [float(one["sum"]["bytes"]) for one in report["intervals"]]
    return run


def of(name: str, line: str) -> str | None:
    """Returns a figure of a line of `ss`."""
    match = re.search(rf"\b{name}", line)
    return match.group(1) if match else None


def quic(lan: Lan, folder: Path, span_s: float) -> Run:
    """Sends by aioquic from `one` to `lead`."""
    subject = ["-subj", "/CN=lead", "-days", "2", "-nodes", "-newkey", "rsa:2048"]
    keys = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    subprocess.run(["openssl", "req", "-x509", *subject, *keys], capture_output=True, check=True)
    own = [sys.executable, str(Path(__file__).resolve()), "--folder", str(folder), "--span", f"{span_s:g}"]
    server = lan.run("lead", *own, "--program", "quic-server")
    time.sleep(1.0)
    client = lan.run("one", *own, "--program", "quic-client")
    until_s = time.monotonic() + 3 * span_s + 30
    while server.poll() is None and client.poll() in (None, 0) and time.monotonic() < until_s:
        time.sleep(SPAN_S)
    said, code = server.communicate()[0] if server.poll() is not None else "", client.poll()
    # The client would wait until its last packets could no longer be under way: for minutes, after such pauses.
    end(client)
    end(server)
    if not said:
        sys.exit("aioquic does not end" if code in (None, 0) else "the connection of aioquic broke")
    return Run(json.loads(said))


def quic_program(which: str, folder: Path, span_s: float) -> None:
    """Receives until the connection ends and prints what arrived per span, or sends for this long."""
    from aioquic.asyncio.client import connect
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.asyncio.server import serve
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived

    arrived: list[float] = []
    ended, whole = asyncio.Event(), False

    class Receiver(QuicConnectionProtocol):
        began_s: float | None = None
        unconfirmed = 0

        def quic_event_received(self, event: QuicEvent) -> None:
            nonlocal whole
            now_s = time.monotonic()
            if isinstance(event, StreamDataReceived):
                self.began_s = self.began_s or now_s
                span = int((now_s - self.began_s) / SPAN_S)
                arrived.extend([0.0] * (span + 1 - len(arrived)))
                arrived[span] += len(event.data)
                self.unconfirmed += len(event.data)
                confirms = bytes(self.unconfirmed // len(CHUNK))
                self._quic.send_stream_data(event.stream_id, confirms, end_stream=event.end_stream)
                self.unconfirmed %= len(CHUNK)
                whole = whole or event.end_stream
            if whole or isinstance(event, ConnectionTerminated):
                ended.set()

    async def receive() -> None:
        configuration = QuicConfiguration(is_client=False)
        configuration.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        await serve(address(LEAD), QUIC_PORT, configuration=configuration, create_protocol=Receiver)
        await ended.wait()
        if whole:
            print(json.dumps(arrived), flush=True)

    async def send() -> None:
        configuration = QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE)
        async with connect(address(LEAD), QUIC_PORT, configuration=configuration) as connection:
            reader, writer = await connection.create_stream()
            until_s, unconfirmed = time.monotonic() + span_s, 0
            while time.monotonic() < until_s:
                writer.write(CHUNK)
                unconfirmed += 1
                # The writer does not wait by itself. The receiver confirms each chunk with a byte.
                while unconfirmed >= CHUNKS_MAX:
                    confirmed = len(await reader.read(CHUNKS_MAX))
                    if confirmed == 0:
                        sys.exit("the connection has ended")
                    unconfirmed -= confirmed
            writer.write_eof()
            # To close the connection discards what has not been sent.
            await reader.read()

    asyncio.run(receive() if which == "quic-server" else send())


@dataclass
class Fetches:
    """Short connections: how long each took, from when to when, and how many failed."""

    spans_s: list[tuple[float, float]] = field(default_factory=list)
    failed: int = 0


def fetches(lan: Lan, folder: Path, span_s: float) -> Fetches:
    """Fetches a file from `one`, again and again."""
    (folder / "file").write_bytes(bytes(FILE_BYTES))
    serve = ["-m", "http.server", str(WEB_PORT), "--bind", address(ONE), "--directory", str(folder)]
    server = lan.run("one", sys.executable, *serve)
    time.sleep(1.0)
    own = [sys.executable, str(Path(__file__).resolve()), "--span", f"{span_s:g}", "--program", "fetch"]
    try:
        said = lan.run("lead", *own).communicate(timeout=3 * span_s + 60)[0]
    finally:
        end(server)
    spans_s, failed = json.loads(said)
    return Fetches([(begun, done) for begun, done in spans_s], failed)


def fetch_program(span_s: float) -> None:
    """Fetches for this long, and prints when each connection began and ended."""
    spans_s, failures, threads, began_s = [], [], [], time.monotonic()

    def fetch() -> None:
        begun_s = time.monotonic() - began_s
        try:
            with urllib.request.urlopen(f"http://{address(ONE)}:{WEB_PORT}/file", timeout=60) as answer:
                whole = len(answer.read()) == FILE_BYTES
        except (OSError, http.client.HTTPException):
            whole = False
        (spans_s if whole else failures).append((begun_s, time.monotonic() - began_s))

    while time.monotonic() - began_s < span_s:
        threads.append(threading.Thread(target=fetch))
        threads[-1].start()
        time.sleep(FETCH_EVERY_S)
    for thread in threads:
        thread.join()
    print(json.dumps([spans_s, len(failures)]))


def row(name: str, pause_s: float, run: Run) -> tuple[list[str], str | None]:
    """Returns a row of the table, and the problem, if any."""
    full, backs = pauses(run.arrived, pause_s)
    if not backs:
        return [name, number(pause_s, 0), "0", *["-"] * 6], f"{name}: it was never held for {pause_s:g} s"
    first = [sum(run.arrived[back.end : back.end + FIRST]) / (FIRST * full) for back in backs]
    twice, thresholds = "-", "-"
    if run.samples:
        both = around(run.samples, pause_s)
        more = [after.sent_twice - before.sent_twice for before, after in both]
        twice = number(statistics.mean(more)) if more else "-"
        thresholds = ", ".join(f"{before.ssthresh or '-'} / {after.ssthresh or '-'}" for before, after in both)
    after_s = [back.spans * SPAN_S for back in backs]
    rate = number(full * 8e-6 / SPAN_S)
    most = f"{number(statistics.median(after_s))} / {number(max(after_s))}"
    lengths_s = [(back.end - back.begin) * SPAN_S for back in backs]
    spread = f"{number(min(lengths_s))} to {number(max(lengths_s))}"
    share = percent(min(first), 0)
    return [name, number(pause_s, 0), str(len(backs)), spread, rate, most, share, twice, thresholds], None


def around(samples: Sequence[Sample], pause_s: float) -> list[tuple[Sample, Sample]]:
    """Returns the last sample before each pause, and the first one a second after it. In a pause nothing is
    acknowledged."""
    found, before = [], samples[0]
    for one in samples[1:]:
        if one.acknowledged == before.acknowledged:
            continue
        if one.at_s - before.at_s >= HELD_SHARE * pause_s and before.acknowledged > len(CHUNK):
            later = next((after for after in samples if after.at_s >= one.at_s + 1.0), None)
            found += [] if later is None else [(before, later)]
        before = one
    return found


def short_row(pause_s: float, fetched: Fetches) -> tuple[list[str], str | None]:
    """Returns the row of short connections, and the problem, if any."""
    # In a pause no connection ends, though others begin, and it is over when one does.
    done_s = [0.0, *sorted(done for _, done in fetched.spans_s)]
    last_s = max((begun for begun, _ in fetched.spans_s), default=0.0)
    between = [(done, later) for done, later in itertools.pairwise(done_s) if done < last_s]
    ends = [later for done, later in between if later - done >= HELD_SHARE * pause_s]
    free, once, more = [], [], []
    for begun, done in fetched.spans_s:
        met = [end for end in ends if begun < end <= done]
        if met:
            (once if len(met) == 1 else more).append(done - met[-1])
        else:
            free.append(done - begun)
    after = once + more
    cells = [
        number(pause_s, 0),
        str(len(fetched.spans_s)),
        str(fetched.failed),
        number(1e3 * statistics.median(free), 0) if free else "-",
        str(len(once)),
        str(len(more)),
        f"{number(1e3 * statistics.median(after), 0)} / {number(1e3 * max(after), 0)}" if after else "-",
        number(max((done - begun for begun, done in fetched.spans_s), default=0.0)),
    ]
    if fetched.failed:
        return cells, f"short connections: {fetched.failed} failed"
    return cells, None if ends else f"short connections: none was held for {pause_s:g} s"


def main() -> int:
    """Runs all cases and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short pause, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    for name in ("--program", "--folder", "--span"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program == "fetch":
        fetch_program(float(arguments.span))
        return 0
    if arguments.program:
        quic_program(arguments.program, Path(arguments.folder), float(arguments.span))
        return 0
    program = binary()
    if program is None or not is_possible():
        return 0
    if absent := [name for name in ("iperf3", "ss", "tc") if shutil.which(name) is None]:
        print(f"skipped: {' and '.join(absent)} is missing")
        return 0
    controls = [name for name in ("cubic", "bbr") if name in CONTROLS.read_text().split()]
    has_quic = importlib.util.find_spec("aioquic") is not None and shutil.which("openssl") is not None
    if not has_quic:
        print("skipped: QUIC: the package aioquic or openssl is missing")
    rows, short, problems = [], [], []
    for pause_s, count in ({QUICK_S: 1} if arguments.quick else PAUSES_S).items():
        with Lan(list(ROBOTS)) as lan, tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for robot in ROBOTS[1:]:
                inside = ["ip", "netns", "exec", lan.names[robot]]
                subprocess.run([*inside, "tc", "qdisc", "replace", "dev", "eth0", "root", *SHAPE], check=True)
            with agents(lan, program, pause_s):
                # A run begins anywhere in a turn.
                span_s = 2 * pause_s * (count + 1)
                found = [(f"TCP, {control.upper()}", tcp(lan, control, span_s)) for control in controls]
                if arguments.quick:
                    found = found[:1]
                elif has_quic:
                    found.append(("QUIC", quic(lan, folder, span_s)))
                for title, run in found:
                    cells, problem = row(title, pause_s, run)
                    rows.append(cells)
                    problems.append(problem)
                if not arguments.quick:
                    cells, problem = short_row(pause_s, fetches(lan, folder, span_s))
                    short.append(cells)
                    problems.append(problem)
    titles = ["connection", "permits, s", "pauses", "their lengths, s", "full, Mbit/s", "full after, s: median / most"]
    titles += ["least in the first second", "segments sent twice a pause", "ssthresh before / after"]
    show(titles, rows, markdown=arguments.markdown)
    if short:
        titles = ["permits, s", "short connections", "failed", "took, ms", "held once", "more often"]
        titles += ["after the last pause, ms: median / most", "longest, s"]
        show(titles, short, markdown=arguments.markdown)
    problems = [problem for problem in problems if problem]
    print("\n".join(problems), end="\n" if problems else "")
    # On a busy machine, a short run may see no pause.
    return 1 if problems and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
