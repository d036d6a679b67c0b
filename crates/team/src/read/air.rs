//! `[air]`: the channel, the access categories, individual links, and the WNIC.
//!
//! EDCA defaults are from IEEE 802.11-2020, table 9-155, except that AC_BE and AC_BK send one PPDU per TXOP. The air
//! models only the 5 GHz band, so other channels are refused instead of being simulated wrongly.

use super::robot::{check_mcs, rate};
use super::{sole_leader, Roster};
use crate::model::{Air, Edca, Link, RateOverride, Robot, Standard};
use crate::rules::{CHANNELS, LINKS_MAX};
use crate::sheet::Sheet;
use crate::wnic;
use coorp_core::{Duration, RobotId};
use std::collections::BTreeMap;
use std::path::Path;
use toml::de::DeTable;

/// The longest TXOP limit that a beacon can announce: 255 times 32 us.
const TXOP_MAX: Duration = Duration::from_micros(8_160);

pub(super) fn air<'t>(root: &mut Sheet<'t>, robots: &[Robot], roster: &Roster<'t>, base: &Path) -> Air {
    let empty = DeTable::new();
    let (problems, file) = root.problems();
    match root.table("air", "[air]") {
        Some(mut sheet) => {
            let (mut air, links) = channel_and_links(&mut sheet, "air", base);
            air.access_point = access_point(&mut sheet, robots, roster);
            sheet.finish();
            air.links = self::links(links, robots, roster, &air);
            air
        }
        // Without the table every key is absent and every default applies.
        None => {
            let mut sheet = Sheet::new(&empty, 0..0, "[air]", problems, file);
            let mut air = channel(&mut sheet, "air", base);
            air.access_point = access_point(&mut sheet, robots, roster);
            air
        }
    }
}

/// Reads the robot that relays between stations: the named one, by default the leader, with `direct` none.
pub(super) fn access_point<'t>(sheet: &mut Sheet<'t>, robots: &[Robot], roster: &Roster<'t>) -> Option<RobotId> {
    let direct = sheet.flag("direct").unwrap_or(false);
    let named = roster.find_if_there(sheet, "access_point");
    if direct && sheet.has("access_point") {
        let message = "there is no access point if robots send to each other directly";
        sheet.problem("access_point", message, "remove `access_point`, or `direct`");
    }
    named.or_else(|| sole_leader(robots)).filter(|_| !direct)
}

/// Reads a channel, and returns it with the tables of its links, which are read once the channel is known. `table` is
/// the table's name in messages: `air` or `interface`.
pub(super) fn channel_and_links<'t>(sheet: &mut Sheet<'t>, table: &str, base: &Path) -> (Air, Vec<Sheet<'t>>) {
    let links = sheet.tables("link", &format!("[[{table}.link]]"), LINKS_MAX);
    (channel(sheet, table, base), links)
}

fn channel(sheet: &mut Sheet<'_>, table: &str, base: &Path) -> Air {
    let names = [
        ("802.11n", Standard::N),
        ("802.11ac", Standard::Ac),
        ("802.11ax", Standard::Ax),
    ];
    let standard = sheet.choice("standard", &names).unwrap_or(Standard::Ac);
    let width_mhz = sheet.member("width_mhz", &[20, 40, 80]).unwrap_or(20);
    if standard == Standard::N && width_mhz > 40 {
        sheet.problem(
            "width_mhz",
            "802.11n has no 80 MHz channels",
            "choose 20 or 40, or standard \"802.11ac\"",
        );
    }
    let guard_intervals: &[u16] = if standard == Standard::Ax {
        &[800, 1600, 3200]
    } else {
        &[400, 800]
    };
    let rate = rate(sheet);
    let air = Air {
        standard,
        channel: sheet.member("channel", &CHANNELS).unwrap_or(44),
        width_mhz,
        streams: rate.streams.unwrap_or(1),
        guard_interval_ns: sheet.member("guard_interval_ns", guard_intervals).unwrap_or(800),
        mcs: rate.mcs,
        snr_db: rate.snr_db,
        loss: rate.loss.unwrap_or(0.0),
        links: Vec::new(),
        rts_cts: sheet.flag("rts_cts").unwrap_or(false),
        control_rate_mbps: sheet.member("control_rate_mbps", &[6, 12, 24]).unwrap_or(24),
        access_point: None,
        eifs: sheet.flag("eifs").unwrap_or(true),
        block_ack_request: sheet.flag("block_ack_request").unwrap_or(false),
        tx_power_dbm: sheet.number("tx_power_dbm", -20.0..=36.0).unwrap_or(20.0),
        noise_dbm: sheet
            .number("noise_dbm", -120.0..=-30.0)
            .unwrap_or_else(|| thermal_noise_dbm(width_mhz)),
        path_loss_exponent: sheet.number("path_loss_exponent", 1.5..=6.0).unwrap_or(3.0),
        edca: edca(sheet, table, standard),
        wnic: wnic::profile(sheet, base),
    };
    check_mcs(sheet, "mcs", air.rate(), &air);
    air
}

/// Returns the thermal noise over the width plus a receiver noise figure of 7 dB.
fn thermal_noise_dbm(width_mhz: u16) -> f64 {
    -174.0 + 10.0 * (f64::from(width_mhz) * 1e6).log10() + 7.0
}

fn edca(sheet: &mut Sheet<'_>, table: &str, standard: Standard) -> [Edca; 4] {
    // The maximum length of a PPDU in each standard: aPSDUMaxLength of HT, VHT and HE.
    let bytes: u32 = match standard {
        Standard::N => 65_535,
        Standard::Ac => 1_048_575,
        Standard::Ax => 6_500_631,
    };
    let default = |aifsn, cw_min, cw_max, txop_us| Edca {
        aifsn,
        cw_min,
        cw_max,
        txop: Duration::from_micros(txop_us),
        ampdu_frames: 64,
        ampdu_bytes: bytes,
    };
    let frames_max = if standard == Standard::Ax { 256 } else { 64 };
    let mut category = |key, default| self::category(sheet, key, &format!("[{table}.{key}]"), default, frames_max);
    [
        category("ac_vo", default(2, 3, 7, 1_504)),
        category("ac_vi", default(2, 7, 15, 3_008)),
        category("ac_be", default(3, 15, 1_023, 0)),
        category("ac_bk", default(7, 15, 1_023, 0)),
    ]
}

fn category(air: &mut Sheet<'_>, key: &'static str, title: &str, default: Edca, frames_max: u16) -> Edca {
    let Some(mut sheet) = air.table(key, title) else {
        return default;
    };
    let read = Edca {
        aifsn: sheet.integer("aifsn", 1..=15).unwrap_or(default.aifsn),
        cw_min: window(&mut sheet, "cw_min").unwrap_or(default.cw_min),
        cw_max: window(&mut sheet, "cw_max").unwrap_or(default.cw_max),
        txop: sheet
            .duration("txop", Duration::ZERO..=TXOP_MAX)
            .unwrap_or(default.txop),
        ampdu_frames: sheet
            .integer("ampdu_frames", 1..=frames_max)
            .unwrap_or(default.ampdu_frames),
        ampdu_bytes: sheet
            .size("ampdu_bytes", 2_048..=u64::from(default.ampdu_bytes))
            .and_then(|bytes| u32::try_from(bytes).ok())
            .unwrap_or(default.ampdu_bytes),
    };
    if sheet.sound() && read.cw_min > read.cw_max {
        let key = if sheet.has("cw_min") { "cw_min" } else { "cw_max" };
        let message = format!("`cw_min` of {} is above `cw_max` of {}", read.cw_min, read.cw_max);
        sheet.problem(key, message, "set both, the smaller one as `cw_min`");
    }
    sheet.finish();
    read
}

/// Reads a contention window: a power of two minus one.
fn window(sheet: &mut Sheet<'_>, key: &'static str) -> Option<u16> {
    let window: u16 = sheet.integer(key, 0..=32_767)?;
    if (window + 1).is_power_of_two() {
        return Some(window);
    }
    let above = (window + 1).next_power_of_two();
    let message = format!("`{key}` is {window}, but a contention window is a power of two minus one");
    sheet.problem(key, message, format!("choose {} or {}", above / 2 - 1, above - 1));
    None
}

pub(super) fn links<'t>(sheets: Vec<Sheet<'t>>, robots: &[Robot], roster: &Roster<'t>, air: &Air) -> Vec<Link> {
    let mut found = BTreeMap::new();
    for mut sheet in sheets {
        let ends = roster.ends(&mut sheet);
        let rate = rate(&mut sheet);
        if rate == RateOverride::default() && sheet.sound() {
            let (problems, file) = sheet.problems();
            let message = format!("{} changes nothing", sheet.title());
            problems.add(file, sheet.span(), message, "set `mcs`, `streams`, `snr_db` or `loss`");
        }
        sheet.finish();
        let Some(ends) = ends else { continue };
        let (problems, file) = sheet.problems();
        if let Some((first, _)) = found.get(&ends) {
            let other = (Sheet::span(first), "the first is here");
            let message = format!("two {} tables describe the same direction", sheet.title());
            problems.add_pair(file, sheet.span(), other, message, "merge them");
            continue;
        }
        let key = if sheet.has("mcs") { "mcs" } else { "streams" };
        let sender = robots
            .get(usize::from(ends.0 .0))
            .map(|robot| robot.rate)
            .unwrap_or_default();
        check_mcs(&sheet, key, rate.or(sender).or(air.rate()), air);
        found.insert(ends, (sheet, rate));
    }
    found
        .into_iter()
        .map(|((from, to), (_, rate))| Link { from, to, rate })
        .collect()
}
