//! `[[protect]]`: rules that classify the packets of programs that know nothing about Coorp.
//!
//! Left out: robots' names as receivers. Their addresses are known only once the team runs, and differ in the emulator.

use crate::model::Robot;
use crate::rules::{DSCP_MAX, NAME_BYTES_MAX, PORTED, PROTECT_MAX};
use crate::sheet::Sheet;
use crate::units::clip;
use coorp_core::protect::{Class, Rule};
use std::net::IpAddr;

const CLASSES: [(&str, Class); 3] = [
    ("control", Class::Control),
    ("bulk", Class::Bulk),
    ("ordinary", Class::Ordinary),
];

/// The keys that restrict a rule.
const CONDITIONS: [&str; 8] = [
    "protocol",
    "port",
    "ports",
    "to",
    "dscp",
    "topic",
    "executable",
    "cgroup",
];

/// Protocols by name.
const PROTOCOLS: [(&str, u8); 3] = [("tcp", 6), ("udp", 17), ("icmp", 1)];

/// Code points by name (RFC 2474, 2597, 3246, 5865 and 8622).
const CODE_POINTS: [(&str, u8); 23] = [
    ("CS0", 0),
    ("LE", 1),
    ("CS1", 8),
    ("AF11", 10),
    ("AF12", 12),
    ("AF13", 14),
    ("CS2", 16),
    ("AF21", 18),
    ("AF22", 20),
    ("AF23", 22),
    ("CS3", 24),
    ("AF31", 26),
    ("AF32", 28),
    ("AF33", 30),
    ("CS4", 32),
    ("AF41", 34),
    ("AF42", 36),
    ("AF43", 38),
    ("CS5", 40),
    ("VOICE-ADMIT", 44),
    ("EF", 46),
    ("CS6", 48),
    ("CS7", 56),
];

pub(super) fn rules(root: &mut Sheet<'_>, robots: &[Robot]) -> Vec<Rule> {
    let sheets = root.tables("protect", "[[protect]]", PROTECT_MAX);
    sheets.into_iter().map(|mut sheet| rule(&mut sheet, robots)).collect()
}

fn rule(sheet: &mut Sheet<'_>, robots: &[Robot]) -> Rule {
    let class = sheet.choice("as", &CLASSES);
    sheet.missing("as", "add `as = \"control\"`, `as = \"bulk\"` or `as = \"ordinary\"`");
    let protocol = sheet.name_or_integer("protocol", &PROTOCOLS, 0..=u8::MAX);
    let ports = ports(sheet);
    if protocol.is_some_and(|protocol| !PORTED.contains(&protocol)) {
        for key in ["port", "ports"].into_iter().filter(|key| sheet.has(key)) {
            let message = format!("`{key}` with a `protocol` that has no ports");
            let mend = format!("write `protocol = \"tcp\"` or `protocol = \"udp\"`, or remove `{key}`");
            sheet.problem(key, message, mend);
        }
    }
    let to = to(sheet, robots);
    let dscp = sheet.name_or_integer("dscp", &CODE_POINTS, 0..=DSCP_MAX);
    let topic = name(sheet, "topic", "a topic's name", "/camera/*");
    let executable = name(sheet, "executable", "a program's file", "/usr/bin/rsync");
    let cgroup = name(sheet, "cgroup", "a control group", "/system.slice/maps.service");
    let is_path = |path: &str| path.starts_with(['/', '*']) && !path.ends_with('/');
    if let Some(file) = executable.as_ref().filter(|file| file.contains('/') && !is_path(file)) {
        let message = format!("`executable`: \"{}\" is no file's path", clip(file));
        let mend = "write it from \"/\" on, as in `readlink /proc/PID/exe`, or the file's name alone";
        sheet.problem("executable", message, mend);
    }
    if let Some(group) = cgroup.as_ref().filter(|group| !is_path(group)) {
        let message = format!("`cgroup`: \"{}\" is no control group's path", clip(group));
        let mend = "write it as in `cat /proc/PID/cgroup` after \"0::\", without a \"/\" at the end";
        sheet.problem("cgroup", message, mend);
    }
    if protocol.is_some_and(|protocol| !PORTED.contains(&protocol)) {
        for key in ["executable", "cgroup"].into_iter().filter(|key| sheet.has(key)) {
            let message = format!("`{key}` with a `protocol` whose sender is not known");
            let mend = format!("write `protocol = \"tcp\"` or `protocol = \"udp\"`, or remove `{key}`");
            sheet.problem(key, message, mend);
        }
    }
    if CONDITIONS.iter().all(|key| !sheet.has(key)) {
        let (problems, file) = sheet.problems();
        let message = "[[protect]] has no condition, so it would match every packet";
        let mend = "add `port`, `ports`, `protocol`, `to`, `dscp`, `topic`, `executable` or `cgroup`";
        problems.add(file, sheet.span(), message, mend);
    }
    sheet.finish();
    Rule {
        // Without a class, there is already a problem.
        class: class.unwrap_or(Class::Ordinary),
        protocol,
        ports,
        to,
        dscp,
        topic,
        executable,
        cgroup,
    }
}

/// Reads the pattern of a name.
fn name(sheet: &mut Sheet<'_>, key: &'static str, what: &str, example: &str) -> Option<String> {
    let (text, _) = sheet.string(key)?;
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        let message = format!("`{key}` has {} characters", text.len());
        let mend = format!("write {what} of 1 to {NAME_BYTES_MAX} characters, such as \"{example}\"");
        sheet.problem(key, message, mend);
        return None;
    }
    Some(text.to_owned())
}

/// Reads `port` or `ports`: the first and the last.
fn ports(sheet: &mut Sheet<'_>) -> Option<(u16, u16)> {
    sheet.exclude("port", "ports", "a single port, or a range");
    let port = sheet.integer("port", 1..=u16::MAX);
    let Some((text, _)) = sheet.string("ports") else {
        return port.map(|port| (port, port));
    };
    let range = text
        .split_once('-')
        .and_then(|(first, last)| Some((first.parse::<u16>().ok()?, last.parse::<u16>().ok()?)))
        // `parse` would also accept a sign.
        .filter(|(first, _)| *first > 0 && !text.contains('+'));
    match range {
        Some((first, last)) if first > last => {
            let mend = format!("write `ports = \"{last}-{first}\"`");
            sheet.problem("ports", format!("`ports` starts at {first} and ends at {last}"), mend);
        }
        Some(_) => return range,
        None => {
            let message = format!("`ports` cannot be \"{}\"", clip(text));
            let mend =
                "write the first and the last port, 1 to 65535, as in \"5000-5010\"; for a single one, use `port`";
            sheet.problem("ports", message, mend);
        }
    }
    None
}

/// Reads `to`: the receiver's address, which may be a multicast group.
fn to(sheet: &mut Sheet<'_>, robots: &[Robot]) -> Option<IpAddr> {
    let (text, _) = sheet.string("to")?;
    match text.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => {
            sheet.problem(
                "to",
                format!("{address} cannot receive packets"),
                "write the receiver's address, or remove `to`",
            );
            None
        }
        Ok(address) => Some(address),
        Err(_) => {
            let named = robots.iter().find(|robot| robot.name == text);
            let mend = match named.map(|robot| robot.addresses.first()) {
                Some(Some(address)) => {
                    format!("write the robot's address, `to = \"{address}\"`; names are not resolved")
                }
                Some(None) => "write the address of this robot's interface; names are not resolved".to_owned(),
                None => "write an address such as \"10.0.0.7\" or \"fd00::7\"; names are not resolved".to_owned(),
            };
            sheet.problem("to", format!("`to`: \"{}\" is not an IP address", clip(text)), mend);
            None
        }
    }
}
