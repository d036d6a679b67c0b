//! Decides which repetitions wait for another message to the leader, where this robot protects unchanged programs.
//!
//! A robot repeats its request for a permit until it is answered, and renews its permit. Each such message is a frame of
//! its own, and so are the answer and QUIC's acknowledgements. Renewals may go with Coorp's control ([`super::riders`]),
//! but unchanged programs' control takes nothing along. Soon, most repetitions become useless or get company: a request
//! is answered, a permit is given back, the leader asks for a promise. So they wait a little, go with the next message
//! to the same robot, and are dropped when they are useless. Programs that send an image of 1 MB and wait until it has
//! arrived get 30 permits a second, of which hardly any is renewed.
//!
//! A repetition that has waited says when it goes out, not when it was made. So the wait does not shorten the lease or
//! the slice that the leader's answer brings.
//!
//! Left out: robots that protect nothing, whose repetitions go with control or at once.

use serde::{Deserialize, Serialize};

use crate::permits::{self, PermitConfig, RequestId};
use crate::{failover, Duration, Instant, RobotId};

/// The longest wait. Requests and renewals are due four times per lease, and wait for half of that at most.
const WAIT_MAX: Duration = Duration::from_millis(40);

/// The repetition that waits. A newer one takes its place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Repeats {
    wait: Duration,
    protects: bool,
    /// The last request that has gone out.
    requested: Option<RequestId>,
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Waiting {
    to: RobotId,
    word: failover::Message,
    due: Instant,
}

impl Repeats {
    /// Creates the state for permits with these settings. With short leases or slices, repetitions wait less.
    pub fn new(permits: &PermitConfig) -> Self {
        Repeats {
            wait: WAIT_MAX.min(permits.lease / 8).min(permits.slice / 8),
            protects: false,
            requested: None,
            waiting: None,
        }
    }

    /// Sets whether this robot protects unchanged programs.
    pub fn set_protects(&mut self, protects: bool) {
        self.protects = protects;
    }

    /// Takes a message for a robot. Returns whether it waits.
    pub fn hold(&mut self, to: RobotId, word: failover::Message, now: Instant) -> bool {
        let Some(message) = permit_message(&word).filter(|_| self.protects) else {
            return false;
        };
        let is_repeated = match message {
            permits::Message::Request { request, .. } => {
                let is_repeated = self.requested.replace(request) == Some(request);
                if !is_repeated {
                    self.drop_requests();
                }
                is_repeated
            }
            permits::Message::Renew { .. } => true,
            permits::Message::Release { token: ended } => {
                self.drop_if(|message| matches!(message, permits::Message::Renew { token, .. } if token == ended));
                false
            }
            permits::Message::Grant { .. } | permits::Message::Refuse { .. } => false,
        };
        if is_repeated {
            let due = self.waiting.map_or(now + self.wait, |waiting| waiting.due);
            self.waiting = Some(Waiting { to, word, due });
        }
        is_repeated
    }

    /// Returns what goes with a message to a robot.
    pub fn along(&mut self, to: RobotId, now: Instant) -> Option<failover::Message> {
        let waiting = self.waiting.take_if(|waiting| waiting.to == to)?;
        Some(sent_at(waiting.word, now))
    }

    /// Records a message that has arrived: an answer ends what it answers.
    pub fn on_word(&mut self, word: &failover::Message) {
        let Some(
            permits::Message::Grant { request: answered, .. } | permits::Message::Refuse { request: answered, .. },
        ) = permit_message(word)
        else {
            return;
        };
        self.drop_if(|message| matches!(message, permits::Message::Request { request, .. } if request == answered));
    }

    /// Records that no bulk is left, so that no permit is wanted.
    pub fn drop_requests(&mut self) {
        self.drop_if(|message| matches!(message, permits::Message::Request { .. }));
    }

    /// Returns what has waited long enough.
    pub fn on_deadline(&mut self, now: Instant) -> Option<(RobotId, failover::Message)> {
        let waiting = self.waiting.take_if(|waiting| now >= waiting.due)?;
        Some((waiting.to, sent_at(waiting.word, now)))
    }

    /// Returns when to call [`Repeats::on_deadline`] next.
    pub fn next_deadline(&self) -> Instant {
        self.waiting.map_or(Instant::FAR_FUTURE, |waiting| waiting.due)
    }

    fn drop_if(&mut self, is_useless: impl Fn(permits::Message) -> bool) {
        self.waiting
            .take_if(|waiting| permit_message(&waiting.word).is_some_and(&is_useless));
    }
}

fn permit_message(word: &failover::Message) -> Option<permits::Message> {
    match word {
        failover::Message::Permit { message, .. } => Some(*message),
        _ => None,
    }
}

/// Returns a request or a renewal as sent at `now`.
fn sent_at(mut word: failover::Message, now: Instant) -> failover::Message {
    if let failover::Message::Permit {
        message: permits::Message::Request { sent_at, .. } | permits::Message::Renew { sent_at, .. },
        ..
    } = &mut word
    {
        *sent_at = now;
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::Epoch;
    use crate::permits::Token;

    const LEADER: RobotId = RobotId(0);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn permit(message: permits::Message) -> failover::Message {
        let epoch = Epoch {
            round: 1,
            robot: LEADER,
            incarnation: 1,
        };
        failover::Message::Permit { epoch, message }
    }

    fn request(id: u64, ms: u64) -> failover::Message {
        permit(permits::Message::Request {
            robot: RobotId(1),
            request: RequestId(id),
            sent_at: at(ms),
        })
    }

    fn renew(token: u64, ms: u64) -> failover::Message {
        permit(permits::Message::Renew {
            token: Token(token),
            sent_at: at(ms),
        })
    }

    fn release(token: u64) -> failover::Message {
        permit(permits::Message::Release { token: Token(token) })
    }

    fn grant(id: u64) -> failover::Message {
        permit(permits::Message::Grant {
            request: RequestId(id),
            token: Token(id),
            slice: Duration::from_secs(5),
            echo: at(0),
        })
    }

    fn protecting() -> Repeats {
        let mut repeats = Repeats::new(&PermitConfig::default());
        repeats.set_protects(true);
        repeats
    }

    #[test]
    fn short_permits_are_neither_requested_twice_nor_renewed() {
        let mut repeats = protecting();
        for id in 0..10 {
            let ms = id * 140;
            assert!(
                !repeats.hold(LEADER, request(id, ms), at(ms)),
                "{id}: the first goes at once"
            );
            assert!(repeats.hold(LEADER, request(id, ms + 75), at(ms + 75)));
            repeats.on_word(&grant(id));
            assert!(repeats.hold(LEADER, renew(id, ms + 100), at(ms + 100)));
            assert!(!repeats.hold(LEADER, release(id), at(ms + 134)));
            assert_eq!(repeats.along(LEADER, at(ms + 134)), None);
            assert_eq!(repeats.next_deadline(), Instant::FAR_FUTURE);
        }
    }

    #[test]
    fn a_repetition_goes_with_the_next_message_to_the_same_robot_or_when_it_is_due() {
        let mut repeats = protecting();
        assert!(repeats.hold(LEADER, renew(1, 0), at(0)));
        assert_eq!(repeats.along(RobotId(2), at(10)), None);
        assert_eq!(repeats.along(LEADER, at(10)), Some(renew(1, 10)));
        assert_eq!(repeats.along(LEADER, at(10)), None);
        // A newer one takes its place, but waits no longer.
        assert!(repeats.hold(LEADER, renew(1, 75), at(75)));
        assert!(repeats.hold(LEADER, renew(1, 100), at(100)));
        assert_eq!(repeats.next_deadline(), at(115));
        assert_eq!(repeats.on_deadline(at(114)), None);
        assert_eq!(repeats.on_deadline(at(115)), Some((LEADER, renew(1, 115))));
        assert_eq!(repeats.on_deadline(at(200)), None);
    }

    #[test]
    fn what_is_about_another_permit_still_goes() {
        let mut repeats = protecting();
        assert!(repeats.hold(LEADER, renew(2, 0), at(0)));
        assert!(!repeats.hold(LEADER, release(1), at(1)));
        repeats.on_word(&grant(1));
        assert_eq!(repeats.along(LEADER, at(2)), Some(renew(2, 2)));
    }

    #[test]
    fn a_request_that_nobody_wants_any_more_does_not_go() {
        let refuse = permit(permits::Message::Refuse {
            request: RequestId(1),
            retry_after: Duration::from_millis(75),
        });
        let ends: [fn(&mut Repeats, failover::Message); 3] = [
            |repeats, _| repeats.drop_requests(),
            |repeats, refuse| repeats.on_word(&refuse),
            |repeats, _| assert!(!repeats.hold(LEADER, request(2, 80), at(80))),
        ];
        for end in ends {
            let mut repeats = protecting();
            assert!(!repeats.hold(LEADER, request(1, 0), at(0)));
            assert!(repeats.hold(LEADER, request(1, 75), at(75)));
            end(&mut repeats, refuse);
            assert_eq!(repeats.along(LEADER, at(80)), None);
        }
    }

    #[test]
    fn with_short_leases_and_slices_repetitions_wait_less() {
        let wait = |lease, slice| {
            let mut repeats = Repeats::new(&PermitConfig {
                lease: Duration::from_millis(lease),
                slice: Duration::from_millis(slice),
                ..PermitConfig::default()
            });
            repeats.set_protects(true);
            assert!(repeats.hold(LEADER, renew(1, 0), at(0)));
            repeats.next_deadline()
        };
        assert_eq!(wait(1_000, 5_000), at(40));
        assert_eq!(wait(80, 5_000), at(10));
        assert_eq!(wait(1_000, 40), at(5));
    }

    #[test]
    fn a_robot_that_protects_nothing_holds_nothing() {
        let mut repeats = Repeats::new(&PermitConfig::default());
        assert!(!repeats.hold(LEADER, renew(1, 0), at(0)));
        assert!(!repeats.hold(LEADER, request(1, 0), at(0)));
        assert!(!repeats.hold(LEADER, request(1, 75), at(75)));
        assert_eq!(repeats.next_deadline(), Instant::FAR_FUTURE);
    }
}
