//! A run from start to end: namespaces, the pump, programs, scripted deaths, signals, cleanup.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time;

use coorp_core::{Duration, Instant};
use coorp_scene::{robots, Scene};
use coorp_team::Team;
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use crate::companion::{self, Attendant, Companion};
use crate::error::Error;
use crate::identity::{environment, hosts, interface, name, numbers};
use crate::namespace::{Card, Interface, Lock, Namespace};
use crate::programs::{exists, Lines, Program};
use crate::pump::{Clock, Handle, Outcome, Pump};
use crate::report::{self, Ended, Fate, Report};
use crate::timing::P99_MAX;
use crate::trouble::{Blow, Watched, What};

/// Time limit for programs to end after being asked to.
const GRACE: Duration = Duration::from_secs(1);
/// The longest sleep between two checks of the programs.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Number of open files that the emulator needs in addition to those for the robots.
const FILES_BESIDE: u64 = 64;
/// The seed of losses and backoffs. No seed makes a run reproducible, because the programs are not.
const SEED: u64 = 1;

/// The options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The team file's path, passed to the programs.
    pub team_file: PathBuf,
    /// The program and its arguments; empty for none.
    pub program: Vec<OsString>,
    /// A program beside each robot's own, if any.
    pub companion: Option<Companion>,
    /// The time after the programs' start at which to end the run; by default it ends with the last program.
    pub duration: Option<Duration>,
    /// Faults injected into the programs, in order of time.
    pub blows: Vec<Blow>,
    /// The observer.
    pub watched: Watched,
}

impl Options {
    fn began(&self) {
        if let Some(watcher) = &self.watched.0 {
            watcher.began();
        }
    }
}

/// Signals that end a run, and a way to sleep until one arrives or a program ends.
struct Signals {
    ended: Arc<AtomicBool>,
    woken: UnixStream,
    registered: Vec<signal_hook::SigId>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (ended, (woken, waker)) = (Arc::new(AtomicBool::new(false)), UnixStream::pair()?);
        let mut registered = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            registered.push(signal_hook::flag::register(signal, ended.clone())?);
        }
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGCHLD] {
            registered.push(signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?);
        }
        Ok(Signals {
            ended,
            woken,
            registered,
        })
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Sleeps for at most `most`.
    fn sleep(&mut self, most: Duration) {
        let most = time::Duration::from_nanos(most.as_nanos().max(1_000));
        // A timeout is expected, and any other error shows up again at the next check of the programs.
        let _ = self.woken.set_read_timeout(Some(most));
        let _ = self.woken.read(&mut [0; 64]);
    }

    /// Sleeps while `some` holds, but for at most `most`.
    fn sleep_while(&mut self, most: Duration, mut some: impl FnMut() -> bool) {
        let asked = Clock::start();
        while some() {
            let left = most.saturating_sub(asked.now().since(Instant::ZERO));
            if left == Duration::ZERO {
                return;
            }
            self.sleep(left);
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for signal in self.registered.drain(..) {
            signal_hook::low_level::unregister(signal);
        }
    }
}

/// Runs a team. `lines` receives the programs' output, and `told` other notices.
///
/// # Errors
/// Not root, no TUN, no `ip`, or no such program; or the emulator itself was aborted. Everything is cleaned up in any
/// case.
pub fn run(team: &Team, options: &Options, lines: Lines, told: &dyn Fn(&str)) -> Result<Report, Error> {
    check(team, options)?;
    let broken = |what: &str, error: &io::Error| Error::Broken(format!("{what}: {error}"));
    let mut signals = Signals::new().map_err(|error| broken("cannot watch for signals", &error))?;
    let (_lock, left) = Lock::take()?;
    if left > 0 {
        told(&format!(
            "removed {left} namespaces that a killed emulator had left behind"
        ));
    }
    let mut robots = Robots::make(team, options)?;
    let cards = std::mem::take(&mut robots.cards);
    if let Some(namespace) = robots.namespaces.last() {
        told(&format!(
            "{} robots are on the air; to enter one: sudo ip netns exec {} COMMAND",
            robots.namespaces.len(),
            namespace.name()
        ));
    }
    let mut clock = Clock::start();
    if options.companion.is_none() {
        options.began();
    }
    let watched = options.watched.clone();
    let (pump, handle) =
        Pump::new(team, cards, clock, SEED, watched).map_err(|error| broken("cannot set up the air", &error))?;
    if options.companion.is_none() {
        handle.begin(clock);
    }
    let pump = spawn(pump).map_err(|error| broken("cannot start the air", &error))?;
    let pump = PumpThread {
        handle,
        thread: Some(pump),
    };
    if let Some(companion) = &options.companion {
        // They need the air, but the run's time counts from the programs' start.
        robots.start_companions(team, companion, &lines, &mut signals, &pump)?;
        clock = Clock::start();
        options.began();
        pump.handle.begin(clock);
    }
    let ended = robots.drive(team, options, clock, &lines, &mut signals, &pump)?;
    let seconds = clock.now().as_secs_f64();
    robots.end(&mut signals);
    let outcome = pump.outcome()?;
    let report = robots.report(team, &outcome, ended, seconds);
    robots.clear();
    Ok(report)
}

/// Checks whether the run can be attempted.
fn check(team: &Team, options: &Options) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Unable(
            "coorp emu creates network namespaces and TAP interfaces, which needs root: run it with sudo".to_owned(),
        ));
    }
    let companion = options.companion.as_ref().map(|companion| &companion.command);
    for program in options
        .program
        .first()
        .into_iter()
        .chain(companion.and_then(|command| command.first()))
    {
        if !exists(Path::new(program)) {
            let shown = program.to_string_lossy();
            let mend = if shown.contains('/') {
                "check the path, and that the file is executable (chmod +x)"
            } else {
                "write ./NAME for a program in this folder; sudo may use a different PATH"
            };
            return Err(Error::Unable(format!("there is no program '{shown}': {mend}")));
        }
    }
    // Per robot: two pipes (four with a companion), and some room while a program starts. Per interface: a TAP, the
    // send queue's two sockets, a reader of packets, and readers of datagrams.
    let interfaces = team.channels().count() as u64;
    let programs = 1 + u64::from(companion.is_some());
    let files = team.robots.len() as u64 * (1 + 2 * programs + interfaces * (4 + interfaces)) + FILES_BESIDE;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if let Some(limit) = limit.filter(|limit| *limit < files) {
        return Err(Error::Unable(format!(
            "{} robots need {files} open files, but the limit is {limit}: raise it (ulimit -n {files}) or run fewer \
             robots",
            team.robots.len()
        )));
    }
    Ok(())
}

fn spawn(pump: Pump) -> io::Result<JoinHandle<io::Result<Outcome>>> {
    thread::Builder::new().name("air".to_owned()).spawn(move || pump.run())
}

/// The thread that runs the air. It ends when this is dropped.
struct PumpThread {
    handle: Handle,
    thread: Option<JoinHandle<io::Result<Outcome>>>,
}

impl PumpThread {
    fn broke_off(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn outcome(mut self) -> Result<Outcome, Error> {
        self.handle.stop();
        let broken = |why: String| Error::Broken(format!("the emulated air stopped: {why}"));
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Ok(outcome))) => Ok(outcome),
            Some(Ok(Err(error))) => Err(broken(error.to_string())),
            _ => Err(broken("its thread panicked".to_owned())),
        }
    }
}

impl Drop for PumpThread {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            // Its outcome was not requested, so something else has gone wrong and is reported.
            let _ = thread.join();
        }
    }
}

/// The robots' namespaces and programs. Dropping it removes all of them.
struct Robots {
    namespaces: Vec<Namespace>,
    programs: Vec<Program>,
    /// Empty if the run has no companions.
    companions: Vec<Attendant>,
    deaths: Vec<u32>,
    /// The cards by interface and robot, until the pump takes them.
    cards: Vec<Vec<Option<Card>>>,
}

impl Robots {
    fn make(team: &Team, options: &Options) -> Result<Self, Error> {
        let channels = team.channels().count();
        let mut made = Robots {
            namespaces: Vec::new(),
            programs: Vec::new(),
            companions: Vec::new(),
            deaths: vec![0; team.robots.len()],
            cards: (0..channels).map(|_| Vec::new()).collect(),
        };
        let hosts = hosts(team);
        for robot in robots(team) {
            let (name, has) = (name(team, robot), numbers(team, robot));
            let interfaces: Vec<Interface> = has.iter().map(|number| interface(*number, robot)).collect();
            let (namespace, cards) = Namespace::make(name, &interfaces, &hosts)?;
            made.namespaces.push(namespace);
            let mut cards = cards.into_iter();
            for (number, of_all) in made.cards.iter_mut().enumerate() {
                of_all.push(has.contains(&number).then(|| cards.next()).flatten());
            }
            let mut environment = environment(team, robot, &options.team_file);
            if let Some(companion) = &options.companion {
                environment.push(("COORP_AGENT".to_owned(), companion.folder.join(name).into()));
                made.companions.push(Attendant::new(name, environment.clone()));
            }
            made.programs.push(Program::new(name, environment));
        }
        Ok(made)
    }

    /// Starts the companions of the robots that are alive at the start, and waits until they are ready.
    fn start_companions(
        &mut self,
        team: &Team,
        companion: &Companion,
        lines: &Lines,
        signals: &mut Signals,
        pump: &PumpThread,
    ) -> Result<(), Error> {
        for robot in robots(team).filter(|robot| !Scene::dead(team, *robot, Instant::ZERO)) {
            self.accompany(usize::from(robot.0), companion, &[], lines)?;
        }
        while self.companions.iter().any(Attendant::holds) && !signals.ended() && !pump.broke_off() {
            for (attendant, namespace) in self.companions.iter_mut().zip(&self.namespaces) {
                attendant.release(companion, namespace)?;
            }
            signals.sleep(companion::LOOK_EVERY);
        }
        Ok(())
    }

    /// Starts a robot's companion. The robot's program starts once the companion is ready.
    fn accompany(
        &mut self,
        place: usize,
        companion: &Companion,
        program: &[OsString],
        lines: &Lines,
    ) -> Result<(), Error> {
        let started = self.companions[place].start(companion, &self.namespaces[place], program, lines);
        started.map_err(|error| Error::Broken(format!("cannot start the companion: {error}")))
    }

    /// Starts the programs whose companions have become ready.
    fn start_held(&mut self, options: &Options, lines: &Lines) -> Result<(), Error> {
        let Some(companion) = &options.companion else {
            return Ok(());
        };
        for place in 0..self.companions.len() {
            if let Some(program) = self.companions[place].release(companion, &self.namespaces[place])? {
                self.start(place, &program, lines)?;
            }
        }
        Ok(())
    }

    /// Starts the programs and continues until the run ends.
    fn drive(
        &mut self,
        team: &Team,
        options: &Options,
        clock: Clock,
        lines: &Lines,
        signals: &mut Signals,
        pump: &PumpThread,
    ) -> Result<Ended, Error> {
        let mut dead = vec![true; team.robots.len()];
        let (mut next_script, mut fallen) = (Some(Instant::ZERO), 0);
        let end = options.duration.map(|duration| Instant::ZERO + duration);
        loop {
            let now = clock.now();
            // If the air has stopped, its outcome says why.
            if signals.ended() || pump.broke_off() {
                return Ok(Ended::Signal);
            }
            if let Some(at) = next_script.filter(|at| *at <= now) {
                for robot in robots(team) {
                    let place = usize::from(robot.0);
                    let was = std::mem::replace(&mut dead[place], Scene::dead(team, robot, at));
                    match (was, dead[place]) {
                        // At the start, the companions are already running.
                        (true, false) if at == Instant::ZERO => self.start(place, &options.program, lines)?,
                        (true, false) => self.rise(place, &options.program, options, lines)?,
                        (false, true) => {
                            self.kill(place);
                            self.deaths[place] += 1;
                        }
                        _ => {}
                    }
                }
                next_script = Scene::next_change(team, at);
                continue;
            }
            if let Some(blow) = options.blows.get(fallen).filter(|blow| Instant::ZERO + blow.at <= now) {
                self.strike(blow, fallen, options, lines)?;
                fallen += 1;
                continue;
            }
            if end.is_some_and(|end| end <= now) {
                return Ok(Ended::Duration);
            }
            self.start_held(options, lines)?;
            let running = self.programs.iter_mut().map(Program::runs).filter(|runs| *runs).count();
            // A dead robot may come back.
            let next_blow = options.blows.get(fallen).map(|blow| Instant::ZERO + blow.at);
            let held = self.companions.iter().any(Attendant::holds);
            let awaited = held || next_blow.is_some() || next_script.is_some() && dead.contains(&true);
            if running == 0 && !awaited && !options.program.is_empty() {
                return Ok(Ended::Programs);
            }
            let next = [next_script, next_blow, end]
                .into_iter()
                .flatten()
                .map(|at| at.since(now))
                .min();
            let look_every = if held { companion::LOOK_EVERY } else { LOOK_EVERY };
            signals.sleep(next.unwrap_or(look_every).min(look_every));
        }
    }

    fn strike(&mut self, blow: &Blow, number: usize, options: &Options, lines: &Lines) -> Result<(), Error> {
        let place = usize::from(blow.robot.0);
        if place >= self.programs.len() {
            return Ok(());
        }
        let tell = |fallen| {
            if let Some(watcher) = &options.watched.0 {
                watcher.strikes(number, fallen);
            }
        };
        tell(false);
        match &blow.what {
            What::Kill => self.kill(place),
            What::Start(program) if !self.programs[place].runs() => self.rise(place, program, options, lines)?,
            What::Start(_) => {}
            What::Freeze => self.programs[place].signal(Signal::STOP),
            What::Thaw => self.programs[place].signal(Signal::CONT),
        }
        tell(true);
        Ok(())
    }

    /// Starts a robot's program, after its companion if there is one.
    fn rise(&mut self, place: usize, program: &[OsString], options: &Options, lines: &Lines) -> Result<(), Error> {
        match &options.companion {
            Some(companion) => self.accompany(place, companion, program, lines),
            None => self.start(place, program, lines),
        }
    }

    /// Kills a robot's program and its companion.
    fn kill(&mut self, place: usize) {
        if let Some(attendant) = self.companions.get_mut(place) {
            attendant.die(&self.namespaces[place]);
        }
        self.programs[place].kill(&self.namespaces[place], Fate::Death);
    }

    fn start(&mut self, place: usize, program: &[OsString], lines: &Lines) -> Result<(), Error> {
        if program.is_empty() {
            return Ok(());
        }
        let started = self.programs[place].start(&self.namespaces[place], program, lines);
        started.map_err(|error| Error::Broken(format!("cannot start the program: {error}")))
    }

    /// Ends all programs, and then the companions: asks the running ones to end, and kills those that do not.
    fn end(&mut self, signals: &mut Signals) {
        let stopped: Vec<bool> = self.programs.iter_mut().map(Program::runs).collect();
        // A frozen program does not react to signals.
        for signal in [Signal::TERM, Signal::CONT] {
            self.programs.iter().for_each(|program| program.signal(signal));
        }
        signals.sleep_while(GRACE, || self.programs.iter_mut().any(Program::runs));
        self.programs.iter().for_each(|program| program.signal(Signal::KILL));
        self.companions.iter_mut().for_each(Attendant::ask);
        signals.sleep_while(companion::GRACE, || self.companions.iter_mut().any(Attendant::runs));
        for (attendant, namespace) in self.companions.iter_mut().zip(&self.namespaces) {
            attendant.end(namespace);
        }
        for ((program, namespace), stopped) in self.programs.iter_mut().zip(&self.namespaces).zip(&stopped) {
            let fate = if *stopped { Fate::Stopped } else { program.fate };
            program.kill(namespace, fate);
            program.finish();
        }
    }

    fn report(&self, team: &Team, outcome: &Outcome, ended: Ended, seconds: f64) -> Report {
        let timing = outcome.lateness.timing();
        let robots: Vec<report::Robot> = (self.programs.iter().zip(&self.namespaces))
            .zip(team.robots.iter().zip(&self.deaths).enumerate())
            .map(|((program, namespace), (place, (robot, deaths)))| report::Robot {
                name: robot.name.clone(),
                program: program.fate,
                companion: self.companions.get(place).map_or(Fate::None, Attendant::fate),
                deaths: *deaths,
                frames_missed: namespace.frames_missed(),
            })
            .collect();
        let missed = robots.iter().any(|robot| robot.frames_missed > 0);
        let interfaces = outcome
            .channels
            .iter()
            .enumerate()
            .map(|(number, (frames, mac, transit))| report::Interface {
                name: format!("wlan{number}"),
                used: (mac.used().as_secs_f64() / seconds).min(1.0),
                ppdus: mac.ppdus.into(),
                mpdus: mac.mpdus.into(),
                transit: *transit,
                frames: *frames,
            });
        Report {
            seconds,
            ended,
            robots,
            interfaces: interfaces.collect(),
            timing,
            real_time: outcome.real_time,
            kept_up: !missed && timing.p99_us <= P99_MAX.as_micros_f64(),
        }
    }

    fn clear(mut self) {
        self.clear_away();
    }

    fn clear_away(&mut self) {
        for namespace in self.namespaces.drain(..) {
            namespace.clear();
        }
        self.programs.iter_mut().for_each(Program::finish);
        self.companions.iter_mut().for_each(Attendant::finish);
    }
}

impl Drop for Robots {
    fn drop(&mut self) {
        self.clear_away();
    }
}
