"""Installs the Debian packages on three machines, and checks that their units are a team.

    sudo python3 packaging/machines.py target/debian     # make machines

Each machine is a bare Debian with its own systemd as PID 1, in a container of systemd-nspawn. Its network is that of a
robot in `coorp emu`, so `wlan0` is on the emulated WiFi. The machines are set up as docs/protect.md says, and the unit
is the package's, unchanged. Checks:

- each unit comes up, under its own user, with at most two capabilities and a filter of system calls;
- `coorp watch`, from outside, shows the three robots;
- packets between machines pass the agents' TUN;
- a program in C, compiled here with what `libcoorp-dev` has, runs there as a guest of the agent;
- systemd starts an agent again after a `kill -9`, and one that hangs;
- a unit with a wrong team file fails, its journal names the line, and systemd does not try again;
- `apt-get remove` stops a robot, and leaves rules, routes, interfaces and `rp_filter` as they were.

Needs root, `coorp` ($COORP, target/release/coorp), systemd-nspawn (systemd-container), mmdebstrap and cc, and says so
without. The first run fetches a Debian of some 200 MB into the folder `machines` beside the packages'. Not checked:
`DeviceAllow`, where the host's cgroups do not let a container limit devices, and `/dev/net/tun` as udev makes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROBOTS = ("base", "r1", "r2")
TEAM = """\
[[robot]]
name = "base"
leader = true
interfaces = ["wlan0"]

[[robot]]
name = "r1"
interfaces = ["wlan0"]

[[robot]]
name = "r2"
interfaces = ["wlan0"]
"""
PROGRAM = """\
#include <coorp.h>
#include <stdio.h>

int main(void) {
    CoorpNode *node;
    CoorpPublisher *pose;
    bool is_guest;
    if (coorp_node_open("/etc/coorp/team.toml", "r1", NULL, &node) || coorp_node_is_guest(node, &is_guest) ||
        coorp_publisher_open(node, "pose", 33000000, 0, &pose) || coorp_publisher_put(pose, "here", 4)) {
        puts(coorp_last_error());
        return 1;
    }
    puts(is_guest ? "a guest" : "the robot");
    return coorp_node_close(node);
}
"""
INCLUDED = "systemd,systemd-sysv,dbus,iproute2,iputils-ping,passwd"
NETWORK = "ip rule; ip route show table all; ip -brief link; grep . /proc/sys/net/ipv4/conf/*/rp_filter"
WAIT_S = 60.0
CAPABILITIES = 1 << 12 | 1 << 13
"""CAP_NET_ADMIN and CAP_NET_RAW."""
POWER_OFF = signal.SIGRTMIN + 4
"""The signal that makes systemd power off."""


def fail(text: str) -> None:
    raise SystemExit(f"FAILED: {text}")


def until(what: str, condition: Callable[[], object], seen: Callable[[], str] = str) -> None:
    """Waits until the condition holds, and says so."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() > began_s + WAIT_S:
            fail(f"not within {WAIT_S:.0f} s: {what}\n{seen()}")
        time.sleep(0.2)
    print(f"ok: {what}", flush=True)


def check(what: str, holds: object, seen: object) -> None:
    if not holds:
        fail(f"{what}: {seen}")
    print(f"ok: {what}", flush=True)


def read(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr


def debian(folder: Path) -> Path:
    """Returns the root folder of a bare Debian, with systemd and what the package needs."""
    root = folder / "root"
    if not root.exists():
        release = dict(re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text(), re.M))
        suite = release["VERSION_CODENAME"] if release["ID"] == "debian" else "stable"
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / "root.new"
        shutil.rmtree(new, ignore_errors=True)
        subprocess.run(["mmdebstrap", "--variant=minbase", f"--include={INCLUDED}", suite, new], check=True)
        new.rename(root)
    return root


class Machine:
    """A container in a network namespace, with files of its own over those of the root folder, in memory."""

    def __init__(self, robot: str, network: str, root: Path, media: Path) -> None:
        self.robot = robot
        self.log = media.parent / f"{robot}.log"
        # Without systemd as PID 1 on the host, nothing else gives each container a group of its own.
        groups = [group for group in map(Path, ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")) if group.exists()]
        self.groups = [group / network for group in groups or [Path("/sys/fs/cgroup")]]
        place, keep = f"for group in {shlex.join(map(str, self.groups))}", ["--keep-unit"]
        place += "; do mkdir $group; echo $$ > $group/cgroup.procs; done"
        if Path("/run/systemd/system").exists():
            place, keep = ":", []
        command = [
            *("systemd-nspawn", "--boot", "--register=no", *keep, f"--machine={robot}", f"--directory={root}"),
            *("--read-only", "--volatile=overlay", f"--bind-ro={media}:/media"),
            *(f"--network-namespace-path=/run/netns/{network}", "--capability=CAP_NET_ADMIN"),
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", f'{place}; exec "$@"', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # As on a machine: the network's settings can be changed.
                env=os.environ | {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"},
            )

    def init(self) -> str | None:
        """Returns the id of the container's systemd, or None before it runs."""
        if self.process.poll() is not None:
            fail(f"{self.robot} does not boot: {self.log.read_text()[-2000:]}")
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            # The first process of its own namespace, and not a helper of the host's that prepares it.
            with contextlib.suppress(FileNotFoundError):
                if re.search(r"^NSpid:\t\d+.*\t1$", Path(f"/proc/{child}/status").read_text(), re.M):
                    return child
        return None

    def inside(self, script: str) -> str:
        """Runs a script in the container and returns what it printed."""
        init = self.init()
        return read("nsenter", "--target", init, "--all", "sh", "-c", script) if init else ""

    def booted(self) -> bool:
        return self.inside("systemctl is-system-running").strip() in ("running", "degraded")

    def show(self, name: str) -> str:
        """Returns a property of the unit."""
        return self.inside(f"systemctl show --value --property={name} coorp@{self.robot}").strip()

    def active(self) -> bool:
        return self.show("ActiveState") == "active"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if (init := self.init()) is not None:
                os.kill(int(init), POWER_OFF)
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for group in self.groups:
            for folder in sorted(group.rglob("*/"), reverse=True) if group.exists() else ():
                folder.rmdir()
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()


@contextlib.contextmanager
def networks(coorp: str, team: Path) -> Iterator[dict[str, str]]:
    """Yields the name of each robot's network namespace, on one emulated channel."""
    emulator = subprocess.Popen([coorp, "emu", team], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = emulator.stdout.readline() if emulator.stdout else ""
        if not (prefix := re.search(r"coorp-\d+-", line)):
            fail(f"the emulator does not start: {line}")
        else:
            yield {robot: f"{prefix[0]}{robot}" for robot in ROBOTS}
    finally:
        emulator.send_signal(signal.SIGINT)
        emulator.wait()


def install(machine: Machine, package: Path) -> None:
    """Installs package and robot, as docs/protect.md does. The keys come on a medium."""
    robot = machine.robot
    # udev does this where the machine is not a container.
    said = machine.inside(f"""set -e; chmod 0666 /dev/net/tun
        apt-get install --yes /media/{package.name}
        cp /media/team.toml /etc/coorp/ && coorp keys install /media/{robot}.bundle /etc/coorp/team.toml
        chown -R coorp: /etc/coorp
        systemctl enable --now coorp@{robot}""")
    if not machine.active():
        fail(f"{robot} is not up: {said}{machine.inside(f'journalctl --no-pager -u coorp@{robot}')}")
    print(f"ok: {robot}: installed, and the unit is up", flush=True)


def newest(folder: Path, name: str) -> Path:
    """Returns the newest version of a package in the folder."""
    found = sorted(folder.glob(f"{name}_*.deb"), key=os.path.getmtime)
    return found[-1] if found else sys.exit(f"{folder} has no package {name}: make deb")


def compile_program(library: Path, folder: Path) -> None:
    """Compiles a program in C with the files of the package."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["dpkg-deb", "--extract", library, place], check=True)
        source = Path(place) / "program.c"
        source.write_text(PROGRAM)
        (shared,) = Path(place).glob("usr/lib/*/libcoorp.so")
        there = [f"-I{place}/usr/include", f"-L{shared.parent}"]
        command = ["cc", "-std=c11", "-Wall", "-Werror", *there, source, "-lcoorp", "-o", folder / "program"]
        subprocess.run(command, check=True)


def confined(machine: Machine) -> None:
    """Checks which rights the agent has left."""
    process = machine.show("MainPID")
    status = dict(re.findall(r"^(\w+):\t(.*)$", machine.inside(f"cat /proc/{process}/status"), re.M))
    user = machine.inside("id -u coorp").strip()
    held = [int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")]
    check(f"{machine.robot}: the agent runs as coorp", user in status["Uid"].split() != ["0"] * 4, status["Uid"])
    check(f"{machine.robot}: has no more than two capabilities", not any(c & ~CAPABILITIES for c in held), held)
    check(f"{machine.robot}: gains none", status["NoNewPrivs"] == "1", status["NoNewPrivs"])
    check(f"{machine.robot}: has its system calls filtered", status["Seccomp"] == "2", status["Seccomp"])
    secret = machine.inside(f"nsenter --target {process} --mount touch /usr/x /etc/x /proc/sys/kernel/x")
    check(f"{machine.robot}: finds a file system that it cannot write", secret.count("Read-only") >= 2, secret)


def main() -> None:
    coorp = os.environ.get("COORP", str(REPOSITORY / "target" / "release" / "coorp"))
    folder = Path(sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)).resolve()
    package, library = newest(folder, "coorp"), newest(folder, "libcoorp-dev")
    needed = ("systemd-nspawn", "mmdebstrap", "nsenter", "ip", "cc", "dpkg-deb", coorp)
    missing = [tool for tool in needed if not shutil.which(tool)]
    if os.geteuid() != 0 or missing:
        sys.exit(f"needs root, and: {', '.join(missing) or 'nothing else'}")
    root = debian(folder.parent / "machines")
    with contextlib.ExitStack() as stack:
        media = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "media"
        media.mkdir()
        shutil.copy(package, media)
        shutil.copy(library, media)
        compile_program(library, media)
        team = media / "team.toml"
        team.write_text(TEAM)
        # The operator's machine, which has all keys. The robots get their own only.
        subprocess.run([coorp, "keys", "init", team], check=True, cwd=media.parent, stdout=subprocess.DEVNULL)
        for robot in ROBOTS:
            subprocess.run([coorp, "keys", "bundle", robot, team], check=True, cwd=media, stdout=subprocess.DEVNULL)
        namespaces = stack.enter_context(networks(coorp, team))
        machines = [Machine(robot, network, root, media) for robot, network in namespaces.items()]
        for machine in machines:
            stack.callback(machine.end)
        base, r1, r2 = machines
        before: dict[str, str] = {}

        def watch() -> str:
            return read("ip", "netns", "exec", namespaces["r2"], coorp, "watch", str(team), "--once")

        for machine in machines:
            until(f"{machine.robot}: systemd runs", machine.booted)
            before[machine.robot] = machine.inside(NETWORK)
            install(machine, package)
        until("'coorp watch' shows three robots", lambda: "3 of 3 robots here" in watch(), watch)
        print(watch())
        for machine in machines:
            confined(machine)
        says = r1.inside("ping -c 3 -i 0.2 10.77.0.1; ip route get 10.77.0.1; ip -s link show coorp0")
        check("r1 reaches base through the TUN", " 0% packet loss" in says and "dev coorp0" in says, says)

        said = r1.inside(f"apt-get install --yes /media/{library.name} 2>&1 && /media/program")
        check("r1: a program in C is a guest of the agent", re.search("^a guest$", said, re.M), said)

        base.inside("systemctl kill --signal=KILL coorp@base")
        until("base: killed, and up again", lambda: base.show("NRestarts") == "1" and base.active())
        r1.inside("systemctl kill --signal=STOP coorp@r1")
        until("r1: stopped, and up again by the watchdog", lambda: r1.show("NRestarts") == "1" and r1.active())
        until("'coorp watch' shows three robots", lambda: "3 of 3 robots here" in watch(), watch)

        r2.inside("echo bad >> /etc/coorp/team.toml; systemctl restart coorp@r2")
        until("r2: fails with a wrong team file", lambda: r2.show("ActiveState") == "failed")
        journal = r2.inside("journalctl --no-pager --output=cat -u coorp@r2")
        check("r2: its journal names the line", re.search(r"team\.toml:13", journal), journal)
        check("r2: systemd does not try again", r2.show("NRestarts") == "0", journal)

        said = r1.inside("apt-get remove --yes coorp")
        check("r1: removed, the agent is gone", r1.inside("pidof coorp; command -v coorp") == "", said)
        left = r1.inside(NETWORK)
        check("r1: and the network is as it was", left == before["r1"], f"{before['r1']}\n---\n{left}")
        until("'coorp watch' shows one robot", lambda: "1 of 3 robots here" in watch(), watch)


if __name__ == "__main__":
    main()
