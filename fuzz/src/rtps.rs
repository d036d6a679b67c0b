//! A DDS message that a program sends through the agent: its parts are messages of one writer each.

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
