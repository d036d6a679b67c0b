//! `coorp keys`, `up` and `watch` from a user's view: real processes on loopback.
#![cfg(feature = "live")]
#![allow(clippy::unwrap_used)] // a test may fail by panicking

#[cfg(target_os = "linux")]
#[path = "common/root.rs"]
mod root;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const WATCHES_MAX: usize = 10;
const STARTS_MAX: usize = 5;

struct Field {
    folder: PathBuf,
}

impl Field {
    /// Creates a folder with a team of two robots, on these ports and the 15 above each.
    fn new(name: &str, ports: [u16; 2]) -> Field {
        let folder = std::env::temp_dir().join(format!("coorp-live-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let [base, scout] = ports;
        let network = "addresses = [\"127.0.0.1\"]";
        let team = format!(
            "[[robot]]\nname = \"base\"\nleader = true\n{network}\nport = {base}\n\
             [[robot]]\nname = \"scout\"\n{network}\nport = {scout}\n"
        );
        std::fs::write(folder.join("team.toml"), team).unwrap();
        Field { folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coorp"));
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("XDG_STATE_HOME", &self.folder);
        command
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }

    /// Runs `coorp watch --once` until it prints `what`: on a busy machine, a robot may answer too late.
    fn watch(&self, more: &[&str], what: &str) -> (Option<i32>, String, String) {
        let command = [&["watch", "--once"], more].concat();
        for _ in 1..WATCHES_MAX {
            let seen = self.run(&command);
            if seen.1.contains(what) {
                return seen;
            }
        }
        self.run(&command)
    }

    fn up(&self, robot: &str, more: &[&str]) -> Up {
        let mut child = self
            .command(&[&["up", "--robot", robot], more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("is up"), "{robot}: {line}");
        Up(child)
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_team_comes_up_is_watched_and_a_missing_robot_is_named() {
    let field = Field::new("up", [28_300, 28_320]);
    let (code, _, said) = field.run(&["up", "--robot", "base"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("coorp keys init"), "{said}");
    for policy in ["schedwifi", "best-effort", "mpc-only", "bulk-only"] {
        let (code, _, said) = field.run(&["up", "--robot", "base", "--policy", policy]);
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.contains(policy)
                && said.contains("[possible values: edca, edca+global, edca+local, coorp-paper, coorp]"),
            "{said}"
        );
    }
    let (code, made, _) = field.run(&["keys", "init"]);
    assert_eq!(code, Some(0));
    assert!(
        made.contains("keys/robots: keys of base, scout.") && made.contains("coorp keys bundle"),
        "{made}"
    );
    let (code, _, said) = field.run(&["keys", "init", "team.toml"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("stay as they are"), "{said}");

    let _base = field.up("base", &["--metrics", "28399"]);
    let scout = field.up("scout", &[]);
    let (code, shown, said) = field.watch(&[], "2 of 2 robots");
    assert_eq!((code, said.as_str()), (Some(0), ""), "{shown}");
    assert!(shown.contains("2 of 2 robots") && shown.contains("base"), "{shown}");
    let mut metrics = TcpStream::connect("127.0.0.1:28399").unwrap();
    metrics.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    metrics.read_to_string(&mut page).unwrap();
    assert!(page.contains("coorp_robot_alive{peer=\"scout\"} 1"), "{page}");
    let (code, _, said) = field.run(&["up", "--robot", "base", "--metrics", "0"]);
    assert_eq!(code, Some(2), "{said}");
    let (code, _, said) = field.run(&["up", "--robot", "scout"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("port 28322 is taken"), "{said}");
    drop(scout);
    let (code, shown, said) = field.run(&["watch", "--once"]);
    assert_eq!(code, Some(1), "{shown}");
    assert!(said.contains("no answer from scout"), "{said}");
}

#[test]
fn a_robot_gets_its_keys_in_one_file() {
    let (field, robot) = (
        Field::new("bundle", [28_300, 28_320]),
        Field::new("bundle-robot", [28_300, 28_320]),
    );
    let (code, _, said) = field.run(&["keys", "bundle", "scout"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("coorp keys init"), "{said}");
    field.run(&["keys", "init"]);
    let (code, _, said) = field.run(&["keys", "bundle", "nobody"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("its robots are base, scout"), "{said}");
    for (name, file) in [("scout", "keys/robots/scout.key"), ("@operator", "keys/operator.key")] {
        let bundle = format!("{name}.bundle");
        let (code, made, _) = field.run(&["keys", "bundle", name]);
        assert_eq!(code, Some(0));
        assert!(made.contains(&format!("coorp keys install {bundle}")), "{made}");
        let (from, to) = (field.folder.join(&bundle), robot.folder.join(&bundle));
        std::fs::write(&to, std::fs::read(&from).unwrap()).unwrap();
        let (code, _, said) = robot.run(&["keys", "install", &bundle]);
        assert_eq!(code, Some(2));
        assert!(said.contains("chmod 600"), "{said}");
        std::fs::copy(&from, &to).unwrap();
        let (code, taken, said) = robot.run(&["keys", "install", &bundle]);
        assert_eq!(code, Some(0), "{said}");
        assert!(taken.contains(name), "{taken}");
        let key = |field: &Field| std::fs::read(field.folder.join(file)).unwrap();
        assert_eq!(key(&field), key(&robot));
    }
    assert!(!robot.folder.join("keys/ca.key").exists());
}

#[test]
fn a_robot_whose_keys_are_revoked_is_out() {
    let field = Field::new("revoke", [28_520, 28_540]);
    field.run(&["keys", "init"]);
    let (code, _, said) = field.run(&["keys", "revoke", "nobody"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("no certificate here"), "{said}");
    let _robots = [field.up("base", &["--metrics", "28559"]), field.up("scout", &[])];
    let (code, shown, said) = field.watch(&[], "2 of 2 robots");
    assert_eq!(code, Some(0), "{said}");
    assert!(!shown.contains("revoked"), "{shown}");
    let (code, done, said) = field.run(&["keys", "revoke", "scout"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(done.contains("Robots that have it: base."), "{done}");
    let (code, shown, _) = field.watch(&[], "1 of 2 robots");
    assert_eq!(code, Some(1));
    assert!(
        shown.contains("1 of 2 robots") && shown.contains("1 certificate is revoked (list 1)"),
        "{shown}"
    );
    let mut metrics = TcpStream::connect("127.0.0.1:28559").unwrap();
    metrics.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    metrics.read_to_string(&mut page).unwrap();
    for line in [
        "coorp_revocation_list 1",
        "coorp_revoked_certificates 1",
        "coorp_robot_alive{peer=\"base\"} 1",
    ] {
        assert!(page.contains(line), "{page}");
    }
    assert!(!page.contains("peer=\"scout\"} 1"), "{page}");
}

#[test]
fn keys_are_renewed_in_two_steps() {
    let (field, robot) = (
        Field::new("renew", [28_480, 28_500]),
        Field::new("renew-robot", [28_480, 28_500]),
    );
    field.run(&["keys", "init"]);
    let (code, _, said) = field.run(&["keys", "renew", "--finish"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("not being renewed"), "{said}");
    let install = || {
        field.run(&["keys", "bundle", "scout"]);
        std::fs::copy(field.folder.join("scout.bundle"), robot.folder.join("scout.bundle")).unwrap();
        let (code, _, said) = robot.run(&["keys", "install", "scout.bundle"]);
        assert_eq!(code, Some(0), "{said}");
    };
    install();
    let scout = robot.up("scout", &[]);
    let (code, done, said) = field.run(&["keys", "renew"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(done.contains("coorp keys renew --finish"), "{done}");
    let _base = field.up("base", &[]);
    let (code, shown, said) = field.watch(&[], "2 of 2 robots");
    assert_eq!(code, Some(0), "{shown}{said}");
    let (_, shown, _) = field.run(&["keys", "renew"]);
    assert!(
        shown.contains("new keys: base; with old ones: scout; not reached: none"),
        "{shown}"
    );
    install();
    drop(scout);
    let (_, shown, _) = field.run(&["keys", "renew"]);
    assert!(
        shown.contains("new keys: base; with old ones: none; not reached: scout"),
        "{shown}"
    );
    let _scout = robot.up("scout", &[]);
    let (_, shown, _) = field.run(&["keys", "renew"]);
    assert!(
        shown.contains("new keys: base, scout; with old ones: none; not reached: none"),
        "{shown}"
    );
    let (code, done, said) = field.run(&["keys", "renew", "--finish"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(done.contains("Robots that have it: base, scout."), "{done}");
    let (code, shown, said) = field.watch(&[], "2 of 2 robots");
    assert_eq!(code, Some(0), "{shown}{said}");
}

#[test]
fn without_keys_it_says_so_and_who_has_keys_does_not_see_it() {
    let field = Field::new("insecure", [28_340, 28_360]);
    field.run(&["keys", "init"]);
    let mut base = field.command(&["up", "--robot", "base", "--insecure"]);
    let mut base = Up(base.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    // Read without a buffer, which would consume more than the line.
    let said = base.0.stderr.as_mut().unwrap();
    while !line.ends_with('\n') {
        let mut byte = [0];
        said.read_exact(&mut byte).unwrap();
        line.push(char::from(byte[0]));
    }
    assert!(line.contains("WARNING: --insecure: nothing is encrypted"), "{line}");
    let (code, shown, _) = field.watch(&["--insecure"], "1 of 2 robots");
    assert_eq!(code, Some(1));
    assert!(shown.contains("1 of 2 robots") && shown.contains("WARNING"), "{shown}");
    let (_, shown, _) = field.run(&["watch", "--once"]);
    assert!(shown.contains("0 of 2 robots"), "{shown}");
    base.0.kill().unwrap();
    let mut more = String::new();
    base.0.stderr.take().unwrap().read_to_string(&mut more).unwrap();
    assert!(!more.contains("nothing is encrypted"), "twice: {more}");
}

fn open(file: &Path, robot: &str) -> coorp_node::Node {
    coorp_node::Node::open(coorp_node::Options {
        team: coorp_team::load(file).unwrap(),
        state: Some(file.with_file_name("state").join(robot)),
        robot: robot.to_owned(),
        policy: coorp_core::policy::Policy::named("coorp").unwrap(),
        insecure: false,
    })
    .unwrap()
}

#[test]
fn bulk_that_comes_is_put_where_it_is_wanted() {
    let field = Field::new("into", [28_420, 28_440]);
    field.run(&["keys", "init"]);
    let into = field.folder.join("got");
    let scout = open(&field.folder.join("team.toml"), "scout");
    let send = |bytes: &[u8]| {
        let mut stream = scout.bulk_stream("base", "map").unwrap();
        stream.write(bytes).unwrap();
        stream.finish().unwrap()
    };
    let until_there = |number: usize| {
        let file = into.join(format!("scout/{number}-map"));
        let began = std::time::Instant::now();
        while !file.exists() && began.elapsed().as_secs() < 30 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        std::fs::read(file).unwrap()
    };
    let base = field.up("base", &["--into", "got"]);
    let deliveries = [send(b"one"), send(b"two")];
    assert_eq!((until_there(1), until_there(2)), (b"one".to_vec(), b"two".to_vec()));
    deliveries.into_iter().for_each(|delivery| delivery.wait().unwrap());
    drop(base);
    // Numbers continue after a restart.
    let _base = field.up("base", &["--into", "got"]);
    let delivery = send(b"three");
    assert_eq!(until_there(3), b"three");
    delivery.wait().unwrap();
    drop(scout);
    let (code, _, said) = field.run(&["up", "--robot", "scout", "--into", "team.toml"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("cannot put bulk into team.toml"), "{said}");
}

/// The program that the test below runs on each robot of the emulator.
#[test]
#[cfg(target_os = "linux")]
#[ignore = "a robot's program in another test"]
fn program() {
    let variable = |name| std::env::var(name).unwrap();
    let node = open(&PathBuf::from(variable("COORP_TEAM")), &variable("COORP_ROBOT"));
    if variable("COORP_LEADER") == variable("COORP_ROBOT") {
        let soon = std::time::Duration::from_secs(30);
        let message = node.bulk_receiver().unwrap().recv(Some(soon)).unwrap();
        println!("{} of {} bytes", message.name, message.length);
        // The sender waits for the confirmation of delivery.
        while node.status().unwrap().alive.len() > 1 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    } else {
        let mut stream = node.bulk_stream("base", "map").unwrap();
        stream.write(&[7; 3_000_000]).unwrap();
        stream.finish().unwrap().wait().unwrap();
        println!("by {}", node.status().unwrap().bulk.unwrap().completions);
    }
}

/// A TAP only reports that it has a datagram, so Coorp uses the emulator's report that the emulated air has carried it.
#[test]
#[cfg(target_os = "linux")]
fn bulk_over_the_emulator_goes_by_its_reports() {
    if !root::possible("bulk_over_the_emulator", &[]) {
        return;
    }
    let field = Field::new("emu", [28_380, 28_400]);
    // The emulator provides the robots' addresses; the one in the file is on another network.
    let robots = "[[robot]]\nname = \"base\"\nleader = true\n\
                  [[robot]]\nname = \"scout\"\naddresses = [\"192.168.7.9\"]\n";
    std::fs::write(field.folder.join("team.toml"), robots).unwrap();
    field.run(&["keys", "init"]);
    let program = std::env::current_exe().unwrap();
    let program = [
        "--",
        program.to_str().unwrap(),
        "--exact",
        "program",
        "--ignored",
        "--nocapture",
    ];
    let (code, out, said) = field.run(&[&["emu", "team.toml"][..], &program].concat());
    assert_eq!(code, Some(0), "{out}{said}");
    assert!(out.contains("map of 3000000 bytes"), "{out}");
    assert!(out.contains("by the emulator's send queue"), "{out}");
}

/// A robot as systemd starts it, with its log at the other end of a socket.
struct Supervised {
    robot: Up,
    notices: std::os::unix::net::UnixDatagram,
}

impl Supervised {
    fn start(field: &Field, log: std::os::unix::net::UnixStream) -> Supervised {
        let socket = field.folder.join("notify");
        // An earlier start's.
        let _ = std::fs::remove_file(&socket);
        let notices = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
        notices
            .set_read_timeout(Some(std::time::Duration::from_secs(4)))
            .unwrap();
        let robot = field
            .command(&["up", "--robot", "base"])
            .env("NOTIFY_SOCKET", socket)
            .env("WATCHDOG_USEC", "1000000")
            // So that only the deciding thread logs.
            .env("RUST_LOG", "coorp_node::agent::driver=info")
            .stdout(Stdio::null())
            .stderr(Stdio::from(std::os::fd::OwnedFd::from(log)))
            .spawn()
            .unwrap();
        Supervised {
            robot: Up(robot),
            notices,
        }
    }

    /// Returns the next notice; `None` if none comes for four seconds.
    fn notice(&self) -> Option<String> {
        let mut bytes = [0; 1_024];
        let length = self.notices.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }
}

/// Nobody reads the log of this robot any more, and its deciding thread logs that it leads: that panics.
#[test]
fn a_robot_whose_deciding_thread_panics_ends_with_its_exit_code() {
    let field = Field::new("panic", [28_500, 28_520]);
    assert_eq!(field.run(&["keys", "init"]).0, Some(0));
    let (log, nobody) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(nobody);
    let mut it = Supervised::start(&field, log);
    let notices: Vec<String> = std::iter::from_fn(|| it.notice()).collect();
    assert_eq!(notices[0], "READY=1");
    assert!(
        notices.last().unwrap().starts_with("STATUS=the robot has failed"),
        "{notices:?}"
    );
    let ended = it.robot.0.try_wait().unwrap().unwrap();
    assert_eq!(ended.code(), Some(3));
}

/// The log of this robot takes no more, and its deciding thread hangs once it logs that it leads.
#[test]
fn the_watchdog_hears_nothing_while_the_deciding_thread_hangs() {
    let field = Field::new("hang", [28_540, 28_560]);
    assert_eq!(field.run(&["keys", "init"]).0, Some(0));
    for attempt in 1.. {
        let (mut log, mut reader) = std::os::unix::net::UnixStream::pair().unwrap();
        log.set_nonblocking(true).unwrap();
        while log.write(&[b' '; 4_096]).is_ok() {}
        while log.write(b" ").is_ok() {}
        log.set_nonblocking(false).unwrap();
        let it = Supervised::start(&field, log);
        let notices: Vec<String> = std::iter::from_fn(|| it.notice()).collect();
        // On a busy machine, the robot may lead before it is ready. Then it hangs too soon.
        if notices.is_empty() && attempt < STARTS_MAX {
            continue;
        }
        assert_eq!(notices[0], "READY=1");
        assert!(notices[1..].iter().all(|notice| notice == "WATCHDOG=1"), "{notices:?}");
        // Now that somebody reads it, the robot goes on.
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        for _ in 0..5 {
            assert_eq!(it.notice().as_deref(), Some("WATCHDOG=1"));
        }
        return;
    }
}
