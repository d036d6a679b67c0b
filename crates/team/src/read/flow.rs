//! `[[flow]]`: plain traffic, so that a small scenario needs neither a control loop nor learning.

use super::{unique_name, Roster, HOUR};
use crate::model::{Category, Flow, Traffic, Transport};
use crate::rules::FLOWS_MAX;
use crate::sheet::Sheet;
use coorp_core::{Duration, RobotId};
use std::collections::HashMap;

const MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// An Ethernet MTU of 1500 bytes minus IPv4 and UDP headers.
const UDP_PAYLOAD_MAX: u64 = 1_472;
/// The same minus IPv4 and TCP headers with timestamps.
const TCP_PAYLOAD_MAX: u64 = 1_448;

pub(super) fn flows<'t>(root: &mut Sheet<'t>, roster: &Roster<'t>) -> Vec<Flow> {
    let mut taken = HashMap::new();
    let sheets = root.tables("flow", "[[flow]]", FLOWS_MAX);
    sheets
        .into_iter()
        .map(|mut sheet| flow(&mut sheet, roster, &mut taken))
        .collect()
}

fn flow<'t>(sheet: &mut Sheet<'t>, roster: &Roster<'t>, taken: &mut HashMap<&'t str, std::ops::Range<usize>>) -> Flow {
    let name = unique_name(sheet, taken).to_owned();
    // A flow without both ends already has a problem, so these values are never used.
    let (from, to) = roster.ends(sheet).unwrap_or((RobotId(0), RobotId(0)));
    let categories = [
        ("AC_VO", Category::Voice),
        ("AC_VI", Category::Video),
        ("AC_BE", Category::BestEffort),
        ("AC_BK", Category::Background),
    ];
    let category = sheet.choice("ac", &categories).unwrap_or(Category::BestEffort);
    let transport = sheet.choice("transport", &[("udp", Transport::Udp), ("tcp", Transport::Tcp)]);
    let transport = transport.unwrap_or(Transport::Udp);
    let saturated = sheet.flag("saturated").unwrap_or(false);
    let traffic = if saturated {
        self::saturated(sheet, transport)
    } else {
        periodic(sheet)
    };
    let start = sheet
        .duration("start", Duration::ZERO..=HOUR * 24)
        .unwrap_or(Duration::ZERO);
    let stop = sheet.duration("stop", Duration::ZERO..=HOUR * 24);
    if let (Some(stop), true) = (stop, sheet.sound()) {
        if stop <= start {
            let message = format!("`stop` at {stop} is not after `start` at {start}");
            sheet.problem("stop", message, "choose a later stop, or omit it to send until the end");
        }
    }
    let yields = saturated && matches!(category, Category::BestEffort | Category::Background);
    let bulk = sheet.flag("bulk").unwrap_or(yields);
    if bulk && transport == Transport::Udp && !saturated {
        let message = "`bulk` over UDP: nothing holds such messages back while another robot has the permit".to_owned();
        sheet.problem("bulk", message, "write `transport = \"tcp\"`, or remove `bulk`");
    }
    let bound = sheet.duration("bound", Duration::from_micros(1)..=HOUR);
    if bulk || saturated {
        let why = "only a control flow that sends messages has one";
        sheet.exclude("bound", if saturated { "saturated" } else { "bulk" }, why);
    }
    sheet.finish();
    Flow {
        name,
        from,
        to,
        category,
        transport,
        traffic,
        start,
        stop,
        bulk,
        bound,
        recorded: None,
    }
}

fn saturated(sheet: &mut Sheet<'_>, transport: Transport) -> Traffic {
    sheet.exclude("period", "saturated", "a saturated flow always has more to send");
    sheet.exclude("jitter", "saturated", "a saturated flow always has more to send");
    // Known keys, although excluded here.
    sheet.duration("period", Duration::ZERO..=Duration::MAX);
    sheet.duration("jitter", Duration::ZERO..=Duration::MAX);
    let most = if transport == Transport::Tcp {
        TCP_PAYLOAD_MAX
    } else {
        UDP_PAYLOAD_MAX
    };
    let bytes = sheet.size("size", 1..=most).unwrap_or(most);
    Traffic::Saturated {
        packet_bytes: u16::try_from(bytes).unwrap_or(u16::MAX),
    }
}

fn periodic(sheet: &mut Sheet<'_>) -> Traffic {
    let size = sheet.size("size", 1..=MESSAGE_BYTES_MAX);
    let period = sheet.duration("period", Duration::from_micros(10)..=HOUR);
    let jitter = sheet
        .duration("jitter", Duration::ZERO..=HOUR)
        .unwrap_or(Duration::ZERO);
    sheet.missing("size", "add `size = \"1KiB\"`, the size of a message");
    sheet.missing(
        "period",
        "add `period = \"33ms\"`, or `saturated = true` to send continuously",
    );
    if let (Some(period), true) = (period, sheet.sound()) {
        if jitter >= period {
            let message = format!("`jitter` is {jitter}, not less than the period of {period}");
            sheet.problem(
                "jitter",
                message,
                "write the standard deviation of a message's sending time",
            );
        }
    }
    Traffic::Periodic {
        size_bytes: size.unwrap_or(1),
        period: period.unwrap_or(HOUR),
        jitter,
    }
}
