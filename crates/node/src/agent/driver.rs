//! The driver: calls the robot at its deadlines and carries out its actions. Nothing else does.

use std::sync::Arc;

use bytes::Bytes;
use coorp_core::failover::Message as Coordinated;
use coorp_core::paths::PathId;
use coorp_core::robot::{Action, Message, Route};
use coorp_core::{permits, RobotId};

use super::inbound::Transport;
use super::Agent;
use crate::wire::{self, Parcel};

impl Agent {
    /// Carries out one of the robot's actions.
    pub(super) fn act(self: &Arc<Self>, action: Action) {
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
            }
            Action::PathAlive(robot, path, alive) => {
                let path = self.member.path_name(usize::from(path.0));
                let state = if alive { "alive again" } else { "dead" };
                tracing::info!("{path} to {} is {state}", self.member.name_of(robot));
            }
            // No leader of this version asks for it (`policy.rs`).
            Action::Shift(flow, later) => tracing::debug!("flow {} would do better {later} later", flow.0),
            Action::Report(report) => self.gatherings.report(report),
        }
    }

    /// Sends to one robot, over the transport of such messages. A requester's message is a query, which its controller
    /// answers as soon as it has an answer.
    fn send_to(self: &Arc<Self>, to: RobotId, route: Route, message: Message) {
        let (name, me, keyspace) = (self.member.name_of(to), self.member.name(), &self.member.keyspace);
        match (route, &message) {
            (Route::Path(path), _) => self.send_over(to, path, message),
            (Route::Any, Message::Coordination(Coordinated::Permit { message: about, .. })) => match about {
                permits::Message::Grant { .. } | permits::Message::Refuse { .. } => {
                    // If no query was kept, the question came with control.
                    if !self.coordination.answer_kept(to, Some(&wire::encode(&message))) {
                        self.send_over(to, PathId(0), message);
                    }
                }
                permits::Message::Request { .. }
                | permits::Message::Release { .. }
                | permits::Message::Renew { .. } => {
                    self.query(&keyspace.permit(name, me), &message, to);
                }
            },
            (Route::Any, _) => self.coordination.put(&keyspace.lead(me, name), &message),
        }
    }

    fn send_over(&self, to: RobotId, path: PathId, message: Message) {
        self.links.send(to, path, &Parcel::Robot(message), &Bytes::new());
    }

    /// Sends to all other robots.
    fn send_to_all(&self, message: &Message) {
        let (keyspace, me) = (&self.member.keyspace, self.member.name());
        let key = match message {
            Message::Models { .. } => keyspace.models(me),
            _ => keyspace.lead_all(me),
        };
        self.coordination.put(&key, message);
    }

    fn query(self: &Arc<Self>, key: &str, message: &Message, to: RobotId) {
        let agent = self.clone();
        let on_answer = move |payload: &_| agent.on_said(to, Transport::Permits, payload);
        self.coordination.query(key, message, on_answer);
    }
}
