//! Unwraps packets that a member has wrapped: only packets between the two robots' addresses pass, and a flow's packets
//! are delivered once and in order.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use coorp_core::paths::{Merge, PacketCopy, PathId, Paths, Sequence};
use coorp_core::{Duration, Instant};
use coorp_node::fuzz::unwraps;

use super::input::Input;

const FROM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const TO: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// A UDP datagram from one robot to the other.
const PACKET: [u8; 28] = [
    0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1, 0x1b, 0x58, 0x1b, 0x59, 0, 8, 0, 0,
];

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (mut merge, mut now, mut delivered) = (Merge::default(), Instant::ZERO, BTreeMap::new());
    while step(&mut input, &mut merge, &mut now).is_some() {
        check(&mut merge, &mut delivered);
    }
    while let Some(due) = merge.next_deadline() {
        merge.on_deadline(due);
        check(&mut merge, &mut delivered);
    }
}

fn step(input: &mut Input, merge: &mut Merge<(u32, Sequence)>, now: &mut Instant) -> Option<()> {
    let mut packet = PACKET.to_vec();
    input.change(&mut packet)?;
    if unwraps(&packet, FROM, TO) {
        let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        assert_eq!((packet[0] >> 4, length), (4, packet.len()));
        assert_eq!(
            (&packet[12..16], &packet[16..20]),
            (&FROM.octets()[..], &TO.octets()[..])
        );
    }
    let (flow, incarnation) = (u32::from(input.byte()? % 4), u32::from(input.byte()? % 4));
    // Begin near the end, where the numbers wrap.
    let number = u32::from(input.word()?).wrapping_sub(0x100);
    let sequence = Sequence { incarnation, number };
    let (path, over) = (PathId(input.byte()? % 10), Paths(input.byte()?));
    *now += Duration::from_millis(u64::from(input.byte()? / 8));
    merge.on_deadline(*now);
    let copy = PacketCopy {
        flow,
        sequence,
        path,
        over,
    };
    merge.on_copy(copy, (flow, sequence), *now);
    Some(())
}

fn check(merge: &mut Merge<(u32, Sequence)>, delivered: &mut BTreeMap<(u32, u32), u32>) {
    while let Some((flow, Sequence { incarnation, number })) = merge.poll() {
        if let Some(before) = delivered.insert((flow, incarnation), number) {
            assert!(
                number.wrapping_sub(before) as i32 > 0,
                "{number} of {flow} came after {before}"
            );
        }
    }
}
