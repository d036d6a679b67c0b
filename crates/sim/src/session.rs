//! A run in steps. The caller chooses their length, which does not affect the results.

use std::time;

use coorp_air::Air;
use coorp_core::policy::Policy;
use coorp_core::{Duration, Instant, RobotId};
use coorp_scene::Scene;
use coorp_team::{Change, Team};

use crate::events::Event;
use crate::mpc;
use crate::results::Run;
use crate::schedule;
use crate::setup::{self, MOVE_EVERY};
use crate::timers::Timer;
use crate::world::{World, CHECK_EVERY, TIMERS_PER_INSTANT_MAX};
use crate::{Error, Options};

/// Maximum number of events kept at once, some 400 MB: four hours of five robots.
const EVENTS_MAX: usize = 1 << 24;

/// The run of one team under one policy, so far.
pub struct Session {
    options: Options,
    air: Air,
    world: World,
    scene: Scene,
    pairs: Vec<(RobotId, RobotId)>,
    now: Instant,
    next_check: Instant,
    at_this_instant: u32,
    wall: time::Duration,
    events_max: usize,
}

impl Session {
    /// Creates a run at virtual time 0.
    ///
    /// # Errors
    /// [`Error::NothingToRun`] and [`Error::Unfit`] if policy and team do not fit together.
    pub fn new(mut team: Team, policy: &Policy, options: &Options) -> Result<Session, Error> {
        let started = time::Instant::now();
        let policy = team.policy.apply(policy);
        let mut air = Air::new(setup::config(&team, &policy), options.seed);
        let schedule = match &policy.schedwifi {
            Some(config) => {
                let control = team.control.as_ref().filter(|_| policy.control);
                let phases = control.map_or(Vec::new(), |control| mpc::phases(&team, control, options.seed));
                let unfit = |reason| Error::Unfit {
                    policy: policy.name.clone(),
                    reason,
                };
                Some(schedule::schedule(&team, &policy, &phases, config, control).map_err(unfit)?)
            }
            None => None,
        };
        // Deaths and partitions are for real programs, which have to notice and recover. Here `Options::faults` serves
        // that purpose.
        team.events.retain(|event| matches!(event.change, Change::Link { .. }));
        let name = policy.name.clone();
        let scene = Scene::new(&team, 0);
        let unfit = |reason| Error::Unfit {
            policy: name.clone(),
            reason,
        };
        let mut world = World::new(team, policy, schedule, options).map_err(unfit)?;
        if world.is_empty() {
            return Err(Error::NothingToRun { policy: name });
        }
        let pairs = world.pairs();
        scene.set_links(&world.team, &pairs, Instant::ZERO, &mut air);
        world.start(options, scene.moves());
        if let Some(at) = Scene::next_change(&world.team, Instant::ZERO) {
            world.timers.set(at, Timer::Script);
        }
        world.flush(&mut air);
        Ok(Session {
            options: *options,
            air,
            world,
            scene,
            pairs,
            now: Instant::ZERO,
            next_check: Instant::ZERO,
            at_this_instant: 0,
            wall: started.elapsed(),
            events_max: EVENTS_MAX,
        })
    }

    /// Returns the current virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the team that runs.
    pub fn team(&self) -> &Team {
        &self.world.team
    }

    /// Processes everything up to and including `until`. An instant before [`Session::now`] changes nothing.
    ///
    /// # Errors
    /// [`Error::Broken`] if an invariant fails; the session has then ended. [`Error::TooManyEvents`] if the session
    /// holds the maximum number of events; it continues once they are taken.
    pub fn advance(&mut self, until: Instant) -> Result<(), Error> {
        let started = time::Instant::now();
        let outcome = self.run_until(until);
        self.wall += started.elapsed();
        outcome
    }

    /// Returns the events since the last call, ordered by time, if [`Options::events`] is set.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.world.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn run_until(&mut self, until: Instant) -> Result<(), Error> {
        loop {
            let (air_at, timer_at) = (self.air.next_deadline(), self.world.timers.next());
            let next = air_at.min(timer_at);
            if next > until {
                break;
            }
            if self.world.log.as_ref().is_some_and(|log| log.len() >= self.events_max) {
                return Err(Error::TooManyEvents { max: self.events_max });
            }
            self.step(next, air_at <= timer_at)?;
        }
        self.now = self.now.max(until);
        Ok(())
    }

    /// Processes what is due first, at `next`: on the air or by a timer.
    fn step(&mut self, next: Instant, on_air: bool) -> Result<(), Error> {
        let world = &mut self.world;
        self.at_this_instant = if next > world.now { 0 } else { self.at_this_instant + 1 };
        if self.at_this_instant > TIMERS_PER_INSTANT_MAX {
            return Err(Error::Broken {
                rule: format!("time advances; stuck at {} s", next.as_secs_f64()),
            });
        }
        self.now = self.now.max(next);
        world.now = next;
        if on_air {
            world.events += 1;
            self.air.on_deadline(world);
        } else if let Some(timer) = world.timers.pop() {
            world.events += u64::from(!timer.only_records());
            if timer == Timer::Move {
                self.scene.move_links(&world.team, &self.pairs, next, &mut self.air);
                world.timers.set(next + MOVE_EVERY, Timer::Move);
            } else if timer == Timer::Script {
                self.scene.set_links(&world.team, &self.pairs, next, &mut self.air);
                if let Some(at) = Scene::next_change(&world.team, next) {
                    world.timers.set(at, Timer::Script);
                }
            } else {
                world.on_timer(timer);
            }
        }
        world.flush(&mut self.air);
        if next >= self.next_check {
            world.check()?;
            self.next_check = next + CHECK_EVERY;
        }
        Ok(())
    }

    /// Returns the result of the run so far.
    pub fn result(&self) -> Run {
        let mut run = self.world.result(&self.air, self.now, &self.options);
        run.result.wall_s = self.wall.as_secs_f64();
        run
    }
}

/// Virtual time between two progress reports of a run.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// Advances a session to the end of its options' duration. `progress` receives the virtual time now and then.
pub(crate) fn to_the_end(session: &mut Session, progress: &(dyn Fn(Instant) + Sync)) -> Result<(), Error> {
    let end = Instant::ZERO + session.options.duration;
    while session.now() < end {
        session.advance(end.min(session.now() + REPORT_EVERY))?;
        progress(session.now());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_stops_the_session_until_it_is_taken() {
        let text = "[[robot]]\nname = \"l\"\nleader = true\n[[robot]]\nname = \"a\"\n\
                    [control]\nrate_hz = 30\nbound = \"33ms\"\n";
        let team = coorp_team::parse(text, "test.toml", std::path::Path::new(".")).expect("a valid team");
        let options = Options {
            events: true,
            ..Options::default()
        };
        let policy = Policy::named("edca").expect("a preset");
        let end = Instant::ZERO + Duration::from_secs(3);
        let mut whole = Session::new(team.clone(), &policy, &options).expect("a team that fits");
        whole.advance(end).expect("an unbroken run");
        let mut parts = Session::new(team, &policy, &options).expect("a team that fits");
        parts.events_max = 100;
        let mut events = Vec::new();
        while let Err(error) = parts.advance(end) {
            assert_eq!(error, Error::TooManyEvents { max: 100 });
            assert!(parts.now() < end);
            events.extend(parts.take_events());
        }
        events.extend(parts.take_events());
        assert!(events.len() > 300 && events == whole.take_events());
    }
}
