"""Measures how `coorp up --protect` classifies a robot's topics, and how soon: topics replayed as live packets.

    cargo build --release -p coorp-cli
    sudo python studies/classify.py [--recording FILE] [--quick] [--markdown]

Over `coorp emu --protect`, on the channel of `examples/navigation.toml`, with a leader and two robots. One robot sends
the leader each topic at its times and sizes (lib/replay.py): datagrams to a port for each topic, or one TCP connection.
The team file has no rules for them, so the agent finds out what they are. Its log says when it changes a flow's class.

The topics are generated from a seed (lib/mixes.py): the topics of a robot with ROS 2, unmarked and with its control
marked EF, both while another robot fills the channel; programs that are hard to classify; and 200 B at several rates
with more and more jitter. Or they are the first seconds of a recording, an MCAP file or a ROS 2 bag, all from one robot
and unmarked. Then topics that `coorp import` takes for bulk go over TCP, as in its team file.

**Right classes.** The generator defines what a topic is; for a recording, `coorp import` does. Control is right if it
is taken for control. Bulk is right if it is not: to the agent, bulk is a stream that keeps a backlog, and a stream
without one is `ordinary`. So there are three mistakes, with different costs:

- control taken for ordinary: it is not held, but arrives late on a full channel, and bulk is not kept out of its way;
- control taken for bulk: it waits for permits, as long as bulk does;
- bulk taken for control: it goes before all others, and others' bulk makes room for it. The agent bounds that to 1
  Mbit/s per flow. `coorp import` counts small topics slower than 5 Hz as bulk; the agent takes them for control if they
  are regular. 'kbit/s so' shows how much that is.

'Jitter' is the sent messages' jitter, measured as `coorp import` does; '-' is irregular. 'After' is the beginning of
the final class: the time since the topic's first message, and the number of messages before. Flows begin as ordinary.
'Right' is the share of messages. 'Late' is the time of a message from program to program; 'missing' messages had not
arrived completely a second after the run. In the table of jitters, a cell has the share of messages that were right,
and the time at which the final class began.

A wrong class is a finding, and the study succeeds. It fails if a run fails, or if the log names no topic's class.
`--quick` has one short run. If the `coorp` binary, root or TUN is missing, the study says so and succeeds.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lib.edit import replaced
from lib.emulated import Runs, emulate, emulator, failures, show_emulator
from lib.mixes import EF, JITTERS, RATES_HZ, SHARES, Mix, mixes, rung
from lib.recordings import Topic, read
from lib.replay import PORT, UDP_FITS_BYTES, Outcome, Plan, replay
from lib.simulator import REPOSITORY
from lib.table import number, percent, show

TEAM = REPOSITORY / "examples" / "navigation.toml"
LEFT_OUT = ("robot-3", "robot-4")
SENDER = "robot-1"
SEED = 1
SPAN_S, QUICK_SPAN_S = 30.0, 4.0
TOPICS_MAX = 64
MESSAGES_MIN = 10
"""Minimum number of messages; topics with fewer are not counted."""
LOG = "coorp_node::protect=info,error"
TOLD = re.compile(
    r"\[(?P<robot>[^]]+)] (?P<at>\S+Z) .*: (?P<flow>\w+ [^ :]+(:(?P<from>\d+))? > [^ :]+(:(?P<to>\d+))?) "
    r"is (?P<taken>\w+): (?P<why>.+)"
)
LAST_NS = 50_000_000
"""A change within this time after the last message is still due to that message."""


def main() -> int:
    """Runs all mixes, or a recording, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", type=Path, metavar="FILE", help="an MCAP file, or a ROS 2 bag's folder")
    parser.add_argument("--quick", action="store_true", help="one short run, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        replay(arguments.folder)
        return 0
    program = emulator()
    if program is None:
        return 0
    span_s = QUICK_SPAN_S if arguments.quick else SPAN_S
    if arguments.recording is None:
        every = mixes(SEED, span_s, quick=arguments.quick)
    else:
        topics = read(program, arguments.recording, span_s)
        if len(topics) > TOPICS_MAX:
            print(f"only the first {TOPICS_MAX} of {len(topics)} topics, because each takes a process\n")
        every = [Mix(arguments.recording.name, topics[:TOPICS_MAX], busy=False)]
    runs = [(mix.name, Runs()) for mix in every]
    found: list[Judged] = []
    strangers: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        team = Path(folder) / TEAM.name
        team.write_text(small_team(TEAM.read_text()))
        subprocess.run([str(program), "keys", "init", str(team)], capture_output=True, check=True)
        for mix, (_, run) in zip(every, runs, strict=True):
            judged, others = judge(program, team, mix, span_s, run)
            found += judged
            strangers += others
    report(every, found, strangers, markdown=arguments.markdown)
    show_emulator("run", runs, markdown=arguments.markdown)
    failed = failures(runs)
    if not failed and arguments.recording is None and not any(one.changes for one in found):
        print("the agents' log names no class of a topic: is it written differently now?")
        failed = True
    return 1 if failed else 0


def small_team(text: str) -> str:
    """Returns the team with a leader and two robots."""
    for name in LEFT_OUT:
        text = replaced(text, f'[[robot]]\nname = "{name}"\n\n', "")
    return text


# --- one run ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A change of a flow's class."""

    at_ns: int
    taken: str
    why: str


BEGIN = Change(0, "ordinary", "")


@dataclass(frozen=True)
class Rhythm:
    """A topic's timing, measured as `coorp import` does."""

    hz: float
    jitter_ms: float
    """Jitter; NaN if the topic is irregular."""

    @staticmethod
    def of(times_ns: Sequence[int]) -> Rhythm:
        """Returns the rhythm of some messages."""
        gaps = [(after - before) * 1e-9 for before, after in itertools.pairwise(times_ns)]
        span_s = (times_ns[-1] - times_ns[0]) * 1e-9
        mean = Rhythm(len(gaps) / span_s if span_s > 0.0 else math.inf, math.nan)
        median = statistics.median_low(gaps)
        even = [gap for gap in gaps if median / 2 <= gap <= 1.5 * median]
        period = statistics.fmean(even)
        if median == 0.0 or len(even) < 0.75 * len(gaps) or period * len(gaps) < 0.5 * span_s:
            return mean
        return Rhythm(1.0 / period, 1e3 * statistics.pstdev(even) / math.sqrt(2.0))


@dataclass(frozen=True)
class Judged:
    """The classes of a topic."""

    mix: str
    topic: Topic
    rhythm: Rhythm
    sent: int
    """Messages."""
    kbps: float
    taken: str
    """The class at the end."""
    why: str
    after_s: float
    after: int
    changes: int
    right: float
    """The share of its messages whose class was right."""
    late_ms: float
    """The latency of messages that arrived, at p99."""
    missing: float
    """The share of messages that did not arrive completely."""
    sender_late_ms: list[float]
    """The delays with which the study sent its messages."""

    @property
    def is_right(self) -> bool:
        """Whether the class is right at the end."""
        return right(self.topic, self.taken)


def right(topic: Topic, taken: str) -> bool:
    """Returns whether a class is right for a topic."""
    return (taken == "control") == topic.control


def judge(program: Path, team: Path, mix: Mix, span_s: float, runs: Runs) -> tuple[list[Judged], list[str]]:
    """Makes one run. Returns the classes of its topics, and the other flows that were taken for control."""
    with tempfile.TemporaryDirectory() as name:
        folder, result, log = Path(name) / "shared", Path(name) / "report.json", Path(name) / "log"
        folder.mkdir()
        Plan(mix.topics, span_s, mix.busy).write(folder)
        own = [sys.executable, str(Path(__file__).resolve()), "--folder", str(folder)]
        command = [str(program), "emu", str(team), "--protect", "--json", str(result), "--quiet", "--", *own]
        why, waited = emulate(["env", f"RUST_LOG={LOG}", *command], log)
        if why is not None:
            runs.failures.append(why)
            return [], []
        runs.add({}, json.loads(result.read_text()), waited)
        histories, strangers = read_log(log.read_text(), mix.topics)
        outcomes = [Outcome.read(folder, place) for place in range(len(mix.topics))]
    found = [
        judged(mix.name, topic, outcome, histories.get(PORT + place, []))
        for place, (topic, outcome) in enumerate(zip(mix.topics, outcomes, strict=True))
        if len(outcome.sent_ns) >= MESSAGES_MIN
    ]
    return found, strangers


def read_log(text: str, topics: list[Topic]) -> tuple[dict[int, list[Change]], list[str]]:
    """Returns the changes of the sender's flows, by the topic's port; and other flows that were taken for control,
    apart from replies to control."""
    ports = {PORT + place for place in range(len(topics))}
    control = {PORT + place for place, topic in enumerate(topics) if topic.control}
    histories: dict[int, list[Change]] = {}
    strangers = []
    for told in TOLD.finditer(text):
        begin, end = (int(told[key] or 0) for key in ("from", "to"))
        if told["robot"] == SENDER and end in ports:
            history = histories.setdefault(end, [BEGIN])
            at_ns = int(datetime.fromisoformat(told["at"]).timestamp() * 1e6) * 1_000
            # The log reports a new period like a new class.
            if told["taken"] != history[-1].taken:
                history.append(Change(at_ns, told["taken"], told["why"]))
        elif told["taken"] == "control" and begin not in control:
            strangers.append(f"{told['robot']}: {told['flow']}, {told['why']}")
    return histories, strangers


def judged(mix: str, topic: Topic, outcome: Outcome, history: list[Change]) -> Judged:
    """Judges a topic by the history of its flow."""
    sent_ns = outcome.sent_ns
    sizes = topic.sizes[: len(sent_ns)]
    # A change follows the packet that caused it.
    until_ns = [*sent_ns[1:], sent_ns[-1] + LAST_NS]
    classes = [in_force(history, until) for until in until_ns]
    last, first_ns = classes[-1], sent_ns[0]
    after = max(0, bisect.bisect_right(sent_ns, last.at_ns) - 1)
    changes = {change for change in classes if change.at_ns > first_ns}
    came = [number for number in range(len(sent_ns)) if number in outcome.came_ns]
    late_ms = sorted((outcome.came_ns[number] - sent_ns[number]) * 1e-6 for number in came)
    span_s = (sent_ns[-1] - first_ns) * 1e-9
    return Judged(
        mix=mix,
        topic=topic,
        rhythm=Rhythm.of(sent_ns),
        sent=len(sent_ns),
        kbps=sum(sizes) * 8e-3 / span_s if span_s > 0.0 else math.nan,
        taken=last.taken,
        why=last.why,
        after_s=max(0.0, (last.at_ns - first_ns) * 1e-9),
        after=after,
        changes=len(changes),
        right=statistics.fmean(right(topic, change.taken) for change in classes),
        late_ms=late_ms[int(0.99 * len(late_ms))] if late_ms else math.nan,
        missing=1.0 - len(came) / len(sent_ns),
        sender_late_ms=[(at - due) * 1e-6 for at, due in zip(sent_ns, outcome.due_ns, strict=True)],
    )


def in_force(history: list[Change], at_ns: int) -> Change:
    """Returns the newest change before a time."""
    place = bisect.bisect_left(history, at_ns, key=lambda change: change.at_ns)
    return history[place - 1] if place else BEGIN


# --- the tables ---------------------------------------------------------------------------------------------------


def report(every: list[Mix], found: list[Judged], strangers: list[str], *, markdown: bool) -> None:
    """Prints the tables, and the flows of no topic that were taken for control."""
    titles = ["", "sent as", "Hz", "jitter ms", "B", "is", "taken for", "because", "after s", "messages", "changes"]
    titles += ["right", "late p99 ms", "missing"]
    for mix in every:
        here = [one for one in found if one.mix == mix.name]
        if mix.name == JITTERS:
            jitters(here, markdown=markdown)
        else:
            show([f"{mix.name}{', full channel' if mix.busy else ''}", *titles[1:]], [row(one) for one in here],
                 markdown=markdown)  # fmt: skip
    totals(every, found, markdown=markdown)
    late_ms = sorted(late for one in found if one.topic.control for late in one.sender_late_ms)
    lines = [f"taken for control, though of no topic: {one}" for one in strangers]
    if late_ms:
        p50, p99 = (late_ms[int(share * len(late_ms))] for share in (0.5, 0.99))
        lines.append(f"the study itself sent control {number(p50, 2)} ms late at p50, {number(p99, 2)} ms at p99")
    for line in lines:
        print(f"- {line}" if markdown else line)
    print()


def row(one: Judged) -> list[str]:
    """Returns a topic's row."""
    topic = one.topic
    mean = statistics.fmean(topic.sizes)
    fragments = not topic.tcp and min(max(topic.sizes), topic.piece_bytes) > UDP_FITS_BYTES
    return [
        topic.name,
        f"{'TCP' if topic.tcp else 'UDP'}{', EF' if topic.tos == EF else ''}{', fragments' if fragments else ''}",
        number(one.rhythm.hz, 0 if one.rhythm.hz >= 10 else 1),
        number(one.rhythm.jitter_ms, 2),
        f"{mean:.0f}",
        "control" if topic.control else "bulk",
        one.taken if one.is_right else f"WRONG: {one.taken}",
        one.why or "-",
        number(one.after_s, 2),
        f"{one.after}",
        f"{one.changes}",
        percent(one.right, 0),
        number(one.late_ms),
        percent(one.missing, 1),
    ]


def jitters(found: list[Judged], *, markdown: bool) -> None:
    """Prints the limits of recognition by the period: the share of right messages, and the beginning of the final
    class."""
    by_name = {one.topic.name: one for one in found}
    rows = []
    for share in SHARES:
        cells = []
        for hz in RATES_HZ:
            one = by_name[rung(hz, share)]
            when = f", {one.after_s:.1f} s" if one.is_right else f", until {one.after_s:.1f} s" if one.changes else ""
            cells.append(f"{percent(one.right, 0)}{when}")
        rows.append([percent(share, 0), *cells])
    show(["jitter of the period", *(f"{hz} Hz" for hz in RATES_HZ)], rows, markdown=markdown)


def totals(every: list[Mix], found: list[Judged], *, markdown: bool) -> None:
    """Prints the number of right classes at the end of each run, and of wrong ones by their kind."""
    titles = ["", "right", "control", "taken for ordinary", "for bulk", "bulk", "taken for control", "kbit/s so"]
    rows = []
    for name in [*(mix.name for mix in every), *([None] if len(every) > 1 else [])]:
        here = [one for one in found if name in (one.mix, None)]
        control = [one for one in here if one.topic.control]
        bulk = [one for one in here if not one.topic.control]
        wrong = [one for one in bulk if one.taken == "control"]
        rows.append([
            name or "all",
            f"{sum(one.is_right for one in here)} of {len(here)}",
            f"{len(control)}",
            *(f"{sum(one.taken == taken for one in control)}" for taken in ("ordinary", "bulk")),
            f"{len(bulk)}",
            f"{len(wrong)}",
            f"{sum(one.kbps for one in wrong):.1f}",
        ])  # fmt: skip
    show(titles, rows, markdown=markdown)


if __name__ == "__main__":
    sys.exit(main())
