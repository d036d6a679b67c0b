//! A team in virtual time.

pub mod results;
