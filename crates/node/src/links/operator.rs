//! The operator's connection: over its one stream it may ask for the status and for what the robot has seen since the last
//! look, again and again, and bring lists of revoked certificates. Whatever else it sends ends the connection. It never counts
//! as a robot.

use std::sync::Weak;
use std::time::Duration;

use quinn::{Connection, RecvStream, SendStream};

use super::stream::read_frame;
use super::Receiver;
use crate::keys::OPERATOR;
use crate::wire::{self, Frame, LookQuery, Looked, Revocations, StatusQuery};

/// Time limit for the operator to read an answer, and the minimum time until the next question is answered.
const READ_MAX: Duration = Duration::from_secs(2);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Answers until the connection ends.
pub(super) async fn answer(connection: Connection, receiver: Option<Weak<dyn Receiver>>) {
    let asked = async {
        if let (Ok((send, receive)), Some(receiver)) = (connection.accept_bi().await, receiver) {
            answer_over(send, receive, receiver).await;
        }
    };
    tokio::select! {
        biased;
        () = asked => {}
        _ = connection.read_datagram() => {}
        _ = connection.accept_uni() => {}
    }
    connection.close(0u8.into(), b"the operator may only ask");
}

async fn answer_over(mut send: SendStream, mut receive: RecvStream, receiver: Weak<dyn Receiver>) {
    while let Ok(frame) = read_frame(&mut receive, Revocations::BYTES_MAX).await {
        let Some(receiver) = receiver.upgrade() else { return };
        match wire::kind(&frame) {
            Some(Revocations::KIND) => receiver.on_revocations(OPERATOR, &frame),
            _ => {
                let Some(answer) = answer_to(&frame, &*receiver) else {
                    return;
                };
                drop(receiver);
                let written = tokio::time::timeout(READ_MAX, send.write_all(&answer)).await;
                if !matches!(written, Ok(Ok(()))) {
                    return;
                }
            }
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// The answer to a question; `None` if it is none.
fn answer_to(frame: &[u8], receiver: &dyn Receiver) -> Option<Vec<u8>> {
    if wire::decode::<StatusQuery>(frame).is_ok() {
        return Some(wire::prefixed(&receiver.status()));
    }
    let query = wire::decode::<LookQuery>(frame).ok()?;
    let status = query.status.then(|| Box::new(receiver.status()));
    // Last, so that its time is that of the answer.
    let look = receiver.look(query.since);
    Some(wire::prefixed(&Looked { look, status }))
}
