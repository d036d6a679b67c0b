//! `[live]` and the network settings of a `[[robot]]`: interfaces, addresses, ports, keys, duplicates.

use crate::model::{Live, Robot, PATHS_MAX, PORTS};
use crate::rules;
use crate::sheet::Sheet;
use coorp_core::paths::Duplicate;
use std::net::IpAddr;
use std::path::Path;

/// Not among the registered ports of other robotics middleware.
const PORT_DEFAULT: u16 = 7_460;

pub(super) fn live(root: &mut Sheet<'_>, base: &Path) -> Live {
    let default = Live {
        port: PORT_DEFAULT,
        keys: base.join("keys"),
        duplicate: Duplicate::Adaptive,
        zenoh: false,
        protect_all: false,
    };
    let Some(mut sheet) = root.table("live", "[live]") else {
        return default;
    };
    let names = [
        ("always", Duplicate::Always),
        ("never", Duplicate::Never),
        ("adaptive", Duplicate::Adaptive),
    ];
    let live = Live {
        port: sheet.integer("port", rules::PORT_RANGE).unwrap_or(default.port),
        keys: sheet.string("keys").map_or(default.keys, |(keys, _)| base.join(keys)),
        duplicate: sheet.choice("duplicate", &names).unwrap_or(default.duplicate),
        zenoh: sheet.flag("zenoh").unwrap_or(default.zenoh),
        protect_all: sheet.flag("protect_all").unwrap_or(default.protect_all),
    };
    sheet.finish();
    live
}

/// Reads `interfaces`, `addresses` and `port` of a robot.
pub(super) fn network(sheet: &mut Sheet<'_>) -> (Vec<String>, Vec<IpAddr>, Option<u16>) {
    let port = sheet.integer("port", rules::PORT_RANGE);
    let (problems, file) = sheet.problems();
    let mut interfaces = Vec::new();
    for (name, span) in sheet.strings("interfaces", PATHS_MAX, "[\"wlan0\", \"wlan1\"]") {
        if let Err((message, mend)) = rules::interface(name) {
            problems.add(file, span, message, mend);
        } else if interfaces.iter().any(|known| known == name) {
            problems.add(
                file,
                span,
                format!("\"{name}\" is listed twice"),
                "name each interface once",
            );
        } else {
            interfaces.push(name.to_owned());
        }
    }
    let mut addresses = Vec::new();
    for (text, span) in sheet.strings("addresses", PATHS_MAX, "[\"10.0.0.2\"]") {
        match text.parse::<IpAddr>() {
            Ok(address) if address.is_multicast() || address.is_unspecified() => {
                let mend = "write the address at which the others reach this robot";
                problems.add(file, span, format!("{address} cannot be a robot's address"), mend);
            }
            Ok(address) if addresses.contains(&address) => {
                problems.add(
                    file,
                    span,
                    format!("{address} is listed twice"),
                    "write each address once",
                );
            }
            Ok(address) => addresses.push(address),
            Err(_) => {
                let message = format!("\"{}\" is not an IP address", crate::units::clip(text));
                problems.add(
                    file,
                    span,
                    message,
                    "write an address such as \"10.0.0.2\" or \"fd00::2\"; names are not resolved",
                );
            }
        }
    }
    let both = sheet.has("interfaces") && sheet.has("addresses") && sheet.sound();
    if both && interfaces.len() != addresses.len() {
        let message = format!("{} interfaces and {} addresses", interfaces.len(), addresses.len());
        let mend = "give each interface its address, in the same order, or remove one of the lists";
        sheet.problem("addresses", message, mend);
    }
    (interfaces, addresses, port)
}

/// Reports a problem if two robots would use the same ports of one address. Each comes with its table, which those of one
/// place share.
pub(super) fn check_ports(robots: &[(&Sheet<'_>, &Robot)], live: &Live) {
    let Some((later, earlier)) = rules::ports_clash(robots.iter().map(|(_, robot)| *robot), live.port) else {
        return;
    };
    if let (Some((sheet, _)), Some((other, _))) = (robots.get(later), robots.get(earlier)) {
        let message = "two robots have the same address and ports";
        if std::ptr::eq(*sheet, *other) {
            let mend = format!("set `port`: the robots of a place have {PORTS} ports each from there on");
            sheet.problem("addresses", message, mend);
            return;
        }
        let (problems, file) = sheet.problems();
        let pair = (other.span_of("addresses"), "the first is here");
        let mend = format!("set `port` of robots that share an address to values at least {PORTS} apart");
        problems.add_pair(file, sheet.span_of("addresses"), pair, message, mend);
    }
}
