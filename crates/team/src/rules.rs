//! Rules that apply to both the reader and `Team::check`: limits, and the MCS that exist.
//!
//! MCS according to IEEE 802.11-2020, 19.5 (HT) and 21.5 (VHT), and IEEE 802.11ax-2021, 27.5 (HE). Left out: unequal
//! modulation, 160 MHz, HE's dual carrier modulation.

use crate::model::{Robot, Standard, PORTS};
use std::collections::HashMap;

/// Maximum number of robots in a team.
pub(crate) const ROBOTS_MAX: usize = 1_000;
/// Maximum number of flows in a team.
pub(crate) const FLOWS_MAX: usize = 10_000;
/// Maximum number of `[[air.link]]` tables.
pub(crate) const LINKS_MAX: usize = 10_000;
/// Maximum number of a robot's waypoints.
pub(crate) const WAYPOINTS_MAX: usize = 1_000;
/// Maximum number of `[[interface]]` tables; no robot carries more cards.
pub(crate) const INTERFACES_MAX: usize = 7;
/// Maximum number of `[[event]]` tables.
pub(crate) const EVENTS_MAX: usize = 1_000;
/// The longest pattern of a name in a `[[protect]]` table. Topics of DDS have 255 characters at most;
/// of a longer path, `*` stands for a part.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Maximum number of `[[protect]]` tables; every packet of an unknown flow passes through all of them.
pub(crate) const PROTECT_MAX: usize = 64;
/// The greatest DSCP, of six bits.
pub(crate) const DSCP_MAX: u8 = 63;
/// The protocols with ports that rules may refer to: TCP and UDP.
pub(crate) const PORTED: [u8; 2] = [6, 17];
/// Channel numbers of the 5 GHz band, in the blocks that form wider channels.
pub(crate) const CHANNELS: [u16; 28] = [
    36, 40, 44, 48, 52, 56, 60, 64, 100, 104, 108, 112, 116, 120, 124, 128, 132, 136, 140, 144, 149, 153, 157, 161,
    165, 169, 173, 177,
];
/// Maximum number of characters in a name.
pub(crate) const NAME_CHARS_MAX: usize = 64;

/// Valid first ports of a robot: above the privileged ones, with room for all of its ports.
pub(crate) const PORT_RANGE: std::ops::RangeInclusive<u16> = 1_024..=u16::MAX - PORTS;

/// A description of what is wrong, and how to fix it.
pub(crate) type Fault = (String, String);

/// Checks that the standard has this MCS at this width and number of streams.
pub(crate) fn mcs(standard: Standard, width_mhz: u16, streams: u8, mcs: u8) -> Result<(), Fault> {
    let (name, most) = match standard {
        Standard::N => ("802.11n", 7),
        Standard::Ac => ("802.11ac", 9),
        Standard::Ax => ("802.11ax", 11),
    };
    if standard == Standard::N && (8..32).contains(&mcs) {
        let mend = format!("write `mcs = {}` and `streams = {}`", mcs % 8, mcs / 8 + 1);
        return Err((
            format!("MCS {mcs} includes the streams; here 802.11n has MCS 0 to 7 per stream"),
            mend,
        ));
    }
    if mcs > most {
        return Err((
            format!("{name} has no MCS {mcs}"),
            format!("choose an MCS from 0 to {most}"),
        ));
    }
    let hole = standard == Standard::Ac
        && match (width_mhz, mcs) {
            (20, 9) => streams != 3,
            (80, 6) => streams == 3,
            _ => false,
        };
    if hole {
        let message = format!("802.11ac has no MCS {mcs} at {width_mhz} MHz with {streams} streams");
        return Err((
            message,
            format!("choose MCS {}, or another `width_mhz` or `streams`", mcs - 1),
        ));
    }
    Ok(())
}

/// Returns whether two channels overlap. A channel of 40 or 80 MHz consists of the pair or the four of 20 MHz channels
/// that contain its number (IEEE 802.11-2020, annex E, table E-4).
pub(crate) fn overlap(one: (u16, u16), other: (u16, u16)) -> bool {
    let parts = |(channel, width_mhz): (u16, u16)| {
        let place = CHANNELS.iter().position(|known| *known == channel).unwrap_or(0);
        let count = usize::from(width_mhz / 20).max(1);
        let first = place / count * count;
        first..first + count
    };
    let (one, other) = (parts(one), parts(other));
    one.start < other.end && other.start < one.end
}

/// Checks a name of a robot or flow: it is used in file names, certificates and reports.
pub(crate) fn name(name: &str) -> Result<(), Fault> {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || !name.chars().all(fits) {
        let message = format!("\"{}\" is not a valid name", crate::units::clip(name));
        return Err((
            message,
            format!("use 1 to {NAME_CHARS_MAX} letters, digits, `-`, `_` and `.`"),
        ));
    }
    Ok(())
}

/// Checks that Linux accepts this interface name.
pub(crate) fn interface(name: &str) -> Result<(), Fault> {
    const BYTES_MAX: usize = 15;
    // Excludes characters that would end a name where addresses and interfaces are written together.
    let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | ';' | '#' | '?' | '=');
    if name.is_empty() || name.len() > BYTES_MAX || !name.chars().all(fits) || matches!(name, "." | "..") {
        let message = format!("\"{}\" is not a valid interface name", crate::units::clip(name));
        return Err((
            message,
            "`ip link` lists this machine's interfaces, such as \"wlan0\"".to_owned(),
        ));
    }
    Ok(())
}

/// Returns the first two robots, the later one first, that would listen on the same ports of the same address.
pub(crate) fn ports_clash<'a>(robots: impl Iterator<Item = &'a Robot>, port: u16) -> Option<(usize, usize)> {
    let mut taken: HashMap<_, Vec<(u16, usize)>> = HashMap::new();
    for (index, robot) in robots.enumerate() {
        let from = robot.port.unwrap_or(port);
        for address in &robot.addresses {
            let there = taken.entry(address).or_default();
            let near = |(other, _): &&(u16, usize)| other.abs_diff(from) < PORTS;
            if let Some((_, other)) = there.iter().find(near) {
                return Some((index, *other));
            }
            there.push((from, index));
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn mcs_follow_the_standards_tables() {
        for standard in [Standard::N, Standard::Ac, Standard::Ax] {
            for width_mhz in [20, 40, 80] {
                for streams in 1..=4 {
                    assert!(mcs(standard, width_mhz, streams, crate::model::MCS_DEFAULT).is_ok());
                }
            }
        }
        assert!(mcs(Standard::Ac, 20, 3, 9).is_ok());
        assert!(mcs(Standard::Ac, 20, 2, 9).is_err());
        assert!(mcs(Standard::Ac, 80, 3, 6).is_err());
        assert!(mcs(Standard::Ac, 80, 2, 10).is_err());
        assert!(mcs(Standard::Ax, 20, 1, 11).is_ok());
        assert!(mcs(Standard::Ax, 20, 1, 12).is_err());
        let (_, mend) = mcs(Standard::N, 40, 1, 15).unwrap_err();
        assert_eq!(mend, "write `mcs = 7` and `streams = 2`");
    }

    #[test]
    fn wide_channels_overlap_those_that_they_are_made_of() {
        assert!(overlap((44, 20), (44, 20)) && !overlap((44, 20), (40, 20)));
        assert!(overlap((44, 40), (48, 20)) && !overlap((44, 40), (40, 20)));
        assert!(overlap((36, 80), (48, 20)) && !overlap((36, 80), (52, 80)));
        assert!(overlap((157, 80), (149, 40)) && !overlap((161, 80), (165, 20)));
    }
}
