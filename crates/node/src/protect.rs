//! Protects programs that know nothing of Coorp. What they send to the team's network goes through a TUN of the agent,
//! which classifies it as control, bulk or neither ([`coorp_core::protect`]), and sends it on by a raw socket.
//!
//! For each path there is a *lane*: an interface, its TUN (`tun.rs`) with the routes into it (`routes.rs`), two raw
//! sockets that are bound to the interface, and a thread. Control leaves at once, marked for AC_VO. Bulk waits for the
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
mod neighbours;
mod packet;
mod programs;
mod routes;
mod segments;
mod tun;
mod wrap;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use coorp_core::paths;
use coorp_core::protect::{
    Change, Class, Config, Head, Idle, Linger, Protect, Reason, Rule, Status, Verdict, BELOW_ORDINARY_MAX,
};
use coorp_core::robot::{Input, LOOK_HELD, LOOK_OPEN};
use coorp_core::{Duration, FlowId, Instant};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};

use self::card::{Card, TOGETHER_MAX};
use self::packet::Packet;
use self::programs::Programs;
pub use self::routes::{protect_priorities, unprotect};
use self::routes::{Outlet, Routes};
use self::segments::{Offer, Segments};
use self::tun::Tun;
pub(crate) use self::wrap::{accepted, Wrapper};
use self::wrap::{Inlet, LOOKS};
use crate::addresses::Addresses;
use crate::control::Control;
use crate::member::Member;
use crate::outqueue::Target;
use crate::rank::real_time;
use crate::shared_robot::{SharedRobot, Wish};
use crate::sync::lock;
use crate::tasks::caught;
use crate::zenoh::{self, Router};
use crate::Error;

/// The maximum number of packets taken from a TUN, or sent of one class, before others get their turn.
const TOGETHER: usize = 64;
/// The maximum number of bytes taken, give or take a packet.
const TOGETHER_BYTES: usize = 256 << 10;
/// The length of the longest IP packet with the kernel's header.
const READ_BYTES_MAX: usize = 65_535 + Offer::BYTES;
/// The interval at which the flows are published for the status, and the interface is checked.
const SHOW_EVERY: Duration = Duration::from_millis(500);
/// The maximum number of flows in the status.
const SHOWN_MAX: usize = 64;
/// Time after a flow's last wrapped packet until the next may go unwrapped: longer than the wrapped one may travel and
/// wait at its receiver.
const UNWRAPPED_AFTER: Duration = Duration::from_nanos(2 * paths::WAIT_MAX.as_nanos());
/// Time for which bulk's next packets are left in the TUN, so that more come together. A thread that wakes up for each
/// packet takes the core from the sender, which then takes three times as long for a message of many packets. Control
/// of the same program waits behind that.
const BULK_TOGETHER: Duration = Duration::from_micros(150);
/// The number of packets below at which an agent that ends waits before it sends more, and the longest time for that.
const BELOW_END_MAX: usize = 64;
const END_MAX: Duration = Duration::from_secs(1);
/// Maximum wait of a thread if nothing happens.
const REST: Duration = Duration::from_millis(200);

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
                            let name = protect_interface(lane.path);
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

/// The state of bulk that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// There is no more.
    None,
    /// The gate or a permit holds it.
    Held,
    /// It may be sent.
    More,
}

/// What a round took from the TUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Took {
    Nothing,
    /// Only packets that wait for a permit, or as acknowledgements.
    Bulk,
    Other,
}

/// The way that the last packet of a control flow took.
#[derive(Clone, Copy, Debug)]
enum Went {
    Nowhere,
    /// Among the packets that are not control, because others of its flow did before.
    Among(Instant),
    Unwrapped(Instant),
    Wrapped(Instant),
}

/// The way over one path: see the module.
struct Lane {
    path: usize,
    robot: Arc<SharedRobot>,
    follower: Arc<Control>,
    /// `None` with one path.
    wrapper: Option<Arc<Wrapper>>,
    addresses: Arc<Addresses>,
    protect: Protect<Packet>,
    /// Whether what leaves by the default route is protected too.
    protects_all: bool,
    outlet: Outlet,
    /// `None` while the interface cannot be used. Dropped before the TUN, so that packets bypass it.
    routes: Option<Routes>,
    tun: Tun,
    card: Card,
    cut: packet::Cut,
    /// Room for one packet.
    buffer: Box<[u8]>,
    outside: Arc<Outside>,
    /// Held while bulk waits, and a little longer.
    wish: Option<Wish>,
    linger: Linger,
    /// `None` if no rule names a program.
    programs: Option<Programs>,
    /// The flows that are control, by number, as the robot knows them; `None` for those for which it has no place.
    control: BTreeMap<u32, (Option<FlowId>, Went)>,
    /// Whether it was said that the robot has no place for more.
    told_full: bool,
    /// What the last round took.
    took: Took,
    /// The time until which ordinary packets and bulk wait.
    still_until: Instant,
    show_at: Instant,
}

impl Lane {
    fn open(
        (member, robot, control, wrapper): (&Arc<Member>, &Arc<SharedRobot>, &Arc<Control>, &Arc<Wrapper>),
        path: usize,
        outlet: &Outlet,
        outside: Arc<Outside>,
    ) -> Result<Lane, Error> {
        let name = protect_interface(path);
        let cannot = |what: String| move |error: io::Error| Error::Protect(format!("{what}: {error}"));
        let tun = Tun::open(&name).map_err(cannot(format!(
            "cannot make the interface {name} (run as root; if it is taken, another agent protects this machine)"
        )))?;
        let card = Card::open(outlet).map_err(cannot(format!("cannot send packets over {}", outlet.interface)))?;
        let addresses = wrapper.addresses().clone();
        let wrapper = Some(wrapper).filter(|wrapper| wrapper.is_of_use()).cloned();
        let routes = Routes::set(path, &name, outlet, wrapper.is_some())?;
        let config = Config {
            rules: member.team.protect.clone(),
            own_rules: zenoh::rules(&member.team),
            ..Config::default()
        };
        let woken = outside.clone();
        let by_program = config.rules.iter().any(Rule::needs_program);
        let programs = by_program.then(|| Programs::start(move || woken.wake()));
        let lane = Lane {
            path,
            robot: robot.clone(),
            follower: control.clone(),
            wrapper,
            addresses,
            protect: Protect::new(config),
            protects_all: member.team.live.protect_all,
            outlet: outlet.clone(),
            routes: Some(routes),
            tun,
            card,
            cut: packet::Cut::default(),
            buffer: vec![0; READ_BYTES_MAX].into(),
            outside,
            wish: None,
            linger: Linger::default(),
            programs: programs.transpose()?,
            control: BTreeMap::new(),
            told_full: false,
            took: Took::Nothing,
            still_until: Instant::ZERO,
            show_at: Instant::ZERO,
        };
        lane.offer_segments();
        lane.let_in()
            .map_err(cannot(format!("cannot use the interface {name}")))?;
        Ok(lane)
    }

    /// Requests TCP's segments together from the kernel, if they can be sent together.
    fn offer_segments(&self) {
        let takes = self.card.takes_segments();
        if let Err(error) = self.tun.take_segments(takes) {
            tracing::debug!("the kernel does not hand over segments together: {error}");
        }
    }

    /// Admits packets that other agents have wrapped for this path's address.
    fn let_in(&self) -> io::Result<()> {
        if let Some(wrapper) = &self.wrapper {
            let inlet = Inlet {
                address: self.outlet.address,
                tun: self.tun.clone(),
                outside: self.outside.clone(),
            };
            wrapper.open(self.path, inlet);
        }
        Ok(())
    }

    /// Runs one round: takes what programs have sent, sends what may be sent, and waits for more.
    fn round(&mut self) -> io::Result<()> {
        self.learn();
        let more = self.take()?;
        self.find_programs();
        self.follow_changes();
        let still = self.still_until.since(self.robot.now());
        let more = still == Duration::ZERO && self.send_ordinary() || more;
        let bulk = if still == Duration::ZERO {
            self.send_bulk()
        } else {
            Rest::Held
        };
        let now = self.robot.now();
        let wrapper = self.wrapper.as_ref().filter(|_| self.path == LOOKS);
        let wrapped_due = wrapper.and_then(|wrapper| wrapper.look(now));
        if now >= self.show_at {
            self.show_at = now + SHOW_EVERY;
            self.show(now);
            self.follow_outlet();
        }
        // Learning now what a fast card has already sent saves a later check, and makes room.
        let waits = bulk == Rest::Held || self.protect.has(Class::Ordinary);
        let made_room = self.learn() && waits;
        if more || made_room || bulk == Rest::More {
            return Ok(());
        }
        self.card.rest(now);
        let look = match (self.card.is_empty(), bulk == Rest::Held) {
            (true, _) => REST,
            (false, true) => LOOK_HELD,
            (false, false) => LOOK_OPEN,
        };
        let acknowledge_at = self.protect.acknowledge_at();
        let look = acknowledge_at.map_or(look, |at| look.min(at.since(now).max(LOOK_HELD)));
        let due = self.protect.next_deadline().into_iter().chain(wrapped_due).min();
        let due = due.unwrap_or(Instant::FAR_FUTURE).since(now);
        let due = if still == Duration::ZERO { due } else { due.min(still) };
        let linger = if bulk == Rest::None { self.linger() } else { REST };
        let most = look.min(due).min(linger);
        match self.took {
            Took::Bulk => self.wait(most.min(BULK_TOGETHER), PollFlags::empty()),
            Took::Nothing | Took::Other => self.wait(most, PollFlags::IN),
        }
    }

    /// Sends everything that waits: from now on, packets bypass the TUN. The card takes as much at a time as it has room
    /// for: a connection that has been held assumes long round trips, and would notice a loss only after many seconds.
    fn end(&mut self) {
        self.routes = None;
        for _ in 0..routes::QUEUE_PACKETS {
            if !matches!(self.take(), Ok(true)) {
                break;
            }
        }
        let began = self.robot.now();
        self.protect.set_open(true, began);
        for class in [Class::Ordinary, Class::Bulk] {
            loop {
                self.protect.may_acknowledge(true, Instant::FAR_FUTURE);
                let now = self.robot.now();
                if self.card.below() >= BELOW_END_MAX && now.since(began) < END_MAX {
                    std::thread::sleep(std::time::Duration::from_nanos(LOOK_OPEN.as_nanos()));
                    self.learn();
                    continue;
                }
                let Some(packet) = self.next(class, TOGETHER_MAX, now) else {
                    break;
                };
                self.card.send(vec![packet], class, None, now);
            }
        }
    }

    /// Follows an interface that appears, disappears, or changes its address or MTU, and rules that disappear.
    fn follow_outlet(&mut self) {
        let interface = self.outlet.interface.clone();
        let set = self.routes.as_mut().is_some_and(Routes::are_set);
        if self.routes.is_some() && !set {
            tracing::warn!(
                "another program has deleted the policy rules of {}: they are set again",
                protect_interface(self.path)
            );
        }
        match Outlet::of(&interface, self.protects_all) {
            Ok(found) if found == self.outlet && set => {}
            Ok(found) => {
                self.routes = None;
                let beyond = reach(&found);
                let opened = Card::open(&found).map_err(|error| error.to_string());
                let opened = opened.and_then(|card| {
                    self.card = card;
                    self.offer_segments();
                    let name = protect_interface(self.path);
                    Routes::set(self.path, &name, &found, self.wrapper.is_some()).map_err(|error| error.to_string())
                });
                match opened {
                    Ok(routes) => {
                        tracing::info!("protecting what programs send to {beyond} over {interface}");
                        self.routes = Some(routes);
                    }
                    Err(error) if found != self.outlet => tracing::warn!("programs are not protected: {error}"),
                    Err(_) => {}
                }
                self.outlet = found;
                if let Err(error) = self.let_in() {
                    tracing::warn!("control that others send over several paths is lost: {error}");
                }
            }
            Err(error) => {
                if self.routes.take().is_some() {
                    tracing::warn!("programs are not protected: {error}");
                    if let Some(wrapper) = &self.wrapper {
                        wrapper.close(self.path);
                    }
                }
            }
        }
    }

    /// Waits for these events of the TUN, for a wake-up, or for at most `most`.
    fn wait(&self, most: Duration, events: PollFlags) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: (most.as_nanos() / 1_000_000_000) as i64,
            tv_nsec: (most.as_nanos() % 1_000_000_000) as i64,
        };
        let mut both = [
            PollFd::new(&self.tun, events),
            PollFd::new(&self.outside.wakes, PollFlags::IN),
        ];
        match poll(&mut both, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            polled => polled?,
        };
        if both[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if !both[1].revents().is_empty() {
            // The counter may already have been read.
            let _ = rustix::io::read(self.outside.wakes.as_fd(), &mut [0; 8]);
        }
        Ok(())
    }

    /// Lets new flows' programs be found, for rules that name programs.
    fn find_programs(&mut self) {
        let Some(programs) = &self.programs else { return };
        for (flow, found) in programs.exchange(|| self.protect.poll_unknown()) {
            self.protect.on_programs(&flow, found);
        }
    }

    /// Tells the robot what has left; returns whether anything has.
    fn learn(&mut self) -> bool {
        let now = self.robot.now();
        let path = self.path;
        let left = self.card.left(now);
        if left.is_empty() {
            return false;
        }
        for sent in left.iter().filter(|sent| sent.class == Class::Control) {
            let mut flows = self.control.iter();
            if let Some((number, _)) = flows.find(|(_, (flow, _))| flow.is_some() && *flow == sent.flow) {
                self.protect.on_control_left(*number, now.since(sent.at), now);
            }
        }
        self.robot.tell(|robot, now| {
            for sent in left {
                match (sent.class, sent.flow) {
                    (Class::Bulk, _) => {
                        let left = Input::Left {
                            path,
                            left: (sent.left_before, sent.left_by),
                            entered_at: sent.at,
                            left_at: now,
                        };
                        robot.handle(left, now);
                    }
                    (_, Some(flow)) => {
                        robot.handle(Input::ControlLeft(flow), now);
                    }
                    _ => {}
                }
            }
        });
        true
    }

    /// Takes packets from the TUN. Returns whether there may be more.
    fn take(&mut self) -> io::Result<bool> {
        let mut bytes = 0;
        self.took = Took::Nothing;
        for _ in 0..TOGETHER {
            if bytes >= TOGETHER_BYTES {
                return Ok(true);
            }
            let (offer, packet) = match self.tun.read(&mut self.buffer) {
                Ok(Some(read)) => read,
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            bytes += packet.len();
            // Other packets can only be IPv6 that a program forced into the TUN.
            let Some(mut head) = packet::head(packet) else { continue };
            if packet::is_answer(packet) && !self.addresses.has(head.flow.to.0) {
                // Otherwise a stranger could make this machine's replies control, by pinging it regularly.
                (head.dscp, head.message_bytes) = (0, Some(0));
            }
            if let Some(segment) = offer.segment() {
                match Segments::of((&*packet).into(), segment) {
                    Some(segments) if segments.longest() <= self.outlet.mtu => {
                        self.sort(head, Packet::Segments(segments));
                        continue;
                    }
                    Some(segments) if !packet::is_uncuttable(packet) => {
                        // The kernel does not learn that the segments are too long: they leave as fragments.
                        for mut one in Packet::Segments(segments).one_by_one() {
                            self.card.name(&mut one);
                            if let Some(head) = packet::head(&one) {
                                self.sort(head, Packet::of(one));
                            }
                        }
                        continue;
                    }
                    Some(_) => {
                        let _ = self.tun.write(&packet::too_long(packet, self.outlet.mtu));
                        continue;
                    }
                    None if packet.len() > self.outlet.mtu => {
                        tracing::debug!("a packet of {} bytes is lost: it is not a TCP packet", packet.len());
                        continue;
                    }
                    // It was already cut.
                    None => {}
                }
            }
            offer.finish(packet);
            let read = packet.len();
            if read > self.outlet.mtu {
                if packet::is_uncuttable(packet) {
                    // If this fails, the packet is lost, as behind a router that reports nothing.
                    let _ = self.tun.write(&packet::too_long(packet, self.outlet.mtu));
                    continue;
                }
                // One name for all fragments.
                self.card.name(packet);
                // It is cut when its turn comes.
                head.opens = false;
            }
            let packet = &*packet;
            if let Some(message) = packet::rtps(packet, &head) {
                for (writer, topic) in message.topics() {
                    self.protect.on_topic(writer, topic);
                }
                let is_fragment = packet::is_fragment(packet);
                let Some(content) = message.content().or(is_fragment.then(Default::default)) else {
                    let parts: Vec<_> = packet::parts(packet, head, &message).collect();
                    for (head, mut part) in parts {
                        self.card.name(&mut part);
                        self.sort(head, Packet::of(part));
                    }
                    continue;
                };
                head = packet::of(head, read, content);
            }
            head.flow = self.cut.flow(packet).unwrap_or(head.flow);
            self.cut.remember(packet, head.flow);
            let packet = Packet::of(packet.into());
            self.sort(head, packet);
        }
        Ok(true)
    }

    /// Sends a packet, or keeps it.
    fn sort(&mut self, head: Head, packet: Packet) {
        let now = self.robot.now();
        let verdict = self.protect.on_packet(head, packet, now);
        let waits_as_bulk =
            matches!(verdict, Verdict::Queued | Verdict::Dropped(_)) && !self.protect.has(Class::Ordinary);
        self.took = match self.took {
            Took::Nothing | Took::Bulk if waits_as_bulk => Took::Bulk,
            _ => Took::Other,
        };
        match verdict {
            Verdict::Send { packet, number, begins } => {
                for (place, one) in packet.one_by_one().into_iter().enumerate() {
                    self.send_control(one, number, begins && place == 0);
                }
            }
            Verdict::Pass(packet) => self.card.pass(packet, now),
            Verdict::Queued | Verdict::Dropped(_) => {}
        }
    }

    /// Returns the next waiting packet of a class, or its next fragment, or its next segments, at most `most` of them.
    fn next(&mut self, class: Class, most: usize, now: Instant) -> Option<Packet> {
        let (mtu, card) = (self.outlet.mtu, &mut self.card);
        let cut = |packet: &mut Packet, lost: bool| match lost {
            true => packet.cut_lost(),
            false => packet.cut(mtu, card.together(packet.to(), most, now)),
        };
        let (head, packet) = self.protect.next_piece(class, now, cut)?;
        if class == Class::Bulk {
            self.linger.on_sent(&head.flow);
        }
        Some(packet.rest())
    }

    /// Sends a control packet, perhaps the first one of a message. Tells the robot only afterwards, because it takes a
    /// while to decide. Packets that the flow sent before it became control may still be below, where control overtakes
    /// them. So until a message begins once they have left, it goes the same way.
    fn send_control(&mut self, packet: Box<[u8]>, number: u32, begins: bool) {
        // The robot may not know a flow that has just become control.
        self.follow_changes();
        let known = self.control.get(&number).and_then(|(flow, _)| *flow).filter(|_| begins);
        if let Some(targets) = self.wrap(&packet, number, begins) {
            if let Some(known) = known {
                self.robot.tell(|robot, now| robot.handle(Input::Control(known), now));
                self.follower.follow(known, targets);
            }
            return;
        }
        let now = self.robot.now();
        let mut class = Class::Control;
        if let Some((_, went)) = self.control.get_mut(&number) {
            *went = match *went {
                Went::Among(at) if !begins || !self.card.has_sent_until(at) => {
                    class = Class::Ordinary;
                    Went::Among(now)
                }
                _ => Went::Unwrapped(now),
            };
        }
        if packet.len() <= self.outlet.mtu {
            self.card.send(vec![Packet::of(packet)], class, known, now);
        } else {
            let mut fragments = packet::fragments(packet, self.outlet.mtu)
                .into_iter()
                .map(Packet::of)
                .peekable();
            while fragments.peek().is_some() {
                let together = fragments.by_ref().take(TOGETHER_MAX).collect();
                let ends = known.filter(|_| fragments.peek().is_none());
                self.card.send(together, class, ends, now);
            }
        }
        if let Some(known) = known {
            self.robot.tell(|robot, now| robot.handle(Input::Control(known), now));
        }
    }

    /// Sends a control packet wrapped, if its receiver unwraps it and its flow stays in order.
    fn wrap(&mut self, packet: &[u8], number: u32, begins: bool) -> Option<Vec<Target>> {
        let wrapper = self.wrapper.as_ref()?;
        let (_, went) = self.control.get_mut(&number)?;
        let now = self.robot.now();
        let may = match *went {
            Went::Nowhere | Went::Among(_) => false,
            Went::Unwrapped(at) => begins && self.card.has_sent_until(at),
            Went::Wrapped(_) => true,
        };
        let to = wrapper.robot_at(packet::to(packet)).filter(|_| may);
        let wrapped = to.and_then(|to| wrapper.send(to, (self.path, number), packet));
        if wrapped.is_some() {
            *went = Went::Wrapped(now);
        }
        wrapped
    }

    /// Sends what is neither control nor bulk, as long as there is room below. Returns whether more could be sent.
    fn send_ordinary(&mut self) -> bool {
        self.send_acknowledgements();
        for _ in 0..TOGETHER / TOGETHER_MAX {
            if self.card.below() >= BELOW_ORDINARY_MAX {
                self.learn();
                if self.card.below() >= BELOW_ORDINARY_MAX {
                    return false;
                }
            }
            let room = BELOW_ORDINARY_MAX - self.card.below();
            if !self.send_some(Class::Ordinary, room, self.robot.now()) {
                return false;
            }
        }
        self.protect.has(Class::Ordinary)
    }

    /// Sends acknowledgements if it is time. They do not wait for room below, so that they leave in one aggregate.
    fn send_acknowledgements(&mut self) {
        let now = self.robot.now();
        if self.protect.acknowledge_at().is_none_or(|at| now < at) {
            return;
        }
        let may = self.robot.tell(|robot, now| robot.may(Input::MayAcknowledge, now));
        self.protect.may_acknowledge(may, now);
        for _ in 0..TOGETHER / TOGETHER_MAX {
            let mut some = Vec::new();
            while some.len() < TOGETHER_MAX && self.protect.acknowledges() {
                some.extend(self.next(Class::Ordinary, 1, now));
            }
            if some.is_empty() {
                return;
            }
            self.card.send(some, Class::Ordinary, None, now);
        }
    }

    /// Sends bulk for as long as it may be sent. Returns the state of the rest.
    fn send_bulk(&mut self) -> Rest {
        if !self.protect.has(Class::Bulk) {
            self.linger();
            return Rest::None;
        }
        if self.wish.is_none() {
            self.wish = Some(self.robot.wish());
        }
        let path = self.path;
        for _ in 0..TOGETHER / TOGETHER_MAX {
            let n = self.card.below();
            let (room, permitted, now) = self.robot.tell(|robot, now| {
                let pass = robot.may(Input::MayForward { path, n }, now);
                let room = pass.then(|| robot.room(path, n, TOGETHER_MAX, now));
                (room, robot.is_permitted(now), now)
            });
            self.linger.on_bulk(permitted, now);
            let Some(room) = self.protect.bulk_room(room, n, now) else {
                return Rest::Held;
            };
            if !self.send_some(Class::Bulk, room, now) {
                self.linger();
                return Rest::None;
            }
            self.learn();
            // Ordinary packets that wait for room take it first.
            if self.card.below() < BELOW_ORDINARY_MAX && self.protect.has(Class::Ordinary) {
                break;
            }
        }
        Rest::More
    }

    /// Gives back the permit if bulk has stayed away for too long. Returns when to check again.
    fn linger(&mut self) -> Duration {
        let Some(wish) = &self.wish else { return REST };
        let (path, n) = (self.path, self.card.below());
        let (permitted, card, now) = self
            .robot
            .tell(|robot, now| (robot.is_permitted(now), robot.time_below(path, n), now));
        match self.linger.on_empty(permitted, card, now) {
            Idle::Keep(left) => left,
            Idle::Again => {
                wish.ask_again();
                Duration::ZERO
            }
            Idle::End => {
                self.wish = None;
                REST
            }
        }
    }

    /// Sends as many waiting packets of a class as there is room for. Returns whether there were any.
    fn send_some(&mut self, class: Class, room: usize, now: Instant) -> bool {
        let (mut some, mut left) = (Vec::with_capacity(TOGETHER_MAX), room.min(TOGETHER_MAX));
        while left > 0 {
            let Some(packet) = self.next(class, left, now) else {
                break;
            };
            left = left.saturating_sub(packet.count());
            some.push(packet);
        }
        let are_some = !some.is_empty();
        self.card.send(some, class, None, now);
        are_some
    }

    /// Tells the robot which flows are control.
    fn follow_changes(&mut self) {
        let now = self.robot.now();
        if self.protect.next_deadline().is_some_and(|due| now >= due) {
            self.protect.on_deadline(now);
        }
        let robot = self.robot.clone();
        while let Some(Change {
            flow,
            number,
            class,
            reason,
            ..
        }) = self.protect.poll()
        {
            let known = self.control.contains_key(&number);
            if reason == Reason::Own || known && class == Class::Control {
                // While another robot is off, this agent opens a new connection every few seconds; and periods change.
                tracing::debug!("{flow} is {class}: {reason}");
            } else {
                tracing::info!("{flow} is {class}: {reason}");
            }
            if class == Class::Control {
                let went = match self.protect.has_sent(number) {
                    true => Went::Among(now),
                    false => Went::Nowhere,
                };
                let (place, _) = self.control.entry(number).or_insert((None, went));
                let added = || robot.tell(|robot, now| robot.handle(Input::AddForeignFlow, now).flow());
                *place = place.or_else(added);
                if place.is_none() && !self.told_full {
                    self.told_full = true;
                    tracing::warn!("programs have so many control flows that the arrival of more is not predicted");
                }
            } else if let Some((gone, went)) = self.control.remove(&number) {
                if let Went::Wrapped(at) = went {
                    self.still_until = self.still_until.max(at + UNWRAPPED_AFTER);
                }
                if let Some(gone) = gone {
                    robot.tell(|robot, now| robot.handle(Input::RemoveFlow(gone), now));
                }
            }
        }
    }

    fn show(&self, now: Instant) {
        let mut flows: Vec<Status> = self.protect.flows(now).collect();
        sort(&mut flows);
        flows.truncate(SHOWN_MAX);
        *lock(&self.outside.flows) = flows;
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(wrapper) = &self.wrapper {
            wrapper.close(self.path);
        }
        for gone in std::mem::take(&mut self.control)
            .into_values()
            .filter_map(|(flow, _)| flow)
        {
            self.robot.tell(|robot, now| robot.handle(Input::RemoveFlow(gone), now));
        }
        lock(&self.outside.flows).clear();
    }
}
