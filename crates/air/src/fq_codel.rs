//! The host queue.
