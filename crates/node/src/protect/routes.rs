//! The way that programs' packets take: what they send to an interface's own network goes into a TUN.
//!
//! A policy rule looks into a table of ours, which routes that network into the TUN. A rule before it finds the main table's
//! routes into parts of that network, such as a bridge's. If the agent dies, however that happens, its TUN goes, and the table's
//! route with it: the rule finds nothing, and packets flow as before. So rules that were left do no harm; the next start
//! deletes them. Sockets that are bound to the interface look only for routes over it, and so go round the TUN: those of the
//! agent, and any other program's.
//!
//! A strict reverse-path filter would drop what arrives from that network by the interface: it becomes loose, and is put back.
//!
//! Left out: IPv6, broadcast and multicast, what goes beyond the interface's own network, and putting the filter back after a
//! death.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use coorp_team::PATHS_MAX;

use crate::Error;

/// The priority of the first path's first rule: ahead of tailscale's (5,210) and of all that people usually have.
const PRIORITY: usize = 5_190;
/// The number of the first path's table.
const TABLE: usize = 7_460;
/// The most rules that earlier starts can have left of one kind.
const LEFT_MAX: usize = 16;
/// The TUN's MTU: datagrams come whole, and are cut by the agent.
const MTU: usize = 65_535;
/// The headers of IPv4 and TCP without options.
const TCP_HEADERS_BYTES: usize = 40;
/// Packets that wait in a TUN before the kernel drops some: of 64 kB, they take 130 MB.
pub(super) const QUEUE_PACKETS: usize = 2_000;
/// Values of `rp_filter`: strict, and loose.
const STRICT: &str = "1";
const LOOSE: &str = "2";
/// `IFF_NOARP`: whatever is sent over such an interface needs no neighbour.
const NO_ARP: u32 = 0x80;

/// The routes into a TUN, until dropped.
#[derive(Debug)]
pub(super) struct Routes {
    path: usize,
    /// The file of the interface's reverse-path filter, and what it had.
    filter: Option<(PathBuf, String)>,
}

/// An interface, with the network that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outlet {
    pub interface: String,
    /// The kernel's number, which a card that is plugged in again does not keep.
    index: u32,
    address: Ipv4Addr,
    /// As `10.77.0.0/24`.
    pub network: String,
    prefix: u8,
    pub mtu: usize,
    /// Whether a packet may have to wait until its receiver's hardware address is known.
    pub has_neighbours: bool,
}

impl Outlet {
    /// Looks an interface up.
    pub fn of(interface: &str) -> Result<Outlet, Error> {
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
            address,
            network: format!("{network}/{prefix}"),
            prefix,
            mtu: mtu.unwrap_or(1_500),
            has_neighbours: found.flags & NO_ARP == 0,
        })
    }
}

impl Routes {
    /// Brings a TUN up and routes an outlet's network into it.
    pub fn set(path: usize, tun: &str, outlet: &Outlet) -> Result<Routes, Error> {
        let Outlet {
            interface,
            address,
            network,
            prefix,
            mtu,
            ..
        } = outlet;
        forget(path);
        let mut routes = Routes { path, filter: None };
        // Without an address of its own: some programs announce every address that the machine has.
        ip(&format!(
            "link set dev {tun} mtu {MTU} txqueuelen {QUEUE_PACKETS} addrgenmode none"
        ))?;
        ip(&format!("link set dev {tun} up"))?;
        let [first, second] = priorities(path);
        let table = TABLE + path;
        // As if beyond a router: else the kernel would take the TUN for the way to routers of new routes. The MTU is locked, so
        // that only what a program itself forbids to be cut says so. TCP's segments fit the interface.
        let segment = mtu.saturating_sub(TCP_HEADERS_BYTES);
        ip(&format!(
            "-4 route replace {network} dev {tun} src {address} scope global table {table} mtu lock {MTU} advmss {segment}"
        ))?;
        routes.loosen(interface);
        // As if the kernel had made them: systemd-networkd deletes the rules of others.
        ip(&format!(
            "-4 rule add pref {first} iif lo lookup main suppress_prefixlength {prefix} protocol kernel"
        ))?;
        ip(&format!(
            "-4 rule add pref {second} iif lo lookup {table} protocol kernel"
        ))?;
        Ok(routes)
    }

    /// Makes the reverse-path filter loose if it is strict.
    fn loosen(&mut self, interface: &str) {
        let file = |of: &str| PathBuf::from(format!("/proc/sys/net/ipv4/conf/{of}/rp_filter"));
        let had = |of: &str| fs::read_to_string(file(of)).unwrap_or_default().trim().to_owned();
        let own = had(interface);
        // The greater of the two counts.
        if own == LOOSE || ![own.as_str(), had("all").as_str()].contains(&STRICT) {
            return;
        }
        match fs::write(file(interface), LOOSE) {
            Ok(()) => self.filter = Some((file(interface), own)),
            Err(error) => {
                let file = file(interface);
                tracing::warn!("{} stays strict, which may drop what arrives: {error}", file.display());
            }
        }
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        forget(self.path);
        if let Some((file, had)) = &self.filter {
            // The interface may be gone.
            if let Err(error) = fs::write(file, had) {
                tracing::debug!("{} is not {had} again: {error}", file.display());
            }
        }
    }
}

/// Deletes the rules that earlier starts have left of this path and further ones.
pub(super) fn forget_from(path: usize) {
    (path..PATHS_MAX).for_each(forget);
}

/// The priorities of a path's two rules.
fn priorities(path: usize) -> [usize; 2] {
    [PRIORITY + 2 * path, PRIORITY + 2 * path + 1]
}

/// Deletes a path's rules.
fn forget(path: usize) {
    let [first, second] = priorities(path);
    let table = TABLE + path;
    for rule in [
        format!("pref {first} iif lo lookup main"),
        format!("pref {second} lookup {table}"),
    ] {
        for _ in 0..LEFT_MAX {
            if ip(&format!("-4 rule del {rule}")).is_err() {
                break;
            }
        }
    }
}

/// Runs iproute2.
fn ip(arguments: &str) -> Result<(), Error> {
    let cannot = |why: &str| Error::Protect(format!("'ip {arguments}' failed: {why}"));
    let mut command = Command::new("ip");
    let command = command.args(arguments.split(' ')).stdin(Stdio::null());
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(cannot(String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(cannot(&format!("{error}; install iproute2"))),
    }
}
