//! Any bytes as a frame of each kind: never a panic, and what is taken is written the same again.
//!
//! `cargo +nightly fuzz run wire` from the project's folder.

#![no_main]

use coorp_node::status::Status;
use coorp_node::wire::fleet::{Fleet, State};
use coorp_node::wire::{
    decode, encode, Answer, Begin, ControlHeader, Coordination, Echo, Frame, Models, Probe, Start, TimeQuery,
    TimeReply, VERSION,
};

fn read<F: Frame + PartialEq + std::fmt::Debug>(body: &[u8]) {
    let frame = [&[b'C', b'o', VERSION, F::KIND], body].concat();
    if let Ok(value) = decode::<F>(&frame) {
        // Not byte by byte: numbers may be written longer than need be.
        assert_eq!(decode::<F>(&encode(&value)).as_ref(), Ok(&value));
    }
    let _ = decode::<F>(body);
}

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    read::<Coordination>(body);
    read::<ControlHeader>(body);
    read::<TimeQuery>(body);
    read::<TimeReply>(body);
    read::<Status>(body);
    read::<Models>(body);
    read::<Begin>(body);
    read::<Answer>(body);
    read::<Start>(body);
    read::<Probe>(body);
    read::<Echo>(body);
    read::<Fleet>(body);
    read::<State>(body);
});
