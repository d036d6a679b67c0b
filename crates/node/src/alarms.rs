//! Checks once a second what an operator should know; `core::alarms` decides what that is.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coorp_core::alarms::{Alarm, Alarms, Sight, STANDS};
use coorp_core::{Instant, RobotId};

use crate::ground::Worker;
use crate::member::Member;
use crate::shared_robot::SharedRobot;
use crate::status::Twins;
use crate::sync::lock;
use crate::Error;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A robot's alarms, and the counts behind them that nobody else keeps.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    alarms: Mutex<Alarms>,
    twins: AtomicU64,
    /// The time at which two processes were last seen to run as a robot, and their addresses, by robot.
    twins_seen: Mutex<BTreeMap<RobotId, (Instant, Vec<IpAddr>)>>,
    leader_changes: AtomicU64,
}

impl Bell {
    /// Records that two processes run as a robot. Returns whether this was not reported recently.
    pub fn on_twins(&self, robot: RobotId, at: Vec<IpAddr>, now: Instant) -> bool {
        self.twins.fetch_add(1, Ordering::Relaxed);
        let before = lock(&self.twins_seen).insert(robot, (now, at));
        before.is_none_or(|(seen, _)| now.since(seen) >= STANDS)
    }

    /// Returns the robots that two processes run as.
    pub fn twins(&self, now: Instant) -> Vec<Twins> {
        let mut seen = lock(&self.twins_seen);
        seen.retain(|_, (seen, _)| now.since(*seen) < STANDS);
        let twins = seen.iter().map(|(robot, (_, at))| Twins {
            robot: robot.0,
            at: at.clone(),
        });
        twins.collect()
    }

    /// Records that another robot leads.
    pub fn on_led(&self) {
        self.leader_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the alarms that are raised now.
    pub fn standing(&self, now: Instant) -> Vec<Alarm> {
        lock(&self.alarms).standing(now)
    }

    fn look(&self, member: &Member, state: &Path, now: Instant) {
        let refused = member.refused.read();
        let unix = member.ground.unix();
        let disk = member.ground.disk();
        let sight = Sight {
            strangers: refused.strangers,
            other_version: refused.version,
            twins: self.twins.load(Ordering::Relaxed),
            leader_changes: self.leader_changes.load(Ordering::Relaxed),
            unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
            // The folder itself is missing if the disk was full at the first start.
            disk_short: state
                .ancestors()
                .find_map(|folder| disk.space(folder).ok())
                .is_some_and(|space| space.check().is_err()),
        };
        for alarm in lock(&self.alarms).on_sight(sight, now) {
            tracing::warn!("alarm: {alarm}");
        }
    }
}

/// The thread that checks. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Lookout {
    end: Arc<AtomicBool>,
    worker: Option<Worker>,
}

impl Lookout {
    pub fn start(member: Arc<Member>, robot: Arc<SharedRobot>, state: PathBuf) -> Result<Lookout, Error> {
        let (end, ground) = (Arc::new(AtomicBool::new(false)), member.ground.clone());
        let ended = end.clone();
        let round = move || {
            let goes_on = !ended.load(Ordering::Acquire);
            goes_on.then(|| member.bell.look(&member, &state, robot.now()))?;
            Some(LOOK_EVERY)
        };
        let worker = Some(
            ground
                .worker("coorp-alarms", || (), Box::new(round))
                .map_err(Error::Thread)?,
        );
        Ok(Lookout { end, worker })
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(worker) = self.worker.take() {
            worker.join();
        }
    }
}
