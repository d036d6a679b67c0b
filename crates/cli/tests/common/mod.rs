//! Shared by the tests of the command.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs the command.
pub fn coorp(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_coorp"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Returns the printed text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A folder for this test, deleted with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("coorp-command-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
