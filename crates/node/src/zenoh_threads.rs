//! The threads that Zenoh runs on. It configures them from the variable `ZENOH_RUNTIME` at its first use, and in no
//! other way.
//!
//! Zenoh 1.10 reads from a TLS session and writes to it in two tasks without synchronisation, so two threads corrupt it
//! (eclipse-zenoh/zenoh#2557). So both have to run on one thread.
//!
//! If the variable is unset, it is set here, once per process, before the first session. Rust's own environment
//! functions synchronise with each other, but C code that reads the environment in another thread at that moment does
//! not. A program with such code, or one that uses Zenoh itself before it opens a node, sets the variable at its start;
//! a value that is set stays. Left out: detecting a program that has used Zenoh before without it.

use std::env::{self, VarError};
use std::sync::Once;

use ron::extensions::Extensions;
use serde::Deserialize;

use crate::Error;

const VARIABLE: &str = "ZENOH_RUNTIME";
const OURS: &str = "(rx: (worker_threads: 1), tx: (handover: rx))";

/// Zenoh's five kinds of work, by their names in the variable.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Runtimes {
    app: Threads,
    acc: Threads,
    tx: Threads,
    rx: Threads,
    net: Threads,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Threads {
    worker_threads: Option<usize>,
    max_blocking_threads: Option<usize>,
    handover: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    App,
    Acc,
    Tx,
    Rx,
    Net,
}

impl Runtimes {
    fn of(&self, kind: Kind) -> &Threads {
        match kind {
            Kind::App => &self.app,
            Kind::Acc => &self.acc,
            Kind::Tx => &self.tx,
            Kind::Rx => &self.rx,
            Kind::Net => &self.net,
        }
    }

    /// Whether one thread both receives and sends.
    fn is_one_thread(&self) -> bool {
        let at = |kind| self.of(kind).handover.unwrap_or(kind);
        let usual = if at(Kind::Rx) == Kind::Rx { 2 } else { 1 };
        at(Kind::Tx) == at(Kind::Rx) && self.of(at(Kind::Rx)).worker_threads.unwrap_or(usual) == 1
    }
}

/// Configures Zenoh's threads before a session is opened; `secure` if over TLS.
///
/// # Errors
/// If the variable has a value that Zenoh cannot read, or that is not safe.
pub(crate) fn settle(secure: bool) -> Result<(), Error> {
    static SET: Once = Once::new();
    SET.call_once(|| {
        if env::var_os(VARIABLE).is_none() {
            env::set_var(VARIABLE, OURS);
        }
    });
    match env::var(VARIABLE) {
        Ok(text) => check(&text, secure),
        // Somebody has removed it again; Zenoh has read it by then, or runs without it.
        Err(VarError::NotPresent) => check("()", secure),
        Err(VarError::NotUnicode(text)) => Err(wrong(&text.to_string_lossy(), "is no text")),
    }
}

fn check(text: &str, secure: bool) -> Result<(), Error> {
    let format = ron::Options::default().with_default_extension(Extensions::IMPLICIT_SOME);
    let runtimes: Runtimes = format
        .from_str(text)
        .map_err(|error| wrong(text, &format!("is not what Zenoh reads ({error})")))?;
    let all = [Kind::App, Kind::Acc, Kind::Tx, Kind::Rx, Kind::Net].map(|kind| runtimes.of(kind));
    let none = |threads: &&Threads| threads.worker_threads == Some(0) || threads.max_blocking_threads == Some(0);
    if all.iter().any(none) {
        return Err(wrong(text, "has work for which there is no thread"));
    }
    if secure && !runtimes.is_one_thread() {
        let what = "lets Zenoh read and write on two threads, which over TLS corrupts memory";
        return Err(wrong(text, what));
    }
    Ok(())
}

fn wrong(text: &str, what: &str) -> Error {
    Error::Threads(format!(
        "{VARIABLE}, set to '{text}', {what}: unset it, or set it to '{OURS}'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_and_writing_must_be_one_threads() {
        for good in [
            OURS,
            "(rx: (handover: tx))",
            "(rx: (handover: app), tx: (handover: app), net: (worker_threads: 3, max_blocking_threads: 7))",
        ] {
            assert!(check(good, true).is_ok(), "{good}");
        }
        for bad in [
            "()",
            "(tx: (handover: rx))",
            "(rx: (worker_threads: 1))",
            "(rx: (handover: app))",
            "(rx: (handover: app), tx: (handover: app), app: (worker_threads: 2))",
        ] {
            let said = check(bad, true).unwrap_err();
            assert!(
                matches!(&said, Error::Threads(text) if text.contains(bad) && text.contains(OURS)),
                "{said}"
            );
            assert!(check(bad, false).is_ok(), "without TLS there is nothing to corrupt");
        }
    }

    #[test]
    fn what_zenoh_would_panic_of_is_refused() {
        for bad in [
            "",
            "1",
            "(rx: (threads: 1))",
            "(rx: (worker_threads: 1)",
            "(rx: (worker_threads: 0))",
        ] {
            assert!(matches!(check(bad, false), Err(Error::Threads(_))), "{bad}");
        }
    }
}
