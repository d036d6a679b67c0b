//! IP packets, their stations and access categories.

use coorp_core::{FlowId, Instant};

/// A station on the channel, numbered from 0. The air knows nothing about robots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StationId(pub u16);

impl StationId {
    /// All other stations at once: the receiver of a group-addressed (broadcast or multicast) frame.
    pub const GROUP: StationId = StationId(u16::MAX);
}

/// EDCA access categories, highest priority first (IEEE 802.11-2020, 10.2.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AccessCategory {
    /// AC_VO, voice: used for control.
    Voice = 0,
    /// AC_VI, video.
    Video = 1,
    /// AC_BE, best effort: used for bulk.
    BestEffort = 2,
    /// AC_BK, background.
    Background = 3,
}

impl AccessCategory {
    /// All four, highest priority first.
    pub const ALL: [AccessCategory; 4] = [
        AccessCategory::Voice,
        AccessCategory::Video,
        AccessCategory::BestEffort,
        AccessCategory::Background,
    ];

    /// Returns 0 for AC_VO to 3 for AC_BK.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// One IP packet in flight. Small and `Copy`, because queues hold it by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The flow. FQ-CoDel separates flows by it, and the layer above finds the owner by it.
    pub flow: FlowId,
    /// Opaque to the air: a sequence number, a message and fragment number, or an acknowledgement's index.
    pub tag: u64,
    /// Size of the IP packet in bytes, including headers.
    pub bytes: u16,
    /// The sender.
    pub from: StationId,
    /// The receiver; [`StationId::GROUP`] for all.
    pub to: StationId,
    /// The category in which it is queued.
    pub category: AccessCategory,
    /// When the layer above handed the packet to the host queue.
    pub sent_at: Instant,
}
