//! Sends the control of unchanged programs, wrapped or not, in the order in which its flows sent it.

use coorp_core::protect::{Change, Class, Reason};
use coorp_core::robot::Input;
use coorp_core::Instant;

use super::Lane;
use crate::outqueue::Target;
use crate::protect::card::TOGETHER_MAX;
use crate::protect::packet::{self, Packet};
use crate::protect::UNWRAPPED_AFTER;

/// The way that the last packet of a control flow took.
#[derive(Clone, Copy, Debug)]
pub(super) enum Went {
    Nowhere,
    /// Among the packets that are not control, because others of its flow did before.
    Among(Instant),
    Unwrapped(Instant),
    Wrapped(Instant),
}

impl Lane {
    /// Sends a control packet, perhaps the first one of a message. Tells the robot only afterwards, because it takes a
    /// while to decide. Packets that the flow sent before it became control may still be below, where control overtakes
    /// them. So until a message begins once they have left, it goes the same way.
    pub(super) fn send_control(&mut self, packet: Box<[u8]>, number: u32, begins: bool) {
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

    /// Tells the robot which flows are control.
    pub(super) fn follow_changes(&mut self) {
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
}
