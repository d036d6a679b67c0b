//! The team file.
