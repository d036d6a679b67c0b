//! Protects programs that know nothing of Coorp. What they send to the team's network goes through a TUN of the agent,
//! which classifies it as control, bulk or neither ([`coorp_core::protect`]), and sends it on by a raw socket.
//!
//! For each path there is a *lane* (`lane.rs`): an interface, its TUN (`tun.rs`) with the routes into it (`routes.rs`),
//! two raw sockets that are bound to the interface, and a thread. Control leaves at once, marked for AC_VO. Bulk waits for the
//! permit and the gate, exactly as QUIC's bulk does below the library; it is held in order, and its protocol is left
//! alone. Ordinary packets keep their marks, and leave as long as few packets are below. So a sender of more than the
//! channel carries builds up a queue here.
//!
//! With a choice of paths, control goes wrapped over some of them to the other agent, which unwraps it (`wrap.rs`).
//! Other arriving packets do not pass through the agent: the kernel delivers them as usual. If the thread or the
//! process dies, the TUN disappears, and packets flow as before.
//!
//! A flow is never reordered here when it becomes control, or begins to go wrapped, or stops. It begins with a message,
//! once its earlier packets have left the card. When a wrapped flow is no longer control, everything that waits stays
//! here until the wrapped packets have arrived. Only when the agent ends, or its interface or rules change, may packets
//! that bypass the TUN overtake those that wait.
//!
//! TCP's segments may come from the kernel together and leave together, up to 16 at a time (`segments.rs`).
//!
//! Left out: IPv6, multicast and broadcast, which bypass the TUN; offload for UDP; and back-pressure: a full TUN drops
//! packets, whereas a full card would make a program wait.

mod card;
mod fragments;
mod lane;
mod neighbours;
mod packet;
mod programs;
mod routes;
mod segments;
mod tun;
mod wrap;

use std::cmp::Reverse;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use coorp_core::paths;
use coorp_core::protect::{Class, Status};
use coorp_core::robot::Input;
use coorp_core::Duration;
use rustix::event::{eventfd, EventfdFlags};

use self::lane::Lane;
use self::routes::Outlet;
pub use self::routes::{protect_priorities, unprotect};
pub(crate) use self::wrap::{accepted, Wrapper};
use crate::control::Control;
use crate::member::Member;
use crate::rank::real_time;
use crate::shared_robot::SharedRobot;
use crate::sync::lock;
use crate::tasks::caught;
use crate::zenoh::Router;
use crate::Error;

/// Time after a flow's last wrapped packet until the next may go unwrapped: longer than the wrapped one may travel and
/// wait at its receiver.
const UNWRAPPED_AFTER: Duration = Duration::from_nanos(2 * paths::WAIT_MAX.as_nanos());
/// The name of a lane's thread, for the message after a panic.
const CARRIES: &str = "the thread that carries programs' packets";

/// Returns the name of the TUN for the programs' packets of a path.
pub fn protect_interface(path: usize) -> String {
    format!("coorp{path}")
}

/// The protection of this machine's programs, until it is dropped.
#[derive(Debug)]
pub(crate) struct Protection {
    robot: Arc<SharedRobot>,
    wrapper: Arc<Wrapper>,
    stop: Arc<AtomicBool>,
    lanes: Vec<(Arc<Outside>, JoinHandle<()>)>,
    router: Option<Router>,
}

/// The part of a lane that other threads use.
#[derive(Debug)]
struct Outside {
    wakes: OwnedFd,
    /// The flows, as of the last publication.
    flows: Mutex<Vec<Status>>,
}

impl Outside {
    fn wake(&self) {
        // This fails only if the counter is full, and then the thread is about to wake up.
        let _ = rustix::io::write(&self.wakes, &1u64.to_ne_bytes());
    }
}

impl Protection {
    /// Starts the protection. Needs root, or `CAP_NET_ADMIN` and `CAP_NET_RAW`.
    pub fn start(
        member: &Arc<Member>,
        robot: &Arc<SharedRobot>,
        control: &Arc<Control>,
        wrapper: &Arc<Wrapper>,
    ) -> Result<Protection, Error> {
        let interfaces = &member.team.robots[usize::from(member.me.0)].interfaces;
        if interfaces.is_empty() {
            return Err(Error::Protect(format!(
                "the team file does not name {}'s interfaces, so nobody knows what to protect: add interfaces = [\"wlan0\"]",
                member.name()
            )));
        }
        let mut protection = Protection {
            robot: robot.clone(),
            wrapper: wrapper.clone(),
            stop: Arc::default(),
            lanes: Vec::new(),
            // This goes first, so that a program that sees the interface finds the router.
            router: Router::start(member, wrapper.addresses())?,
        };
        for (path, interface) in interfaces.iter().enumerate().take(member.paths) {
            let outlet = Outlet::of(interface, member.team.live.protect_all)?;
            let wakes = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
            let wakes = wakes.map_err(|error| Error::Protect(format!("no event: {error}")))?;
            let outside = Arc::new(Outside {
                wakes,
                flows: Mutex::default(),
            });
            let with = (member, robot, control, wrapper);
            let lane = Lane::open(with, path, &outlet, outside.clone())?;
            tracing::info!("protecting what programs send to {} over {interface}", reach(&outlet));
            let (stop, panicked) = (protection.stop.clone(), robot.clone());
            let carry = move || {
                real_time();
                let mut lane = lane;
                let carried = caught(CARRIES, || {
                    while !stop.load(Ordering::Acquire) {
                        if let Err(error) = lane.round() {
                            let name = protect_interface(path);
                            tracing::error!(
                                "programs are no longer protected: {name} is gone ({error}); restart the agent"
                            );
                            return;
                        }
                    }
                    lane.end();
                });
                if let Some(why) = carried {
                    panicked.on_panic(&why);
                }
            };
            let thread = std::thread::Builder::new()
                .name(format!("coorp-lane{path}"))
                .spawn(carry);
            protection.lanes.push((outside, thread.map_err(Error::Thread)?));
        }
        // Remove what an earlier start has left for paths that no longer exist. Another agent would have been found by
        // now.
        routes::forget_from(protection.lanes.len());
        robot.tell(|robot, now| robot.handle(Input::Protects(true), now));
        wrapper.set_unwraps(true);
        Ok(protection)
    }

    /// Wakes the lanes, because bulk may have been allowed or stopped.
    pub fn wake(&self) {
        self.lanes.iter().for_each(|(outside, _)| outside.wake());
    }

    /// Returns the flows that programs send.
    pub fn flows(&self) -> Vec<Status> {
        let lanes = self.lanes.iter();
        let mut flows: Vec<Status> = lanes.flat_map(|(outside, _)| lock(&outside.flows).clone()).collect();
        sort(&mut flows);
        flows
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        // The router's last messages still go through the lanes.
        self.router = None;
        if self.wrapper.set_unwraps(false) {
            // Packets that others have already wrapped still arrive.
            std::thread::sleep(std::time::Duration::from_nanos(UNWRAPPED_AFTER.as_nanos()));
        }
        self.stop.store(true, Ordering::Release);
        self.wake();
        for (_, thread) in self.lanes.drain(..) {
            // A panic has already been reported.
            let _ = thread.join();
        }
        self.robot.tell(|robot, now| robot.handle(Input::Protects(false), now));
    }
}

/// Sorts flows by how much they matter to an operator.
fn sort(flows: &mut [Status]) {
    flows.sort_by_key(|flow| (flow.class == Class::Ordinary, Reverse(flow.rate_bps)));
}

/// Returns where protected packets go, for the log.
fn reach(outlet: &Outlet) -> String {
    match outlet.router {
        Some(router) => format!("{} and by the router {router}", outlet.network),
        None => outlet.network.clone(),
    }
}
