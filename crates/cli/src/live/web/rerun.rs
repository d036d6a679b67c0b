//! `coorp watch --rerun`: what Foxglove gets, to Rerun's viewer or into a file of Rerun.
//!
//! Rerun is spoken to in Python, with its package `rerun-sdk`: that brings the viewer too. A script in the binary
//! (`assets/to_rerun.py`) gets one line of JSON for each message, and logs it. The pipe between the two is short. While Rerun is
//! slow, this end waits, and then goes on with the newest.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use coorp_core::RobotId;
use coorp_team::Team;
use serde_json::{json, Value};

use super::feed::TELL_EVERY;
use super::hub::{Hub, Viewer};
use super::stream::{Block, Message};
use crate::failure::Failure;
use crate::output;

const SCRIPT: &str = include_str!("../../../assets/to_rerun.py");
/// The port at which a viewer listens, unless told otherwise.
pub const PORT: &str = "9876";
/// The interpreter that has `rerun-sdk`; the Python package sets it to its own.
const PYTHON: &str = "COORP_PYTHON";
/// The script's exit code if the package is missing or too old; it has said so.
const NO_PACKAGE: i32 = 2;

/// Where it goes.
#[derive(Clone, Debug)]
pub enum To {
    /// A viewer on this machine, which is started unless one listens there.
    Viewer(u16),
    /// A new file.
    File(PathBuf),
}

impl To {
    /// A port or a file.
    ///
    /// # Errors
    /// If it is neither.
    pub fn parse(text: &str) -> Result<To, String> {
        if let Ok(port) = text.parse() {
            return Ok(To::Viewer(port));
        }
        let file = PathBuf::from(text);
        if file.extension().is_some_and(|extension| extension == "rrd") {
            return Ok(To::File(file));
        }
        Err(format!(
            "'{text}' is neither a port nor a file that ends in .rrd; use 'coorp watch TEAM --rerun', '--rerun PORT' or \
             '--rerun FILE.rrd'"
        ))
    }
}

/// Sends what is told to Rerun until that ends, and says how it did.
///
/// # Errors
/// If Rerun is missing, or fails.
pub fn run(team: &Team, hub: &Arc<Hub<Arc<Block>>>, to: &To) -> Result<(), Failure> {
    if let To::File(file) = to {
        if file.exists() {
            let file = file.display();
            return Err(Failure::Input(format!(
                "error: {file} exists; name another file, or delete it"
            )));
        }
    }
    let Some(viewer) = hub.view(usize::MAX) else {
        return Err(Failure::Found("failed: too many viewers are connected".to_owned()));
    };
    let python = std::env::var_os(PYTHON).unwrap_or_else(|| OsString::from("python3"));
    let spawned = Command::new(&python).args(["-c", SCRIPT]).stdin(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| {
        let python = python.display();
        Failure::Input(format!(
            "error: cannot run {python}, which '--rerun' needs for Rerun's package 'rerun-sdk': {error}; install Python, or \
             name another interpreter in {PYTHON}"
        ))
    })?;
    // If it ends, its exit code says why.
    let _ = tell(&mut child, &hello(team, to), viewer);
    drop(child.stdin.take());
    let status = child
        .wait()
        .map_err(|error| Failure::Found(format!("failed: {error}")))?;
    match status.code() {
        Some(0) => output::print("Rerun's viewer was closed\n"),
        Some(NO_PACKAGE) => Err(Failure::Input(format!(
            "error: {} has no 'rerun-sdk' of this version; install it with '{0} -m pip install \"rerun-sdk>=0.41\"', or name \
             an interpreter that has it in {PYTHON}",
            python.display()
        ))),
        _ => Err(Failure::Found(format!("failed: what tells Rerun ended with {status}"))),
    }
}

/// The first line.
fn hello(team: &Team, to: &To) -> Value {
    let (port, file) = match to {
        To::Viewer(port) => (Some(*port), None),
        To::File(file) => (None, Some(file)),
    };
    json!({
        "team": team.name, "port": port, "file": file,
        "has_paths": (0..).map(RobotId).take(team.robots.len()).any(|robot| team.paths_used(robot) > 1),
        "bound_ms": team.control.as_ref().map(|control| control.bound.as_millis_f64()),
    })
}

/// Writes lines until nobody reads them.
fn tell(child: &mut Child, hello: &Value, mut viewer: Viewer<Arc<Block>>) -> io::Result<()> {
    let Some(stdin) = child.stdin.as_mut() else {
        return Ok(());
    };
    let mut to = BufWriter::new(stdin);
    writeln!(to, "{hello}")?;
    to.flush()?;
    let mut begins = true;
    loop {
        if let Some(block) = viewer.next(TELL_EVERY) {
            if viewer.take_skipped() > 0 || std::mem::take(&mut begins) {
                block.before.values().try_for_each(|message| line(&mut to, message))?;
            }
            block.messages.iter().try_for_each(|message| line(&mut to, message))?;
        }
        // Also without news: a script that waits for a line finds out that its viewer is gone.
        writeln!(to)?;
        to.flush()?;
    }
}

fn line(to: &mut impl Write, message: &Message) -> io::Result<()> {
    let (topic, at_ns, text) = (message.channel.topic(), message.at_ns, &message.text);
    writeln!(to, "{{\"topic\":\"{topic}\",\"at_ns\":{at_ns},\"value\":{text}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_to_a_port_or_a_file() {
        assert!(matches!(To::parse(PORT), Ok(To::Viewer(9_876))));
        assert!(matches!(To::parse("run.rrd"), Ok(To::File(file)) if file.ends_with("run.rrd")));
        for text in ["team.toml", "99999", "", "127.0.0.1:9876"] {
            assert!(To::parse(text).unwrap_err().contains("--rerun FILE.rrd"), "{text}");
        }
    }
}
