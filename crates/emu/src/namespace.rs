//! Network namespaces with TAP interfaces and resolvable names: created, found again after a crash, and removed.
//!
//! iproute2's `ip` creates and configures the namespaces, not netlink calls from here. It is available on every
//! relevant Linux, and `ip netns exec` enters its namespaces, with the right `/etc/netns` and `/sys`. It runs twice per
//! robot, at the start and never while frames move. Only the TAPs are created from here, because their files are
//! needed. They are created inside their namespace, so that no network manager of the host ever sees them.
//!
//! A namespace is named after the emulator's process and the robot, and the emulator holds a lock while it lives. So
//! the next start can distinguish the namespaces of a living emulator from those left by a killed one.

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

use crate::error::Error;
use crate::ffi;
use crate::frame::Mac;
use crate::outqueue::OutQueue;

const PREFIX: &str = "coorp-";
/// The folders in which iproute2 keeps the namespaces' names, and their replacements for files of `/etc`.
const NAMES: &str = "/run/netns";
const ETC: &str = "/etc/netns";
/// The folder of the locks of living emulators.
const LOCKS: &str = "/run/coorp";
/// Frames that a TAP queues for the emulator; the driver's default.
pub const TAP_FRAMES: u32 = 1_000;
/// IPv6 settings in a namespace: no duplicate address detection, no router solicitations, and group reports sent once,
/// immediately, without a repetition within a second.
const QUIET: [(&str, &str); 3] = [
    ("accept_dad", "0"),
    ("router_solicitations", "0"),
    ("mldv2_unsolicited_report_interval", "1"),
];
/// Maximum number of searches for processes that a killed one may have started in the meantime.
const KILL_ROUNDS: u32 = 50;

/// One interface of a robot.
#[derive(Clone, Debug)]
pub struct Interface {
    /// `wlan0` and so on.
    pub name: String,
    pub mac: Mac,
    /// The address with its prefix length, `10.77.0.1/16`.
    pub address: String,
}

/// The lock of a living emulator.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _held: File,
}

impl Lock {
    /// Locks this process as an emulator, and removes what dead emulators left behind. Returns the number of namespaces
    /// removed.
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
        // If it remains, the next start removes it.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock_path(process: u32) -> PathBuf {
    Path::new(LOCKS).join(format!("emu-{process}.lock"))
}

/// Creates this process's lock file and holds the lock.
fn hold(own: u32) -> io::Result<File> {
    fs::create_dir_all(LOCKS)?;
    loop {
        let held = File::create(lock_path(own))?;
        // Another emulator that is starting may have just checked whether this one lives, and have removed the file.
        flock(&held, FlockOperation::LockExclusive)?;
        let there = fs::metadata(lock_path(own));
        if there.is_ok_and(|there| held.metadata().is_ok_and(|held| held.ino() == there.ino())) {
            return Ok(held);
        }
    }
}

/// Returns whether the emulator with this process id is alive, and thus holds its lock. A different process that has
/// reused the id does not.
fn lives(process: u32) -> bool {
    File::open(lock_path(process)).is_ok_and(|lock| !free(&lock))
}

/// Takes this lock until the file is closed. Returns whether it was free.
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
            // A file that cannot be removed now is removed at the next start.
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Returns all namespaces of emulators, including partially created ones, with the processes that created them.
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
    /// For reading and writing the frames of its stack.
    pub tap: File,
    /// Tells the robot's programs which frames the driver has freed.
    pub queue: OutQueue,
}

/// The network namespace of one robot.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a robot's namespace with its interfaces, up and ready, and opens their TAPs. `hosts` is the content of
    /// `/etc/hosts` inside it.
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
        // A real card has finished joining its network when programs start: its addresses are known to be unique, and
        // there is no router. If all asked at once, they would cause a storm that no real team sees.
        let quieten = || {
            for (file, value) in QUIET {
                // Without IPv6 there is nothing to configure.
                let _ = fs::write(Path::new("/proc/sys/net/ipv6/conf/default").join(file), value);
            }
        };
        self.inside(quieten)
            .map_err(|error| failed("enter the namespace", &error))?;
        let names: Vec<String> = interfaces.iter().map(|interface| interface.name.clone()).collect();
        let open_one = |name: &String| {
            Ok(Card {
                tap: ffi::open_tap(name)?,
                queue: OutQueue::listen(name)?,
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
        // The team's network has no default route, so broadcast and multicast need explicit routes.
        let first = interfaces.first().map_or("", |interface| interface.name.as_str());
        batch += &format!("route add 224.0.0.0/4 dev {first}\nroute add 255.255.255.255 dev {first}\n");
        ip(&["-n", &self.name, "-batch", "-"], &batch)?;
        Ok(cards)
    }

    /// Returns the name for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the replacements of `/etc` files for programs inside: robots' names are resolved from `hosts` first,
    /// whatever the machine's configuration.
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

    /// Runs `work` on a thread inside the namespace.
    fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let namespace = File::open(Path::new(NAMES).join(&self.name))?;
        let enter = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        };
        let worked = thread::Builder::new().spawn(enter)?.join();
        worked.map_err(|_| io::Error::other("the thread in the namespace panicked"))?
    }

    /// Returns the kernel's table of its interfaces.
    fn interfaces(&self) -> String {
        let read = || fs::read_to_string("/proc/thread-self/net/dev");
        self.inside(read).and_then(|table| table).unwrap_or_default()
    }

    /// Returns the number of frames that the kernel could not put into the TAPs, because the emulator had not fetched
    /// earlier ones.
    pub fn frames_missed(&self) -> u64 {
        transmit_drops(&self.interfaces())
    }

    /// Returns whether it has an interface of this name.
    pub fn has(&self, interface: &str) -> bool {
        let names = self.interfaces();
        let mut names = names.lines().filter_map(|line| line.split_once(':'));
        names.any(|(name, _)| name.trim() == interface)
    }

    /// Kills every process in the namespace.
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

    /// Kills every process in the namespace, and removes it with everything that belongs to it.
    pub fn clear(&self) {
        self.kill();
        // The next start retries to remove anything that remains.
        let _ = ip(&["netns", "delete", &self.name], "");
        let _ = fs::remove_dir_all(Path::new(ETC).join(&self.name));
    }
}

/// Returns the column `drop` of `Transmit`, summed over all interfaces except the loopback.
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

/// Returns the processes in this network namespace. Zombies have no namespace.
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

/// Runs `ip` with `input` on its stdin.
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
        "`{}` failed: {}; coorp emu needs a kernel with network namespaces, and root with permission to create them \
         (in a container: --privileged)",
        shown(),
        said.trim()
    )))
}

fn no_ip(error: &io::Error) -> Error {
    Error::Unable(match error.kind() {
        io::ErrorKind::NotFound => {
            "cannot find `ip`, which creates the namespaces: install iproute2 (apt install iproute2)".to_owned()
        }
        _ => format!("cannot run `ip`: {error}"),
    })
}

fn no_tap(error: &io::Error) -> Error {
    let mend = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "load the driver (modprobe tun); a container needs the device too (--device /dev/net/tun)"
        }
        Some(libc::EPERM | libc::EACCES) => "a container needs permission to create interfaces (--cap-add NET_ADMIN)",
        _ => "check that /dev/net/tun exists and that you have access to it",
    };
    Error::Unable(format!(
        "cannot create a TAP interface with /dev/net/tun: {error}; {mend}"
    ))
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
        // No process locks as process 0.
        assert!(!lives(0));
    }
}
