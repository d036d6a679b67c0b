//! The driver: calls the robot at its deadlines and carries out its actions. Nothing else does either.

use bytes::Bytes;
use coorp_core::robot::{Action, Message, Route};
use coorp_core::RobotId;

use super::Agent;
use crate::wire::Parcel;

impl Agent {
    /// Carries out one of the robot's actions.
    pub(super) fn act(&self, action: Action) {
        match action {
            Action::Send(to, route, message) => self.send_to(to, route, message),
            Action::Broadcast(message) => self.send_to_all(&message),
            Action::StaleGrant(_) => self.member.refused.count_stale_grant(),
            Action::Led(leader) => {
                self.member.bell.on_led();
                tracing::info!("{} leads", self.member.name_of(leader));
            }
            Action::Permitted(permitted) => {
                tracing::debug!("bulk is {}permitted", if permitted { "" } else { "no longer " });
                if let Some(bulk) = &self.bulk {
                    bulk.set_permitted(permitted);
                }
                self.wake_protection();
            }
            Action::Turn { path, to } => {
                if let Some(bulk) = &self.bulk {
                    bulk.set_turn(path, to);
                }
            }
            Action::Resume => {
                if let Some(bulk) = &self.bulk {
                    bulk.wake();
                }
                self.wake_protection();
            }
            Action::PathAlive(robot, path, alive) => {
                let path = self.member.path_name(usize::from(path.0));
                let state = if alive { "alive again" } else { "dead" };
                tracing::info!("{path} to {} is {state}", self.member.name_of(robot));
            }
            // No leader of this version requests it (`policy.rs`).
            Action::Shift(flow, later) => tracing::debug!("flow {} would do better {later} later", flow.0),
            Action::Report(report) => self.gatherings.report(report),
        }
    }

    fn wake_protection(&self) {
        if let Some(protection) = self.protection() {
            protection.wake();
        }
    }

    /// Sends to one robot: with control over one path, or with coordination over all.
    fn send_to(&self, to: RobotId, route: Route, message: Message) {
        match route {
            Route::Path(path) => {
                self.links.send(to, path, &Parcel::Robot(message), &Bytes::new());
                self.links.hurry();
            }
            Route::Any => self.links.say(to, &message),
        }
    }

    /// Sends to all other robots.
    fn send_to_all(&self, message: &Message) {
        // Without keys there is no bulk to keep out of the way of what is due.
        if self.member.secure || !matches!(message, Message::Models { .. }) {
            self.links.say_to_all(message);
        }
    }
}
