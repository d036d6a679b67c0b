//! Finds the programs that send flows, for rules that name programs: whose process holds the socket.
//!
//! The kernel lists sockets by their addresses, and the sockets of each process. To read all of that takes
//! milliseconds, so a thread of its own does it, for all flows that are asked for meanwhile. A socket that is not
//! accepted yet belongs to nobody, so a flow is looked up a few times.
//!
//! Left out: sockets of other network namespaces, such as a container's; a process that gets a socket later.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coorp_core::protect::{Flow, Program};
use procfs::net::{tcp, tcp6, udp, udp6};
use procfs::process::{all_processes, FDTarget, Process};

use crate::sync::lock;
use crate::tasks::caught;
use crate::Error;

/// Maximum number of flows that are being looked up.
const FLOWS_MAX: usize = 256;
/// The time between two searches, and the wait before a flow is looked up again, which doubles each time.
const APART: Duration = Duration::from_millis(100);
/// The number of times that a flow is looked up.
const TIMES: u32 = 6;
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
}

#[derive(Default)]
struct State {
    wanted: Vec<Wanted>,
    found: Vec<(Flow, Vec<Program>)>,
    ends: bool,
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

    /// Returns whether another flow can be looked up.
    pub fn has_room(&self) -> bool {
        lock(&self.shared.state).wanted.len() < FLOWS_MAX
    }

    /// Looks up a flow.
    pub fn look_up(&self, flow: Flow) {
        let (times, due) = (0, Instant::now());
        lock(&self.shared.state).wanted.push(Wanted { flow, times, due });
        self.shared.changed.notify_one();
    }

    /// Returns what was found since the last call.
    pub fn found(&self) -> Vec<(Flow, Vec<Program>)> {
        std::mem::take(&mut lock(&self.shared.state).found)
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        lock(&self.shared.state).ends = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic has already been reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn search(&self, wake: impl Fn()) {
        let mut state = lock(&self.state);
        while !state.ends {
            let now = Instant::now();
            let next = state.wanted.iter().map(|wanted| wanted.due).min();
            match next.map(|due| due.saturating_duration_since(now)) {
                Some(Duration::ZERO) => {}
                wait => {
                    let wait = wait.unwrap_or(Duration::MAX);
                    state = match self.changed.wait_timeout(state, wait) {
                        Ok((state, _)) => state,
                        Err(poisoned) => poisoned.into_inner().0,
                    };
                    continue;
                }
            }
            let due: Vec<Flow> = state
                .wanted
                .iter()
                .filter(|wanted| wanted.due <= now)
                .map(|wanted| wanted.flow)
                .collect();
            drop(state);
            let found = programs_of(&due);
            // Whatever comes, a search takes only a small part of a core.
            let now = Instant::now();
            state = lock(&self.state);
            for wanted in state.wanted.iter_mut().filter(|wanted| due.contains(&wanted.flow)) {
                wanted.times += 1;
                wanted.due = now + APART * (1 << wanted.times.min(TIMES));
            }
            let has = |flow: &Flow| found.iter().any(|(found, _)| found == flow);
            state.wanted.retain(|wanted| wanted.times < TIMES && !has(&wanted.flow));
            if !found.is_empty() {
                state.found.extend(found);
                wake();
            }
            state = match self.changed.wait_timeout_while(state, APART, |state| !state.ends) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// Returns the programs of those flows for which any is found.
fn programs_of(flows: &[Flow]) -> Vec<(Flow, Vec<Program>)> {
    let sockets = sockets_of(flows);
    let mut programs: Vec<Vec<Program>> = vec![Vec::new(); flows.len()];
    if sockets.is_empty() {
        return Vec::new();
    }
    // Processes end meanwhile, and some cannot be read without further rights.
    let processes = all_processes().into_iter().flatten().flatten();
    for process in processes {
        let files = process.fd().into_iter().flatten().flatten();
        let held = files.filter_map(|file| match file.target {
            FDTarget::Socket(socket) => sockets.get(&socket),
            _ => None,
        });
        let mut held: Vec<usize> = held.flatten().copied().collect();
        held.sort_unstable();
        held.dedup();
        if !held.is_empty() {
            let program = program(&process);
            held.into_iter().for_each(|place| programs[place].push(program.clone()));
        }
    }
    let all = flows.iter().copied().zip(programs);
    all.filter(|(_, programs)| !programs.is_empty()).collect()
}

/// Returns the places of the flows that each socket may send.
fn sockets_of(flows: &[Flow]) -> BTreeMap<u64, Vec<usize>> {
    let mut sockets: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut add = |socket: u64, sends: &dyn Fn(&Flow) -> bool| {
        // Number 0 stands for a socket that nobody has accepted.
        if socket != 0 {
            let places = flows.iter().enumerate().filter(|(_, flow)| sends(flow));
            sockets
                .entry(socket)
                .or_default()
                .extend(places.map(|(place, _)| place));
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
    if flows.iter().any(|flow| flow.protocol != TCP) {
        for entry in [udp(), udp6()].into_iter().flatten().flatten() {
            let (from, to) = (end(entry.local_address), end(entry.remote_address));
            let is_from = |flow: &Flow| from.1 == flow.from.1 && (from.0.is_unspecified() || from.0 == flow.from.0);
            let is_to = |flow: &Flow| to.0.is_unspecified() || to == flow.to;
            add(entry.inode, &|flow| {
                flow.protocol != TCP && is_from(flow) && is_to(flow)
            });
        }
    }
    sockets.retain(|_, places| !places.is_empty());
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
        let found = programs_of(&flows);
        let of: Vec<Flow> = found.iter().map(|(flow, _)| *flow).collect();
        assert_eq!(of, flows[..2]);
        let own = std::env::current_exe().unwrap();
        for (flow, programs) in found {
            let is_own = |program: &&Program| program.executable.as_deref() == own.to_str();
            let found = programs.iter().find(is_own);
            assert!(found.is_some(), "{flow}: {programs:?}");
            let group = found.and_then(|program| program.cgroup.as_deref());
            assert!(group.is_none_or(|group| group.starts_with('/')), "{group:?}");
        }
    }

    #[test]
    fn a_flow_is_looked_up_until_its_socket_belongs_to_somebody() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = taken.local_addr().unwrap();
        drop(taken);
        let programs = Programs::start(|| ()).unwrap();
        let sent = flow(17, from, ([127, 0, 0, 1], 9).into());
        programs.look_up(sent);
        std::thread::sleep(Duration::from_millis(150));
        assert!(programs.found().is_empty());
        let _socket = UdpSocket::bind(from).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let found = programs.found();
            if found
                .iter()
                .any(|(flow, programs)| *flow == sent && !programs.is_empty())
            {
                return;
            }
            assert!(Instant::now() < until && programs.has_room());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
