//! Writes include/coorp.h from the source of `coorp-c`; its test compares the two.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// In the order in which they are in the header.
const SOURCES: [&str; 5] = ["boundary", "node", "control", "bulk", "gather"];

fn crate_c() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

fn header() -> PathBuf {
    crate_c().join("include/coorp.h")
}

fn generated() -> Result<Vec<u8>, String> {
    let config = cbindgen::Config::from_file(crate_c().join("cbindgen.toml"))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(crate_c().join(format!("src/{source}.rs")));
    }
    let bindings = builder.generate().map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(text)
}

fn main() -> ExitCode {
    let written = generated().and_then(|text| std::fs::write(header(), text).map_err(|error| error.to_string()));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {}: {error}", header().display());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_the_one_that_cbindgen_writes() {
        let (is, should_be) = (std::fs::read(header()).unwrap(), generated().unwrap());
        assert!(
            is == should_be,
            "crates/c/include/coorp.h is out of date: cargo run --manifest-path crates/c/header/Cargo.toml"
        );
    }
}
