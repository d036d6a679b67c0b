//! The `coorp` command.
fn main() {}
