//! Reads any bytes as a team file: never a panic or a hang, and every resulting team is consistent.

use std::path::Path;

pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match coorp_team::parse(text, "team.toml", Path::new("/nowhere")) {
        Ok(team) => assert_eq!(team.check(), Ok(())),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
