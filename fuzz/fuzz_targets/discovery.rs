//! Any datagram, and any change of an announcement: never a panic, and no proof that was not given.
//!
//! `cargo +nightly fuzz run discovery` from the project's folder.

#![no_main]

use std::net::Ipv4Addr;

use coorp_node::discovery::{Heard, Names};
use coorp_node::RobotId;

const FROM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let names = Names::new("fleet", Some(b"authority"), ["base", "r1"]);
    let _ = names.read(bytes, FROM);
    // Records of other services are not parsed.
    let _ = names.read(&[bytes, b"\x06_coorp"].concat(), FROM);
    let announced = names.announcement(RobotId(1), 0, FROM, 7_460);
    let mut changed = announced.clone();
    for change in bytes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % changed.len();
        changed[place] ^= change[2];
    }
    if let Ok(Some(Heard::Announcement { robot, path, proved: true })) = names.read(&changed, FROM) {
        assert_eq!((robot, path), (RobotId(1), 0));
    }
});
