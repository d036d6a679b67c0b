//! Decodes any bytes as a frame of each kind: never a panic, and a decoded value survives encoding and decoding.

use coorp_core::robot;
use coorp_node::status::Status;
use coorp_node::wire::guest::{packed, unpacked, FromGuest, ToGuest};
use coorp_node::wire::{
    decode, encode, pack, unpack, Answer, Begin, Frame, Gathering, Hello, LookQuery, Looked, Parcel, Revocations,
    Segments, Start, StatusQuery, VERSION,
};

pub fn run(body: &[u8]) {
    read::<robot::Message>(body);
    read::<Hello>(body);
    read::<Gathering>(body);
    read::<Revocations>(body);
    read::<StatusQuery>(body);
    read::<LookQuery>(body);
    read::<Looked>(body);
    read::<Status>(body);
    read::<Begin>(body);
    read::<Answer>(body);
    read::<Start>(body);
    read::<Segments>(body);
    read::<Parcel>(body);
    read::<FromGuest>(body);
    read::<ToGuest>(body);
    read_packed::<FromGuest>(body);
    read_packed::<ToGuest>(body);
    if let Ok((parcel, content)) = unpack(body) {
        assert!(content <= body.len());
        let head = pack(&parcel);
        assert_eq!(unpack(&head), Ok((parcel, head.len())));
    }
}

fn read_packed<F: Frame + PartialEq + std::fmt::Debug>(body: &[u8]) {
    if let Ok(Some((frame, lengths))) = unpacked::<F>(body) {
        let payload = &body[lengths.whole() - lengths.payload..lengths.whole()];
        let again = packed(&frame, payload);
        let (same, lengths) = unpacked::<F>(&again).unwrap().unwrap();
        assert_eq!((same, &again[lengths.whole() - lengths.payload..]), (frame, payload));
    }
}

fn read<F: Frame + PartialEq + std::fmt::Debug>(body: &[u8]) {
    let frame = [&[b'C', b'o', VERSION, F::KIND], body].concat();
    if let Ok(value) = decode::<F>(&frame) {
        // Compare values, not bytes: numbers may be encoded longer than necessary.
        assert_eq!(decode::<F>(&encode(&value)).as_ref(), Ok(&value));
    }
    let _ = decode::<F>(body);
}
