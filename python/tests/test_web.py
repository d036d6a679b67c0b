"""`coorp watch --web` in a real browser: what the page shows is what the robots report. Needs Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_node import SOON, Fleet, free_ports

sys.path.insert(0, str(Path(__file__).parents[2] / "studies"))
from lib.browser import Browser, find

PHONE, DESKTOP = (390, 844), (1280, 900)
ROBOTS = ("base", "scout", "mule")
CONTROL = '[control]\nrate_hz = 30\nperception = "1KiB"\ninference = "2ms"\nbound = "33ms"\n'

PROGRAM = find()
if PROGRAM is None and "CI" in os.environ:
    raise RuntimeError("CI has to run these tests: no Chromium")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium; COORP_BROWSER names one")


class Team:
    """Three robots on loopback, in this process, with a control loop."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(folder, *ROBOTS)
        place = f'[[place]]\nname = "visitor"\ncount = 2\naddresses = ["127.0.0.3"]\nport = {free_ports()}\n'
        self.fleet.file.write_text(self.fleet.file.read_text() + CONTROL + place)
        self.fleet.keys()
        self.nodes = {name: self.fleet.node(name) for name in ROBOTS}
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []

    def drive(self) -> None:
        """Perceptions to the leader 30 times a second, and its commands back."""
        base = self.nodes["base"]
        perceptions, commands = base.control_subscriber("perception"), base.control_publisher("command", period="33ms")
        self.heard = {name: self.nodes[name].control_subscriber("command") for name in ROBOTS[1:]}
        publishers = {name: self.nodes[name].control_publisher("perception", period="33ms") for name in ROBOTS[1:]}
        self.took: dict[str, list[float]] = {name: [] for name in publishers}
        """How long loops took in milliseconds, as the programs see it."""
        began: dict[str, float] = {}

        def perceive() -> None:
            while not self.stop.wait(1 / 30):
                for name, publisher in publishers.items():
                    began[name] = time.monotonic()
                    publisher.put(b"x" * 1024)

        def command() -> None:
            here: set[str] = set()
            while not self.stop.is_set():
                try:
                    here.add(perceptions.recv(timeout=0.2).sender)
                except TimeoutError:
                    continue
                if here == set(publishers):
                    here.clear()
                    time.sleep(0.002)
                    commands.put(b"go")

        def listen(name: str) -> None:
            while not self.stop.is_set():
                try:
                    self.heard[name].recv(timeout=0.2)
                except TimeoutError:
                    continue
                self.took[name].append(1e3 * (time.monotonic() - began[name]))

        for what in (perceive, command, *(lambda name=name: listen(name) for name in publishers)):
            self.threads.append(threading.Thread(target=what))
            self.threads[-1].start()

    def rest(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def close(self) -> None:
        self.rest()
        for node in self.nodes.values():
            node.close()

    def once(self) -> str:
        """What `coorp watch` says in a terminal."""
        command = [sys.executable, "-m", "coorp", "watch", str(self.fleet.file), "--once"]
        got = subprocess.run(command, capture_output=True, text=True, timeout=SOON)
        assert got.returncode == 0, got.stderr
        return got.stdout


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    team = Team(tmp_path)
    yield team
    team.close()


def watch(file: Path, at: str = "0") -> tuple[subprocess.Popen[str], str]:
    """`coorp watch --web`, and its address."""
    command = [sys.executable, "-m", "coorp", "watch", str(file), "--web", at]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r"https?://\S+", said)
    assert found, said or process.communicate()[1]
    return process, found[0]


@pytest.fixture
def page(team: Team, tmp_path: Path) -> Iterator[tuple[Browser, str]]:
    process, url = watch(team.fleet.file)
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path / "browser") as browser:
        yield browser, url
    process.kill()
    process.communicate()


TABLE = """
    [...document.querySelectorAll('#%s tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))
"""

# What a pause holds apart from the lanes.
HELD = """
    ['#summary', '#robots', '#topics', '#reaction .note', '#ages .note']
      .map((place) => document.querySelector(place).textContent)
"""


def table(browser: Browser, name: str) -> list[list[str]]:
    return browser.run(TABLE % name)


def rows_of(text: str, title: str) -> list[list[str]]:
    """The rows below a title in what a terminal shows."""
    lines = text.splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith(title))
    rows = []
    for line in lines[begin + 1 :]:
        if not line.strip():
            break
        # Not the line below the titles.
        if any(letter.isalnum() for letter in line):
            rows.append(line.split())
    return rows


def test_the_page_shows_what_the_robots_report(team: Team, page: tuple[Browser, str]) -> None:
    browser, url = page
    team.drive()
    browser.open(url, width=DESKTOP[0], height=DESKTOP[1])
    browser.until("document.querySelector('#summary')?.textContent.includes('3 of 3 robots here')")
    stream = team.nodes["scout"].bulk_stream(to="base", name="map")
    stream.write(b"x" * 30_000_000)
    delivery = stream.finish()
    received = team.nodes["base"].bulk_receiver().recv(timeout=SOON)
    assert received is not None
    delivery.wait(timeout=SOON)
    # A few seconds of loops, as the scout itself times them: its program is told a moment later.
    loops = browser.until("CoorpLive.robots[1].rings.loop.length > 90 && CoorpLive.robots[1].loops.since(0)")
    shown, seen = statistics.median(loops), statistics.median(team.took["scout"])
    assert 2.0 < shown < seen + 1.0 and seen - shown < 10.0, (shown, seen)
    assert not browser.run("document.querySelector('#reaction').hidden || document.querySelector('#ages').hidden")
    assert browser.until("CoorpLive.robots[1].rings.permit.length >= 1 && CoorpLive.robots[1].rings.bulk.length >= 1")
    assert browser.until("!document.querySelector('#bulk').hidden")
    team.rest()
    # What nobody changes any more is the same everywhere; a status comes every second.
    time.sleep(2.5)
    said = team.once()
    leads = re.search(r"3 of 3 robots here, (\w+) leads", said)
    assert leads and f"{leads[1]} leads" in browser.text("#summary")
    here = {row[0]: row for row in table(browser, "robots")}
    assert list(here) == list(ROBOTS)
    assert [name for name, row in here.items() if row[1] == "leads"] == [leads[1]]
    counts = {(row[0], row[1], row[2]): row[3] for row in rows_of(said, "control")}
    shown = {(row[0], row[1], row[2]): row[3].replace(",", "") for row in table(browser, "topics")}
    assert counts and counts == shown
    sent = browser.run("CoorpLive.robots.map(({ status }) => status.bulk.sent_bytes)")
    assert sent[1] >= 30_000_000 and f"{sent[1] / 1e6:.1f} MB" in said
    assert browser.complaints == []


def test_a_robot_that_joins_appears_and_a_free_place_does_not(team: Team, page: tuple[Browser, str]) -> None:
    browser, url = page
    browser.open(url, width=DESKTOP[0], height=DESKTOP[1])
    says = "document.querySelector('#summary')?.textContent.includes('%s robots here')"
    browser.until(says % "3 of 3")
    assert [row[0] for row in table(browser, "robots")] == list(ROBOTS)
    visitor = team.fleet.node("visitor-2")
    browser.until(says % "4 of 4")
    assert [row[0] for row in table(browser, "robots")] == [*ROBOTS, "visitor-2"]
    # Its lane is drawn: what it does is on the chart.
    assert browser.until("CoorpLive.robots[3].until > 0 && CoorpLive.view")
    visitor.close()
    browser.until(says % "3 of 4")
    assert "visitor-1" not in browser.text("body")
    assert browser.complaints == []


def test_a_pause_holds_a_moment_that_one_can_look_back_from(team: Team, page: tuple[Browser, str]) -> None:
    browser, url = page
    team.drive()
    browser.open(url, width=PHONE[0], height=PHONE[1], phone=True)
    browser.until("globalThis.CoorpLive?.robots[1]?.rings.control.length > 90")
    view = "CoorpLive.view"
    first = browser.run(view)
    browser.until(f"{view}.max > {first['max'] + 100}")
    browser.until("CoorpLive.robots[2].status && CoorpLive.minutes.reaction && CoorpLive.minutes.ages")
    browser.click("#pause")
    assert browser.text("#pause") == "Resume" and browser.text("#when") == "paused"
    assert re.match(r"Paused at \d\d:\d\d:\d\d · 3 of 3 robots here", browser.text("#summary"))
    paused = browser.until(f"{view}.paused && {view}")
    held, charts = browser.run(HELD), browser.run("CoorpLive.minutes")
    # A robot that joins, and newer statuses, wait in the background.
    visitor = team.fleet.node("visitor-2")
    up_ms = browser.run("CoorpLive.robots[1].status.up_ms")
    browser.until(f"CoorpLive.robots.length === 4 && CoorpLive.robots[1].status.up_ms > {up_ms + 2000}")
    assert browser.run(view) == paused
    assert browser.run(HELD) == held and browser.run("CoorpLive.minutes") == charts
    # Charts that are redrawn in other colours show the same moment.
    browser.click("#theme")
    assert browser.run(HELD) == held and browser.run("CoorpLive.minutes") == charts
    back = "const at = document.querySelector('#back'); at.value = '-2'; at.dispatchEvent(new Event('input'));"
    browser.run(f"(() => {{ {back} }})()")
    browser.until(f"Math.abs({view}.max - {paused['max'] - 2000}) < 1")
    assert browser.text("#when") == "-2.00 s"
    assert browser.run(HELD) == held
    browser.click("#pause")
    browser.until(f"!{view}.paused && {view}.max > {paused['max'] + 400}")
    assert browser.text("#when") == "live"
    browser.until("document.querySelector('#summary').textContent.startsWith('4 of 4 robots here')")
    assert [row[0] for row in table(browser, "robots")] == [*ROBOTS, "visitor-2"]
    browser.until(f"(({HELD})).every((text, place) => text !== {json.dumps(held)}[place])")
    visitor.close()
    # Nothing is wider than the phone.
    assert browser.run("document.documentElement.scrollWidth") <= PHONE[0]
    assert browser.complaints == []


def test_light_and_dark_follow_the_system_until_one_is_chosen(team: Team, page: tuple[Browser, str]) -> None:
    browser, url = page
    paper = "getComputedStyle(document.body).backgroundColor"
    browser.open(url, width=PHONE[0], height=PHONE[1], phone=True)
    browser.until("globalThis.CoorpLive && CoorpLive.view")
    light = browser.run(paper)
    browser.open(url, width=PHONE[0], height=PHONE[1], phone=True, dark=True)
    browser.until("globalThis.CoorpLive && CoorpLive.view")
    dark = browser.run(paper)
    assert light != dark and browser.text("#theme") == "Light"
    browser.click("#theme")
    assert browser.run(paper) == light and browser.text("#theme") == "Dark"
    # It is kept.
    browser.open(url, width=PHONE[0], height=PHONE[1], phone=True, dark=True)
    browser.until("globalThis.CoorpLive && CoorpLive.view")
    assert browser.run(paper) == light
    assert browser.complaints == []


def test_a_robot_that_goes_raises_an_alarm(team: Team, page: tuple[Browser, str]) -> None:
    browser, url = page
    browser.open(url, width=DESKTOP[0], height=DESKTOP[1])
    browser.until("document.querySelector('#summary')?.textContent.includes('3 of 3')")
    team.nodes["mule"].close()
    browser.until("document.querySelector('#alarms li')?.textContent.includes('mule does not answer')")
    assert "coorp up" in browser.text("#alarms")
    row = table(browser, "robots")[2]
    assert row[:2] == ["mule", "absent"]


def test_the_table_and_the_header_tell_the_same_permits(page: tuple[Browser, str]) -> None:
    """The made-up robots' own statuses are a moment older than their leader's."""
    from lib.crowd import crowd

    browser, url = page
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=crowd(robots=12, rate_hz=30))
    browser.open(url, width=DESKTOP[0], height=DESKTOP[1])
    browser.until("document.querySelector('#summary')?.textContent.includes('12 of 12 robots here')")
    assert "permits: r1 · waiting: r2, r3, r4, r5, r6, r7, r8" in browser.text("#summary")
    permits = {row[0]: row[2] for row in table(browser, "robots")}
    assert permits == {f"r{robot}": "holds" if robot == 1 else "waits" if 1 < robot < 9 else "–" for robot in range(12)}
    assert browser.complaints == []


def test_a_page_goes_on_when_the_watch_does(team: Team, tmp_path: Path) -> None:
    port = free_ports()
    command = [sys.executable, "-m", "coorp", "watch", str(team.fleet.file), "--web", str(port)]
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path / "browser") as browser:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and "http" in process.stdout.readline()
        browser.open(f"http://localhost:{port}", width=DESKTOP[0], height=DESKTOP[1])
        browser.until("document.querySelector('#summary')?.textContent.includes('3 of 3')")
        process.kill()
        process.communicate()
        browser.until("document.querySelector('#summary').textContent.startsWith('No connection')")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        browser.until("document.querySelector('#summary').textContent.includes('3 of 3')")
        process.kill()
        process.communicate()


# Where Debian's Chromium looks for policies.
SETTINGS = Path("/etc/chromium")
MAY_IMPORT = os.geteuid() == 0 and shutil.which("certutil") is not None and SETTINGS.is_dir()
if not MAY_IMPORT and "CI" in os.environ:
    raise RuntimeError(f"CI has to run this: no root, no certutil, or no {SETTINGS}")


def importing(program: str, folder: Path, url: str, password: str) -> str:
    """A browser whose user has imported what `coorp keys browser` has made, and chosen the certificate for the page."""
    store = folder / "home/.pki/nssdb"
    store.mkdir(parents=True)
    database = ["-d", f"sql:{store}"]
    for command in (
        ["certutil", *database, "-N", "--empty-password"],
        ["pk12util", *database, "-i", str(folder / "operator.p12"), "-W", password],
        ["certutil", *database, "-A", "-n", "page", "-t", "C,,", "-i", str(folder / "page.crt")],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=SOON)
    # The choice is a policy of the whole system, so this browser gets its own view of the system's folder.
    policies = folder / "settings/policies/managed"
    policies.mkdir(parents=True)
    choice = {"pattern": url, "filter": {}}
    (policies / "choice.json").write_text(json.dumps({"AutoSelectCertificateForUrls": [json.dumps(choice)]}))
    wrapper = folder / "browser.sh"
    inside = f'mount --bind {folder}/settings {SETTINGS} && exec {program} "$@"'
    wrapper.write_text(f"#!/bin/sh\nHOME={folder}/home exec unshare --mount sh -c '{inside}' sh \"$@\"\n")
    wrapper.chmod(0o755)
    return str(wrapper)


@pytest.mark.skipif(not MAY_IMPORT, reason="needs root, certutil (libnss3-tools) and Debian's Chromium")
def test_a_browser_elsewhere_sees_the_robots_with_the_operators_certificate(team: Team, tmp_path: Path) -> None:
    assert PROGRAM is not None
    command = [sys.executable, "-m", "coorp", "keys", "browser", str(team.fleet.file)]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SOON)
    password = re.search(r"password ([a-z2-9-]+)", made.stdout)
    assert password, made.stdout + made.stderr
    process, shown = watch(team.fleet.file, "0.0.0.0:0")
    url = f"https://127.0.0.1:{shown.rsplit(':', 1)[1]}"
    with Browser(importing(PROGRAM, tmp_path, url, password[1]), tmp_path / "browser") as browser:
        browser.open(url, width=PHONE[0], height=PHONE[1], phone=True)
        browser.until("document.querySelector('#summary')?.textContent.includes('3 of 3 robots here')")
        assert [row[0] for row in table(browser, "robots")] == list(ROBOTS)
        assert browser.run("location.protocol + isSecureContext") == "https:true"
        assert browser.complaints == []
    # A browser without the certificate shows nothing, not even after its user has accepted the page's.
    with Browser(PROGRAM, tmp_path / "another") as browser:
        browser.call("Security.setIgnoreCertificateErrors", ignore=True)
        browser.open(url, width=PHONE[0], height=PHONE[1], phone=True)
        browser.until("location.protocol === 'chrome-error:'")
        assert "robots" not in browser.text("body")
    process.kill()
    assert "it shows no certificate" in process.communicate()[1]


def test_fifty_robots_take_bounded_memory(tmp_path: Path, page: tuple[Browser, str]) -> None:
    """A made-up team of 50 at 30 Hz, at ten times its speed: rings and tables stay within their limits."""
    from lib.crowd import crowd

    browser, url = page
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=crowd(robots=50, rate_hz=300))
    browser.open(url, width=DESKTOP[0], height=DESKTOP[1])
    browser.until("globalThis.CoorpLive && CoorpLive.batches > 20")
    largest = "Math.max(...CoorpLive.robots.flatMap(({ rings }) => Object.values(rings).map(({ size }) => size)))"
    browser.until(f"CoorpLive.robots[0].rings.control.length === 8192 && {largest} === 8192", SOON)
    batches = browser.run("CoorpLive.batches")
    browser.until(f"CoorpLive.batches > {batches + 10}")
    assert browser.run(largest) == 8192
    assert browser.run("Math.max(...CoorpLive.robots.map(({ loops }) => loops.seconds.size))") <= 64
    assert browser.run("document.querySelectorAll('#topics tbody tr').length") == 60
    assert browser.complaints == []
