//! What a channel and its stations are configured with. Plain data; the team file fills it in.

use coorp_core::Duration;

use crate::link::Link;
use crate::phy::Phy;

/// One EDCA function's parameters (IEEE 802.11-2020, 9.4.2.28) and its aggregation limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edca {
    /// Slots to wait after SIFS before the backoff counts.
    pub aifsn: u8,
    /// Smallest contention window, slots.
    pub cw_min: u16,
    /// Largest contention window, slots.
    pub cw_max: u16,
    /// How long a won transmission opportunity may last; zero for one PPDU.
    pub txop: Duration,
    /// Most MPDUs in an A-MPDU; 1 turns aggregation off.
    pub ampdu_frames: u16,
    /// Longest A-MPDU, bytes.
    pub ampdu_bytes: u32,
}

/// A wireless network interface as its driver sees it: what it takes, and what can no longer be overtaken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wnic {
    /// Packets of one access category that the driver may have handed over and not seen completed.
    pub queue_frames: u16,
    /// Packets that the driver takes from one destination before it turns to the next.
    pub burst_frames: u16,
    /// Frames that the baseband holds in the order it took them, all categories together: nothing overtakes them.
    /// None: each category contends straight from its own queue, as ns-3 models it.
    pub commit_frames: Option<u16>,
    /// Whether the driver counts a packet as complete when the commit stage takes it (USB: the transfer has ended)
    /// and not when its exchange on the air is over.
    pub completes_on_transfer: bool,
    /// Packets that the host queue of one access category holds before it drops.
    pub host_queue_packets: usize,
    /// Whether the host queue runs CoDel on its flows (mac80211 does; ns-3's MAC queue does not).
    pub codel: bool,
    /// Shortest time between the starts of two MPDUs in an A-MPDU (minimum MPDU start spacing).
    pub mpdu_spacing: Duration,
}

/// One channel with its stations.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the stations share at the PHY.
    pub phy: Phy,
    /// The EDCA functions, AC_VO first.
    pub edca: [Edca; 4],
    /// A PPDU that lasts longer than this opens with RTS/CTS: zero for all, [`Duration::MAX`] for none. Stations set
    /// it in bytes (dot11RTSThreshold), for the rate of their link.
    pub rts_over: Duration,
    /// Times an MPDU is sent again before it is dropped.
    pub retries_max: u8,
    /// Frames a block ack covers: 64, or 256 in 802.11ax.
    pub block_ack_frames: u16,
    /// How many stations there are.
    pub stations: u16,
    /// Every station's WNIC.
    pub wnic: Wnic,
    /// Every link that has not been set apart with [`Air::set_link`](crate::Air::set_link).
    pub link: Link,
}
