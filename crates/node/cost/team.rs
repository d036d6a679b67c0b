//! A team of two robots on loopback, in its own folder.

use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::peer::{Ask, Peer, Role};
use crate::Outcome;

/// Time limit for the two robots to find each other.
const SOON: Duration = Duration::from_secs(20);
/// The number of ports that a robot takes.
const PORTS: u16 = 16;

/// A team's folder, which is removed with its contents when this is dropped.
pub struct Team {
    folder: PathBuf,
    pub file: PathBuf,
}

impl Team {
    pub fn make() -> Outcome<Team> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("coorp-cost-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mut text = String::new();
        for (name, leader) in [("one", true), ("two", false)] {
            text += &format!(
                "[[robot]]\nname = \"{name}\"\nleader = {leader}\naddresses = [\"127.0.0.1\"]\nport = {}\n",
                free_ports(PORTS)?
            );
        }
        let file = folder.join("team.toml");
        std::fs::write(&file, text)?;
        let team = coorp_team::load(&file).map_err(|error| error.to_string())?;
        coorp_node::keys::init(&team)?;
        Ok(Team { folder, file })
    }

    /// Returns both robots once the first one leads; the second one sends. Received bulk is kept below `base`, or below
    /// the team's folder.
    pub fn robots(&self, base: Option<&Path>) -> Outcome<[Peer; 2]> {
        self.start(base, false)
    }

    /// Returns both robots as agents, which must stay alive, and a guest of each.
    pub fn guests(&self) -> Outcome<([Peer; 2], [Peer; 2])> {
        let agents = self.start(None, true)?;
        let guest = |name: &str| self.robot(name, None, false);
        Ok((agents, [guest("one")?, guest("two")?]))
    }

    fn robot(&self, name: &str, base: Option<&Path>, is_agent: bool) -> Outcome<Peer> {
        Peer::start(&Role::Robot {
            team: self.file.clone(),
            name: name.to_owned(),
            state: base.unwrap_or(&self.folder).join("state").join(name),
            is_agent,
        })
    }

    fn start(&self, base: Option<&Path>, are_agents: bool) -> Outcome<[Peer; 2]> {
        let start = |name: &str| self.robot(name, base, are_agents);
        let mut robots = [start("one")?, start("two")?];
        let began = Instant::now();
        loop {
            let leads: (bool, bool) = robots[0].ask(&Ask::Leads)?;
            let follows: (bool, bool) = robots[1].ask(&Ask::Leads)?;
            if leads.0 && follows.1 && !follows.0 {
                // A new leader grants nothing at first.
                robots[1].ask::<Vec<u64>>(&Ask::Permits { count: 1 })?;
                return Ok(robots);
            }
            if began.elapsed() > SOON {
                return Err("the first robot does not become the leader".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Creates a folder in the team's folder, and returns it.
    pub fn folder(&self, name: &str) -> Outcome<PathBuf> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns the first of `count` ports that are free now, and that were not returned before.
pub fn free_ports(count: u16) -> Outcome<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = 14_000 + (std::process::id() % 64) as u16 * 256;
    for _ in 0..100 {
        let base = own + NEXT.fetch_add(count, Ordering::Relaxed);
        let free =
            |port| TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
        if (base..base + count).all(free) {
            return Ok(base);
        }
    }
    Err("no ports are free".into())
}
