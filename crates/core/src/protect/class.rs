//! Decides the class of a flow by what it sends, if no [`Rule`](super::Rule) of the team file covers it.
//!
//! The first of these criteria that applies:
//!
//! 1. A backlog: a flow with packets waiting for 50 ms, and with more than ten full ones, is bulk. For that, the driver
//!    takes ordinary packets only while few are queued below it; otherwise the card's queue would hide the backlog.
//!    Bulk becomes ordinary again after five seconds and eight messages without a backlog. Time in which it waits for a
//!    permit proves nothing, nor does silence: a trainer is silent between two models. If a protocol states the length
//!    of its messages, a message of more than 64 kB counts as a backlog.
//! 2. The DSCP set by the program: voice and network control are control, because the program knows best.
//! 3. Small messages at regular times are control: at most 4 kB, every 5 ms to 1 s. [`crate::arrival`] is the test, and
//!    every message must arrive one period after the previous one. It must do so eight times in a row to within a tenth
//!    of the period, or sixteen times to within a fifth. Control stays control while somewhat more than a third of
//!    its messages are on time, because programs stall and change their rates. Packets without payload, such as TCP's
//!    bare acknowledgements, are not messages. On a quiet channel, bulk's acknowledgements arrive as regularly as the
//!    air takes aggregates.
//! 4. So are small messages at a steady rate: with jitter, but 128 in a row are no more than a quarter of their mean gap
//!    off a line through them, root mean square. A sender whose timer is served late passes. Keystrokes, requests and
//!    the acknowledgements of a busy channel do not. A flow whose gaps deviate by a sixth passes now and then.
//!
//! Rules of the agent itself follow those of the team file, for its own connections ([`crate::zenoh`]). Control by
//! these rules, and by 2 to 4, is bounded. Nothing is aggregated in AC_VO, so a fast flow there would ruin the channel
//! for everybody. A flow that sends more than 1 Mbit/s, averaged over a quarter of a second, is not control. It can be
//! again once it has kept below half of that for five seconds. If its program marks it, its bound is 4 Mbit/s: a
//! perception of 12 KiB, 30 times a second, takes three.

use serde::{Deserialize, Serialize};

use super::flows::Entry;
use super::queues::Load;
use super::{FULL_BYTES, TCP, UDP};
use crate::{Duration, Instant};

/// A backlog is more than this, ten full packets, for at least the second constant.
const BACKLOG_BYTES: u64 = 10 * FULL_BYTES;
const BACKLOG_FOR: Duration = Duration::from_millis(50);
/// Bulk without a backlog for this long, and for this many messages, becomes ordinary again.
const CALM_FOR: Duration = Duration::from_secs(5);
const CALM_MESSAGES: u8 = 8;
/// EF, CS6, CS7 and voice-admit.
pub(super) const URGENT: [u8; 4] = [46, 48, 56, 44];
/// A flow with a message longer than this is bulk at once.
pub(super) const LARGE_BYTES: u32 = 64 << 10;

/// The class of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Sent at once in AC_VO, and predicted if that is possible.
    Control,
    /// Neither: sent as it arrives.
    Ordinary,
    /// Waits for the permit and for the gate.
    Bulk,
}

/// The reason for a flow's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Covered by the rule with this index.
    Rule(usize),
    /// Control: the program marks the flow so, by EF, CS6, CS7 or voice-admit.
    Marked,
    /// Control: the messages are small and periodic.
    Periodic,
    /// Control: the messages are small and come at a steady rate, but each with a jitter that hides the period.
    Steady,
    /// Bulk: the flow keeps a backlog.
    Backlog,
    /// Bulk: the messages are large.
    Large,
    /// Ordinary: the flow would be control if it sent less.
    TooFast,
    /// Ordinary: nothing indicates another class.
    Undecided,
    /// Ordinary, and forgotten: the flow sent nothing for a minute, or others needed its place.
    Silent,
    /// Covered by a rule of the agent itself, for its own connections.
    Own,
}

/// Returns the class of a flow without a rule, with the reason.
pub(super) fn earned(entry: &mut Entry, load: Load, shared: bool, now: Instant) -> (Class, Reason) {
    let is_bulk = entry.class == Class::Bulk;
    let held = if is_bulk { load.held } else { Duration::ZERO };
    let backlog = load.bytes > BACKLOG_BYTES && load.standing.saturating_sub(held) >= BACKLOG_FOR;
    if backlog {
        (entry.calm_from, entry.calm_messages) = (now, 0);
    }
    let calm = load.packets == 0 && now.since(entry.calm_from) >= CALM_FOR && entry.calm_messages >= CALM_MESSAGES;
    entry.large &= !calm;
    if entry.large {
        return (Class::Bulk, Reason::Large);
    }
    if backlog || is_bulk && entry.reason == Reason::Backlog && !calm {
        return (Class::Bulk, Reason::Backlog);
    }
    let marked = URGENT.contains(&entry.dscp);
    let fragment = matches!(entry.flow.protocol, TCP | UDP) && (entry.flow.from.1, entry.flow.to.1) == (0, 0);
    let earned = match (marked, entry.nature.is_periodic(), entry.nature.is_steady()) {
        (true, ..) => Reason::Marked,
        (_, true, _) if !fragment => Reason::Periodic,
        (.., true) if !fragment => Reason::Steady,
        _ => return (Class::Ordinary, Reason::Undecided),
    };
    match entry.nature.is_fast(now) {
        _ if shared => (Class::Ordinary, Reason::Undecided),
        true => (Class::Ordinary, Reason::TooFast),
        false => (Class::Control, earned),
    }
}
