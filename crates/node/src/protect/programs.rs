//! Finds the programs that send flows, for rules that name programs: whose process holds the socket.
//!
//! The kernel lists sockets by their addresses, and the sockets of each process. To read all of that takes
//! milliseconds, so a thread of its own does it, for all flows that are asked for meanwhile. It works for at most a
//! tenth of the time, whatever comes. A socket that is not accepted yet belongs to nobody, so a flow is looked up a few
//! times.
//!
//! Left out: sockets of other network namespaces, such as a container's; a process that gets a socket later.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coorp_core::protect::{Flow, Program};
use procfs::net::{tcp, tcp6, udp, udp6, UdpNetEntry};
use procfs::process::{all_processes, FDTarget, Process};

use crate::sync::lock;
use crate::tasks::caught;
use crate::Error;

/// Maximum number of flows that are being looked up.
const FLOWS_MAX: usize = 256;
/// The time between two searches, at least, and the wait before a flow is looked up again, which doubles each time.
const APART: Duration = Duration::from_millis(100);
/// A pause is at least this many times as long as the search before it.
const PAUSE: u32 = 9;
/// The maximum number of searches for a flow: if its socket exists, and if not.
const TIMES: u32 = 6;
const TIMES_WITHOUT: u32 = 2;
const TCP: u8 = 6;
/// The kernel appends this to the path of a program whose file was replaced.
const DELETED: &str = " (deleted)";

/// The search, until it is dropped.
pub(super) struct Programs {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    ends: AtomicBool,
}

#[derive(Default)]
struct State {
    wanted: Vec<Wanted>,
    found: Vec<(Flow, Vec<Program>)>,
}

struct Wanted {
    flow: Flow,
    times: u32,
    due: Instant,
}

impl Programs {
    /// Starts the thread. `wake` is called when something was found.
    pub fn start(wake: impl Fn() + Send + 'static) -> Result<Programs, Error> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            ends: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        let search = move || {
            if let Some(why) = caught("the search for programs", || of_thread.search(wake)) {
                tracing::error!(
                    "{why}: rules with `executable` or `cgroup` no longer cover new flows; restart the agent"
                );
            }
        };
        let thread = std::thread::Builder::new().name("coorp-programs".to_owned());
        Ok(Programs {
            shared,
            thread: Some(thread.spawn(search).map_err(Error::Thread)?),
        })
    }

    /// Looks up the flows that `next` returns, as far as there is room, and returns what was found since the last call.
    /// Does nothing while the thread has the lock: control does not wait for a thread without priority.
    pub fn exchange(&self, mut next: impl FnMut() -> Option<Flow>) -> Vec<(Flow, Vec<Program>)> {
        let Ok(mut state) = self.shared.state.try_lock() else {
            return Vec::new();
        };
        let before = state.wanted.len();
        while let Some(flow) = (state.wanted.len() < FLOWS_MAX).then(&mut next).flatten() {
            let (times, due) = (0, Instant::now());
            state.wanted.push(Wanted { flow, times, due });
        }
        if state.wanted.len() > before {
            self.shared.changed.notify_one();
        }
        std::mem::take(&mut state.found)
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        // Under the lock, or the thread could be just before its wait.
        drop(lock(&self.shared.state));
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic has already been reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn search(&self, wake: impl Fn()) {
        while let Some(due) = self.wait_for_flows() {
            let began = Instant::now();
            let seen = programs_of(&due, &self.ends);
            let now = Instant::now();
            let found = self.record(seen, now);
            if found {
                wake();
            }
            let pause = APART.max(now.duration_since(began) * PAUSE);
            let state = lock(&self.state);
            drop(
                self.changed
                    .wait_timeout_while(state, pause, |_| !self.ends.load(Ordering::Acquire)),
            );
        }
    }

    /// Waits until flows have to be looked up. Returns them, or `None` at the end.
    fn wait_for_flows(&self) -> Option<Vec<Flow>> {
        let mut state = lock(&self.state);
        while !self.ends.load(Ordering::Acquire) {
            let now = Instant::now();
            let due = state.wanted.iter().filter(|wanted| wanted.due <= now);
            let due: Vec<Flow> = due.map(|wanted| wanted.flow).collect();
            if !due.is_empty() {
                return Some(due);
            }
            let next = state.wanted.iter().map(|wanted| wanted.due).min();
            let wait = next.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
            state = match self.changed.wait_timeout(state, wait) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        None
    }

    /// Records the results of a search. Returns whether any program was found.
    fn record(&self, seen: BTreeMap<Flow, Seen>, now: Instant) -> bool {
        let mut state = lock(&self.state);
        state.wanted.retain_mut(|wanted| {
            let Some(seen) = seen.get(&wanted.flow) else {
                return true;
            };
            wanted.times += 1;
            wanted.due = now + APART * (1 << wanted.times);
            let times = if seen.has_socket { TIMES } else { TIMES_WITHOUT };
            seen.programs.is_empty() && wanted.times < times
        });
        let found = seen.into_iter().filter(|(_, seen)| !seen.programs.is_empty());
        state.found.extend(found.map(|(flow, seen)| (flow, seen.programs)));
        !state.found.is_empty()
    }
}

/// The result of one search for a flow.
#[derive(Clone, Debug, Default)]
struct Seen {
    has_socket: bool,
    programs: Vec<Program>,
}

/// Looks for the programs of flows, until `ends` is set.
fn programs_of(flows: &[Flow], ends: &AtomicBool) -> BTreeMap<Flow, Seen> {
    let mut seen: BTreeMap<Flow, Seen> = flows.iter().map(|flow| (*flow, Seen::default())).collect();
    let sockets = sockets_of(flows);
    for flow in sockets.values().flatten() {
        seen.entry(*flow).or_default().has_socket = true;
    }
    if sockets.is_empty() {
        return seen;
    }
    // Processes end meanwhile, and some cannot be read without further rights.
    let processes = all_processes().into_iter().flatten().flatten();
    for process in processes.take_while(|_| !ends.load(Ordering::Acquire)) {
        let files = process.fd().into_iter().flatten().flatten();
        let held = files.filter_map(|file| match file.target {
            FDTarget::Socket(socket) => sockets.get(&socket),
            _ => None,
        });
        let held: BTreeSet<Flow> = held.flatten().copied().collect();
        if !held.is_empty() {
            let program = program(&process);
            for flow in held {
                seen.entry(flow).or_default().programs.push(program.clone());
            }
        }
    }
    seen
}

/// Returns the flows that each socket may send, by its number.
fn sockets_of(flows: &[Flow]) -> BTreeMap<u64, BTreeSet<Flow>> {
    let mut sockets: BTreeMap<u64, BTreeSet<Flow>> = BTreeMap::new();
    let mut add = |socket: u64, sends: &dyn Fn(&Flow) -> bool| {
        // Number 0 stands for a socket that nobody has accepted.
        for flow in flows.iter().filter(|flow| socket != 0 && sends(flow)) {
            sockets.entry(socket).or_default().insert(*flow);
        }
    };
    if flows.iter().any(|flow| flow.protocol == TCP) {
        for entry in [tcp(), tcp6()].into_iter().flatten().flatten() {
            let ends = (end(entry.local_address), end(entry.remote_address));
            add(entry.inode, &|flow| {
                flow.protocol == TCP && (flow.from, flow.to) == ends
            });
        }
    }
    let datagrams = |entry: &UdpNetEntry, flow: &Flow| {
        let (from, to) = (end(entry.local_address), end(entry.remote_address));
        let is_from = from.1 == flow.from.1 && (from.0.is_unspecified() || from.0 == flow.from.0);
        flow.protocol != TCP && is_from && (to.0.is_unspecified() || to == flow.to)
    };
    if flows.iter().any(|flow| flow.protocol != TCP) {
        let of_ipv4: Vec<UdpNetEntry> = udp().unwrap_or_default();
        for entry in &of_ipv4 {
            add(entry.inode, &|flow| datagrams(entry, flow));
        }
        // Any user can bind a socket of IPv6 alone to the same port, and it looks like one for both.
        let has_own = |flow: &Flow| of_ipv4.iter().any(|entry| datagrams(entry, flow));
        for entry in udp6().unwrap_or_default() {
            add(entry.inode, &|flow| datagrams(&entry, flow) && !has_own(flow));
        }
    }
    sockets
}

/// Returns an address as packets have it: a socket of IPv6 may send over IPv4.
fn end(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

fn program(process: &Process) -> Program {
    let executable = process.exe().ok().map(|path| path.to_string_lossy().into_owned());
    let unified = process.cgroups().ok().and_then(|groups| {
        let mut groups = groups.into_iter();
        groups.find(|group| group.hierarchy == 0)
    });
    Program {
        executable: executable.map(|path| path.trim_end_matches(DELETED).to_owned()),
        cgroup: unified.map(|group| group.pathname),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Socket, Type};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    fn flow(protocol: u8, from: SocketAddr, to: SocketAddr) -> Flow {
        Flow {
            protocol,
            from: (from.ip(), from.port()),
            to: (to.ip(), to.port()),
            writer: None,
        }
    }

    #[test]
    fn a_socket_belongs_to_the_program_that_holds_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let stream = TcpStream::connect(at).unwrap();
        let from = stream.local_addr().unwrap();
        // Without a fixed receiver, at all addresses of both families.
        let open = UdpSocket::bind("[::]:0").unwrap();
        let port = open.local_addr().unwrap().port();
        let sent = flow(17, ([127, 0, 0, 1], port).into(), at);
        let flows = [
            flow(TCP, from, at),
            sent,
            flow(TCP, from, ([127, 0, 0, 2], at.port()).into()),
            flow(17, from, at),
        ];
        let seen = programs_of(&flows, &AtomicBool::new(false));
        let own = std::env::current_exe().unwrap();
        let is_own = |program: &Program| program.executable.as_deref() == own.to_str();
        let is_path = |program: &Program| program.cgroup.as_ref().is_none_or(|group| group.starts_with('/'));
        for (place, flow) in flows.iter().enumerate() {
            let Seen { has_socket, programs } = &seen[flow];
            assert_eq!(
                (*has_socket, programs.iter().any(is_own)),
                (place < 2, place < 2),
                "{flow}"
            );
            assert!(programs.iter().all(is_path), "{programs:?}");
        }
    }

    #[test]
    fn a_socket_of_ipv6_alone_does_not_send_what_one_of_ipv4_does() {
        let own = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = own.local_addr().unwrap().port();
        let other = Socket::new(Domain::IPV6, Type::DGRAM, None).unwrap();
        other.set_only_v6(true).unwrap();
        let all: SocketAddr = (std::net::Ipv6Addr::UNSPECIFIED, port).into();
        other.bind(&all.into()).unwrap();
        let sent = flow(17, ([127, 0, 0, 1], port).into(), ([127, 0, 0, 1], 9).into());
        assert_eq!(sockets_of(&[sent]).len(), 1);
        drop(own);
        assert_eq!(sockets_of(&[sent]).len(), 1, "the kernel does not tell them apart");
    }

    #[test]
    fn a_flow_is_looked_up_until_its_socket_belongs_to_somebody() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = taken.local_addr().unwrap();
        drop(taken);
        let programs = Programs::start(|| ()).unwrap();
        let sent = flow(17, from, ([127, 0, 0, 1], 9).into());
        let mut asked = vec![sent];
        let mut found = move |programs: &Programs| programs.exchange(|| asked.pop());
        assert!(found(&programs).is_empty());
        std::thread::sleep(Duration::from_millis(50));
        let _socket = UdpSocket::bind(from).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !found(&programs)
            .iter()
            .any(|(flow, programs)| *flow == sent && !programs.is_empty())
        {
            assert!(Instant::now() < until, "it is not found");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
