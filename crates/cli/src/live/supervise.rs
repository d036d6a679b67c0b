//! Reports the state of `coorp up` to systemd. If the robot has failed, ends the process with a message and an exit
//! code, so that systemd restarts it.
//!
//! The protocol is `sd_notify(3)`: datagrams of `NAME=value` to the socket in `NOTIFY_SOCKET`. `WATCHDOG=1` is sent
//! only while the deciding thread makes progress, so that systemd ends a robot that hangs. Without systemd, nothing is
//! sent, and nothing ends a robot that hangs.

use std::env;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use coorp_node::Pulse;

use crate::failure::{Failure, ROBOT_FAILED};
use crate::output;

/// The interval at which the pulse is checked without a watchdog.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches a robot until the process ends.
///
/// # Errors
/// No thread can be started.
pub fn start(pulse: Pulse) -> Result<(), Failure> {
    let systemd = Systemd::of_this_process();
    let every = systemd.watchdog.unwrap_or(LOOK_EVERY);
    systemd.tell("READY=1");
    let watch = move || {
        let mut rounds = None;
        loop {
            if let Some(why) = pulse.failed_within(every) {
                systemd.tell(&format!("STATUS={why}"));
                output::note(&format!("failed: {why}"));
                std::process::exit(ROBOT_FAILED.into());
            }
            if rounds.replace(pulse.rounds()) != Some(pulse.rounds()) {
                systemd.tell("WATCHDOG=1");
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name("coorp-supervise".to_owned())
        .spawn(watch);
    thread
        .map(|_| ())
        .map_err(|error| Failure::Found(format!("failed: cannot start a thread: {error}")))
}

/// The service manager, if it has started this process.
struct Systemd {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The interval at which `WATCHDOG=1` is due.
    watchdog: Option<Duration>,
}

impl Systemd {
    fn of_this_process() -> Systemd {
        let text = |name| env::var(name).ok();
        let socket = text("NOTIFY_SOCKET").and_then(|name| Some((UnixDatagram::unbound().ok()?, address(&name)?)));
        let mine = text("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        Systemd {
            socket,
            watchdog: text("WATCHDOG_USEC").filter(|_| mine).and_then(|text| every(&text)),
        }
    }

    fn tell(&self, what: &str) {
        if let Some((socket, address)) = &self.socket {
            // The service manager may be gone; the robot does not depend on it.
            let _ = socket.send_to_addr(what.as_bytes(), address);
        }
    }
}

/// Returns half of the watchdog's time, so that one check may be late, but at least the time of one round of the
/// robot's loop.
fn every(watchdog_usec: &str) -> Option<Duration> {
    let time = Duration::from_micros(watchdog_usec.parse().ok()?);
    Some((time / 2).max(Pulse::ROUND_MAX + Duration::from_millis(100)))
}

/// Parses a socket's address: a path, or after `@` an abstract name.
fn address(name: &str) -> Option<SocketAddr> {
    match name.strip_prefix('@') {
        None => SocketAddr::from_pathname(name).ok(),
        #[cfg(target_os = "linux")]
        Some(name) => <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name).ok(),
        #[cfg(not(target_os = "linux"))]
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_hears_twice_in_its_time_and_not_before_a_round() {
        assert_eq!(every("30000000"), Some(Duration::from_secs(15)));
        assert!(every("1000").is_some_and(|every| every > Pulse::ROUND_MAX));
        assert_eq!(every("soon"), None);
    }
}
