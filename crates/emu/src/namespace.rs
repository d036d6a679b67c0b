//! Network namespaces with TAP interfaces and names that resolve: made, found again after a crash, and cleared away.
//!
//! Namespaces are made and set up by `ip` from iproute2 and not by netlink from here: it is there on every Linux that
//! anybody would do this on, its namespaces are those that `ip netns exec` enters, with `/etc/netns` and `/sys` as they
//! should be, and it runs twice for each robot, at the start and never while frames move. Only the TAPs are made from
//! here, as their files are needed: right in their namespace, so that no network manager of the host ever sees them.
//!
//! A namespace is named after the emulator's process and the robot, and the emulator holds a lock as long as it lives.
//! So the next start tells those of a living emulator from what a killed one left.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{flock, FlockOperation};
use rustix::process::{kill_process, Pid, Signal};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

use crate::ffi;
use crate::frame::Mac;
use crate::run::Error;
use crate::status::Status;

const PREFIX: &str = "coorp-";
/// Where iproute2 keeps the namespaces' names, and what replaces files of `/etc` in them.
const NAMES: &str = "/run/netns";
const ETC: &str = "/etc/netns";
/// Where the locks of living emulators are.
const LOCKS: &str = "/run/coorp";
/// Frames that a TAP holds for the emulator; the driver's own default.
pub const TAP_FRAMES: u32 = 1_000;
/// Settings of IPv6 in a namespace: no duplicate address detection, no router solicitations, and groups are reported at
/// once and not once more within a second.
const QUIET: [(&str, &str); 3] = [
    ("accept_dad", "0"),
    ("router_solicitations", "0"),
    ("mldv2_unsolicited_report_interval", "1"),
];
/// How often to look for processes again that a killed one may have started meanwhile.
const KILL_ROUNDS: u32 = 50;

/// One interface of a robot.
#[derive(Clone, Debug)]
pub struct Interface {
    /// `wlan0` and so on.
    pub name: String,
    pub mac: Mac,
    /// With its prefix length, `10.77.0.1/16`.
    pub address: String,
}

/// The mark of a living emulator.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _held: File,
}

impl Lock {
    /// Marks this process as an emulator, and clears away what others left that live no more. Tells how many namespaces
    /// those were.
    pub fn take() -> Result<(Lock, usize), Error> {
        let own = std::process::id();
        let (path, held) = (
            lock_path(own),
            hold(own).map_err(|error| failed(&format!("lock a file in {LOCKS}"), &error))?,
        );
        let mut left = 0;
        for (name, owner) in named() {
            if owner == own || !lives(owner) {
                Namespace { name }.clear();
                left += 1;
            }
        }
        forget_dead_locks(own);
        Ok((Lock { path, _held: held }, left))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // One that stays is forgotten at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock_path(process: u32) -> PathBuf {
    Path::new(LOCKS).join(format!("emu-{process}.lock"))
}

/// Makes the lock of this process and holds it.
fn hold(own: u32) -> io::Result<File> {
    fs::create_dir_all(LOCKS)?;
    loop {
        let held = File::create(lock_path(own))?;
        // Another that starts may just look whether this one lives, and then have taken the file away.
        flock(&held, FlockOperation::LockExclusive)?;
        let there = fs::metadata(lock_path(own));
        if there.is_ok_and(|there| held.metadata().is_ok_and(|held| held.ino() == there.ino())) {
            return Ok(held);
        }
    }
}

/// Whether the emulator of this process id is alive: it then holds its lock. A process of another kind that has the
/// number now does not.
fn lives(process: u32) -> bool {
    File::open(lock_path(process)).is_ok_and(|lock| !free(&lock))
}

/// Whether nobody held this lock. It is held from now on until the file is closed.
fn free(lock: &File) -> bool {
    flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn forget_dead_locks(own: u32) {
    for file in fs::read_dir(LOCKS).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("emu-").and_then(|rest| rest.strip_suffix(".lock"));
        let owner = owner.and_then(|owner| owner.parse().ok());
        let Some(lock) = owner
            .filter(|owner: &u32| *owner != own)
            .and_then(|_| File::open(file.path()).ok())
        else {
            continue;
        };
        if free(&lock) {
            // Whoever cannot remove it now can at the next start.
            let _ = fs::remove_file(file.path());
        }
    }
}

/// All namespaces of emulators, and of those whose making was cut short, with the processes that made them.
fn named() -> Vec<(String, u32)> {
    let folders = [NAMES, ETC].map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let names: BTreeSet<String> = folders
        .into_iter()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let owner = |name: &String| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok();
    names
        .into_iter()
        .filter_map(|name| owner(&name).map(|owner| (name, owner)))
        .collect()
}

/// A robot's side of one interface.
#[derive(Debug)]
pub struct Card {
    /// Where its stack's frames are fetched and put.
    pub tap: File,
    /// Where its programs are told what became of them.
    pub status: Status,
}

/// The network namespace of one robot.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes the namespace of a robot with its interfaces, up and ready, and opens their TAPs. `hosts` is what
    /// `/etc/hosts` says in it.
    pub fn make(robot: &str, interfaces: &[Interface], hosts: &str) -> Result<(Namespace, Vec<Card>), Error> {
        let namespace = Namespace {
            name: format!("{PREFIX}{}-{robot}", std::process::id()),
        };
        let made = namespace.set_up(interfaces, hosts);
        if made.is_err() {
            namespace.clear();
        }
        made.map(|cards| (namespace, cards))
    }

    fn set_up(&self, interfaces: &[Interface], hosts: &str) -> Result<Vec<Card>, Error> {
        self.write_etc(hosts)
            .map_err(|error| failed(&format!("write {ETC}/{}", self.name), &error))?;
        ip(&["netns", "add", &self.name], "")?;
        // What a card does while it joins a network is over when programs start: its addresses are known to be its own,
        // and there is no router. Asking so all at once would be a storm that no real team sees.
        let quieten = || {
            for (file, value) in QUIET {
                // Where there is no IPv6 there is nothing to quieten.
                let _ = fs::write(Path::new("/proc/sys/net/ipv6/conf/default").join(file), value);
            }
        };
        self.inside(quieten)
            .map_err(|error| failed("enter the namespace", &error))?;
        let names: Vec<String> = interfaces.iter().map(|interface| interface.name.clone()).collect();
        let open_one = |name: &String| {
            Ok(Card {
                tap: ffi::open_tap(name)?,
                status: Status::listen(name)?,
            })
        };
        let open = move || names.iter().map(open_one).collect::<io::Result<Vec<Card>>>();
        let cards = self
            .inside(open)
            .map_err(|error| no_tap(&error))?
            .map_err(|error| no_tap(&error))?;
        let mut batch = String::from("link set lo up\n");
        for Interface { name, mac, address } in interfaces {
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            batch += &format!("link set {name} address {mac} txqueuelen {TAP_FRAMES} up\n");
            batch += &format!("addr add {address} brd + dev {name}\n");
        }
        // A team's network has no way out, so what goes to all or to a group needs to be told its way.
        let first = interfaces.first().map_or("", |interface| interface.name.as_str());
        batch += &format!("route add 224.0.0.0/4 dev {first}\nroute add 255.255.255.255 dev {first}\n");
        ip(&["-n", &self.name, "-batch", "-"], &batch)?;
        Ok(cards)
    }

    /// The name that `ip netns exec` knows it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The files that replace those of `/etc` for programs inside: names of robots come from `hosts`, and from there
    /// first, whatever the machine asks otherwise.
    fn write_etc(&self, hosts: &str) -> io::Result<()> {
        let folder = Path::new(ETC).join(&self.name);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("hosts"), hosts)?;
        if let Ok(switch) = fs::read_to_string("/etc/nsswitch.conf") {
            let others = switch.lines().filter(|line| !line.trim_start().starts_with("hosts:"));
            let lines: Vec<&str> = others.chain(["hosts: files dns"]).collect();
            fs::write(folder.join("nsswitch.conf"), lines.join("\n") + "\n")?;
        }
        Ok(())
    }

    /// Does something on a thread inside the namespace.
    fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let namespace = File::open(Path::new(NAMES).join(&self.name))?;
        let enter = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        };
        let worked = thread::Builder::new().spawn(enter)?.join();
        worked.map_err(|_| io::Error::other("the thread in the namespace panicked"))?
    }

    /// Frames that the kernel could not put into each TAP, as the emulator had not fetched those before.
    pub fn frames_missed(&self) -> u64 {
        let read = || fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        self.inside(read).map_or(0, |table| transmit_drops(&table))
    }

    /// Kills every process inside.
    pub fn kill(&self) {
        let Ok(namespace) = fs::metadata(Path::new(NAMES).join(&self.name)) else {
            return;
        };
        for _ in 0..KILL_ROUNDS {
            let inside = processes_in(namespace.dev(), namespace.ino());
            if inside.is_empty() {
                return;
            }
            for process in inside {
                // It may have ended by itself.
                let _ = kill_process(process, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills every process inside and removes the namespace with all that belongs to it.
    pub fn clear(&self) {
        self.kill();
        // What is not there needs no removing, and what cannot be removed is tried again at the next start.
        let _ = ip(&["netns", "delete", &self.name], "");
        let _ = fs::remove_dir_all(Path::new(ETC).join(&self.name));
    }
}

/// The column `drop` of `Transmit`, over all interfaces but the loopback.
fn transmit_drops(table: &str) -> u64 {
    let of_line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        if name.trim() == "lo" {
            return None;
        }
        numbers.split_whitespace().nth(11)?.parse::<u64>().ok()
    };
    table.lines().filter_map(of_line).sum()
}

/// Processes whose network namespace this is. Zombies have none.
fn processes_in(device: u64, inode: u64) -> Vec<Pid> {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let inside = fs::metadata(entry.path().join("ns/net"));
        if process != own && inside.is_ok_and(|inside| (inside.dev(), inside.ino()) == (device, inode)) {
            found.extend(i32::try_from(process).ok().and_then(Pid::from_raw));
        }
    }
    found
}

/// Runs `ip`, with `input` on its stdin.
fn ip(arguments: &[&str], input: &str) -> Result<(), Error> {
    let shown = || format!("ip {}", arguments.join(" "));
    let mut child = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| no_ip(&error))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(input.as_bytes())
            .map_err(|error| failed(&shown(), &error))?;
    }
    let output = child.wait_with_output().map_err(|error| failed(&shown(), &error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Unable(format!(
        "`{}` failed: {}; coorp emu needs a kernel with network namespaces, and root with the right to make them (in a \
         container: --privileged)",
        shown(),
        said.trim()
    )))
}

fn no_ip(error: &io::Error) -> Error {
    Error::Unable(match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no program `ip`, which makes the namespaces: install iproute2 (apt install iproute2)".to_owned()
        }
        _ => format!("cannot run `ip`: {error}"),
    })
}

fn no_tap(error: &io::Error) -> Error {
    let mend = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "load the driver (modprobe tun); a container needs the device too (--device /dev/net/tun)"
        }
        Some(libc::EPERM | libc::EACCES) => "a container needs the right to make interfaces (--cap-add NET_ADMIN)",
        _ => "is there a /dev/net/tun, and may you use it?",
    };
    Error::Unable(format!("cannot make a TAP interface by /dev/net/tun: {error}; {mend}"))
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::Unable(format!("cannot {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_from_the_kernels_table() {
        let table = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
            lo:     100       1    0    9    0     0          0         0      100       1    0    8    0     0       0          0\n \
            wlan0: 1000      10    0    7    0     0          0         0     2000      20    0    3    0     0       0          0\n \
            wlan1: 1000      10    0    7    0     0          0         0     2000      20    0    2    0     0       0          0\n";
        assert_eq!(transmit_drops(table), 5);
        assert_eq!(transmit_drops("nonsense: a b"), 0);
    }

    #[test]
    fn a_process_without_a_lock_does_not_live() {
        // Nobody locks as process 0.
        assert!(!lives(0));
    }
}
