//! `coorp doctor`: reports what this machine's card and kernel offer, what that means for Coorp, and how to fix what is
//! missing.
//!
//! It reads `/sys` and `/proc`, tries its own sockets, and calls `iw` for what only nl80211 provides, and `ip` for rules. It
//! changes nothing and sends nothing. Left out: whether the team's other robots are reachable (`coorp watch`), and the
//! behaviour of an access point.

use std::fs;
use std::path::Path;
use std::process::Command;

use coorp_node::card;
use coorp_node::status::Completions;

use crate::failure::Failure;
use crate::output;

/// Where programs may be: users' PATH often lacks the sbin folders.
const FOLDERS: [&str; 3] = ["", "/usr/sbin/", "/sbin/"];
const IW_MISSING: &str = "unknown: iw is not installed";
const IW_MEND: &str = "apt-get install iw";
const IP_MEND: &str = "apt-get install iproute2";
/// Bits in a process's effective capabilities (linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_NICE: u32 = 23;
/// Clock sources that can be read without a system call.
const QUICK_CLOCKS: [&str; 5] = [
    "tsc",
    "arch_sys_counter",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "riscv_clocksource",
];
/// The receive buffer that Coorp requests for its sockets.
const RECEIVE_BYTES: u64 = 4 << 20;

/// Options of `coorp doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The interface to examine [default: all wireless ones; if there are none, all that are up]
    interface: Option<String>,
}

/// One finding.
#[derive(Debug)]
struct Finding {
    about: &'static str,
    found: String,
    /// The meaning for Coorp.
    means: &'static str,
    grade: Grade,
}

#[derive(Debug, PartialEq)]
enum Grade {
    Fine,
    /// Coorp works; this would improve it.
    Note(String),
    /// Coorp does not work until this is fixed.
    Bad(String),
}

use Grade::{Bad, Fine, Note};

fn finding(about: &'static str, found: impl Into<String>, means: &'static str, grade: Grade) -> Finding {
    Finding {
        about,
        found: found.into(),
        means,
        grade,
    }
}

/// The source of facts: the machine, or a test's substitute.
struct Machine<'a> {
    sys: &'a Path,
    proc: &'a Path,
    /// The output of `iw` and of `ip`; `None` if it is not installed.
    iw: &'a dyn Fn(&[&str]) -> Option<String>,
    ip: &'a dyn Fn(&[&str]) -> Option<String>,
}

impl Machine<'_> {
    fn of_interface(&self, interface: &str, file: &str) -> Option<String> {
        read(&self.sys.join("class/net").join(interface).join(file))
    }

    fn is_wireless(&self, interface: &str) -> bool {
        let place = self.sys.join("class/net").join(interface);
        place.join("phy80211").exists() || place.join("wireless").exists()
    }

    fn is_up(&self, interface: &str) -> bool {
        // IFF_UP is the lowest bit.
        let flags = self.of_interface(interface, "flags").unwrap_or_default();
        u32::from_str_radix(flags.trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 == 1)
    }

    fn interfaces(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sys.join("class/net")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name != "lo").collect();
        names.sort_unstable();
        names
    }

    /// Returns the interfaces that a robot would probably use.
    fn likely(&self) -> Vec<String> {
        let (wireless, wired): (Vec<_>, Vec<_>) =
            self.interfaces().into_iter().partition(|name| self.is_wireless(name));
        if wireless.is_empty() {
            wired.into_iter().filter(|name| self.is_up(name)).collect()
        } else {
            wireless
        }
    }

    fn may(&self, capability: u32) -> bool {
        let status = read(&self.proc.join("self/status")).unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        effective.is_some_and(|bits| bits >> capability & 1 == 1)
    }
}

/// Runs `coorp doctor`.
///
/// # Errors
/// There is no such interface, or something keeps Coorp from working.
pub fn run(args: &Args) -> Result<(), Failure> {
    let machine = Machine {
        sys: Path::new("/sys"),
        proc: Path::new("/proc"),
        iw: &|arguments| said("iw", arguments),
        ip: &|arguments| said("ip", arguments),
    };
    let interfaces = match &args.interface {
        Some(name) if machine.sys.join("class/net").join(name).exists() => vec![name.clone()],
        Some(name) => return Err(Failure::Input(no_such(name, &machine.interfaces()))),
        None => machine.likely(),
    };
    let mut text = String::new();
    let mut bad = Vec::new();
    for interface in &interfaces {
        let found = of_card(
            &machine,
            interface,
            card::driver(interface).as_deref(),
            card::counts_sends(),
        );
        bad.extend(
            found
                .iter()
                .filter(|finding| finding.is_bad())
                .map(|finding| finding.about),
        );
        text += &section(interface, &found);
    }
    let found = of_kernel(&machine, interfaces.is_empty());
    bad.extend(
        found
            .iter()
            .filter(|finding| finding.is_bad())
            .map(|finding| finding.about),
    );
    text += &section("this machine", &found);
    text += &section("coorp up --protect", &of_protect(&machine));
    output::print(&text)?;
    if bad.is_empty() {
        return Ok(());
    }
    let bad = bad.join(", ");
    Err(Failure::Found(format!(
        "failed: Coorp does not work here until this is fixed: {bad}"
    )))
}

fn no_such(name: &str, others: &[String]) -> String {
    let others = if others.is_empty() {
        "none but loopback".to_owned()
    } else {
        others.join(", ")
    };
    format!("error: this machine has no interface '{name}'; it has {others}")
}

/// Returns the card behind an interface. `counts` is the result of trying to read a send queue's count.
fn of_card(machine: &Machine<'_>, interface: &str, driver: Option<&str>, counts: std::io::Result<()>) -> Vec<Finding> {
    let wireless = machine.is_wireless(interface);
    let bus = fs::read_link(machine.sys.join("class/net").join(interface).join("device/subsystem"));
    let bus = bus.ok().and_then(|bus| Some(bus.file_name()?.to_str()?.to_owned()));
    let mut found = vec![
        state(machine, interface),
        finding(
            "driver",
            format!(
                "{}, {}",
                driver.unwrap_or("without a name"),
                bus.as_deref().unwrap_or("virtual")
            ),
            "determines what is known about sent frames",
            Fine,
        ),
        if wireless {
            finding("kind", "wireless", "control goes in AC_VO, ahead of bulk", Fine)
        } else {
            let mend = "to check the robots' WiFi, name its interface: coorp doctor wlan0".to_owned();
            finding(
                "kind",
                "not wireless",
                "no access categories: control and bulk share one queue",
                Note(mend),
            )
        },
        completions(driver, bus.as_deref(), counts),
        transmit_status(driver),
        queues(machine, interface),
        reverse_path(machine, interface),
    ];
    if wireless {
        found.extend(of_radio(machine, interface));
    }
    found
}

fn state(machine: &Machine<'_>, interface: &str) -> Finding {
    let state = machine.of_interface(interface, "operstate").unwrap_or_default();
    let about = "state";
    if !machine.is_up(interface) {
        let mend = format!("ip link set {interface} up");
        return finding(about, "down", "nothing can be sent", Bad(mend));
    }
    match state.as_str() {
        // Loopback and TUNs report unknown.
        "up" | "unknown" => finding(about, "up", "frames can be sent", Fine),
        _ => {
            let mend = "connect it to the team's network".to_owned();
            finding(about, state, "nothing can be sent until it is connected", Bad(mend))
        }
    }
}

fn completions(driver: Option<&str>, bus: Option<&str>, counts: std::io::Result<()>) -> Finding {
    let about = "completions";
    let source = card::source(driver);
    let found = source.to_string();
    match (source, counts) {
        (Completions::Acknowledgements, _) => {
            let mend = "use a card's interface, if there is one".to_owned();
            let means =
                "a TUN or TAP frees frames at once: the gate learns from acknowledgements, later and less exactly";
            finding(about, found, means, Note(mend))
        }
        (_, Err(error)) => {
            let mend = "allow ioctl(SIOCOUTQ) on UDP sockets: a sandbox may forbid it".to_owned();
            finding(
                about,
                format!("SIOCOUTQ: {error}"),
                "no bulk socket can be opened",
                Bad(mend),
            )
        }
        (Completions::OutQueue, Ok(())) if bus == Some("usb") => {
            let means = "the gate learns when the dongle has a frame, not when the frame was on the air";
            finding(about, found, means, Note("a PCIe card reports the latter".to_owned()))
        }
        _ => finding(about, found, "the gate learns when each datagram has left", Fine),
    }
}

fn transmit_status(driver: Option<&str>) -> Finding {
    let about = "transmit status";
    match driver.and_then(card::status_is_harmless) {
        Some(why) => finding(about, "harmless", why, Fine),
        None => finding(
            about,
            "not requested",
            "requesting it might change this driver's frames, so losses on the air are not counted",
            Fine,
        ),
    }
}

fn queues(machine: &Machine<'_>, interface: &str) -> Finding {
    let place = machine.sys.join("class/net").join(interface).join("queues");
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let count = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("tx-"))
        .count();
    let qdisc = read(&machine.proc.join("sys/net/core/default_qdisc"));
    let found = format!(
        "{count} to send, default qdisc {}",
        qdisc.as_deref().unwrap_or("unknown")
    );
    finding("queues", found, "the gate keeps them short with any qdisc", Fine)
}

fn reverse_path(machine: &Machine<'_>, interface: &str) -> Finding {
    let of = |name: &str| read(&machine.proc.join("sys/net/ipv4/conf").join(name).join("rp_filter"));
    // The greater of the two applies.
    let found = match of(interface).max(of("all")).as_deref() {
        Some("0") => "off",
        Some("1") => "strict",
        Some("2") => "loose",
        _ => "unknown",
    };
    let means = "'coorp up --protect' makes a strict check loose while it runs";
    finding("reverse path", found, means, Fine)
}

/// Returns what only nl80211 provides, by `iw`.
fn of_radio(machine: &Machine<'_>, interface: &str) -> Vec<Finding> {
    let missing = |about, means| finding(about, IW_MISSING, means, Note(IW_MEND.to_owned()));
    vec![
        rts(machine, interface).unwrap_or_else(|| missing("RTS threshold", RTS_MEANS)),
        power_save(machine, interface).unwrap_or_else(|| missing("power save", SAVE_MEANS)),
        regulatory(machine).unwrap_or_else(|| missing("regulatory domain", DOMAIN_MEANS)),
    ]
}

const RTS_MEANS: &str = "with RTS a collision costs a short frame, not an aggregate";
const SAVE_MEANS: &str = "with power save frames to this robot wait for the next beacon, up to 100 ms";
const DOMAIN_MEANS: &str = "determines the available channels and the maximum transmit power";

fn rts(machine: &Machine<'_>, interface: &str) -> Option<Finding> {
    let phy = machine
        .of_interface(interface, "phy80211/name")
        .unwrap_or_else(|| "phy0".to_owned());
    let said = (machine.iw)(&["phy", &phy, "info"])?;
    let threshold = value(&said, "RTS threshold:").unwrap_or_else(|| "off, or not reported by the driver".to_owned());
    let grade = if machine.may(CAP_NET_ADMIN) {
        Fine
    } else {
        Note("to set it, run as root or with CAP_NET_ADMIN".to_owned())
    };
    let may = if grade == Fine { "can be set" } else { "cannot be set" };
    Some(finding(
        "RTS threshold",
        format!("{threshold}; {may}"),
        RTS_MEANS,
        grade,
    ))
}

fn power_save(machine: &Machine<'_>, interface: &str) -> Option<Finding> {
    let said = (machine.iw)(&["dev", interface, "get", "power_save"])?;
    let found = value(&said, "Power save:").unwrap_or_else(|| "unknown: not reported by the driver".to_owned());
    let grade = if found == "on" {
        Note(format!("iw dev {interface} set power_save off"))
    } else {
        Fine
    };
    Some(finding("power save", found, SAVE_MEANS, grade))
}

fn regulatory(machine: &Machine<'_>) -> Option<Finding> {
    let said = (machine.iw)(&["reg", "get"])?;
    let found = value(&said, "country").unwrap_or_else(|| "unknown".to_owned());
    let country = found.split(':').next().unwrap_or_default().to_owned();
    let grade = if country == "00" {
        Note("set your country's code, such as: iw reg set DE".to_owned())
    } else {
        Fine
    };
    Some(finding("regulatory domain", country, DOMAIN_MEANS, grade))
}

/// Returns the kernel, its clocks and this process's permissions.
fn of_kernel(machine: &Machine<'_>, without_interface: bool) -> Vec<Finding> {
    let release = read(&machine.proc.join("sys/kernel/osrelease")).unwrap_or_else(|| "unknown".to_owned());
    let mut found = vec![finding("kernel", release, "no patch is needed", Fine)];
    if without_interface {
        let mend = "plug in a card, or load its driver: dmesg says what is missing".to_owned();
        found.push(finding(
            "interfaces",
            "none but loopback is up",
            "there is no network",
            Bad(mend),
        ));
    }
    found.extend([
        clock(machine),
        marks(),
        buffers(machine),
        tun(machine),
        priority(machine),
    ]);
    found
}

fn clock(machine: &Machine<'_>) -> Finding {
    let source = machine
        .sys
        .join("devices/system/clocksource/clocksource0/current_clocksource");
    let source = read(&source).unwrap_or_else(|| "unknown".to_owned());
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
    let quick = QUICK_CLOCKS.contains(&source.as_str());
    let grade = if quick {
        Fine
    } else {
        Note("reading it takes a system call: see the kernel parameter 'clocksource='".to_owned())
    };
    let found = format!("{source}; CLOCK_BOOTTIME at {boot} s");
    finding("clock source", found, "gives the times of messages and windows", grade)
}

fn marks() -> Finding {
    let means = "WiFi puts control into AC_VO because of this mark";
    match card::may_mark() {
        Ok(()) => finding("DSCP mark", "can be set", means, Fine),
        Err(error) => {
            let mend = "allow setsockopt(IP_TOS): a sandbox may forbid it".to_owned();
            finding("DSCP mark", error.to_string(), means, Bad(mend))
        }
    }
}

fn buffers(machine: &Machine<'_>) -> Finding {
    let most = read(&machine.proc.join("sys/net/core/rmem_max"));
    let most: u64 = most.and_then(|text| text.parse().ok()).unwrap_or(0);
    let grade = if most >= RECEIVE_BYTES {
        Fine
    } else {
        Note(format!("sysctl -w net.core.rmem_max={RECEIVE_BYTES}"))
    };
    let means = "bursts wait there; with less than 4 MB, datagrams stay short";
    finding("receive buffer", format!("{most} bytes at most"), means, grade)
}

fn tun(machine: &Machine<'_>) -> Finding {
    let means = "'coorp emu' and 'coorp up --protect' need it to create interfaces; other robots do not";
    // Opening it creates nothing.
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    match opened {
        Ok(_) if machine.may(CAP_NET_ADMIN) => finding("TUN", "available", means, Fine),
        Ok(_) => {
            let mend = "run as root or with CAP_NET_ADMIN".to_owned();
            finding("TUN", "present, but without permission to use it", means, Note(mend))
        }
        Err(error) => finding(
            "TUN",
            error.to_string(),
            means,
            Note("modprobe tun, as root".to_owned()),
        ),
    }
}

/// Examines what protecting other programs needs. Nothing else needs it.
fn of_protect(machine: &Machine<'_>) -> Vec<Finding> {
    let rights = if [CAP_NET_ADMIN, CAP_NET_RAW].iter().all(|right| machine.may(*right)) {
        ("sufficient", Fine)
    } else {
        let mend = "run as root, or as a service: packaging/coorp@.service".to_owned();
        ("without CAP_NET_ADMIN and CAP_NET_RAW", Note(mend))
    };
    let version = (machine.ip)(&["-V"]);
    let iproute2 = match &version {
        Some(version) if version.contains("iproute2") => (version.trim(), Fine),
        Some(_) => ("an 'ip' that is not iproute2's", Note(IP_MEND.to_owned())),
        None => ("not installed", Note(IP_MEND.to_owned())),
    };
    let mut found = vec![
        finding(
            "rights",
            rights.0,
            "the agent keeps these, and two more if a rule names a program; it drops root's others",
            rights.1,
        ),
        finding(
            "iproute2",
            iproute2.0,
            "the agent sets routes and rules with it",
            iproute2.1,
        ),
        finding(
            "Zenoh router",
            if cfg!(feature = "zenoh") {
                "built in"
            } else {
                "not built in"
            },
            "for ROS 2 over Zenoh: 'zenoh = true' in the team file, and a coorp built with '--features zenoh'",
            Fine,
        ),
    ];
    let rules = version.and_then(|_| (machine.ip)(&["-4", "rule"]));
    found.extend(rules.map(|rules| policy_rules(machine, &rules)));
    found
}

/// Examines the policy rules: an agent's, and others that come before them.
fn policy_rules(machine: &Machine<'_>, rules: &str) -> Finding {
    let about = "policy rules";
    let ours = coorp_node::protect_priorities();
    let by_priority = rules.lines().filter_map(|line| {
        let priority: usize = line.split_once(':')?.0.parse().ok()?;
        Some((priority, line.split_whitespace().collect::<Vec<_>>().join(" ")))
    });
    let (agents, others): (Vec<_>, Vec<_>) = by_priority
        // The first rule is the kernel's, for the machine's own addresses.
        .filter(|(priority, _)| (1..ours.end).contains(priority))
        .partition(|(priority, _)| ours.contains(priority));
    let name = coorp_node::protect_interface(0);
    if rules.is_empty() {
        let mend = "a kernel with CONFIG_IP_MULTIPLE_TABLES".to_owned();
        return finding(about, "refused", "without them nothing can be protected", Note(mend));
    }
    if let Some((_, first)) = others.first() {
        let found = format!("{} before an agent's, such as '{first}'", others.len());
        let mend = format!("give it a priority number above {}, unless this is intended", ours.end);
        return finding(
            about,
            found,
            "packets that they match bypass the agent, for example into a VPN",
            Note(mend),
        );
    }
    match (machine.interfaces().contains(&name), agents.is_empty()) {
        (true, _) => {
            let found = format!("an agent's, which protects this machine by {name}");
            finding(about, found, "there can be only one", Fine)
        }
        (false, true) => finding(
            about,
            "none before an agent's",
            "what programs send can be protected",
            Fine,
        ),
        (false, false) => {
            let mend = "coorp unprotect, or the next --protect".to_owned();
            finding(about, "left by an agent that was killed", "they do no harm", Note(mend))
        }
    }
}

fn priority(machine: &Machine<'_>) -> Finding {
    let limits = read(&machine.proc.join("self/limits")).unwrap_or_default();
    let limit = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max realtime priority"));
    let limit = limit.and_then(|line| line.split_whitespace().next());
    let may = machine.may(CAP_SYS_NICE) || limit.is_some_and(|limit| limit != "0");
    let (found, grade) = if may {
        ("can be set", Fine)
    } else {
        let mend = "run as root or with CAP_SYS_NICE, or raise rtprio in /etc/security/limits.conf".to_owned();
        ("cannot be set", Note(mend))
    };
    let means = "keeps 'coorp emu' on time on a busy machine, and gives a robot's control the cores first";
    finding("real-time priority", found, means, grade)
}

impl Finding {
    fn is_bad(&self) -> bool {
        matches!(self.grade, Bad(_))
    }
}

/// Returns the findings as text, one per line.
fn section(title: &str, found: &[Finding]) -> String {
    let mut text = format!("{title}\n");
    let width = found.iter().map(|finding| finding.about.len()).max().unwrap_or(0);
    for finding in found {
        let (word, mend) = match &finding.grade {
            Fine => ("ok  ", None),
            Note(mend) => ("note", Some(mend)),
            Bad(mend) => ("BAD ", Some(mend)),
        };
        let Finding {
            about, found, means, ..
        } = finding;
        text += &format!("  {word}  {about:width$}  {found}: {means}\n");
        if let Some(mend) = mend {
            text += &format!("        {:width$}  to fix it: {mend}\n", "");
        }
    }
    text
}

/// Returns the rest of the first line that starts with `label`, indented or not.
fn value(said: &str, label: &str) -> Option<String> {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    Some(line.trim().to_owned())
}

fn read(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim_end().to_owned())
}

/// Returns the output of a program, empty if it fails; `None` if it is not installed.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let outputs = FOLDERS
        .iter()
        .filter_map(|folder| Command::new(format!("{folder}{program}")).args(arguments).output().ok());
    outputs
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A machine with one USB card, as files.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str) -> Fake {
            let root = std::env::temp_dir().join(format!("coorp-doctor-{}-{name}", std::process::id()));
            let card = root.join("class/net/wlan0");
            for folder in ["phy80211", "queues/tx-0", "queues/tx-1", "queues/rx-0", "device"] {
                fs::create_dir_all(card.join(folder)).unwrap();
            }
            fs::create_dir_all(root.join("class/net/lo")).unwrap();
            fs::create_dir_all(root.join("self")).unwrap();
            std::os::unix::fs::symlink("/sys/bus/usb", card.join("device/subsystem")).unwrap();
            for (file, text) in [
                ("operstate", "up\n"),
                ("flags", "0x1003\n"),
                ("phy80211/name", "phy3\n"),
            ] {
                fs::write(card.join(file), text).unwrap();
            }
            fs::write(root.join("self/status"), "Name:\tx\nCapEff:\t0000000000000000\n").unwrap();
            Fake(root)
        }

        fn look(&self, driver: &str, iw: &dyn Fn(&[&str]) -> Option<String>) -> Vec<Finding> {
            let machine = self.machine(iw, &|_| None);
            assert_eq!(machine.likely(), ["wlan0"]);
            of_card(&machine, "wlan0", Some(driver), Ok(()))
        }

        fn machine<'a>(
            &'a self,
            iw: &'a dyn Fn(&[&str]) -> Option<String>,
            ip: &'a dyn Fn(&[&str]) -> Option<String>,
        ) -> Machine<'a> {
            Machine {
                sys: &self.0,
                proc: &self.0,
                iw,
                ip,
            }
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn says<'a>(found: &'a [Finding], about: &str) -> &'a Finding {
        found.iter().find(|finding| finding.about == about).unwrap()
    }

    #[test]
    fn a_usb_card_with_power_save_is_usable_and_can_be_mended() {
        let fake = Fake::new("usb");
        let iw = |arguments: &[&str]| {
            Some(
                match arguments {
                    ["phy", "phy3", "info"] => "Wiphy phy3\n\tRTS threshold: 2347\n",
                    ["dev", "wlan0", "get", "power_save"] => "Power save: on\n",
                    _ => "global\ncountry 00: DFS-UNSET\n",
                }
                .to_owned(),
            )
        };
        let found = fake.look("mt76x2u", &iw);
        assert!(!found.iter().any(Finding::is_bad), "{found:?}");
        assert_eq!(says(&found, "driver").found, "mt76x2u, usb");
        assert_eq!(says(&found, "completions").found, "the kernel's send queue");
        assert!(says(&found, "completions").means.contains("dongle"));
        assert_eq!(says(&found, "transmit status").found, "not requested");
        assert!(says(&found, "queues").found.starts_with("2 to send"));
        assert_eq!(says(&found, "RTS threshold").found, "2347; cannot be set");
        let mend = Note("iw dev wlan0 set power_save off".to_owned());
        assert_eq!(says(&found, "power save").grade, mend);
        assert_eq!(says(&found, "regulatory domain").found, "00");
        let text = section("wlan0", &found);
        assert!(text.contains("to fix it: iw dev wlan0 set power_save off"), "{text}");
    }

    #[test]
    fn without_iw_it_says_so() {
        let fake = Fake::new("iw");
        let found = fake.look("mac80211_hwsim", &|_| None);
        for about in ["RTS threshold", "power save", "regulatory domain"] {
            assert_eq!(says(&found, about).found, IW_MISSING);
        }
        assert_eq!(says(&found, "transmit status").found, "harmless");
        assert_eq!(says(&found, "completions").found, "WiFi status");
    }

    #[test]
    fn a_card_that_is_down_or_does_not_count_is_bad() {
        let fake = Fake::new("down");
        let card = fake.0.join("class/net/wlan0");
        fs::write(card.join("operstate"), "dormant\n").unwrap();
        let grade = |found: &[Finding]| matches!(&says(found, "state").grade, Bad(mend) if mend.contains("connect"));
        assert!(grade(&fake.look("ath9k", &|_| None)));
        fs::write(card.join("flags"), "0x1002\n").unwrap();
        let found = fake.look("ath9k", &|_| None);
        assert_eq!(says(&found, "state").grade, Bad("ip link set wlan0 up".to_owned()));
        assert!(completions(Some("ath9k"), None, Err(std::io::ErrorKind::PermissionDenied.into())).is_bad());
        assert!(!completions(Some("tun"), None, Err(std::io::ErrorKind::PermissionDenied.into())).is_bad());
    }

    #[test]
    fn what_keeps_programs_from_being_protected_is_named() {
        let fake = Fake::new("protect");
        const KERNELS: &str = "0:\tfrom all lookup local\n32766:\tfrom all lookup main\n";
        let with = |rules: &str| -> Vec<Finding> {
            let ip = |arguments: &[&str]| match arguments {
                ["-V"] => Some("ip utility, iproute2-6.1.0\n".to_owned()),
                _ => Some(rules.to_owned()),
            };
            of_protect(&fake.machine(&|_| None, &ip))
        };
        let found = with(KERNELS);
        assert!(says(&found, "rights").found.starts_with("without"));
        assert_eq!(says(&found, "policy rules").grade, Fine);
        let left = format!("{KERNELS}5191:\tfrom all iif lo lookup 7460\n");
        let found = with(&left);
        assert!(matches!(&says(&found, "policy rules").grade, Note(mend) if mend.contains("coorp unprotect")));
        fs::create_dir_all(fake.0.join("class/net/coorp0")).unwrap();
        assert_eq!(says(&with(&left), "policy rules").grade, Fine);
        let found = with(&format!(
            "{left}5189:\tfrom all fwmark 0x1 lookup 51\n5210:\tfrom all lookup 52\n"
        ));
        let ahead = &says(&found, "policy rules").found;
        assert_eq!(
            ahead,
            "1 before an agent's, such as '5189: from all fwmark 0x1 lookup 51'"
        );
        assert!(matches!(says(&with(""), "policy rules").grade, Note(_)));
        let found = of_protect(&fake.machine(&|_| None, &|_| None));
        assert_eq!(says(&found, "iproute2").found, "not installed");
        assert!(found.iter().all(|finding| finding.about != "policy rules"));
    }

    #[test]
    fn the_stricter_reverse_path_filter_counts() {
        let fake = Fake::new("filter");
        let set = |of: &str, value: &str| {
            let folder = fake.0.join("sys/net/ipv4/conf").join(of);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("rp_filter"), format!("{value}\n")).unwrap();
        };
        let found = || says(&fake.look("ath9k", &|_| None), "reverse path").found.clone();
        assert_eq!(found(), "unknown");
        set("wlan0", "0");
        set("all", "1");
        assert_eq!(found(), "strict");
        set("wlan0", "2");
        assert_eq!(found(), "loose");
    }
}
