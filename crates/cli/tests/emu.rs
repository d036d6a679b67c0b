//! `coorp emu` with real programs. The tests need root, TUN and a few tools, and say so if they cannot run.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/root.rs"]
mod root;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use common::{coorp, text, Folder};
use root::possible;

const ROBOTS: &str =
    "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"rover\"\n[[robot]]\nname = \"scout\"\n";

/// Returns a team file in its own folder.
fn team(name: &str, more: &str) -> (Folder, String) {
    let folder = Folder::new(name);
    let file = folder.path("team.toml");
    fs::write(&file, format!("{ROBOTS}{more}")).unwrap();
    (folder, file)
}

/// Returns the results of a run: stdout, stderr, the exit code, and the JSON.
fn run(folder: &Folder, file: &str, more: &[&str], script: &str) -> (String, String, i32, serde_json::Value) {
    let json = folder.path("out.json");
    let arguments = [&["emu", file, "--json", &json], more, &["--", "sh", "-c", script]].concat();
    let output = coorp(&arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let written = fs::read_to_string(&json).unwrap_or_else(|_| panic!("no JSON\n{stdout}\n{stderr}"));
    (
        stdout,
        stderr,
        output.status.code().unwrap(),
        serde_json::from_str(&written).unwrap(),
    )
}

/// Returns a script by robot, for all but the base, which stays until the others have ended.
fn until_done(folder: &Folder, others: &str) -> String {
    let done = folder.path("done");
    format!(
        "DONE={done}; trap 'touch \"$DONE-$COORP_ROBOT\"' EXIT; case $COORP_ROBOT in {others} \
         *) until [ -e \"$DONE-rover\" ] && [ -e \"$DONE-scout\" ]; do sleep 0.05; done;; esac"
    )
}

/// Namespaces that belong to an emulator of this process id.
fn namespaces(process: u32) -> usize {
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let prefix = format!("coorp-{process}-");
    names
        .filter(|name| name.file_name().to_string_lossy().starts_with(&prefix))
        .count()
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coorp"));
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until a program has created a file.
fn await_file(path: &str) {
    for _ in 0..2_400 {
        if Path::new(path).exists() {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("{path} never appeared");
}

#[test]
fn shared_memory_is_each_robots_own() {
    if !possible("shared_memory_is_each_robots_own", &[]) {
        return;
    }
    let (folder, file) = team("emu-memory", "");
    let script = "touch /dev/shm/of-$COORP_ROBOT; sleep 0.5; echo sees $(ls /dev/shm | tr '\\n' ' ')";
    let (stdout, stderr, code, _) = run(&folder, &file, &["--quiet"], script);
    assert_eq!(code, 0, "{stderr}");
    let mut seen: Vec<&str> = stdout.lines().collect();
    seen.sort_unstable();
    let each = ["base", "rover", "scout"].map(|robot| format!("[{robot}] sees of-{robot}"));
    assert_eq!(seen.iter().map(|line| line.trim_end()).collect::<Vec<_>>(), each);
    assert!(!Path::new("/dev/shm/of-base").exists());
}

#[test]
fn robots_know_who_they_are_and_reach_one_another_by_name() {
    if !possible("robots_know_who_they_are", &["ping"]) {
        return;
    }
    let (folder, file) = team(
        "names",
        "[[interface]]\nchannel = 149\nrobots = [\"base\", \"rover\"]\n",
    );
    let script = until_done(
        &folder,
        "rover) ping -q -c 3 -i 0.1 base.wlan1 && ping -q -c 3 -i 0.1 scout && echo I am $COORP_ROBOT of $COORP_LEADER;; \
         scout) ping -q -c 3 -i 0.1 base && test -e /sys/class/net/wlan0 && test ! -e /sys/class/net/wlan1;;",
    );
    let (stdout, stderr, code, json) = run(&folder, &file, &[], &script);
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    assert!(stdout.contains("[rover] I am rover of base\n"), "{stdout}");
    assert_eq!(stdout.matches("3 received, 0% packet loss").count(), 3, "{stdout}");
    assert!(stderr.contains("deliveries late by"), "{stderr}");
    assert_eq!(json["ended"], "programs");
    assert_eq!(json["robots"].as_array().unwrap().len(), 3);
    assert!(json["robots"]
        .as_array()
        .unwrap()
        .iter()
        .all(|robot| robot["program"]["exit"] == 0));
    assert!(json["interfaces"][1]["delivered"].as_u64().unwrap() >= 6);
    assert!(json["timing"]["deliveries"].as_u64().unwrap() >= 18);
}

/// Sends 600 datagrams of bulk and then one of control, and repeats that if the machine was slow. The receiver prints
/// the order of arrival.
const ORDER: &str = r#"
import os, pathlib, socket, sys, time
robot, count, folder = os.environ["COORP_ROBOT"], 600, pathlib.Path(sys.argv[1])
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if robot == "base":
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    own.bind(("", 7000))
    (folder / "bound").touch()
    own.settimeout(3)
    came, told = [], folder / "told"
    while True:
        try:
            came.append(own.recv(2000)[:5])
        except TimeoutError:
            if told.exists():
                break
    last = max(datagram[0] for datagram in came)
    came = [datagram[1:] for datagram in came if datagram[0] == last]
    print("control came", came.index(b"last") if b"last" in came else "never", "of", len(came))
elif robot == "rover":
    while not (folder / "bound").exists():
        time.sleep(0.05)
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    control.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 46 << 2)
    # The first datagram waits for address resolution, so it is not counted.
    own.sendto(bytes(5), ("base", 7000))
    for attempt in range(1, 20):
        time.sleep(3)
        began = time.monotonic()
        for number in range(count):
            own.sendto(bytes([attempt]) + number.to_bytes(4, "big") + bytes(1400), ("base", 7000))
        control.sendto(bytes([attempt]) + b"last", ("base", 7000))
        # Of a second's bulk most is to be there still.
        if time.monotonic() < began + 0.2:
            break
    (folder / "told").touch()
"#;

#[test]
fn control_overtakes_bulk_that_was_sent_before_it() {
    if !possible("control_overtakes_bulk", &["python3"]) {
        return;
    }
    // At MCS 0, 600 datagrams take a second.
    let (folder, file) = team("order", "[air]\nmcs = 0\n");
    fs::write(folder.path("order.py"), ORDER).unwrap();
    let (stdout, stderr, code, _) = run(
        &folder,
        &file,
        &[],
        &format!("exec python3 {} {}", folder.path("order.py"), folder.path("")),
    );
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    let told = stdout
        .split("control came ")
        .nth(1)
        .unwrap_or_else(|| panic!("{stdout}\n{stderr}"));
    let mut words = told.split_whitespace();
    let (place, of): (usize, usize) = (
        words.next().unwrap().parse().unwrap(),
        words.nth(1).unwrap().parse().unwrap(),
    );
    assert!(of > 200 && place < of / 2, "{stdout}");
}

/// Moves a megabyte over TCP; both ends report its hash.
const MOVE: &str = r#"
import hashlib, os, random, socket, time
robot = os.environ["COORP_ROBOT"]
if robot == "base":
    server = socket.create_server(("", 7000))
    server.settimeout(300)
    stream, _ = server.accept()
    data = b""
    while piece := stream.recv(65536):
        data += piece
    print("got", len(data), hashlib.sha256(data).hexdigest())
elif robot == "rover":
    data = random.Random(1).randbytes(1 << 20)
    for _ in range(1000):
        try:
            stream = socket.create_connection(("base", 7000), timeout=300)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    stream.sendall(data)
    stream.close()
    print("sent", len(data), hashlib.sha256(data).hexdigest())
"#;

#[test]
fn tcp_gets_through_losses_whole() {
    if !possible("tcp_gets_through_losses", &["python3"]) {
        return;
    }
    let (folder, file) = team("tcp", "[air]\nloss = 0.6\n");
    fs::write(folder.path("move.py"), MOVE).unwrap();
    let (stdout, stderr, code, json) = run(&folder, &file, &[], &format!("exec python3 {}", folder.path("move.py")));
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    let said = |word: &str| {
        stdout
            .split(word)
            .nth(1)
            .map(|rest| rest.split('\n').next().unwrap().to_owned())
    };
    assert!(
        said("] got ").is_some() && said("] got ") == said("] sent "),
        "{stdout}"
    );
    assert!(json["interfaces"][0]["given_up"].as_u64().unwrap() > 0);
}

/// One robot fills the channel by TCP as long as another one sends control.
const BESIDE: &str = r#"
import os, pathlib, socket, sys, threading, time
robot, count, full = os.environ["COORP_ROBOT"], 100, pathlib.Path(sys.argv[1]) / "full"
if robot == "base":
    bulk, control, got = socket.create_server(("", 7000)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM), [0]
    control.bind(("", 7001))
    control.settimeout(120)
    stream, _ = bulk.accept()
    def read():
        while data := stream.recv(65536):
            got[0] += len(data)
            if got[0] > 1_000_000:
                full.touch()
    threading.Thread(target=read).start()
    numbers = set()
    while len(numbers) < count:
        numbers.add(control.recv(100)[0])
    print("control", len(numbers), "bulk", got[0] > 1_000_000, flush=True)
    os._exit(0)
elif robot == "rover":
    while (own := socket.socket()).connect_ex(("base", 7000)) != 0:
        own.close()
        time.sleep(0.1)
    try:
        while True:
            own.sendall(bytes(1 << 16))
    except OSError:
        pass
else:
    while not full.exists():
        time.sleep(0.05)
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 46 << 2)
    for number in range(count):
        own.sendto(bytes([number]), ("base", 7001))
        time.sleep(0.01)
"#;

#[test]
fn control_all_arrives_beside_tcp() {
    if !possible("control_all_arrives_beside_tcp", &["python3"]) {
        return;
    }
    let (folder, file) = team("beside", "[air]\nmcs = 7\n");
    fs::write(folder.path("beside.py"), BESIDE).unwrap();
    // The base ends first, and the stream with it.
    let (stdout, stderr, code, json) = run(
        &folder,
        &file,
        &[],
        &format!("exec python3 {} {}", folder.path("beside.py"), folder.path("")),
    );
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    assert!(stdout.contains("[base] control 100 bulk True\n"), "{stdout}\n{stderr}");
    assert!(json["interfaces"][0]["delivered"].as_u64().unwrap() > 200);
    let used = json["interfaces"][0]["used"].as_f64().unwrap();
    assert!(0.1 < used && used < 1.0, "{used}");
    let percent = format!("wlan0: in use for {:.0} % of the time; ", 100.0 * used);
    assert!(stderr.contains(&percent), "{stderr}");
    let best_effort = |what: &str| json["interfaces"][0][what]["best_effort"].as_f64().unwrap();
    let aggregates = format!(" in aggregates of {:.1}", best_effort("mpdus") / best_effort("ppdus"));
    assert!(stderr.contains(&aggregates), "{stderr}");
    let transit = |category: &str| json["interfaces"][0]["transit"][category]["p50_us"].as_f64().unwrap();
    assert!(
        0.0 < transit("voice") && transit("voice") < transit("best_effort"),
        "{stderr}"
    );
    assert!(stderr.contains("wlan0: from card to receiver: AC_VO "), "{stderr}");
}

#[test]
fn the_script_degrades_a_link() {
    if !possible("the_script_degrades_a_link", &["ping"]) {
        return;
    }
    let given_up = |name: &str, event: &str| {
        let (folder, file) = team(name, event);
        let script = until_done(
            &folder,
            "rover) ping -q -c 60 -i 0.02 -W 5 base || true;; scout) true;;",
        );
        let (stdout, stderr, code, json) = run(&folder, &file, &[], &script);
        assert_eq!(code, 0, "{stdout}\n{stderr}");
        let all = stdout.contains("60 packets transmitted, 60 received");
        (json["interfaces"][0]["given_up"].as_u64().unwrap(), all)
    };
    let (_, all) = given_up("script-none", "");
    assert!(all);
    let (lost, all) = given_up(
        "script-loss",
        "[[event]]\nat = \"0s\"\nfrom = \"base\"\nto = \"rover\"\nloss = 0.95\n",
    );
    assert!(lost > 0 && !all, "{lost} {all}");
}

#[test]
fn a_partition_ends_and_a_dead_robot_starts_anew() {
    if !possible("a_partition_ends", &["ping"]) {
        return;
    }
    // Late enough for all programs to have started, even on a busy machine.
    let events = "[[event]]\nat = \"0s\"\nuntil = \"5s\"\npartition = [\"rover\"]\n\
                  [[event]]\nat = \"3s\"\nuntil = \"4s\"\ndeath = [\"scout\"]\n";
    let (folder, file) = team("trouble", events);
    let script = until_done(
        &folder,
        "rover) until ping -q -c 1 -W 1 base; do echo unreachable; done; echo reached;; scout) sleep 4;;",
    );
    let script = format!("echo started; {script}");
    let (stdout, stderr, code, json) = run(&folder, &file, &[], &script);
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    let (missed, reached) = (stdout.find("[rover] unreachable"), stdout.find("[rover] reached"));
    assert!(missed.is_some() && missed < reached, "{stdout}");
    let starts = ["base", "rover", "scout"].map(|robot| stdout.matches(&format!("[{robot}] started")).count());
    assert_eq!(starts, [1, 1, 2], "{stdout}");
    assert_eq!(
        (
            json["robots"][2]["deaths"].as_u64(),
            json["robots"][0]["deaths"].as_u64()
        ),
        (Some(1), Some(0))
    );
}

#[test]
fn a_robot_that_deletes_its_interface_disturbs_nobody() {
    if !possible("a_robot_that_deletes_its_interface", &["ping"]) {
        return;
    }
    let (folder, file) = team("deleted", "");
    let script = until_done(
        &folder,
        "rover) ip link del wlan0;; \
         scout) until [ -e \"$DONE-rover\" ]; do sleep 0.05; done; ping -q -c 3 -i 0.1 base; ! ping -q -c 1 -W 1 rover;;",
    );
    let (stdout, stderr, code, _) = run(&folder, &file, &[], &script);
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    assert!(stdout.contains("3 received, 0% packet loss"), "{stdout}");
}

#[test]
fn what_a_killed_emulator_left_is_cleared_away_at_the_next_start() {
    if !possible("what_a_killed_emulator_left", &[]) {
        return;
    }
    let (folder, file) = team("killed", "");
    let mark = folder.path("running");
    let script = format!("sleep 1000 & case $COORP_ROBOT in scout) touch {mark};; esac; sleep 1000");
    let mut emulator = start(&["emu", &file, "--", "sh", "-c", &script]);
    await_file(&mark);
    let process = emulator.id();
    assert_eq!(namespaces(process), 3);
    emulator.kill().unwrap();
    emulator.wait().unwrap();
    let (_, stderr, code, _) = run(&folder, &file, &[], "true");
    assert_eq!(code, 0, "{stderr}");
    // The next start may also have been a parallel test.
    assert_eq!(namespaces(process), 0);
    assert!(!Path::new(&format!("/etc/netns/coorp-{process}-base")).exists());
    let left = fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&mark)
    });
    assert_eq!(left.count(), 0, "its programs");
}

#[test]
fn an_interrupt_ends_programs_that_do_not_want_to() {
    if !possible("an_interrupt_ends_programs", &[]) {
        return;
    }
    let (folder, file) = team("interrupt", "");
    let mark = folder.path("running");
    let script = format!("trap '' TERM INT; echo here; touch {mark}-$COORP_ROBOT; sleep 1000");
    let emulator = start(&["emu", &file, "--", "sh", "-c", &script]);
    for robot in ["base", "scout", "rover"] {
        await_file(&format!("{mark}-{robot}"));
    }
    let process = emulator.id();
    let asked = Command::new("sh")
        .args(["-c", &format!("kill -INT {process}")])
        .status()
        .unwrap();
    assert!(asked.success());
    let output = emulator.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).matches("] here").count(), 3);
    assert_eq!(namespaces(process), 0);
}

/// Sends continuously until the emulator has been stopped and resumed.
const FLOOD: &str = r#"
import os, pathlib, socket, sys, time
folder, own = pathlib.Path(sys.argv[1]), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
(folder / "running").touch()
since = 0
while not (folder / "enough").exists():
    for _ in range(100):
        own.sendto(bytes(100), ("base", 9))
    since += (folder / "stopped").exists()
    if since == 100:
        (folder / "flooded").touch()
    time.sleep(0.001)
"#;

#[test]
fn an_emulator_that_stood_still_says_that_the_run_does_not_count() {
    if !possible("an_emulator_that_stood_still", &["python3"]) {
        return;
    }
    let (folder, file) = team("still", "");
    fs::write(folder.path("flood.py"), FLOOD).unwrap();
    let (json, flood) = (folder.path("out.json"), folder.path("flood.py"));
    let script = format!(
        "case $COORP_ROBOT in rover) exec python3 {flood} {};; esac",
        folder.path("")
    );
    let emulator = start(&["emu", &file, "--json", &json, "--quiet", "--", "sh", "-c", &script]);
    await_file(&folder.path("running"));
    let signal = |name: &str| {
        Command::new("sh")
            .args(["-c", &format!("kill -{name} {}", emulator.id())])
            .status()
    };
    signal("STOP").unwrap();
    fs::write(folder.path("stopped"), "").unwrap();
    // More than the TAP holds, regardless of the machine's other load.
    await_file(&folder.path("flooded"));
    signal("CONT").unwrap();
    fs::write(folder.path("enough"), "").unwrap();
    let output = emulator.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(
        output.status.success() && said.contains("WARNING") && said.contains("frames were lost before"),
        "{said}"
    );
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["kept_up"], false);
    assert!(report["robots"][1]["frames_missed"].as_u64().unwrap() > 0);
}

#[test]
fn what_goes_to_all_reaches_all() {
    if !possible("what_goes_to_all_reaches_all", &["python3"]) {
        return;
    }
    let (folder, file) = team("group", "");
    fs::write(folder.path("group.py"), GROUP).unwrap();
    let (stdout, stderr, code, _) = run(
        &folder,
        &file,
        &[],
        &format!("exec python3 {} {}", folder.path("group.py"), folder.path("")),
    );
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    for robot in ["base", "scout"] {
        assert!(
            stdout.contains(&format!("[{robot}] group and all\n")),
            "{stdout}\n{stderr}"
        );
    }
}

/// One robot sends to a group and to all, repeatedly because nobody acknowledges; the others wait for both.
const GROUP: &str = r#"
import os, pathlib, socket, struct, sys, time
own, robot, folder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), os.environ["COORP_ROBOT"], pathlib.Path(sys.argv[1])
own.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
if robot == "rover":
    while not all((folder / f"{other}-heard").exists() for other in ("base", "scout")):
        own.sendto(b"group", ("239.1.2.3", 7000))
        own.sendto(b"all", ("255.255.255.255", 7000))
        time.sleep(0.1)
else:
    own.bind(("", 7000))
    own.settimeout(60)
    here = socket.inet_aton(os.environ["COORP_ADDRESSES"].split()[0])
    own.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + here)
    heard = set()
    while len(heard) < 2:
        heard.add(own.recv(100))
    (folder / f"{robot}-heard").touch()
    print("group and all" if heard == {b"group", b"all"} else heard)
"#;

#[test]
fn a_failing_program_is_named_and_fails_the_run() {
    if !possible("a_failing_program_is_named", &[]) {
        return;
    }
    let (folder, file) = team("failing", "");
    let script = "case $COORP_ROBOT in rover) echo dear >&2; exit 7;; base) sleep 1000;; esac";
    let (stdout, stderr, code, json) = run(&folder, &file, &["--duration", "5s"], script);
    assert_eq!(code, 1, "{stdout}\n{stderr}");
    assert!(
        stderr.contains("[rover] dear\n") && stderr.contains("rover: the program ended with exit code 7"),
        "{stderr}"
    );
    assert_eq!(json["ended"], "duration");
    assert_eq!(json["robots"][0]["program"], "stopped");
}

#[test]
fn what_is_missing_is_said_with_its_mend() {
    let (folder, file) = team("missing", "");
    // Run as nobody, who must be able to execute it.
    let program = folder.path("coorp");
    fs::copy(env!("CARGO_BIN_EXE_coorp"), &program).unwrap();
    let mut command = Command::new(&program);
    if fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t") {
        command.uid(65_534).gid(65_534);
    }
    let output = command.args(["emu", &file, "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("needs root: run it with sudo"),
        "{}",
        text(&output.stderr)
    );
    if !possible("what_is_missing_is_said", &[]) {
        return;
    }
    let said = |arguments: &[&str], path: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coorp"));
        path.map(|path| command.env("PATH", path));
        let output = command.args(["emu", &file, "--"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    assert!(said(&["./no-such"], None).contains("no program './no-such'"));
    assert!(said(&["/bin/sh"], Some("/nowhere")).contains("install iproute2"));
}

/// A team of two with a learning load small enough to see epochs end.
#[cfg(feature = "live")]
#[test]
fn the_demo_runs_the_teams_traffic_live_and_tells_it_as_sim_does() {
    if !possible("the_demo_runs", &[]) {
        return;
    }
    let (folder, file) = team(
        "demo",
        "[control]\nrate_hz = 20\nbound = \"45ms\"\ninference = \"2ms\"\n\
         [learning]\nparameters = 20_000\nsync = \"BSP\"\nbatch_loops = 10\nrounds = 2\ntraining = \"10ms\"\n",
    );
    let json = folder.path("out.json");
    let policies = "mpc-only,schedwifi,coorp";
    let output = coorp(&[
        "emu",
        &file,
        "--demo",
        "--policy",
        policies,
        "--duration",
        "4s",
        "--json",
        &json,
    ]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    assert!(stdout.contains("violation"), "{stdout}");
    assert!(stdout.contains("Note: schedwifi is only simulated"), "{stdout}");
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let [alone, coorp] = [&json["results"][0], &json["results"][1]];
    assert_eq!(
        (&alone["policy"], &coorp["policy"]),
        (&"mpc-only".into(), &"coorp".into())
    );
    for result in [alone, coorp] {
        // At 20 a second; a busy machine finishes fewer.
        assert!((1..=80).contains(&result["loops"].as_u64().unwrap()), "{result}");
        assert!(result["reaction_ms"]["p50"].as_f64().unwrap() > 2.0, "{result}");
    }
    assert_eq!(alone["bulk_mbps"], serde_json::Value::Null);
    assert!(
        coorp["bulk_mbps"].as_f64().unwrap() > 0.0 && coorp["epochs"].as_u64().unwrap() > 0,
        "{coorp}"
    );
    let emulator = json["emulator"].as_array().unwrap();
    assert_eq!(emulator.len(), 2);
    assert_eq!(emulator[1]["policy"], "coorp");
    assert_eq!(alone.get("mac"), None, "nobody measures it");
}

#[cfg(feature = "live")]
#[test]
fn a_demo_needs_traffic_and_no_program() {
    let (_folder, file) = team("no-demo", "");
    let refused = |more: &[&str]| {
        let output = coorp(&[&["emu", file.as_str(), "--demo"], more].concat());
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    assert!(refused(&[]).contains("add [control]"));
    assert!(refused(&["--", "true"]).contains("cannot be used with"));
    assert!(refused(&["--policy", "tc"]).contains("possible values"));
}
