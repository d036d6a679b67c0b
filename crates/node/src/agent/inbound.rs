//! Handles what arrives over links: refuses it, or passes it to the robot.
//!
//! The links' tasks run this. The certificate at the other end of a link names the sender.

use std::net::IpAddr;

use bytes::Bytes;
use coorp_core::paths::PathId;
use coorp_core::robot::{Cursor, Input, Look, Message};
use coorp_core::RobotId;

use super::Agent;
use crate::links::{LinkId, Receiver, MESSAGE_BYTES_MAX};
use crate::presence::Change;
use crate::status::{Status, Twins};
use crate::sync::lock;
use crate::tasks::beside;
use crate::topic::checked;
use crate::wire::{self, ControlHeader, Frame, Gathering, Hello, Parcel, Refusal, Revocations, WrapHeader};
use crate::Error;

/// Returns whether a message goes over coordination's stream, and not with control, tied to one path.
fn is_coordination(message: &Message) -> bool {
    matches!(message, Message::Coordination(_) | Message::Models { .. })
}

impl Agent {
    fn on_message(&self, from: RobotId, path: Option<PathId>, message: Message) {
        self.robot
            .tell(|robot, now| robot.handle(Input::Message { from, path, message }, now));
    }

    fn on_control(
        &self,
        from: RobotId,
        path: PathId,
        topic: &str,
        header: ControlHeader,
        riders: Vec<Message>,
        content: &Bytes,
    ) {
        self.robot.tell(|robot, now| {
            if let Some(copy) = copy(from, path, header.incarnation, header.copy) {
                robot.handle(copy, now);
            }
            let stamp = header.stamp;
            robot.handle(Input::Arrived { from, stamp }, now);
            for message in riders {
                let path = Some(path);
                robot.handle(Input::Message { from, path, message }, now);
            }
        });
        self.control.on_message(from, path, topic, header, content);
    }

    fn on_state(&self, from: RobotId, path: PathId, topic: &str, header: wire::State, content: &Bytes) {
        if let Some(copy) = copy(from, path, header.header.sequence.incarnation, header.copy) {
            self.robot.tell(|robot, now| robot.handle(copy, now));
        }
        self.gatherings.on_state(from, topic, header, content);
    }

    fn on_wrapped(&self, from: RobotId, path: PathId, header: WrapHeader, packet: Bytes) {
        // This goes first, because the robot takes a while to decide.
        self.wrapper.on_wrapped(from, path, header, packet);
        if let Some(copy) = copy(from, path, header.sequence.incarnation, header.copy) {
            self.robot.tell(|robot, now| robot.handle(copy, now));
        }
    }

    /// Handles a robot's announcement of what it subscribes to and gathers.
    fn on_hello(&self, from: RobotId, link: LinkId, hello: Hello) {
        let topics = hello.gathers.iter().map(|(topic, _)| topic);
        let are_names = hello
            .subscribes
            .iter()
            .chain(topics)
            .all(|topic| checked(topic).is_ok());
        if !are_names || hello.subscribes.len().max(hello.gathers.len()) > Hello::TOPICS_MAX {
            return self.member.refused.count("an announcement", Refusal::Malformed);
        }
        // Hold the lock until everything that tracks presence agrees, because links of several paths report.
        let mut presence = lock(&self.presence);
        let Change {
            appeared,
            restarted,
            has_twin,
            new_link,
            stale,
            subscribes,
            unwraps,
            ungathers,
            gathers,
        } = presence.on_hello(from, link, hello, self.robot.now());
        if restarted {
            self.on_gone(from);
            // Only its own host can say so, with its certificate: the earlier process has ended, with whatever it held.
            // The new start may have sent since this link began, so that counts.
            let began = self.links.began(from, link);
            self.robot.tell(|robot, now| {
                let since = began.unwrap_or(now);
                robot.handle(Input::Dead { robot: from, since }, now)
            });
        }
        if let Some(subscribes) = subscribes {
            self.control.on_subscriptions(from, subscribes);
        }
        if let Some(unwraps) = unwraps {
            self.wrapper.on_announced(from, unwraps);
        }
        self.gatherings.on_gathers(from, ungathers, false);
        self.gatherings.on_gathers(from, gathers, true);
        drop(presence);
        if has_twin {
            self.on_twins(from, self.links.addresses(from));
        }
        self.links.end(from, &stale);
        if new_link {
            self.robot.tell(|robot, now| robot.handle(Input::TellModelsAgain, now));
        }
        if appeared || restarted {
            tracing::info!("{} is here", self.member.name_of(from));
        }
    }

    /// Handles the loss of a robot's last link: its process has ended, or is out of reach.
    fn on_gone(&self, robot: RobotId) {
        self.control.on_gone(robot);
        self.wrapper.on_gone(robot);
        self.robot.tell(|it, now| it.handle(Input::Gone(robot), now));
        self.gatherings.on_gone(robot);
    }
}

/// Returns the robot's input for one of several copies of a message, if the copy is numbered.
fn copy(from: RobotId, path: PathId, incarnation: u32, number: Option<u32>) -> Option<Input> {
    number.map(|number| Input::Copy {
        from,
        path,
        incarnation,
        number,
    })
}

impl Receiver for Agent {
    fn on_parcel(&self, from: RobotId, path: PathId, mut message: Bytes) {
        let refuse = |what, refusal| self.member.refused.count(what, refusal);
        let (parcel, content) = match wire::unpack(&message) {
            Ok(unpacked) => unpacked,
            Err(refusal) => return refuse("a control message", refusal),
        };
        let content = message.split_off(content);
        if content.len() > MESSAGE_BYTES_MAX {
            return refuse("a control message", Refusal::Oversized);
        }
        match parcel {
            Parcel::Control { riders, .. } if !riders.iter().all(Message::may_ride) => {
                refuse("a control message", Refusal::Malformed);
            }
            Parcel::Control { topic, header, riders } => self.on_control(from, path, &topic, header, riders, &content),
            Parcel::State { topic, header } => self.on_state(from, path, &topic, header, &content),
            Parcel::Wrapped(header) => self.on_wrapped(from, path, header, content),
            Parcel::Robot(message) if !is_coordination(&message) || message.may_ride() => {
                self.on_message(from, Some(path), message);
            }
            Parcel::Robot(_) => refuse("a link message", Refusal::Malformed),
        }
    }

    fn on_frame(&self, from: RobotId, link: LinkId, frame: &[u8]) {
        let refused = &self.member.refused;
        match wire::kind(frame) {
            Some(Hello::KIND) => {
                if let Some(hello) = refused.decode("an announcement", frame) {
                    self.on_hello(from, link, hello);
                }
            }
            Some(Gathering::KIND) => {
                if let Some(gathering) = refused.decode("a message about gathering", frame) {
                    self.gatherings.on_said(from, gathering);
                }
            }
            Some(Revocations::KIND) => self.on_revocations(self.member.name_of(from), frame),
            _ => match refused.decode("a message between robots", frame) {
                Some(message) if is_coordination(&message) => self.on_message(from, None, message),
                Some(_) => refused.count("a message between robots", Refusal::Malformed),
                None => {}
            },
        }
    }

    fn on_ended(&self, from: RobotId, link: LinkId) {
        let mut presence = lock(&self.presence);
        if let Some(gathered) = presence.on_ended(from, link) {
            self.on_gone(from);
            self.gatherings.on_gathers(from, gathered, false);
            drop(presence);
            tracing::info!("{} is gone", self.member.name_of(from));
        }
    }

    fn on_new_card(&self, path: usize) -> Result<(), Error> {
        self.bulk.as_ref().map_or(Ok(()), |bulk| bulk.rebind(path))
    }

    fn on_twins(&self, robot: RobotId, at: Vec<IpAddr>) {
        let (member, now) = (&self.member, self.robot.now());
        let twins = Twins { robot: robot.0, at };
        if member.bell.on_twins(robot, twins.at.clone(), now) {
            tracing::error!("{}", twins.told(member.name_of(robot)));
        }
    }

    fn hello(&self, number: u64) -> Hello {
        Hello {
            incarnation: self.member.incarnation,
            number,
            subscribes: self.control.subscribed_topics(),
            gathers: self.gatherings.topics(),
            unwraps: self.wrapper.unwraps(),
        }
    }

    fn status(&self) -> Status {
        Agent::status(self)
    }

    fn look(&self, since: Option<Cursor>) -> Look {
        self.robot.tell(|robot, now| robot.look(since, now))
    }

    fn on_revocations(&self, from: &str, frame: &[u8]) {
        let (refused, revoked) = (&self.member.refused, &self.member.revoked);
        let list = refused.decode("a list of revoked certificates", frame);
        if !list.is_some_and(|list| revoked.on_list(from, &list)) {
            return;
        }
        self.member.door.close_revoked();
        self.links.on_revoked();
        if let Some(bulk) = &self.bulk {
            bulk.close_revoked();
        }
        let revoked = revoked.clone();
        beside(move || revoked.keep());
    }
}
