//! One path of the protected programs: moves packets between its TUN and its card, as [`Protect`] and the robot decide.
//! [`super`] says what moves when. Each lane has a thread of its own.

mod control;
mod intake;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use coorp_core::protect::{Class, Config, Idle, Linger, Protect, Rule, Status, BELOW_ORDINARY_MAX};
use coorp_core::robot::{Input, LOOK_HELD, LOOK_OPEN};
use coorp_core::{Duration, FlowId, Instant};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use self::control::Went;
use self::intake::{Took, READ_BYTES_MAX};
use super::card::{self, Card, TOGETHER_MAX};
use super::packet::{self, Packet};
use super::programs::Programs;
use super::routes::{self, Outlet, Routes};
use super::tun::Tun;
use super::wrap::{Inlet, Wrapper, LOOKS};
use super::{protect_interface, reach, sort, Outside};
use crate::addresses::Addresses;
use crate::control::Control;
use crate::member::Member;
use crate::shared_robot::{SharedRobot, Wish};
use crate::sync::lock;
use crate::zenoh;
use crate::Error;

/// The maximum number of packets taken from a TUN, or sent of one class, before others get their turn.
const TOGETHER: usize = 64;
/// The interval at which the flows are published for the status, and the interface is checked.
const SHOW_EVERY: Duration = Duration::from_millis(500);
/// The maximum number of flows in the status.
const SHOWN_MAX: usize = 64;
/// Time for which bulk's next packets are left in the TUN, so that more come together. A thread that wakes up for each
/// packet takes the core from the sender, which then takes three times as long for a message of many packets. Control
/// of the same program waits behind that.
const BULK_TOGETHER: Duration = Duration::from_micros(150);
/// The number of packets below at which an agent that ends waits before it sends more, and the longest time for that.
const BELOW_END_MAX: usize = 64;
const END_MAX: Duration = Duration::from_secs(1);
/// Maximum wait of a thread if nothing happens.
const REST: Duration = Duration::from_millis(200);

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

/// The way over one path: see the module.
pub(super) struct Lane {
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
    pub fn open(
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
    pub fn round(&mut self) -> io::Result<()> {
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
    pub fn end(&mut self) {
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

    /// Returns the next waiting packet of a class, or its next fragment, or its next segments, at most `most` of them.
    fn next(&mut self, class: Class, most: usize, now: Instant) -> Option<Packet> {
        let (mtu, card) = (self.outlet.mtu, &mut self.card);
        let cut = |packet: &mut Packet, lost: bool| match lost {
            true => packet.cut_lost(),
            false => packet.cut(mtu, card.together(packet.to(), most, now)),
        };
        let (head, packet) = self.protect.next_piece(class, now, cut)?;
        let mut packet = packet.rest();
        if class == Class::Bulk {
            self.linger.on_sent(&head.flow);
        } else if self.protect.is_bulk(&head.flow) {
            card::mark(packet.bytes_mut(), Class::Bulk);
        }
        Some(packet)
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
                if self.protect.has(Class::Bulk) {
                    // Behind acknowledgements.
                    return Rest::Held;
                }
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
