//! The C library `coorp`: a robot's control, bulk and gather, blocking. `include/coorp.h` is its reference; cbindgen writes it
//! from this source.
//!
//! A thin layer: it converts values and decides nothing. `boundary.rs` is where pointers are read and written, panics end and
//! errors become results. `handles.rs` knows what C's pointers stand for, without ever following one. The other modules are
//! the functions, which share their waits with the other libraries (`coorp_node::shared_node`).
//!
//! Left out: what needs no program on the robot (status, metrics, recordings: `coorp up` and `coorp watch`), and waiting for
//! several things at once: a program has threads for that.

#![cfg_attr(test, allow(clippy::unwrap_used))]
// What C has to promise of pointers is said once, at the head of the header.
#![allow(clippy::missing_safety_doc)]

pub mod boundary;
pub mod bulk;
pub mod control;
pub mod gather;
mod handles;
pub mod node;
