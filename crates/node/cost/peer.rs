//! The processes that take part: this program again, which lines of JSON tell what to do.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{bulk, robot, Outcome};

/// The argument that makes this program a peer.
pub const ARGUMENT: &str = "--peer";
/// Time limit for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The role of a process.
#[derive(Serialize, Deserialize)]
pub enum Role {
    /// A robot of a team, with the folder for what it receives.
    Robot {
        team: PathBuf,
        name: String,
        state: PathBuf,
        /// Whether it is an agent that programs join. Otherwise it joins a running agent.
        is_agent: bool,
    },
    /// A session of Zenoh.
    #[cfg(feature = "zenoh")]
    Zenoh { config: String },
    /// An end of plain QUIC, with the keys of a robot of a team.
    Quic {
        team: PathBuf,
        name: String,
        state: PathBuf,
    },
}

/// A request to a process.
#[derive(Serialize, Deserialize)]
pub enum Ask {
    /// Take control messages.
    Listen,
    /// Send control messages.
    Send {
        key: String,
        bytes: usize,
        count: usize,
        period_us: u64,
    },
    /// Return the latencies of a key's messages that arrived since the last time, nanoseconds.
    Collect { key: String },
    /// Create the bulk message to be sent.
    Fill { bytes: usize },
    /// Send the bulk message. Return how long that took, and how much of that was the handover, nanoseconds.
    Bulk { to: String, checked: bool },
    /// Return the processor time that this process has used so far, nanoseconds.
    Processor,
    /// Discard the bulk that arrived, and return the messages' lengths.
    Clear,
    /// Return the address at which bulk is received.
    Address,
    /// Return whether this robot leads, and whether any robot does.
    Leads,
    /// Get permits, one after another, and return how long each took, nanoseconds.
    Permits { count: usize },
}

/// A process that takes part. It ends when this is dropped.
pub struct Peer {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Peer {
    pub fn start(role: &Role) -> Outcome<Peer> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([ARGUMENT, &serde_json::to_string(role)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.ok_or("no input")?, output.ok_or("no output")?);
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let peer = Peer { child, input, answers };
        peer.answers.recv_timeout(ANSWER_MAX)?;
        Ok(peer)
    }

    /// Sends a request, and returns the answer.
    pub fn ask<T: DeserializeOwned>(&mut self, ask: &Ask) -> Outcome<T> {
        writeln!(self.input, "{}", serde_json::to_string(ask)?)?;
        let answer: Result<Value, String> = serde_json::from_str(&self.answers.recv_timeout(ANSWER_MAX)?)?;
        Ok(serde_json::from_value(answer?)?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs this process as a peer, until its input ends.
pub fn be(role: &str) -> Outcome<()> {
    match serde_json::from_str(role)? {
        Role::Robot {
            team,
            name,
            state,
            is_agent,
        } => serve(robot::Robot::open(&team, name, state, is_agent)?),
        #[cfg(feature = "zenoh")]
        Role::Zenoh { config } => serve(crate::zenoh::Plain::open(&config)?),
        Role::Quic { team, name, state } => serve(bulk::Quic::open(&team, &name, state)?),
    }
}

/// Returns a clock's time in nanoseconds. All processes share the monotonic clock.
pub fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Carries out requests.
pub trait Obey {
    fn obey(&mut self, ask: Ask) -> Outcome<Value>;
}

fn serve(mut who: impl Obey) -> Outcome<()> {
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let answer = match serde_json::from_str(&line)? {
            Ask::Processor => Ok(Value::from(nanos(ClockId::ProcessCPUTime))),
            ask => who.obey(ask).map_err(|error| error.to_string()),
        };
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}
