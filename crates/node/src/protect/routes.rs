//! Routes programs' packets: what they send to an interface's own network goes into a TUN.
//!
//! A policy rule looks up a table of ours, which routes that network into the TUN. A rule before it finds the main
//! table's routes into parts of that network, such as a bridge's. If the agent dies in any way, its TUN disappears, and
//! the table's route with it: the rule finds nothing, and packets flow as before. So leftover rules do no harm; the
//! next start deletes them. Sockets that are bound to the interface use only routes over it, and so bypass the TUN: the
//! agent's sockets, and any other program's.
//!
//! With `protect_all`, a second pair of rules, last before the kernel's own, does the same for the default route if it
//! goes over the interface. All other routes of the machine, and rules such as a VPN's, come first.
//!
//! A strict reverse-path filter would drop packets that arrive from that network over the interface, so the agent makes
//! it loose. A rule without effect records the earlier setting. The record lives as long as the setting: until the
//! network namespace ends, or the next boot. Until then, whichever agent clears the rules also restores the filter.
//!
//! Left out: IPv6, broadcast, multicast, and packets to other networks by other routes than the default one.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{fs, io};

use coorp_team::PATHS_MAX;
use nix::sys::socket::{bind, socket, AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType};

use super::segments::Hardware;
use crate::Error;

/// The priority of the first path's first rule: ahead of Tailscale's (5,210) and of all rules that people usually have.
const PRIORITY: usize = 5_190;
/// The same of the rules for the default route: behind all rules but the kernel's own (32,766 and 32,767).
const PRIORITY_LAST: usize = 32_750;
/// The number of the first path's table, and of its table for the default route.
const TABLE: usize = 7_460;
const TABLE_LAST: usize = TABLE + PATHS_MAX;
/// The maximum number of routes that are read.
const ROUTES_MAX: usize = 65_536;
/// The maximum number of rules that are read, and that earlier starts can have left.
const RULES_MAX: usize = 4_096;
const LEFT_MAX: usize = 256;
/// The maximum number of changes to rules that are read at once.
const CHANGES_MAX: usize = 4_096;
/// The TUN's MTU: datagrams come whole, and the agent cuts them.
const MTU: usize = 65_535;
/// The headers of IPv4 and TCP without options.
const TCP_HEADERS_BYTES: usize = 40;
/// Number of packets that wait in a TUN before the kernel drops some. Senders are not charged for them: with 64 kB
/// each, they take 65 MB.
pub(super) const QUEUE_PACKETS: usize = 1_000;
/// Values of `rp_filter`: strict, and loose.
const STRICT: &str = "1";
const LOOSE: &str = "2";
/// The mark in the rule that records a filter's earlier setting.
const NOTES: [(&str, &str); 2] = [("0x1", "0"), ("0x2", STRICT)];
/// `IFF_NOARP`: packets over such an interface need no hardware address.
const NO_ARP: u32 = 0x80;

/// The routes into a TUN, until they are dropped.
#[derive(Debug)]
pub(super) struct Routes {
    path: usize,
    /// The route by which packets to the interface's address come out of the TUN, also while the interface is down.
    inwards: Option<String>,
    /// An interface and its earlier filter, if that was changed.
    loosened: Option<(String, &'static str)>,
    /// The number of rules, and the socket by which the kernel tells of changes to rules; `None` if it does not.
    rules: usize,
    changes: Option<OwnedFd>,
}

/// An interface and its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outlet {
    pub interface: String,
    /// The kernel's number of the card, which changes when the card is plugged in again.
    pub index: u32,
    /// The hardware address, if the interface has one.
    pub hardware: Option<Hardware>,
    pub address: Ipv4Addr,
    /// The network, in the form `10.77.0.0/24`.
    pub network: String,
    prefix: u8,
    /// The router to other networks, if the default route goes over the interface and programs' packets that take it
    /// are protected too.
    pub router: Option<Ipv4Addr>,
    pub mtu: usize,
    /// Whether a packet may have to wait until its receiver's hardware address is known.
    pub has_neighbours: bool,
}

impl Outlet {
    /// Looks up an interface. With `all`, also its default route.
    pub fn of(interface: &str, all: bool) -> Result<Outlet, Error> {
        let found = pnet_datalink::interfaces()
            .into_iter()
            .find(|one| one.name == interface);
        let mut networks = found.iter().flat_map(|found| &found.ips);
        let four = networks.find_map(|network| match network.ip() {
            IpAddr::V4(address) => Some((address, network.network(), network.prefix())),
            IpAddr::V6(_) => None,
        });
        let (Some(found), Some((address, network, prefix))) = (&found, four) else {
            return Err(Error::Protect(format!(
                "{interface} has no IPv4 address: connect it to the team's network"
            )));
        };
        let mtu = fs::read_to_string(format!("/sys/class/net/{interface}/mtu"));
        let mtu = mtu.ok().and_then(|text| text.trim().parse().ok());
        Ok(Outlet {
            interface: interface.to_owned(),
            index: found.index,
            hardware: found.mac.map(|hardware| hardware.octets()),
            address,
            network: format!("{network}/{prefix}"),
            prefix,
            router: all.then(|| router_over(interface)).flatten(),
            mtu: mtu.unwrap_or(1_500),
            has_neighbours: found.flags & NO_ARP == 0,
        })
    }
}

impl Outlet {
    /// Returns the network's mask.
    pub fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or_default()
    }
}

impl Routes {
    /// Brings up a TUN and routes an outlet's network into it. With `inwards`, also routes what comes out of it to this
    /// machine.
    pub fn set(path: usize, tun: &str, outlet: &Outlet, inwards: bool) -> Result<Routes, Error> {
        let Outlet {
            interface,
            address,
            network,
            prefix,
            router,
            mtu,
            ..
        } = outlet;
        for undone in forget(path)? {
            tracing::info!("undid what a killed agent had left: {undone}");
        }
        let mut routes = Routes {
            path,
            inwards: None,
            loosened: None,
            rules: 0,
            changes: None,
        };
        // The TUN gets no address: some programs announce every address of the machine.
        ip(&format!(
            "link set dev {tun} mtu {MTU} txqueuelen {QUEUE_PACKETS} addrgenmode none"
        ))?;
        ip(&format!("link set dev {tun} up"))?;
        let [first, second, third, fourth] = priorities(path);
        let (table, last) = (TABLE + path, TABLE_LAST + path);
        // The scope is global: otherwise the kernel would use the TUN as the way to the routers of new routes. The MTU
        // is locked, so that only packets that a program itself forbids to cut have the flag. TCP's segments fit the
        // interface.
        let segment = mtu.saturating_sub(TCP_HEADERS_BYTES);
        let into = format!("dev {tun} src {address} scope global mtu lock {MTU} advmss {segment}");
        ip(&format!("-4 route replace {network} {into} table {table}"))?;
        if inwards {
            // This comes after the kernel's own route, which disappears while the interface is down.
            let route = format!("local {address} dev {tun} table local metric {TABLE}");
            ip(&format!("-4 route replace {route}"))?;
            routes.inwards = Some(route);
            loosen_tun(tun);
        }
        routes.loosen(interface)?;
        note_ipv6(interface);
        add_rule(&format!(
            "pref {first} iif lo lookup main suppress_prefixlength {prefix}"
        ))?;
        add_rule(&format!("pref {second} iif lo lookup {table}"))?;
        if router.is_some() {
            ip(&format!("-4 route replace default {into} table {last}"))?;
            add_rule(&format!("pref {third} iif lo lookup main suppress_prefixlength 0"))?;
            add_rule(&format!("pref {fourth} iif lo lookup {last}"))?;
        }
        // In this order, no change after the count goes unnoticed.
        let changes = changes_of_rules().inspect_err(|error| tracing::debug!("deleted rules go unnoticed: {error}"));
        routes.changes = changes.ok();
        routes.rules = rules_of(path, &ip("-4 rule")?).len();
        Ok(routes)
    }

    /// Returns whether the rules are still there, as far as is known: `ip` is asked only after a change to rules.
    pub fn are_set(&mut self) -> bool {
        let Some(changes) = &self.changes else { return true };
        let mut changed = false;
        for _ in 0..CHANGES_MAX {
            match rustix::io::read(changes, &mut [0; 256]) {
                Ok(_) => changed = true,
                // Some were lost.
                Err(rustix::io::Errno::NOBUFS) => changed = true,
                Err(_) => break,
            }
        }
        !changed || ip("-4 rule").map_or(true, |all| rules_of(self.path, &all).len() >= self.rules)
    }

    /// Makes the reverse-path filter loose if it is strict, and records the earlier setting.
    fn loosen(&mut self, interface: &str) -> Result<(), Error> {
        let own = filter_of(interface);
        // The greater of the two applies.
        if own == LOOSE || ![own.as_str(), filter_of("all").as_str()].contains(&STRICT) {
            return Ok(());
        }
        let [first, ..] = priorities(self.path);
        let Some((mark, had)) = NOTES.iter().find(|(_, had)| *had == own) else {
            return Ok(());
        };
        add_rule(&format!("pref {first} iif {interface} fwmark {mark} nop"))?;
        self.loosened = Some((interface.to_owned(), had));
        if let Err(error) = fs::write(filter_file(interface), LOOSE) {
            let file = filter_file(interface);
            tracing::warn!(
                "{} stays strict, which may drop arriving packets: {error}",
                file.display()
            );
        }
        Ok(())
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        // Another machine may have the address next.
        if let Some(Err(error)) = self.inwards.take().map(|route| ip(&format!("-4 route del {route}"))) {
            tracing::debug!("a route disappeared with its interface: {error}");
        }
        if let Err(error) = forget(self.path) {
            tracing::warn!("policy rules remain, and do no harm: {error}");
        }
        // If another program has deleted the rule that records the filter.
        if let Some((interface, had)) = self
            .loosened
            .take()
            .filter(|(interface, _)| filter_of(interface) == LOOSE)
        {
            let _ = fs::write(filter_file(&interface), had);
        }
    }
}

/// Adds a policy rule, marked as the kernel's: systemd-networkd deletes other programs' rules. Before iproute2 4.17, rules
/// have no such mark.
fn add_rule(rule: &str) -> Result<(), Error> {
    let marked = ip(&format!("-4 rule add {rule} protocol kernel"));
    marked.or_else(|error| ip(&format!("-4 rule add {rule}")).map_err(|_| error))?;
    Ok(())
}

/// Returns a socket by which the kernel tells of each change to IPv4's rules.
fn changes_of_rules() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let changes = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(changes.as_raw_fd(), &NetlinkAddr::new(0, libc::RTMGRP_IPV4_RULE as u32))?;
    Ok(changes)
}

/// Returns the router to which the default route goes, if that is over this interface.
fn router_over(interface: &str) -> Option<Ipv4Addr> {
    router_in(&fs::read_to_string("/proc/net/route").ok()?, interface)
}

/// Returns the same, by the kernel's table: interface, destination, router, flags, two numbers, metric, mask. Addresses
/// are in hexadecimal, in the machine's order of bytes.
fn router_in(table: &str, interface: &str) -> Option<Ipv4Addr> {
    let default = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, "00000000", router, _, _, _, metric, "00000000", ..] = fields.as_slice() else {
            return None;
        };
        let router = u32::from_str_radix(router, 16).ok()?;
        Some((
            metric.parse::<u32>().ok()?,
            (*interface).to_owned(),
            Ipv4Addr::from(router.to_ne_bytes()),
        ))
    };
    let defaults = table.lines().skip(1).take(ROUTES_MAX).filter_map(default);
    // The kernel takes the first one of the lowest metric.
    let (_, over, router) = defaults.min_by_key(|(metric, ..)| *metric)?;
    (over == interface && !router.is_unspecified()).then_some(router)
}

/// Lets packets from addresses of any path come out of a TUN. The setting disappears with the TUN.
fn loosen_tun(tun: &str) {
    if let Err(error) = fs::write(filter_file(tun), LOOSE) {
        tracing::warn!("rp_filter of {tun} is not {LOOSE}, which may drop packets from other agents: {error}");
    }
}

/// Warns that an interface has an IPv6 address, at which other machines may reach it past the agent.
fn note_ipv6(interface: &str) {
    let found = pnet_datalink::interfaces();
    let ours = found.iter().filter(|one| one.name == interface);
    let mut networks = ours.flat_map(|one| &one.ips);
    let six = networks.find_map(|network| match network.ip() {
        // fe80::/10 reaches only the link, and no name resolves to it.
        IpAddr::V6(address) if address.segments()[0] & 0xffc0 != 0xfe80 => Some(address),
        _ => None,
    });
    if let Some(address) = six {
        tracing::warn!("IPv6 bypasses the agent, and {interface} has {address}: send bulk over IPv4");
    }
}

/// Returns the file of the reverse-path filter of an interface, or of `all`.
fn filter_file(interface: &str) -> PathBuf {
    PathBuf::from(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"))
}

fn filter_of(interface: &str) -> String {
    let value = fs::read_to_string(filter_file(interface)).unwrap_or_default();
    value.trim().to_owned()
}

/// Undoes what a killed agent has left on this machine. Returns descriptions of what was undone.
///
/// # Errors
/// If an agent protects this machine now, or the machine refuses.
pub fn unprotect() -> Result<Vec<String>, Error> {
    let interfaces = pnet_datalink::interfaces();
    let mut ours = (0..PATHS_MAX).map(super::protect_interface);
    if let Some(taken) = ours.find(|name| interfaces.iter().any(|one| one.name == *name)) {
        return Err(Error::Protect(format!(
            "an agent protects this machine now, by the interface {taken}: stop the agent first"
        )));
    }
    let mut undone = Vec::new();
    for path in 0..PATHS_MAX {
        undone.extend(forget(path)?);
    }
    Ok(undone)
}

/// Deletes the rules that earlier starts have left for this path and later ones.
pub(super) fn forget_from(path: usize) {
    for path in path..PATHS_MAX {
        if let Err(error) = forget(path) {
            tracing::debug!("rules of path {path} remain: {error}");
        }
    }
}

/// Returns the priorities of a path's rules: two for the interface's network, and two for the default route.
fn priorities(path: usize) -> [usize; 4] {
    let (first, last) = (PRIORITY + 2 * path, PRIORITY_LAST + 2 * path);
    [first, first + 1, last, last + 1]
}

/// Returns the priorities of our rules for interfaces' networks.
pub fn protect_priorities() -> Range<usize> {
    PRIORITY..PRIORITY + 2 * PATHS_MAX
}

/// Deletes a path's rules, and restores the filter that one of them records. Returns descriptions of what was undone.
fn forget(path: usize) -> Result<Vec<String>, Error> {
    let left = rules_of(path, &ip("-4 rule")?);
    let mut undone = Vec::new();
    for Rule { priority, rule, .. } in &left {
        ip(&format!("-4 rule del pref {priority} {rule}"))?;
        undone.push(format!("the rule {priority}, '{rule}'"));
    }
    // Only now: together with the rules, a strict filter drops arriving packets.
    for (interface, had) in left.into_iter().filter_map(|left| left.filter) {
        // Another program may have set it since.
        if filter_of(&interface) != LOOSE {
            continue;
        }
        match fs::write(filter_file(&interface), had) {
            Ok(()) => undone.push(format!("rp_filter of {interface}, which is {had} again")),
            Err(error) => tracing::warn!("cannot set rp_filter of {interface} back to {had}: {error}"),
        }
    }
    Ok(undone)
}

/// A policy rule of ours.
struct Rule {
    priority: usize,
    /// The rule, in the form that `ip` prints and accepts.
    rule: String,
    /// An interface and its earlier filter, if the rule records them.
    filter: Option<(String, &'static str)>,
}

/// Returns the rules of a path, from the list of all rules.
fn rules_of(path: usize, all: &str) -> Vec<Rule> {
    let [first, second, third, fourth] = priorities(path);
    let ours = |line: &str| {
        let (priority, rule) = line.split_once(':')?;
        let priority: usize = priority.parse().ok()?;
        let rule: Vec<&str> = rule.split_whitespace().filter(|word| *word != "[detached]").collect();
        let filter = match rule.as_slice() {
            ["from", "all", "iif", "lo", "lookup", "main", "suppress_prefixlength", ..]
                if [first, third].contains(&priority) =>
            {
                None
            }
            ["from", "all", "iif", "lo", "lookup", ..] if [second, fourth].contains(&priority) => None,
            ["from", "all", "fwmark", mark, "iif", interface, "nop", ..] if priority == first => {
                let had = NOTES.iter().find(|(noted, _)| noted == mark)?.1;
                Some(((*interface).to_owned(), had))
            }
            _ => return None,
        };
        let rule = rule.join(" ");
        Some(Rule { priority, rule, filter })
    };
    all.lines().take(RULES_MAX).filter_map(ours).take(LEFT_MAX).collect()
}

/// Runs iproute2. Returns what it prints.
fn ip(arguments: &str) -> Result<String, Error> {
    let cannot = |why: &str| Error::Protect(format!("'ip {arguments}' failed: {why}"));
    let mut command = Command::new("ip");
    let command = command.args(arguments.split(' ')).stdin(Stdio::null());
    match command.output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(cannot(String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(cannot(&format!("{error}; install iproute2"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rules_of_the_path_are_taken_for_its_own() {
        let all = "\
0:	from all lookup local
5190:	from all iif lo lookup main suppress_prefixlength 24 proto kernel
5190:	from all fwmark 0x2 iif wlan0 [detached] nop
5190:	from all fwmark 0x3 iif wlan0 nop
5190:	from all to 192.0.2.4 lookup main
5191:	from all iif lo lookup 7460
5191:	from all fwmark 0x2 iif wlan0 nop
5192:	from all fwmark 0x1 iif wlan1 nop
5193:	from all iif lo lookup 7461
5210:	from all fwmark 0x80000/0xff0000 lookup main
nonsense
32750:	from all iif lo lookup main suppress_prefixlength 0 proto kernel
32751:	from all iif lo lookup 7464 proto kernel
32766:	from all lookup main
";
        let shown = |path| -> Vec<String> {
            let rules = rules_of(path, all).into_iter();
            rules
                .map(|found| format!("{} {} {:?}", found.priority, found.rule, found.filter))
                .collect()
        };
        assert_eq!(
            shown(0),
            [
                "5190 from all iif lo lookup main suppress_prefixlength 24 proto kernel None",
                "5190 from all fwmark 0x2 iif wlan0 nop Some((\"wlan0\", \"1\"))",
                "5191 from all iif lo lookup 7460 None",
                "32750 from all iif lo lookup main suppress_prefixlength 0 proto kernel None",
                "32751 from all iif lo lookup 7464 proto kernel None",
            ]
        );
        assert_eq!(
            shown(1),
            [
                "5192 from all fwmark 0x1 iif wlan1 nop Some((\"wlan1\", \"0\"))",
                "5193 from all iif lo lookup 7461 None",
            ]
        );
        assert_eq!(shown(2), [""; 0]);
    }

    #[test]
    fn a_default_route_counts_if_it_is_the_best_one() {
        let hexadecimal = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let line = |interface: &str, to, router, metric, mask| {
            let [to, router, mask] = [to, router, mask].map(hexadecimal);
            format!("{interface}\t{to}\t{router}\t0003\t0\t0\t{metric}\t{mask}\t0\t0\t0\n")
        };
        let (any, router, other) = ([0; 4], [10, 77, 0, 1], [192, 0, 2, 1]);
        let head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let half = line("tun0", any, other, 0, [128, 0, 0, 0]);
        let wifi = line("wlan0", any, router, 600, any);
        let cable = line("eth0", any, other, 100, any);
        let found = |lines: &[&String]| {
            let lines: String = lines.iter().copied().cloned().collect();
            router_in(&format!("{head}{lines}nonsense\n"), "wlan0")
        };
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[&half, &wifi]), Some(Ipv4Addr::from(router)));
        assert_eq!(found(&[&wifi, &cable]), None);
        assert_eq!(found(&[&line("wlan0", any, any, 0, any)]), None);
    }
}
