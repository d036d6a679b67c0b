//! The configuration of a channel and its stations. Plain data, filled in from the team file.

use coorp_core::Duration;

use crate::link::Link;
use crate::packet::StationId;
use crate::phy::Phy;

/// One EDCA function's parameters (IEEE 802.11-2020, 9.4.2.28) and its aggregation limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edca {
    /// Slots to wait after SIFS before the backoff counts down.
    pub aifsn: u8,
    /// Smallest contention window, in slots.
    pub cw_min: u16,
    /// Largest contention window, in slots.
    pub cw_max: u16,
    /// The maximum duration of a transmission opportunity; zero for one PPDU.
    pub txop: Duration,
    /// Maximum number of MPDUs in an A-MPDU; 1 disables aggregation.
    pub ampdu_frames: u16,
    /// Maximum length of an A-MPDU in bytes.
    pub ampdu_bytes: u32,
}

/// A wireless network interface as its driver sees it: its queues, and the frames that nothing can overtake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wnic {
    /// Maximum number of a category's packets that are handed over and not yet completed.
    pub queue_frames: u16,
    /// Packets that the driver takes from one destination before it moves to the next.
    pub burst_frames: u16,
    /// Capacity of the commit stage, a FIFO in the baseband for all categories, in which nothing overtakes. `None`:
    /// each category contends directly from its own queue, as ns-3 models it.
    pub commit_frames: Option<u16>,
    /// Whether the driver completes a packet when the commit stage takes it (USB: the transfer has ended), instead of
    /// when its exchange on the air is over.
    pub completes_on_transfer: bool,
    /// Capacity of one category's host queue, in packets.
    pub host_queue_packets: usize,
    /// Whether the host queue runs CoDel on its flows (mac80211 does; ns-3's MAC queue does not).
    pub codel: bool,
    /// Minimum time between the starts of two MPDUs in an A-MPDU (minimum MPDU start spacing).
    pub mpdu_spacing: Duration,
}

/// One channel with its stations.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The PHY parameters that all stations share.
    pub phy: Phy,
    /// The EDCA functions, AC_VO first.
    pub edca: [Edca; 4],
    /// A PPDU that lasts longer than this is preceded by RTS/CTS: zero for all, [`Duration::MAX`] for none. Real
    /// stations configure it in bytes (dot11RTSThreshold), at the rate of their link.
    pub rts_over: Duration,
    /// Retransmissions of an MPDU before it is dropped.
    pub retries_max: u8,
    /// Frames that a block ack covers: 64, or 256 in 802.11ax.
    pub block_ack_frames: u16,
    /// Whether bystanders wait EIFS after a collision, as they do if they notice that there was a frame.
    pub eifs: bool,
    /// Whether a missed block ack is requested before its frames are sent again.
    pub block_ack_request: bool,
    /// The access point, which relays frames between the other stations; `None` if they send directly.
    pub access_point: Option<StationId>,
    /// The number of stations.
    pub stations: u16,
    /// Every station's WNIC.
    pub wnic: Wnic,
    /// The link between stations for which [`Air::set_link`](crate::Air::set_link) has not been called.
    pub link: Link,
}
