//! `coorp up --protect` and `coorp emu --protect` with real programs. The tests need root, TUN and python3, and say so if they
//! cannot run.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/root.rs"]
mod root;

use std::fs;

use common::{coorp, text, Folder};
use root::possible;

const TEAM: &str = r#"
[[robot]]
name = "base"
leader = true
[[robot]]
name = "rover"
[[robot]]
name = "scout"
[air]
standard = "802.11ac"
channel = 44
mcs = 7
"#;

/// A team with keys, and a program for all of its robots.
fn team(name: &str, more: &str, program: &str) -> (Folder, String) {
    let folder = Folder::new(name);
    let file = folder.path("team.toml");
    fs::write(&file, format!("{TEAM}{more}")).unwrap();
    fs::write(folder.path("program"), program).unwrap();
    let keys = coorp(&["keys", "init", &file]);
    assert!(keys.status.success(), "{}", text(&keys.stderr));
    (folder, file)
}

/// Two robots send the base streams, which it hashes, and one of them control. In the end the base watches.
const SEND: &str = r#"
import hashlib, os, random, socket, subprocess, sys, threading, time
COORP, team, folder, robot = *sys.argv[1:], os.environ["COORP_ROBOT"]
BYTES, COUNT, senders = 6_000_000, 90, ("rover", "scout")
done = os.path.join(folder, "done")
if robot == "base":
    server, control = socket.create_server(("", 7000)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    control.bind(("", 7001))
    heard, shown = set(), []
    def receive():
        stream, (address, _) = server.accept()
        hasher = hashlib.sha256()
        while data := stream.recv(1 << 16):
            hasher.update(data)
        print("got", hasher.hexdigest(), flush=True)
    def listen():
        while True:
            heard.add(control.recv(100)[0])
    threading.Thread(target=listen, daemon=True).start()
    streams = [threading.Thread(target=receive) for _ in senders]
    [one.start() for one in streams]
    while any(one.is_alive() for one in streams) or len(heard) < COUNT:
        shown.append(subprocess.run([COORP, "watch", team, "--once"], capture_output=True, text=True).stdout)
        time.sleep(0.3)
    lines = {line for look in shown for line in look.splitlines()}
    for what in ("bulk      keeps a backlog", "control   small and periodic"):
        print(what.split()[0], any(" ".join(what.split()) in " ".join(line.split()) for line in lines), flush=True)
    open(done, "w").close()
else:
    while (own := socket.socket()).connect_ex(("base", 7000)) != 0:
        own.close()
        time.sleep(0.1)
    payload = random.Random(robot).randbytes(BYTES)
    print("sent", hashlib.sha256(payload).hexdigest(), flush=True)
    def send():
        own.sendall(payload)
        own.shutdown(socket.SHUT_WR)
    threading.Thread(target=send).start()
    if robot == "rover":
        pose = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for number in range(COUNT):
            pose.sendto(bytes([number]).ljust(100), ("base", 7001))
            time.sleep(0.033)
    while not os.path.exists(done):
        time.sleep(0.1)
"#;

#[test]
fn protected_streams_arrive_whole_beside_control() {
    if !possible("protected_streams_arrive_whole_beside_control", &["python3"]) {
        return;
    }
    let (folder, file) = team("protected", "", SEND);
    let own = env!("CARGO_BIN_EXE_coorp");
    let (program, place) = (folder.path("program"), folder.path(""));
    let command = ["python3", &program, own, &file, &place];
    let output = coorp(&[&["emu", &file, "--protect", "--"], &command[..]].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let hashes = |word: &str| {
        let lines = stdout.lines().filter_map(|line| line.split(word).nth(1));
        let mut hashes: Vec<&str> = lines.collect();
        hashes.sort_unstable();
        hashes
    };
    let sent = hashes("] sent ");
    assert!(sent.len() == 2 && hashes("] got ") == sent, "{stdout}\n{stderr}");
    for found in ["[base] bulk True\n", "[base] control True\n"] {
        assert!(stdout.contains(found), "{stdout}\n{stderr}");
    }
}

/// The rover protects itself, ends in good order, and is killed; each time what it has changed is compared.
const UNDO: &str = r#"
case $COORP_ROBOT in rover) ;; *) until [ -e "$FOLDER/done" ]; do sleep 0.1; done; exit;; esac
echo 1 > /proc/sys/net/ipv4/conf/wlan0/rp_filter
state() {
    ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; ip link | sed 's/ qdisc.*//'
    cat /proc/sys/net/ipv4/conf/*/rp_filter
}
# The rule of one that was killed is still there.
ready() {
    until ip link show coorp0 2> /dev/null | grep -q UP && ip rule | grep -q 5191; do
        sleep 0.05; kill -0 $1 || exit 1
    done
}
up() {
    "$COORP" up "$FOLDER/team.toml" --robot rover --protect --state "$FOLDER/state" & agent=$!
    ready $agent
}
rights() {
    for task in /proc/$1/task/*; do
        grep -E 'Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs' $task/status | tr '\t\n' '  '; echo
    done | sort -u
}
same() { state > "$FOLDER/now"; diff "$FOLDER/before" "$FOLDER/now" && echo "$*"; }
says() { ping -c 2 -i 0.2 -W 5 base > "$FOLDER/ping" && echo "$*: passes" || { echo "$*: fails"; cat "$FOLDER/ping"; }; }
state > "$FOLDER/before"
up
base=$(getent hosts base | cut -d' ' -f1)
ip route get "$base" | grep -q 'dev coorp0' && echo routed
says protected
rights $agent | sed 's/^/rights /'
awk '$2 == "(coorp-lane0)" && $41 == 2' /proc/$agent/task/*/stat | grep -q . && echo ahead of others
ip route add 10.200.0.0/24 via "$base" && ip route show 10.200.0.0/24 | grep -q 'dev wlan0' && echo through the card
ip route del 10.200.0.0/24
# An absent receiver holds nobody up.
timeout 4 bash -c 'while echo nobody > /dev/udp/10.77.9.9/9; do sleep 0.01; done' & absent=$!
sleep 1; says beside an absent one
wait $absent
# Another MTU and another address.
ip link set wlan0 mtu 1400
until ip link show coorp0 | grep -q 'mtu 1400'; do sleep 0.1; done; says smaller
ip link set wlan0 mtu 1500
until ip link show coorp0 | grep -q 'mtu 1500'; do sleep 0.1; done
kill $agent; wait $agent
same undone
up
kill -9 $agent; wait $agent
says killed
[ "$(cat /proc/sys/net/ipv4/conf/wlan0/rp_filter)" = 2 ] && echo loose
up
says again
timeout 20 "$COORP" up "$FOLDER/team.toml" --robot rover --protect=off --state "$FOLDER/state"
kill $agent; wait $agent
same undone by the next one
up
kill -9 $agent; wait $agent
off() {
    "$COORP" up "$FOLDER/team.toml" --robot rover --protect=off --state "$FOLDER/state" > "$FOLDER/off" 2>&1 & agent=$!
    until grep -q 'is up' "$FOLDER/off"; do sleep 0.1; kill -0 $agent || break; done
    kill $agent; wait $agent
    cat "$FOLDER/off"
}
off
same undone by off
off
# From here on, the state is another user's.
chown -R 12345 "$FOLDER/state" && chmod 700 "$FOLDER/state"
"$COORP" up "$FOLDER/team.toml" --robot rover --protect --state "$FOLDER/state" & agent=$!
ready $agent
echo second; timeout 20 "$COORP" up "$FOLDER/other.toml" --robot rover --protect --insecure --state "$FOLDER/other"
ip rule | grep -q 5191 && echo kept
kill $agent; wait $agent
touch "$FOLDER/done"
"#;

#[test]
fn what_an_agent_changes_is_undone_and_traffic_flows_after_its_death() {
    if !possible("what_an_agent_changes_is_undone", &["ping", "getent"]) {
        return;
    }
    let (folder, file) = team("undone", "", UNDO);
    fs::write(
        folder.path("other.toml"),
        format!("name = \"other\"\n{TEAM}\n[live]\nport = 9000\n"),
    )
    .unwrap();
    let (own, place, program) = (env!("CARGO_BIN_EXE_coorp"), folder.path(""), folder.path("program"));
    let set = format!("COORP={own} FOLDER={place} exec bash {program}");
    let output = coorp(&["emu", &file, "--", "sh", "-c", &set]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let all = format!("{stdout}\n{stderr}");
    for found in [
        "[rover] routed\n",
        "[rover] protected: passes\n",
        "[rover] through the card\n",
        "[rover] beside an absent one: passes\n",
        "[rover] smaller: passes\n",
        "[rover] ahead of others\n",
        "[rover] undone\n",
        "[rover] killed: passes\n",
        "[rover] loose\n",
        "[rover] again: passes\n",
        "[rover] undone by the next one\n",
        "[rover] undone: the rule 5190, 'from all fwmark 0x2 iif wlan0 nop'\n",
        "[rover] undone: rp_filter of wlan0, which is 1 again\n",
        "[rover] undone by off\n",
        "[rover] nothing was left of an agent that protected this machine\n",
        "[rover] kept\n",
    ] {
        assert!(stdout.contains(found), "{found}: {all}");
    }
    assert!(stderr.contains("another agent protects this machine"), "{all}");
    assert!(
        stderr.contains("an agent protects this machine now, by the interface coorp0"),
        "{all}"
    );
    assert!(stderr.contains("/state is another user's"), "{all}");
    has_few_rights(&stdout);
}

/// All threads of an agent have the same rights, and no more than it needs.
fn has_few_rights(stdout: &str) {
    let lines: Vec<&str> = stdout
        .lines()
        .filter(|line| line.starts_with("[rover] rights "))
        .collect();
    assert_eq!(lines.len(), 1, "{stdout}");
    let right = |name: &str| {
        let value = lines[0].split(&format!("{name}: ")).nth(1).unwrap();
        u64::from_str_radix(value.split_whitespace().next().unwrap(), 16).unwrap()
    };
    let (admin, raw, nice) = (1 << 12, 1 << 13, 1 << 23);
    // Where the limit of real-time priorities cannot be raised, that takes a right.
    for of in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(right(of) & !nice, admin | raw, "{of}: {}", lines[0]);
    }
    assert_eq!((right("CapAmb"), right("NoNewPrivs")), (admin, 1), "{}", lines[0]);
}

#[test]
fn a_robot_without_interfaces_says_what_is_missing() {
    if !possible("a_robot_without_interfaces", &[]) {
        return;
    }
    let (folder, file) = team("nowhere", "", "");
    let state = folder.path("state");
    let output = coorp(&["up", &file, "--robot", "rover", "--protect", "--state", &state]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("add interfaces = [\"wlan0\"]"), "{stderr}");
}
