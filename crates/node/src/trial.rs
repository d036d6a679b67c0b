//! The real node in virtual time: a team's robots on simulated machines, where a seed decides what goes wrong.
//!
//! Everything above the ground (`ground.rs`) is the code that runs on robots: QUIC with its keys, links, the door, permits,
//! the gate, bulk and its disk. Below it are one thread, tokio's paused clock, a simulated network (`trial/network.rs`)
//! and machines (`trial/machine.rs`) that lose power, freeze, restart with other clocks and run out of descriptors.
//! Their disks (`trial/disk.rs`) fill up, and lose what was not synced. A second takes a few milliseconds, and a seed
//! repeats its faults at the same times.
//!
//! Left out: the air (`coorp emu` has it), multicast (robots have addresses here), disks that fail to read or write,
//! and the order of events within one millisecond of tokio's clock, which depends on the keys that TLS draws.

mod disk;
mod machine;
mod network;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration as StdDuration;

use coorp_core::RobotId;
use coorp_team::Team;
use tokio::runtime::Builder;
use tokio::time::Instant;

#[cfg(test)]
pub(crate) use self::disk::Platter;
pub use self::machine::{Machine, Process};
use self::network::Network;

/// A team's machines and the network between them.
#[derive(Debug)]
pub struct Trial {
    began: Instant,
    network: Arc<Network>,
    machines: Vec<Arc<Machine>>,
    team: Team,
}

impl Trial {
    /// Runs `what` in virtual time on the machines of a team, whose robots have `paths` interfaces each. Returns when
    /// it ends; anything else that still runs is dropped.
    ///
    /// # Errors
    /// If no runtime can be created.
    pub fn run<F: Future>(
        team: &Team,
        paths: usize,
        seed: u64,
        what: impl FnOnce(Arc<Trial>) -> F,
    ) -> std::io::Result<F::Output> {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        Ok(runtime.block_on(async {
            let began = Instant::now();
            let network = Network::start(seed, began);
            let mut team = team.clone();
            for (place, robot) in (0u16..).zip(&mut team.robots) {
                robot.addresses = (0..paths).map(|path| address(RobotId(place), path)).collect();
                robot.interfaces.clear();
            }
            let machines = (0u16..).map(RobotId).take(team.robots.len());
            let machines = machines.map(|robot| Machine::new(robot, seed, began, &network));
            what(Arc::new(Trial {
                began,
                machines: machines.collect(),
                network,
                team,
            }))
            .await
        }))
    }

    /// Returns the team, with the addresses that its robots have here.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Returns the time since the beginning.
    pub fn now(&self) -> StdDuration {
        self.began.elapsed()
    }

    /// Returns a robot's machine.
    ///
    /// # Panics
    /// If the team has no such robot.
    pub fn machine(&self, robot: RobotId) -> &Arc<Machine> {
        &self.machines[usize::from(robot.0)]
    }

    /// Separates these robots from all others, or joins them again.
    pub fn part(&self, robots: &[RobotId], parted: bool) {
        self.network.part(robots, parted);
    }

    /// Loses this share of what is sent over a path.
    pub fn lose(&self, path: usize, share: f64) {
        self.network.lose(path, share);
    }

    /// Makes frames take this many times as long over a path.
    pub fn slow(&self, path: usize, times: f64) {
        self.network.slow(path, times);
    }

    /// Calls `seen` with the sender and the path of each long datagram for bulk that is sent.
    pub fn watch_bulk(&self, seen: impl Fn(RobotId, usize) + Send + Sync + 'static) {
        let ports = (0u16..).map(RobotId).take(self.team.robots.len());
        let ports = ports.map(|robot| self.team.port(robot) + crate::bulk::PORT_BULK);
        self.network.watch(ports.collect(), Box::new(seen));
    }
}

/// Returns a robot's address on a path.
fn address(robot: RobotId, path: usize) -> IpAddr {
    let [high, low] = (robot.0 + 1).to_be_bytes();
    Ipv4Addr::new(10, u8::try_from(path).unwrap_or(u8::MAX), high, low).into()
}

/// Returns the robot and the path of an address.
fn place(address: IpAddr) -> Option<(RobotId, usize)> {
    let IpAddr::V4(address) = address else { return None };
    let [_, path, high, low] = address.octets();
    let robot = u16::from_be_bytes([high, low]).checked_sub(1)?;
    Some((RobotId(robot), path.into()))
}
