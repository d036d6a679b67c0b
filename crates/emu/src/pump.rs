//! Drives the channels by the wall clock: fetches frames from the TAPs and delivers the frames that have arrived.
//!
//! One thread owns everything. It sleeps until a frame is available or the air has a deadline. It wakes slightly before
//! a deadline and polls the clock for the rest, because a timed sleep ends some tens of microseconds late. The air
//! never runs ahead of the clock: due events are processed first, then frames are fetched and take part from then on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time;

use coorp_air::{MacCounters, StationId};
use coorp_core::{Duration, Instant, RobotId};
use coorp_scene::{robots, station, Scene, MOVE_EVERY};
use coorp_team::Team;
use rustix::event::{epoll, eventfd, EventfdFlags};
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
};

use crate::channel::{ByCategory, Channel, Counters, Outlet};
use crate::ffi;
use crate::namespace::{Card, TAP_FRAMES};
use crate::outqueue::OutQueue;
use crate::timing::{Delays, Timing};
use crate::trouble::Watched;

/// Time before a deadline at which the thread wakes up, on machines with a second core for the programs.
const WATCH: Duration = Duration::from_micros(50);
/// Maximum number of frames fetched from a TAP before the clock is checked again.
const FETCH_MAX: usize = 64;
/// Moving robots' links are recomputed in this many parts, one after another, so that no part takes long.
const MOVE_PARTS: usize = 20;
/// Maximum number of kernel events taken at once.
const EVENTS_MAX: usize = 64;
/// Mark of the [`Handle`]'s file.
const WAKE: u64 = u64::MAX;
/// Mark of the timer.
const TIMER: u64 = u64::MAX - 1;
/// Bit in the mark of a card's [`OutQueue`], whose mark otherwise equals its TAP's.
const OUT_QUEUE: u64 = 1 << 63;

/// The emulation's clock: the time since its origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock(time::Instant);

impl Clock {
    /// Returns a clock that starts now.
    pub fn start() -> Self {
        Clock(time::Instant::now())
    }

    /// Returns the current time.
    pub fn now(self) -> Instant {
        self.at(time::Instant::now())
    }

    fn at(self, instant: time::Instant) -> Instant {
        let since = instant.saturating_duration_since(self.0);
        Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The robots' sides of one interface, by robot; `None` for robots without it.
struct Stacks {
    taps: Vec<Option<File>>,
    queues: Vec<Option<OutQueue>>,
    clock: Clock,
    lateness: Delays,
}

impl Outlet for Stacks {
    fn deliver(&mut self, to: StationId, frame: &[u8], at: Instant) {
        let Some(Some(tap)) = self.taps.get_mut(usize::from(to.0)) else {
            return;
        };
        // If a stack refuses the frame, its interface is down, which a program may have chosen.
        let _ = tap.write(frame);
        self.lateness.record(self.clock.now().since(at));
    }

    fn freed(&mut self, from: StationId, frame: &[u8]) {
        if let Some(Some(queue)) = self.queues.get_mut(usize::from(from.0)) {
            queue.freed(frame);
        }
    }
}

/// The pump's final results.
pub struct Outcome {
    /// Each channel's counts of frames, those of its MAC, and how long frames took.
    pub channels: Vec<(Counters, MacCounters, ByCategory<Timing>)>,
    pub lateness: Delays,
    /// Whether the thread had real-time priority.
    pub real_time: bool,
    /// Keeps the interfaces, and thus the kernel's counters, alive.
    _taps: Vec<Vec<Option<File>>>,
}

/// Controls the pump from another thread.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Wishes>);

#[derive(Debug)]
struct Wishes {
    wake: OwnedFd,
    stop: AtomicBool,
    script: OnceLock<Clock>,
}

impl Handle {
    fn new() -> io::Result<Self> {
        Ok(Handle(Arc::new(Wishes {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            script: OnceLock::new(),
        })))
    }

    /// Counts the times of the team's events and routes from the start of this clock. Until then, the team stays in its
    /// initial state. Later calls change nothing.
    pub fn begin(&self, script: Clock) {
        let _ = self.0.script.set(script);
        self.wake();
    }

    /// Requests the stop; the pump has ended when its thread has ended.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // A full counter means that the pump is about to wake.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }
}

/// The channels of a team with their TAPs.
pub struct Pump {
    team: Team,
    channels: Vec<Channel<Stacks>>,
    scenes: Vec<Scene>,
    pairs: Vec<(RobotId, RobotId)>,
    epoll: OwnedFd,
    timer: OwnedFd,
    clock: Clock,
    watch: Duration,
    handle: Handle,
    /// The time at which the script began, once it has. The times of the next two fields are relative to it.
    script_start: Option<Instant>,
    next_script: Option<Instant>,
    next_move: Option<Instant>,
    /// The time of the last [`Pump::advance`].
    advanced: Instant,
    dead: Vec<bool>,
    move_part: usize,
    watched: Watched,
}

impl Pump {
    /// Attaches the cards, indexed by interface and robot, to the team's channels.
    ///
    /// # Errors
    /// The kernel refuses a file, or to watch one.
    pub fn new(
        team: &Team,
        cards: Vec<Vec<Option<Card>>>,
        clock: Clock,
        seed: u64,
        watched: Watched,
    ) -> io::Result<(Pump, Handle)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |file: BorrowedFd<'_>, mark| {
            epoll::add(&epoll, file, epoll::EventData::new_u64(mark), epoll::EventFlags::IN)
        };
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let handle = Handle::new()?;
        watch(timer.as_fd(), TIMER)?;
        watch(handle.0.wake.as_fd(), WAKE)?;
        let mut channels = Vec::new();
        for (interface, mut cards) in cards.into_iter().enumerate() {
            for (robot, card) in cards.iter_mut().enumerate() {
                if let Some(Card { tap, queue }) = card {
                    // Discard frames that the stacks sent while their interfaces came up, before the start.
                    (0..TAP_FRAMES).take_while(|_| fetch_nothing(tap)).for_each(drop);
                    watch(tap.as_fd(), mark(interface, robot))?;
                    for listener in queue.as_fds() {
                        watch(listener, mark(interface, robot) | OUT_QUEUE)?;
                    }
                }
            }
            let cards = cards.into_iter().map(|card| card.map(|card| (card.tap, card.queue)));
            let (taps, queues) = cards.map(Option::unzip).unzip();
            let stacks = Stacks {
                taps,
                queues,
                clock,
                lateness: Delays::new(),
            };
            channels.push(Channel::new(team, interface, seed + interface as u64, stacks));
        }
        let everybody = robots(team);
        let others = |from: RobotId| robots(team).filter(move |to| *to != from).map(move |to| (from, to));
        let pairs: Vec<_> = everybody.flat_map(others).collect();
        let scenes: Vec<Scene> = (0..channels.len())
            .map(|interface| Scene::new(team, interface))
            .collect();
        let moves = scenes.iter().any(Scene::moves);
        let mut pump = Pump {
            team: team.clone(),
            channels,
            scenes,
            pairs,
            epoll,
            timer,
            clock,
            // On a machine with a single core, polling the clock would keep the programs from running.
            watch: match std::thread::available_parallelism() {
                Ok(cores) if cores.get() > 1 => WATCH,
                _ => Duration::ZERO,
            },
            handle: handle.clone(),
            script_start: None,
            next_script: None,
            next_move: moves.then_some(Instant::ZERO + MOVE_EVERY),
            advanced: Instant::ZERO,
            dead: vec![false; team.robots.len()],
            move_part: 0,
            watched,
        };
        pump.follow_script(Instant::ZERO);
        Ok((pump, handle))
    }

    /// Runs until stopped.
    ///
    /// # Errors
    /// The kernel refuses something that it granted before.
    pub fn run(mut self) -> io::Result<Outcome> {
        let real_time = ffi::real_time().is_ok();
        // Without real-time priority, sleeps end late by the timer slack. If it cannot be set, accept that.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut events = Vec::with_capacity(EVENTS_MAX);
        if self.heed() {
            return Ok(self.outcome(real_time));
        }
        loop {
            let now = self.clock.now();
            self.advance(now);
            self.wait(&mut events)?;
            for event in events.drain(..) {
                let epoll::Event { flags, data } = event;
                match data.u64() {
                    WAKE if self.heed() => return Ok(self.outcome(real_time)),
                    WAKE => {}
                    TIMER => self.clear_timer(),
                    mark if mark & OUT_QUEUE != 0 => self.accept(mark & !OUT_QUEUE),
                    // A program has deleted the interface.
                    mark if flags.intersects(epoll::EventFlags::ERR) => self.forget(mark),
                    mark => self.fetch(mark),
                }
            }
        }
    }

    /// Processes everything up to `now`, including the script and movement.
    fn advance(&mut self, now: Instant) {
        self.advanced = now;
        while let Some(at) = self.on_air(self.next_script).filter(|at| *at <= now) {
            self.channels.iter_mut().for_each(|channel| channel.advance(at));
            self.follow_script(at);
        }
        if self.on_air(self.next_move).is_some_and(|at| at <= now) {
            self.channels.iter_mut().for_each(|channel| channel.advance(now));
            self.move_some(now);
        }
        for channel in &mut self.channels {
            channel.advance(now);
            channel.outlet().queues.iter_mut().flatten().for_each(OutQueue::flush);
        }
    }

    /// Does what the handle requests. Returns whether to stop.
    fn heed(&mut self) -> bool {
        // The counter may already have been read.
        let _ = rustix::io::read(&self.handle.0.wake, &mut [0_u8; 8]);
        if let (None, Some(script)) = (self.script_start, self.handle.0.script.get()) {
            // The script must not begin before the air's current time.
            self.script_start = Some(self.clock.at(script.0).max(self.advanced));
        }
        self.handle.0.stop.load(Ordering::Acquire)
    }

    /// Returns the script's time at this time of the air.
    fn in_script(&self, at: Instant) -> Instant {
        Instant::ZERO + self.script_start.map_or(Duration::ZERO, |start| at.since(start))
    }

    /// Returns the air's time at this time of the script; `None` before the script has begun.
    fn on_air(&self, script: Option<Instant>) -> Option<Instant> {
        Some(self.script_start? + script?.since(Instant::ZERO))
    }

    fn follow_script(&mut self, at: Instant) {
        let script = self.in_script(at);
        for (scene, channel) in self.scenes.iter().zip(&mut self.channels) {
            scene.set_links(&self.team, &self.pairs, script, channel.air());
        }
        for robot in robots(&self.team) {
            let dead = Scene::dead(&self.team, robot, script);
            let was = std::mem::replace(&mut self.dead[usize::from(robot.0)], dead);
            if dead && !was {
                self.channels
                    .iter_mut()
                    .for_each(|channel| channel.switch_off(station(robot), at));
            }
        }
        self.next_script = Scene::next_change(&self.team, script);
    }

    fn move_some(&mut self, now: Instant) {
        let script = self.in_script(now);
        let length = self.pairs.len().div_ceil(MOVE_PARTS).max(1);
        if let Some(pairs) = self.pairs.chunks(length).nth(self.move_part) {
            for (scene, channel) in self.scenes.iter().zip(&mut self.channels) {
                scene.move_links(&self.team, pairs, script, channel.air());
            }
        }
        self.move_part = (self.move_part + 1) % MOVE_PARTS;
        self.next_move = Some(script + MOVE_EVERY / MOVE_PARTS as u64);
    }

    /// Waits for frames, or until just before something is due.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let due = self.channels.iter().map(Channel::next_deadline);
        let due = due
            .chain(self.on_air(self.next_script))
            .chain(self.on_air(self.next_move))
            .min()
            .unwrap_or(Instant::FAR_FUTURE);
        let left = due.since(self.clock.now());
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let asleep = left > self.watch;
        if asleep {
            self.set_timer(left.saturating_sub(self.watch))?;
        }
        let timeout = (!asleep).then_some(&at_once);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the timer to expire after `left`, or never if that is practically infinite.
    fn set_timer(&self, left: Duration) -> io::Result<()> {
        const NEVER: Duration = Duration::from_secs(3_600 * 24 * 365);
        let nanos = if left < NEVER { left.as_nanos() } else { 0 };
        let spec = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: (nanos / 1_000_000_000) as i64,
                tv_nsec: (nanos % 1_000_000_000) as _,
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }

    fn clear_timer(&self) {
        // The timer may have been set again since, and then has nothing to read.
        let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
    }

    /// Stops watching a TAP that is gone; its file would be reported forever.
    fn forget(&mut self, mark: u64) {
        let (interface, robot) = unmark(mark);
        if let Some(channel) = self.channels.get_mut(interface) {
            if let Some(tap) = channel.outlet().taps.get_mut(robot) {
                *tap = None;
            }
        }
    }

    /// Accepts programs that want to read what was sent.
    fn accept(&mut self, mark: u64) {
        let (interface, robot) = unmark(mark);
        if let Some(channel) = self.channels.get_mut(interface) {
            let queue = channel.outlet().queues.get_mut(robot).and_then(Option::as_mut);
            queue.into_iter().for_each(OutQueue::accept);
        }
    }

    /// Fetches the frames that a robot's stack has sent, up to a limit.
    fn fetch(&mut self, mark: u64) {
        let (interface, robot) = unmark(mark);
        let now = self.clock.now();
        self.advance(now);
        let Some(channel) = self.channels.get_mut(interface) else {
            return;
        };
        let from = StationId(robot as u16);
        // The channel owns its TAPs, and lends one for reading; its index stays valid.
        let Some(mut tap) = channel.outlet().taps.get_mut(robot).and_then(Option::take) else {
            return;
        };
        if self.dead[robot] {
            for _ in 0..FETCH_MAX {
                if !fetch_nothing(&mut tap) {
                    break;
                }
            }
        } else {
            for _ in 0..FETCH_MAX {
                let read = |buffer: &mut [u8]| {
                    let length = tap.read(buffer).ok()?;
                    if let (Some(watcher), Some(frame)) = (&self.watched.0, buffer.get(..length)) {
                        watcher.sent(interface, RobotId(from.0), frame);
                    }
                    Some(length)
                };
                if !channel.take(from, now, read) {
                    break;
                }
            }
            channel.kick(from, now);
        }
        if let Some(place) = channel.outlet().taps.get_mut(robot) {
            *place = Some(tap);
        }
    }

    fn outcome(mut self, real_time: bool) -> Outcome {
        let mut lateness = Delays::new();
        for channel in &mut self.channels {
            lateness.add(&channel.outlet().lateness);
        }
        Outcome {
            channels: self
                .channels
                .iter()
                .map(|each| (each.counters(), *each.mac(), each.transit()))
                .collect(),
            lateness,
            real_time,
            _taps: self
                .channels
                .iter_mut()
                .map(|channel| std::mem::take(&mut channel.outlet().taps))
                .collect(),
        }
    }
}

/// Discards one frame. Returns false if there is none.
fn fetch_nothing(tap: &mut File) -> bool {
    tap.read(&mut [0; 64]).is_ok()
}

fn mark(interface: usize, robot: usize) -> u64 {
    (interface as u64) << 32 | robot as u64
}

fn unmark(mark: u64) -> (usize, usize) {
    ((mark >> 32) as usize, mark as u32 as usize)
}
