//! WNIC profiles: data files that describe how deep a card's queues are and where it ignores priorities.
//!
//! Two are built in (`profiles/`), others are files next to the team file. Left out: profiles for single robots (all
//! cards of a team are alike), and the bus between host and card.

use crate::model::Wnic;
use crate::problem::Problems;
use crate::sheet::{nearest, Sheet};
use crate::units::clip;
use coorp_core::Duration;
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path};
use toml::de::DeTable;

/// The built-in profiles.
const BUILT_IN: [(&str, &str); 2] = [
    ("ideal", include_str!("../profiles/ideal.toml")),
    ("mt7612u", include_str!("../profiles/mt7612u.toml")),
];

/// Maximum size of a profile file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Returns the card that `wnic` in `[air]` names; `ideal` by default.
pub(crate) fn profile(air: &mut Sheet<'_>, base: &Path) -> Wnic {
    let (problems, file) = air.problems();
    let (name, span) = air.string("wnic").unwrap_or(("ideal", 0..0));
    if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return parse(name, &format!("profiles/{name}.toml"), text, problems);
    }
    match read(name, base) {
        Ok((path, text)) => parse(name, &path, &text, problems),
        Err((message, mend)) => {
            problems.add(file, span, message, mend);
            Raw::default().finished("ideal")
        }
    }
}

/// Reads a profile file next to the team file. Returns its path for messages, and its text.
fn read(name: &str, base: &Path) -> Result<(String, String), (String, String)> {
    let known = "choose \"ideal\" or \"mt7612u\", or name a profile file such as \"my-card.toml\"";
    if !name.ends_with(".toml") {
        let mend = match nearest(name, BUILT_IN.iter().map(|(known, _)| *known)) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => known.to_owned(),
        };
        return Err((format!("there is no WNIC profile \"{}\"", clip(name)), mend));
    }
    let relative = Path::new(name);
    if !relative
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::ParentDir | Component::CurDir))
    {
        let message = format!("\"{}\" is not a relative path", clip(name));
        return Err((message, "give the profile's path relative to the team file".to_owned()));
    }
    let path = base.join(relative);
    let shown = path.display().to_string();
    let unread = |why: String| (format!("cannot read the WNIC profile {shown}: {why}"), known.to_owned());
    // Not a device or a pipe: reading one may never end.
    match std::fs::metadata(&path) {
        Err(error) => return Err(unread(error.to_string())),
        Ok(meta) if !meta.is_file() => return Err(unread("it is not a file".to_owned())),
        Ok(_) => {}
    }
    let file = std::fs::File::open(&path).map_err(|error| unread(error.to_string()))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| unread(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(unread(format!("it is larger than {} KiB", FILE_BYTES_MAX >> 10)));
    }
    Ok((shown, text))
}

fn parse(name: &str, path: &str, text: &str, problems: &Problems) -> Wnic {
    let file = problems.file(path, text);
    let (table, errors) = DeTable::parse_recoverable(text);
    crate::syntax(problems, file, &errors);
    let span: Range<usize> = table.span();
    let mut sheet = Sheet::new(table.get_ref(), span, "the WNIC profile", problems, file);
    let raw = Raw {
        queue_frames: sheet.integer("queue_frames", 1..=8_192),
        burst_frames: sheet.integer("burst_frames", 1..=8_192),
        commit_frames: sheet.integer("commit_frames", 1..=8_192),
        completes_on_transfer: sheet.flag("completes_on_transfer"),
        retries_max: sheet.integer("retries_max", 0..=255),
        ampdu_frames: sheet.integer("ampdu_frames", 1..=256),
        ampdu_bytes: sheet.integer("ampdu_bytes", 2_048..=6_500_631),
        mpdu_spacing: sheet.duration("mpdu_spacing", Duration::ZERO..=Duration::from_micros(16)),
        host_queue_packets: sheet.integer("host_queue_packets", 1..=1_000_000),
        codel: sheet.flag("codel"),
    };
    sheet.missing(
        "queue_frames",
        "add `queue_frames = 64`, the capacity of the card's queue per category",
    );
    if let (Some(queue), Some(commit)) = (raw.queue_frames, raw.commit_frames) {
        if commit > queue && raw.completes_on_transfer != Some(true) {
            let message = format!("`commit_frames` is {commit}, more than `queue_frames` of {queue}");
            sheet.problem(
                "commit_frames",
                message,
                "the commit stage is part of the queue: choose less, or set `completes_on_transfer = true`",
            );
        }
    }
    sheet.finish();
    raw.finished(name)
}

/// A profile as written in its file.
#[derive(Default)]
struct Raw {
    queue_frames: Option<u16>,
    burst_frames: Option<u16>,
    commit_frames: Option<u16>,
    completes_on_transfer: Option<bool>,
    retries_max: Option<u8>,
    ampdu_frames: Option<u16>,
    ampdu_bytes: Option<u32>,
    mpdu_spacing: Option<Duration>,
    host_queue_packets: Option<u32>,
    codel: Option<bool>,
}

impl Raw {
    fn finished(self, name: &str) -> Wnic {
        Wnic {
            name: name.to_owned(),
            queue_frames: self.queue_frames.unwrap_or(512),
            burst_frames: self.burst_frames.unwrap_or(16),
            commit_frames: self.commit_frames,
            completes_on_transfer: self.completes_on_transfer.unwrap_or(false),
            retries_max: self.retries_max.unwrap_or(7),
            ampdu_frames_max: self.ampdu_frames,
            ampdu_bytes_max: self.ampdu_bytes,
            mpdu_spacing: self.mpdu_spacing.unwrap_or(Duration::ZERO),
            host_queue_packets: self.host_queue_packets.unwrap_or(8_192),
            codel: self.codel.unwrap_or(true),
        }
    }
}
