//! Computes how long transmissions take on the air: 802.11n, ac and ax in the 5 GHz band.
//!
//! Preambles, symbols, modulation and coding follow IEEE 802.11-2020 clauses 17 (legacy frames), 19 (HT) and 21
//! (VHT) and 802.11ax-2021 clause 27 (HE SU). Left out: 160 MHz, MU-MIMO and OFDMA, STBC, HE packet extension,
//! more than one BCC encoder (its extra tail bits are under 0.1 % of a PPDU), and 2.4 GHz's signal extension.

use coorp_core::Duration;

/// 802.11's slot time at 5 GHz.
pub const SLOT: Duration = Duration::from_micros(9);
/// Short interframe space at 5 GHz.
pub const SIFS: Duration = Duration::from_micros(16);
/// Longest PPDU that a transmitter may send (aPPDUMaxTime).
pub const PPDU_MAX: Duration = Duration::from_micros(5_484);

/// Bytes of an RTS, CTS, ACK, BlockAckReq and of a compressed block ack with a 64- or 256-frame bitmap.
pub(crate) const RTS_BYTES: u32 = 20;
pub(crate) const CTS_BYTES: u32 = 14;
pub(crate) const ACK_BYTES: u32 = 14;
pub(crate) const BLOCK_ACK_REQUEST_BYTES: u32 = 24;
const BLOCK_ACK_64_BYTES: u32 = 32;
const BLOCK_ACK_256_BYTES: u32 = 56;

/// The amendment that the data frames follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standard {
    /// 802.11n, HT.
    N,
    /// 802.11ac, VHT.
    Ac,
    /// 802.11ax, HE (single user).
    Ax,
}

/// PHY properties that all stations of the channel share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phy {
    /// The amendment.
    pub standard: Standard,
    /// Channel width: 20, 40 or 80 MHz.
    pub width_mhz: u16,
    /// Guard interval in ns: 400 or 800, for ax 800, 1600 or 3200.
    pub guard_interval_ns: u16,
    /// Highest legacy rate of RTS, CTS and acknowledgements: 6, 12 or 24 Mbit/s.
    pub control_rate_mbps: u16,
}

/// A modulation and coding scheme and its number of spatial streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// MCS 0 to 7 (n, per stream), 0 to 9 (ac), 0 to 11 (ax).
    pub mcs: u8,
    /// Spatial streams, 1 to 4.
    pub streams: u8,
}

/// A legacy rate for control frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlRate {
    mbps: u16,
}

/// Coded bits per subcarrier and the coding rate of each MCS.
const MODULATION: [(u32, u32, u32); 12] = [
    (1, 1, 2),
    (2, 1, 2),
    (2, 3, 4),
    (4, 1, 2),
    (4, 3, 4),
    (6, 2, 3),
    (6, 3, 4),
    (6, 5, 6),
    (8, 3, 4),
    (8, 5, 6),
    (10, 3, 4),
    (10, 5, 6),
];

/// Everything that determines a PPDU's duration besides its length, precomputed for one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    preamble_ns: u64,
    symbol_ns: u64,
    /// VHT and HT send an integer number of 4 us intervals even if symbols take 3.6 us (21.4.3, TXTIME).
    round_up_ns: u64,
    bits_per_symbol: u64,
}

impl Phy {
    /// Returns the timing of data PPDUs at `rate`. An MCS beyond the table counts as its last.
    pub fn timing(&self, rate: Rate) -> Timing {
        let (bits, numerator, denominator) = MODULATION[usize::from(rate.mcs).min(MODULATION.len() - 1)];
        let streams = u32::from(rate.streams.max(1));
        let bits_per_symbol = (self.data_subcarriers() * bits * streams * numerator / denominator).max(1);
        let training_fields = u64::from(if streams == 3 { 4 } else { streams });
        let (preamble_ns, symbol_ns, round_up_ns) = match self.standard {
            Standard::N => (32_000 + 4_000 * training_fields, self.ofdm_symbol_ns(), 4_000),
            Standard::Ac => (36_000 + 4_000 * training_fields, self.ofdm_symbol_ns(), 4_000),
            Standard::Ax => {
                let guard = u64::from(self.guard_interval_ns);
                // 2x HE-LTF with the short guard intervals, 4x with the long one: the mandatory combinations.
                let training = guard + if guard > 1_600 { 12_800 } else { 6_400 };
                (36_000 + training * training_fields, 12_800 + guard, 1)
            }
        };
        Timing {
            preamble_ns,
            symbol_ns,
            round_up_ns,
            bits_per_symbol: u64::from(bits_per_symbol),
        }
    }

    /// Returns the timing of data PPDUs that every station must be able to decode: legacy OFDM at 6 Mbit/s (17.3.2).
    pub fn basic_timing(&self) -> Timing {
        Timing {
            preamble_ns: 20_000,
            symbol_ns: 4_000,
            round_up_ns: 4_000,
            bits_per_symbol: 24,
        }
    }

    fn ofdm_symbol_ns(&self) -> u64 {
        3_200 + u64::from(self.guard_interval_ns.min(800))
    }

    fn data_subcarriers(&self) -> u32 {
        match (self.standard, self.width_mhz) {
            (Standard::Ax, 20) => 234,
            (Standard::Ax, 40) => 468,
            (Standard::Ax, _) => 980,
            (_, 20) => 52,
            (_, 40) => 108,
            (_, _) => 234,
        }
    }

    /// Returns the rate of control frames on a link whose data is sent at `rate`. It is the highest mandatory one that
    /// is neither above the data's non-HT reference rate (10.6.6.5, table 10-10) nor above the channel's own.
    pub fn control_rate(&self, rate: Rate) -> ControlRate {
        let mandatory = match rate.mcs {
            0 => 6,
            1 | 2 => 12,
            _ => 24,
        };
        ControlRate {
            mbps: mandatory.min(self.control_rate_mbps),
        }
    }

    /// Returns how long after the end of its frame a station waits for the start of an answer. That is SIFS, a slot,
    /// and aRxPHYStartDelay, a legacy preamble and signal field (10.3.2.9).
    pub fn ack_timeout(&self) -> Duration {
        SIFS + SLOT + Duration::from_micros(20)
    }

    /// Returns EIFS - DIFS: SIFS and an ACK at the lowest rate (10.3.2.3.7). All stations add it to their interframe
    /// space after a frame that could not be decoded.
    pub fn eifs_extra(&self) -> Duration {
        SIFS + ControlRate { mbps: 6 }.ack()
    }
}

impl ControlRate {
    /// Returns the duration of a legacy OFDM frame of `bytes` (17.4.3, TXTIME).
    fn frame(self, bytes: u32) -> Duration {
        let symbols = u64::from(16 + 8 * bytes + 6).div_ceil(4 * u64::from(self.mbps.max(1)));
        Duration::from_micros(20 + 4 * symbols)
    }

    /// Returns the duration of an RTS.
    pub fn rts(self) -> Duration {
        self.frame(RTS_BYTES)
    }

    /// Returns the duration of a CTS.
    pub fn cts(self) -> Duration {
        self.frame(CTS_BYTES)
    }

    /// Returns the duration of an ACK, the answer to a lone MPDU.
    pub fn ack(self) -> Duration {
        self.frame(ACK_BYTES)
    }

    /// Returns the duration of a BlockAckReq.
    pub fn block_ack_request(self) -> Duration {
        self.frame(BLOCK_ACK_REQUEST_BYTES)
    }

    /// Returns the duration of a compressed block ack for a window of `frames` (64 or 256).
    pub fn block_ack(self, frames: u16) -> Duration {
        self.frame(block_ack_bytes(frames))
    }
}

/// Returns the number of bytes of a compressed block ack for a window of `frames` (64 or 256).
pub(crate) fn block_ack_bytes(frames: u16) -> u32 {
    if frames > 64 {
        BLOCK_ACK_256_BYTES
    } else {
        BLOCK_ACK_64_BYTES
    }
}

impl Timing {
    /// Returns the duration of a PPDU with a PSDU of `bytes`: preamble, then service field, PSDU and tail in whole
    /// symbols.
    pub fn ppdu(&self, bytes: u32) -> Duration {
        let symbols = (16 + 8 * u64::from(bytes) + 6).div_ceil(self.bits_per_symbol);
        let data_ns = (symbols * self.symbol_ns).div_ceil(self.round_up_ns) * self.round_up_ns;
        Duration::from_nanos(self.preamble_ns + data_ns)
    }

    /// Returns the longest PSDU in bytes whose PPDU takes no longer than `limit`.
    pub fn bytes_within(&self, limit: Duration) -> u32 {
        let data_ns = limit.as_nanos().saturating_sub(self.preamble_ns) / self.round_up_ns * self.round_up_ns;
        let bits = data_ns / self.symbol_ns * self.bits_per_symbol;
        u32::try_from(bits.saturating_sub(22) / 8).unwrap_or(u32::MAX)
    }

    /// Returns the PHY data rate in bit/s.
    pub fn bits_per_second(&self) -> f64 {
        self.bits_per_symbol as f64 * 1e9 / self.symbol_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phy(standard: Standard, width_mhz: u16, guard_interval_ns: u16) -> Phy {
        Phy {
            standard,
            width_mhz,
            guard_interval_ns,
            control_rate_mbps: 24,
        }
    }

    #[test]
    fn data_rates_are_the_standards() {
        let cases = [
            (Standard::N, 20, 800, 7, 1, 65.0),
            (Standard::N, 40, 400, 7, 2, 300.0),
            (Standard::Ac, 20, 800, 8, 1, 78.0),
            (Standard::Ac, 80, 400, 9, 2, 866.7),
            (Standard::Ac, 80, 800, 0, 1, 29.3),
            (Standard::Ac, 40, 800, 9, 1, 180.0),
            (Standard::Ax, 20, 800, 11, 1, 143.4),
            (Standard::Ax, 80, 800, 11, 2, 1201.0),
        ];
        for (standard, width, guard, mcs, streams, mbps) in cases {
            let rate = phy(standard, width, guard)
                .timing(Rate { mcs, streams })
                .bits_per_second()
                / 1e6;
            assert!(
                (rate - mbps).abs() < 0.06,
                "{standard:?} {width} MHz MCS {mcs} x{streams}: {rate} not {mbps}"
            );
        }
    }

    #[test]
    fn control_frames_take_what_clause_17_says() {
        let mut phy = phy(Standard::Ac, 80, 400);
        let at = |phy: &Phy, mcs| phy.control_rate(Rate { mcs, streams: 2 });
        assert_eq!(at(&phy, 7).ack(), Duration::from_micros(28));
        assert_eq!(at(&phy, 7).rts(), Duration::from_micros(28));
        assert_eq!(at(&phy, 7).block_ack(64), Duration::from_micros(32));
        assert_eq!(at(&phy, 0).ack(), Duration::from_micros(44));
        assert_eq!(phy.basic_timing().ppdu(14), at(&phy, 0).ack());
        let rates = |phy: &Phy| [0, 1, 2, 3, 9].map(|mcs| at(phy, mcs).mbps);
        assert_eq!(rates(&phy), [6, 12, 12, 24, 24]);
        phy.control_rate_mbps = 12;
        assert_eq!(rates(&phy), [6, 12, 12, 12, 12]);
        assert_eq!(phy.eifs_extra(), Duration::from_micros(60));
    }

    #[test]
    fn a_vht_preamble_on_two_streams_is_44_us() {
        let timing = phy(Standard::Ac, 20, 800).timing(Rate { mcs: 0, streams: 2 });
        assert_eq!(timing.ppdu(0), Duration::from_micros(44 + 4));
    }

    #[test]
    fn the_longest_psdu_fits_and_one_more_symbol_does_not() {
        for standard in [Standard::N, Standard::Ac, Standard::Ax] {
            for mcs in 0..8 {
                for guard in [400, 800] {
                    let guard = if standard == Standard::Ax { 800 } else { guard };
                    let timing = phy(standard, 40, guard).timing(Rate { mcs, streams: 2 });
                    let bytes = timing.bytes_within(PPDU_MAX);
                    assert!(timing.ppdu(bytes) <= PPDU_MAX);
                    assert!(timing.ppdu(bytes + 2 * timing.bits_per_symbol as u32) > PPDU_MAX);
                }
            }
        }
    }
}
