"""The page of `coorp watch --web` in a real browser: pictures of a running team, and how smoothly it draws a large one.

    cargo build --release -p coorp-cli
    apt-get install chromium               # or COORP_BROWSER=/path/to/chrome
    pip install '.[learn]' rerun-sdk       # for Pillow; Rerun for its picture
    sudo python studies/page.py [--quick] [--pictures FOLDER]

**Pictures.** `examples/navigation.toml` with the policy `coorp`, live over `coorp emu`: each robot runs the traffic
of `coorp emu --demo`, and the leader's also the page and the browser. Writes the page at a desk's and a phone's width,
light and dark, as the pictures in docs. Then Rerun's viewer, and, if COORP_LICHTBLICK names a folder with the web build
of Lichtblick (the open-source fork of Foxglove), that, each with the stream that it gets.

**Frames.** A made-up team of 50 robots at 30 Hz (lib/crowd.js), in place of the WebSocket: the time between two
frames and the script's work for each, at both widths. The page shows one second, as at first, and 20 s, which is the
most. Making up the team costs the same thread of the browser something, too.

If a browser is missing, the study says so and succeeds; without root or TUN, it leaves the pictures out. With `--quick`
the figures mean little, and pictures are made only if `--pictures` says where to keep them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from lib.browser import Browser, find
from lib.crowd import crowd
from lib.emulated import emulator
from lib.simulator import REPOSITORY, binary
from lib.table import number, show
from PIL import Image

TEAM = REPOSITORY / "examples" / "navigation.toml"
PORT, FOXGLOVE_PORT, RERUN_PORT, SITE_PORT = 8460, 8765, 9876, 8461
SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
FRAMES_S, FRAMES_QUICK_S = 15.0, 3.0
FRAMES = """
    new Promise((done) => {
      const { frames } = CoorpLive;
      frames.next = frames.drawn = 0;
      const first = (values, count) => Array.from(values.slice(0, Math.min(values.length, count)));
      setTimeout(() => done([first(frames.gaps, frames.next), first(frames.work, frames.drawn)]), %d);
    })
"""


def served(program: Path, team: Path, *more: str) -> subprocess.Popen[str]:
    """`coorp watch --web`, once it says where."""
    command = [program, "watch", team, "--web", str(PORT), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    if "http" not in process.stdout.readline():
        raise SystemExit(f"failed: {process.stderr.read()}")
    return process


# --- frames -------------------------------------------------------------------------------------------------------


def frames(program: Path, browser: str, seconds: float) -> None:
    """Prints the time between two frames of a made-up team of 50 robots."""
    rows = []
    with tempfile.TemporaryDirectory() as name, Browser(browser, Path(name) / "browser") as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=crowd(robots=50, rate_hz=30))
        # It reaches no robot, and needs no keys.
        watch = served(program, TEAM, "--insecure")
        try:
            for size, (width, height) in SIZES.items():
                for span in (1_000, 20_000):
                    page.open(f"http://localhost:{PORT}", width=width, height=height, phone=size == "phone")
                    page.until("globalThis.CoorpLive && CoorpLive.batches > 20")
                    chosen = f"(() => {{ const it = document.querySelector('#span'); it.value = '{span}';"
                    page.run(f"{chosen} it.dispatchEvent(new Event('change')); }})()")
                    # As much of the last minute as is shown.
                    time.sleep(min(span / 1_000, 2 * seconds))
                    gaps, work = (sorted(values) for values in page.run(FRAMES % (seconds * 1_000)))
                    at = [values[int(share * (len(values) - 1))] for values in (gaps, work) for share in (0.5, 0.99)]
                    rows.append([size, f"{span / 1000:g} s", str(len(gaps)), *(number(value, 1) for value in at)])
            if page.complaints:
                raise SystemExit(f"failed: the page complains: {page.complaints}")
        finally:
            watch.kill()
            watch.communicate()
    print("\n50 robots at 30 Hz: the time from a frame to the next, and the script's work for each, ms")
    show(["page", "shows", "frames", "to next p50", "p99", "work p50", "p99"], rows, markdown=False)


# --- pictures -----------------------------------------------------------------------------------------------------


def part(folder: Path, seconds: int) -> int:
    """A robot's programs under the emulator."""
    program, team = binary(), Path(os.environ["COORP_TEAM"])
    assert program is not None
    command = [program, "demo-robot", team, "--policy", "coorp", "--folder", folder, "--length", f"{seconds}s"]
    robot = subprocess.Popen(command)
    if os.environ["COORP_ROBOT"] == os.environ["COORP_LEADER"]:
        pictures(program, team, folder)
        viewers(program, team, folder)
    return robot.wait()


def pictures(program: Path, team: Path, folder: Path) -> None:
    """Writes what the page looks like while the robots run."""
    browser = find()
    assert browser is not None, "the robot's program finds no browser"
    watch = served(program, team)
    with Browser(browser, folder / "browser") as page:
        for size, (width, height) in SIZES.items():
            phone = size == "phone"
            scale = 2.0 if phone else 1.0
            page.open(f"http://localhost:{PORT}", width=width, height=height, scale=scale, phone=phone)
            page.until("globalThis.CoorpLive && CoorpLive.robots.some(({ rings }) => rings.bulk.length > 20)")
            # Until there is something to see of the last minute.
            time.sleep(12)
            for dark in (False, True):
                page.call("Emulation.setEmulatedMedia", features=[scheme(dark)])
                time.sleep(1.5)
                page.click("#pause")
                time.sleep(0.3)
                page.picture(folder / f"live-{size}{'-dark' if dark else ''}.png", whole=size == "desktop")
                page.click("#pause")
        complaints = page.complaints
        if page.run("Math.max(...CoorpLive.robots.map(({ loops }) => loops.since(0).length))") == 0:
            complaints.append("no loop has ended: on a busy machine another robot may lead, so run it again")
        (folder / "complaints").write_text("\n".join(complaints))
    watch.kill()
    watch.communicate()


def viewers(program: Path, team: Path, folder: Path) -> None:
    """Writes what viewers of streams look like, those of them that are here."""
    rerun, lichtblick = importlib.util.find_spec("rerun_cli"), os.environ.get("COORP_LICHTBLICK")
    if rerun is None:
        return
    from rerun.experimental import ViewerClient

    width, height = SIZES["desktop"]
    size = ["--window-size", f"{width}x{height}", "--headless"]
    command = [sys.executable, "-m", "rerun_cli", "--bind", "127.0.0.1", "--port", str(RERUN_PORT), *size]
    viewer = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "RERUN_APP_ONLY": "true"})
    os.environ["COORP_PYTHON"] = sys.executable
    watch = served(program, team, "--foxglove", str(FOXGLOVE_PORT), "--rerun", str(RERUN_PORT))
    if lichtblick:
        stream(Path(lichtblick), folder)
    else:
        time.sleep(15)
    ViewerClient.connect(f"rerun+http://127.0.0.1:{RERUN_PORT}/proxy").save_screenshot(str(folder / "live-rerun.png"))
    for process in (viewer, watch):
        process.kill()
        process.communicate()


def stream(build: Path, folder: Path) -> None:
    """Writes what Lichtblick looks like with the team's layout."""
    site = folder / "lichtblick"
    site.mkdir()
    for file in build.iterdir():
        (site / file.name).symlink_to(file)
    with urllib.request.urlopen(f"http://127.0.0.1:{FOXGLOVE_PORT}/layout.json") as answer:
        layout = answer.read().decode()
    index = (build / "index.html").read_text().replace("/*LICHTBLICK_SUITE_DEFAULT_LAYOUT_PLACEHOLDER*/", layout)
    (site / "index.html").unlink()
    (site / "index.html").write_text(index)
    command = [sys.executable, "-m", "http.server", str(SITE_PORT), "--bind", "127.0.0.1", "-d", site]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    browser = find()
    assert browser is not None
    width, height = SIZES["desktop"]
    with Browser(browser, folder / "other-browser") as page:
        url = f"http://localhost:{SITE_PORT}/?ds=foxglove-websocket&ds.url=ws://localhost:{FOXGLOVE_PORT}"
        page.open(url, width=width, height=height)
        time.sleep(20)
        # Without its side bars.
        page.click("[data-testid=sidebar-close-left]")
        time.sleep(3)
        page.picture(folder / "live-foxglove.png")
    server.kill()
    server.communicate()


def scheme(dark: bool) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}


def run_team(program: Path, to: Path, seconds: int) -> None:
    """Runs the team over the emulator, and takes its pictures to a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        team = folder / TEAM.name
        # Learning sends early, so that there is bulk.
        team.write_text(re.sub(r"batch_loops = \d+", "batch_loops = 60", TEAM.read_text()))
        subprocess.run([program, "keys", "init", team], check=True, capture_output=True)
        robot = [sys.executable, __file__, "--robot", folder, "--seconds", str(seconds)]
        done = subprocess.run([program, "emu", team, "--quiet", "--", *robot], capture_output=True, text=True)
        complaints = folder / "complaints"
        if done.returncode != 0 or not complaints.exists() or complaints.read_text():
            why = complaints.read_text() if complaints.exists() else ""
            raise SystemExit(f"failed: {done.stdout}{done.stderr}{why}")
        to.mkdir(exist_ok=True)
        for picture in sorted(folder.glob("live-*.png")):
            kept = to / picture.name
            # 256 colours are enough for flat areas and text.
            Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(kept, optimize=True)
            print(f"{kept}: {kept.stat().st_size / 1e3:.0f} kB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="some seconds of frames, and no pictures")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="where to keep the pictures")
    parser.add_argument("--robot", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=90, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.robot is not None:
        return part(arguments.robot, arguments.seconds)
    program, browser = binary(), find()
    if program is None or browser is None:
        print("skipped: needs the coorp binary" if program is None else "skipped: no Chromium; COORP_BROWSER names one")
        return 0
    with tempfile.TemporaryDirectory() as name:
        if (arguments.pictures or not arguments.quick) and emulator() is not None:
            run_team(program, arguments.pictures or Path(name), arguments.seconds)
    frames(program, browser, FRAMES_QUICK_S if arguments.quick else FRAMES_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
