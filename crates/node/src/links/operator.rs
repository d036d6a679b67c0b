//! The operator's connection: over its one stream it may ask for the status, again and again. Whatever else it sends ends
//! the connection. It never counts as a robot.

use std::sync::Weak;
use std::time::Duration;

use quinn::{Connection, RecvStream, SendStream};

use super::stream::read_frame;
use super::Receiver;
use crate::wire::{self, Frame, StatusQuery};

/// How long the operator may take to read an answer, and how long the next question waits at least.
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
        () = asked => {}
        _ = connection.read_datagram() => {}
        _ = connection.accept_uni() => {}
    }
    connection.close(0u8.into(), b"the operator may only ask for the status");
}

async fn answer_over(mut send: SendStream, mut receive: RecvStream, receiver: Weak<dyn Receiver>) {
    while let Ok(frame) = read_frame(&mut receive, StatusQuery::BYTES_MAX).await {
        if wire::decode::<StatusQuery>(&frame).is_err() {
            return;
        }
        let Some(status) = receiver.upgrade().map(|receiver| receiver.status()) else {
            return;
        };
        let answer = wire::prefixed(&status);
        let written = tokio::time::timeout(READ_MAX, send.write_all(&answer)).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
