//! Programs in C and C++ on the library, with real keys and sockets on loopback.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

use std::collections::BTreeSet;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use coorp_node::{Node, Options, Policy};

/// How long anything may take that should happen at once; no test measures it.
const SOON: Duration = Duration::from_secs(240);
const C: [&str; 6] = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"];
const CPP: [&str; 6] = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic"];
/// What Rust's standard library needs below a program that is linked without it.
const BELOW: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

fn crate_c() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the library for this test.
fn libraries() -> PathBuf {
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    for library in ["libcoorp.so", "libcoorp.a"] {
        assert!(
            libraries.join(library).is_file(),
            "no {library} in {}",
            libraries.display()
        );
    }
    libraries
}

/// A team on loopback whose first robot leads, in a folder of its own, with keys.
struct Fleet {
    folder: PathBuf,
    file: PathBuf,
}

impl Fleet {
    fn new(robots: &[&str]) -> Fleet {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("coorp-c-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let robot = |(place, name): (usize, &&str)| {
            let (leads, port) = (place == 0, free_ports());
            format!("[[robot]]\nname = \"{name}\"\nleader = {leads}\naddresses = [\"127.0.0.1\"]\nport = {port}\n")
        };
        let file = folder.join("team.toml");
        std::fs::write(&file, robots.iter().enumerate().map(robot).collect::<String>()).unwrap();
        coorp_node::keys::init(&coorp_node::load(&file).unwrap()).unwrap();
        Fleet { folder, file }
    }

    fn state(&self, robot: &str) -> PathBuf {
        self.folder.join("state").join(robot)
    }

    fn options(&self, robot: &str) -> Options {
        Options {
            team: coorp_node::load(&self.file).unwrap(),
            robot: robot.to_owned(),
            policy: Policy::named("coorp").unwrap(),
            insecure: false,
            state: Some(self.state(robot)),
        }
    }

    /// Compiles a program, with the shared library or the static one.
    fn compile(&self, compiler: [&str; 6], source: &Path, is_static: bool) -> PathBuf {
        let (libraries, program) = (libraries(), self.folder.join(source.file_stem().unwrap()));
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).arg(source).arg("-o").arg(&program);
        command.arg("-I").arg(crate_c().join("include"));
        if is_static {
            command.arg(libraries.join("libcoorp.a")).args(BELOW);
        } else {
            command.arg("-L").arg(&libraries).args(["-lcoorp", "-pthread"]);
            command.arg(format!("-Wl,-rpath,{}", libraries.display()));
        }
        let compiled = command.output().unwrap();
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{command:?}: {said}");
        program
    }

    fn start(&self, program: &Path, arguments: &[&Path]) -> Program {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.folder);
        // Where a robot keeps what survives, unless the program says.
        command.env("XDG_STATE_HOME", self.folder.join("state"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Program(Some(child.unwrap()))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The first of 16 ports that are free now, and that no other robot of this program uses.
fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let block = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = 24_000 + (std::process::id() as u16 % 64) * 64 + block * 16;
        let free =
            |port| TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
        if (base..base + 16).all(free) {
            return base;
        }
    }
}

/// A running program. It is killed when dropped.
struct Program(Option<Child>);

impl Program {
    fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Its output; it has to succeed.
    fn output(mut self) -> String {
        let ended = self.0.take().unwrap().wait_with_output().unwrap();
        let (said, complained) = (
            String::from_utf8(ended.stdout).unwrap(),
            String::from_utf8_lossy(&ended.stderr),
        );
        assert!(ended.status.success(), "{}: {said}{complained}", ended.status);
        said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until programs have ended, and returns their output. The first that fails is told, while others may wait for it.
fn all_ended(mut running: Vec<Program>) -> Vec<String> {
    let (began, mut said) = (Instant::now(), Vec::new());
    while !running.is_empty() {
        assert!(began.elapsed() < SOON, "{} programs do not end", running.len());
        match running.iter_mut().position(Program::has_ended) {
            Some(ended) => said.push(running.remove(ended).output()),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    said
}

fn source(name: &str) -> PathBuf {
    crate_c().join("tests/programs").join(name)
}

/// Control both ways, bulk of some megabytes both ways, and a gather, between three programs.
fn exchange(fleet: &Fleet, base: &Path, robot: &Path, role: &str) {
    let in_base = fleet.state("base");
    std::fs::create_dir_all(&in_base).unwrap();
    let mut programs = vec![fleet.start(base, &[&fleet.file, &in_base, "r1".as_ref(), "r2".as_ref()])];
    for name in ["r1", "r2"] {
        programs.push(fleet.start(robot, &[&fleet.file, name.as_ref(), &fleet.state(name), role.as_ref()]));
    }
    assert_eq!(all_ended(programs), ["done\n"; 3]);
}

#[test]
fn programs_in_c_and_cpp_exchange_control_bulk_and_states_as_robots_and_as_guests() {
    let fleet = Fleet::new(&["base", "r1", "r2"]);
    let base = fleet.compile(CPP, &source("base.cpp"), true);
    let robot = fleet.compile(C, &source("robot.c"), false);
    exchange(&fleet, &base, &robot, "robot");

    let with_agents = Fleet::new(&["base", "r1", "r2"]);
    let _agents = ["r1", "r2"].map(|name| Node::open_agent(with_agents.options(name)).unwrap());
    exchange(&with_agents, &base, &robot, "guest");
}

#[test]
fn mistakes_are_told_and_closing_ends_waits() {
    let fleet = Fleet::new(&["base", "r1", "r2"]);
    let errors = fleet.compile(C, &source("errors.c"), false);
    let program = fleet.start(&errors, &[&fleet.file, &fleet.state("base")]);
    assert_eq!(all_ended(vec![program]), ["done\n"]);
}

#[test]
fn the_documented_example_runs() {
    let root = crate_c().join("../..");
    let example = root.join("examples/c/robot.c");
    let page = std::fs::read_to_string(root.join("docs/live.md")).unwrap();
    let block = format!("```c\n{}```\n", std::fs::read_to_string(&example).unwrap());
    assert!(
        page.contains(&block),
        "docs/live.md does not show examples/c/robot.c as it is"
    );

    let fleet = Fleet::new(&["base", "r1"]);
    let base = Node::open(fleet.options("base")).unwrap();
    let (plan, poses) = (
        base.control_publisher("plan", None).unwrap(),
        base.control_subscriber("pose").unwrap(),
    );
    let received = base.bulk_receiver().unwrap();
    let program = fleet.start(&fleet.compile(C, &example, false), &[]);
    let pose = poses.recv(Some(SOON)).unwrap();
    assert_eq!(pose.bytes(), [1.0_f32, 2.0].map(f32::to_ne_bytes).concat());
    let began = Instant::now();
    let gradients = loop {
        plan.put(b"straight on").unwrap();
        if let Some(message) = received.recv(Some(Duration::from_millis(10))) {
            break message;
        }
        assert!(began.elapsed() < SOON, "no bulk arrives");
    };
    assert_eq!(
        (gradients.name.as_str(), gradients.take().unwrap()),
        ("gradients", vec![0; 20_000_000])
    );
    let said = all_ended(vec![program]);
    assert!(said[0].starts_with("plan straight on of base\n"), "{said:?}");
}

/// All else in the header is compared with cbindgen's by `make lint`.
#[test]
fn the_header_has_every_function() {
    let named = |text: &str, before: &str| -> BTreeSet<String> {
        let after = text.split(before).skip(1);
        after.map(|rest| rest.split('(').next().unwrap().to_owned()).collect()
    };
    let sources = ["boundary", "node", "control", "bulk", "gather"];
    let read = |name| std::fs::read_to_string(crate_c().join("src").join(format!("{name}.rs"))).unwrap();
    let written = named(&sources.map(read).concat(), "extern \"C\" fn ");
    let header = std::fs::read_to_string(crate_c().join("include/coorp.h")).unwrap();
    let mut declared = named(&header, "\nCoorpResult ");
    declared.extend(named(&header, "\nconst char *"));
    assert!(written.len() > 25);
    assert_eq!(written, declared);
}
