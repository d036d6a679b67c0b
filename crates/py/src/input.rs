//! Input from Python: a team by path or text, a paradigm by name, times in seconds.

use std::path::{Path, PathBuf};

use coorp_cli::number::{checked_duration, DURATION_MAX};
use coorp_core::{Duration, Instant};
use coorp_team::{Sync, Team};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::{input, InputError};

/// Maximum number of rounds that a robot may be ahead under SSP, as in the team file.
const STALENESS_MAX: i128 = 1_000_000;

/// A team and its name in messages.
pub struct Source {
    pub shown: String,
    pub team: Team,
}

/// Reads a team from a path, or from the text itself if it contains line breaks.
pub fn team(given: &Bound<'_, PyAny>) -> PyResult<Source> {
    let text = given.cast::<PyString>().ok().map(|text| text.to_cow()).transpose()?;
    let (shown, loaded) = match text {
        Some(text) if text.contains('\n') => ("team".to_owned(), coorp_team::parse(&text, "team", Path::new(""))),
        _ => {
            let path: PathBuf = given.extract().map_err(|_| {
                PyTypeError::new_err("a team is the path of a team file, or its text (with line breaks)")
            })?;
            (path.display().to_string(), coorp_team::load(&path))
        }
    };
    let team = loaded.map_err(|error| InputError::new_err(error.to_string()))?;
    Ok(Source { shown, team })
}

/// Overrides how the team's rounds are synchronised, if requested.
pub fn set_sync(source: &mut Source, sync: Option<&str>, staleness: Option<i128>) -> PyResult<()> {
    if sync.is_none() && staleness.is_none() {
        return Ok(());
    }
    let shown = &source.shown;
    let Some(learning) = &mut source.team.learning else {
        return Err(input(format_args!(
            "{shown}: the team does not learn, so there is nothing to synchronise; add [learning], or omit sync \
             and staleness"
        )));
    };
    let staleness = match staleness {
        Some(rounds @ 0..=STALENESS_MAX) => Some(rounds as u32),
        Some(rounds) => {
            return Err(input(format_args!(
                "staleness = {rounds}: give a number of rounds from 0 to {STALENESS_MAX}; asp has no bound"
            )))
        }
        None => None,
    };
    let own = match learning.sync {
        Sync::Ssp { staleness } => staleness,
        _ => 1,
    };
    let named = match (sync.map(str::to_ascii_lowercase).as_deref(), learning.sync) {
        (Some("bsp"), _) => Sync::Bsp,
        (Some("asp"), _) => Sync::Asp,
        (Some("ssp"), _) | (None, Sync::Ssp { .. }) => Sync::Ssp {
            staleness: staleness.unwrap_or(own),
        },
        (None, other) => other,
        (Some(unknown), _) => {
            return Err(input(format_args!(
                "there is no paradigm '{unknown}'; choose bsp, ssp or asp"
            )))
        }
    };
    if staleness.is_some() && !matches!(named, Sync::Ssp { .. }) {
        return Err(input("staleness applies only to ssp; set sync=\"ssp\", or omit it"));
    }
    learning.sync = named;
    Ok(())
}

/// Returns a seed in the range of the command line.
pub fn seed(given: i128) -> PyResult<u64> {
    u64::try_from(given).map_err(|_| input(format_args!("seed = {given}: a seed is between 0 and {}", u64::MAX)))
}

/// Returns the duration of a run.
pub fn duration(seconds: f64) -> PyResult<Duration> {
    checked_duration(seconds).map_err(|why| input(format_args!("duration_s = {seconds}: {why}")))
}

/// Returns the time up to which a session at `now` should advance.
pub fn until(seconds: f64, now: Instant) -> PyResult<Instant> {
    if seconds.is_nan() || seconds < 0.0 || seconds > DURATION_MAX.as_secs_f64() {
        let most = DURATION_MAX.as_secs_f64();
        return Err(input(format_args!(
            "until_s = {seconds}: a session lasts from 0 to 24h, which is {most} s"
        )));
    }
    let until = Instant::ZERO + Duration::from_secs_f64(seconds);
    if until < now {
        let now = now.as_secs_f64();
        return Err(input(format_args!(
            "until_s = {seconds}: the session is already at {now} s, and cannot go back"
        )));
    }
    Ok(until)
}

/// Returns a timeout in seconds.
pub fn timeout(given: f64) -> PyResult<std::time::Duration> {
    std::time::Duration::try_from_secs_f64(given).map_err(|_| {
        input(format_args!(
            "timeout = {given}: give seconds, at least 0; None waits forever"
        ))
    })
}
