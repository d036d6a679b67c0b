//! The operator's view of a team: queries every reachable robot for its status.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coorp_core::RobotId;
use coorp_team::Team;
use zenoh::query::{ConsolidationMode, QueryTarget, Reply};
use zenoh::Wait;

use crate::fabric::{fabric_failed, KeySpace, Sessions, Who};
use crate::keys::Identity;
use crate::network;
use crate::status::Status;
use crate::sync::lock;
use crate::{wire, Error};

/// How long robots have to answer.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// The interval at which answers are checked.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Watches a team from outside it.
#[derive(Debug)]
pub struct Watch {
    /// One per path, because some may be dead.
    sessions: Sessions,
    keyspace: KeySpace,
    team: Team,
}

impl Watch {
    /// Opens the operator's session; robots are discovered while it lasts.
    ///
    /// # Errors
    /// If the operator's keys are missing or the network cannot be used.
    pub fn open(team: &Team, insecure: bool) -> Result<Watch, Error> {
        let team = network::placed(team.clone())?;
        let identity = if insecure {
            None
        } else {
            Some(Identity::of_operator(&team)?)
        };
        let robots = (0u16..).map(RobotId).take(team.robots.len());
        let paths = robots.map(|robot| team.paths_used(robot)).max().unwrap_or(1);
        Ok(Watch {
            sessions: Sessions::open(&team, Who::Operator, identity.as_ref(), paths)?,
            keyspace: KeySpace::new(&team),
            team,
        })
    }

    /// The status of each robot that answers, in the team file's order.
    ///
    /// # Errors
    /// If the query cannot be sent.
    pub fn look(&self) -> Result<Vec<Status>, Error> {
        let answers: Arc<Mutex<Vec<Status>>> = Arc::default();
        let open = Arc::new(());
        for session in self.sessions.iter() {
            let (gathered, asked) = (answers.clone(), open.clone());
            let query = session
                .get(self.keyspace.status("*"))
                .target(QueryTarget::All)
                .consolidation(ConsolidationMode::None)
                .timeout(ANSWER_MAX)
                .callback(move |reply: Reply| {
                    let _open = &asked;
                    let payload = reply.result().ok().map(|sample| sample.payload().to_bytes());
                    if let Some(Ok(status)) = payload.map(|payload| wire::decode::<Status>(&payload)) {
                        lock(&gathered).push(status);
                    }
                });
            query.wait().map_err(fabric_failed)?;
        }
        // The callback is dropped once all have answered or the time is up.
        let until = Instant::now() + ANSWER_MAX * 2;
        while Arc::strong_count(&open) > 1 && Instant::now() < until {
            std::thread::sleep(POLL_EVERY);
        }
        let mut answers = std::mem::take(&mut *lock(&answers));
        answers.retain(|status| self.team.robot_named(&status.robot).is_some());
        answers.sort_by_key(|status| self.team.robot_named(&status.robot));
        answers.dedup_by(|a, b| a.robot == b.robot);
        Ok(answers)
    }
}
