//! Takes apart a DDS message that a program sends through the agent: each part must be a message of one writer.

use coorp_core::rtps::read;

pub fn run(bytes: &[u8]) {
    let message = [b"RTPS", bytes].concat();
    let Some(whole) = read(&message) else { return };
    let _ = whole.topics().count();
    if whole.content().is_none() {
        for (content, part) in whole.parts() {
            assert_eq!(read(&part).unwrap().content(), Some(content));
        }
    }
}
