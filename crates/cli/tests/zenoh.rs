//! The agent as its robot's Zenoh router, with programs of Zenoh's own Python package, `eclipse-zenoh`. The tests need
//! `--features zenoh`, root, TUN, `ss` and that package, and say so if they cannot run.

#![cfg(all(target_os = "linux", feature = "zenoh"))]
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/root.rs"]
mod root;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::Command;

use common::{coorp, text, Folder};
use root::possible;

const TEAM: &str = r#"
[[robot]]
name = "base"
leader = true
[[robot]]
name = "rover"
[air]
standard = "802.11ac"
channel = 44
mcs = 7
[live]
zenoh = true
[[protect]]
as = "bulk"
topic = "/log/*"
"#;

fn team(name: &str) -> (Folder, String) {
    let folder = Folder::new(name);
    let file = folder.path("team.toml");
    fs::write(&file, TEAM).unwrap();
    let keys = coorp(&["keys", "init", &file]);
    assert!(keys.status.success(), "{}", text(&keys.stderr));
    (folder, file)
}

/// The rover publishes small and large messages, and small ones that a rule makes bulk, on keys of rmw_zenoh; it answers a
/// query of the base. At the end it prints what each of its router's connections has carried.
const TALK: &str = r#"
import os, subprocess, sys, time, zenoh
folder, robot = sys.argv[1], os.environ["COORP_ROBOT"]
POSE, IMAGE, LOG, PLAN = (f"0/{name}/any::msg::dds_::Any_/RIHS01_00" for name in ("rover/pose", "image", "log/rover", "plan"))
config = zenoh.Config()
for key, value in {
    "connect/endpoints": '["tcp/localhost:7447"]',
    "listen/endpoints": '["tcp/localhost:0"]',
    "scouting/multicast/enabled": "false",
}.items():
    config.insert_json5(key, value)
session = zenoh.open(config)
done, got = os.path.join(folder, "done"), {POSE: 0, IMAGE: 0, LOG: 0}
if robot == "base":
    def take(sample):
        got[str(sample.key_expr)] += 1
    taken = [session.declare_subscriber(key, take) for key in got]
    late = time.monotonic() + 60
    while min(got.values()) < 3 and time.monotonic() < late:
        time.sleep(0.1)
    replies = [reply.ok.payload.to_string() for reply in session.get(PLAN, payload=b"2", timeout=10)]
    print("got", *got.values(), *replies, flush=True)
    open(done, "w").close()
else:
    service = session.declare_queryable(PLAN, lambda query: query.reply(PLAN, b"%d" % (int(query.payload.to_bytes()) + 1)))
    publishers = {key: session.declare_publisher(key) for key in got}
    while not os.path.exists(done):
        publishers[POSE].put(b"p" * 100)
        publishers[LOG].put(b"l" * 2_000)
        publishers[IMAGE].put(b"i" * 500_000)
        time.sleep(0.2)
    listed = subprocess.run(["ss", "-tinHO", "state", "established"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        port = line.split()[2].rsplit(":", 1)[1]
        if port in ("7468", "7469", "7470"):
            sent = next((word.split(":")[1] for word in line.split() if word.startswith("bytes_acked:")), "0")
            print("link", port, sent, flush=True)
session.close()
os._exit(0)
"#;

#[test]
fn small_and_large_messages_go_by_connections_apart() {
    if !possible("small_and_large_messages_go_by_connections_apart", &["python3", "ss"]) {
        return;
    }
    let asked = Command::new("python3").args(["-c", "import zenoh"]).output().unwrap();
    if !asked.status.success() {
        eprintln!("SKIPPED: python3 has no eclipse-zenoh");
        return;
    }
    let (folder, file) = team("zenoh");
    let (program, place) = (folder.path("program"), folder.path(""));
    fs::write(&program, TALK).unwrap();
    let output = coorp(&["emu", &file, "--protect", "--", "python3", &program, &place]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let words = |word: &str| -> Vec<Vec<u64>> {
        let lines = stdout.lines().filter_map(|line| line.split(word).nth(1));
        lines
            .map(|line| line.split_whitespace().map(|number| number.parse().unwrap()).collect())
            .collect()
    };
    let got = &words("] got ")[0];
    assert!(
        got.len() == 4 && got[..3].iter().all(|count| *count >= 3),
        "{stdout}\n{stderr}"
    );
    assert_eq!(got[3], 3, "{stdout}");
    let mut links: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for link in words("] link ") {
        links.entry(link[0]).or_default().push(link[1]);
    }
    let counts: Vec<usize> = links.values().map(Vec::len).collect();
    assert_eq!(counts, [2, 2, 2], "{stdout}\n{stderr}");
    let sum = |port: u64| links[&port].iter().sum::<u64>();
    // All images and logs went over the last connection. The poses did not: the others carried too little for more than
    // those.
    assert!(sum(7470) >= 3 * 502_000, "{stdout}");
    assert!((300..100_000).contains(&sum(7468)), "{stdout}");
    assert!(sum(7469) < 100_000, "{stdout}");
}

#[test]
fn a_second_router_on_a_machine_is_told() {
    if !possible("a_second_router_on_a_machine_is_told", &[]) {
        return;
    }
    let (folder, file) = team("zenoh-taken");
    let other = TcpListener::bind("[::]:7447").or_else(|_| TcpListener::bind("0.0.0.0:7447"));
    let _other = other.unwrap();
    let with = fs::read_to_string(&file).unwrap().replace(
        "name = \"base\"",
        "name = \"base\"\ninterfaces = [\"lo\"]\naddresses = [\"127.0.0.1\"]",
    );
    fs::write(&file, with).unwrap();
    let state = folder.path("state");
    let output = coorp(&["up", &file, "--robot", "base", "--protect", "--state", &state]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("TCP port 7447 is taken") && stderr.contains("rmw_zenohd"),
        "{stderr}"
    );
}
