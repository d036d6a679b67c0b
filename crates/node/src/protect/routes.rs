//! The way that programs' packets take: what they send to an interface's own network goes into a TUN.
//!
//! A policy rule looks into a table of ours, which routes that network into the TUN. If the agent dies, however that happens,
//! its TUN goes, and the table's route with it: the rule finds nothing, and packets flow as before. So a rule that was left
//! does no harm; the next start deletes it. Sockets that are bound to the interface look only for routes over it, and so go
//! round the TUN: those of the agent, and any other program's.
//!
//! A strict reverse-path filter would drop what arrives from that network by the interface: it becomes loose, and is put back.
//!
//! Left out: IPv6, broadcast and multicast, what goes beyond the interface's own network, an address that changes, and putting
//! the filter back after a death.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Error;

/// The priority of the first path's rule: ahead of tailscale's (5,210) and of all that people usually have.
const PRIORITY: usize = 5_190;
/// The number of the first path's table.
const TABLE: usize = 7_460;
/// The most rules that earlier starts can have left.
const LEFT_MAX: usize = 16;
/// Packets that wait in a TUN before the kernel drops some.
const QUEUE_PACKETS: usize = 10_000;
/// Values of `rp_filter`: strict, and loose.
const STRICT: &str = "1";
const LOOSE: &str = "2";

/// The routes into a TUN, until dropped.
#[derive(Debug)]
pub(super) struct Routes {
    path: usize,
    /// The file of the interface's reverse-path filter, and what it had.
    filter: Option<(PathBuf, String)>,
}

/// An interface, with the network that it is in.
#[derive(Clone, Debug)]
pub(super) struct Outlet {
    pub interface: String,
    pub address: Ipv4Addr,
    /// As `10.77.0.0/24`.
    pub network: String,
    pub mtu: u32,
}

impl Outlet {
    /// Looks an interface up.
    pub fn of(interface: &str) -> Result<Outlet, Error> {
        let found = pnet_datalink::interfaces()
            .into_iter()
            .find(|one| one.name == interface);
        let mut networks = found.iter().flat_map(|found| &found.ips);
        let four = networks.find_map(|network| match network.ip() {
            IpAddr::V4(address) => Some((address, format!("{}/{}", network.network(), network.prefix()))),
            IpAddr::V6(_) => None,
        });
        let (address, network) = four.ok_or_else(|| {
            Error::Protect(format!(
                "{interface} has no IPv4 address: connect it to the team's network before --protect"
            ))
        })?;
        let mtu = fs::read_to_string(format!("/sys/class/net/{interface}/mtu"));
        let mtu = mtu.ok().and_then(|text| text.trim().parse().ok());
        Ok(Outlet {
            interface: interface.to_owned(),
            address,
            network,
            mtu: mtu.unwrap_or(1_500),
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
            mtu,
        } = outlet;
        forget(path);
        let mut routes = Routes { path, filter: None };
        // Without an address of its own: some programs announce every address that the machine has.
        ip(&format!(
            "link set dev {tun} mtu {mtu} txqueuelen {QUEUE_PACKETS} addrgenmode none"
        ))?;
        ip(&format!("link set dev {tun} up"))?;
        let table = TABLE + path;
        ip(&format!(
            "-4 route replace {network} dev {tun} src {address} table {table}"
        ))?;
        routes.loosen(interface);
        let priority = PRIORITY + path;
        // As if the kernel had made it: systemd-networkd deletes the rules of others.
        ip(&format!(
            "-4 rule add pref {priority} iif lo lookup {table} protocol kernel"
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
            if let Err(error) = fs::write(file, had) {
                tracing::warn!("{} is not {had} again: {error}", file.display());
            }
        }
    }
}

/// Deletes a path's rule, and those that earlier starts have left.
fn forget(path: usize) {
    let (priority, table) = (PRIORITY + path, TABLE + path);
    for _ in 0..LEFT_MAX {
        if ip(&format!("-4 rule del pref {priority} lookup {table}")).is_err() {
            return;
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
