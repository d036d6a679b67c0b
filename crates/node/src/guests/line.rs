//! Frames over a Unix socket, with descriptors.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use rustix::cmsg_space;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::wire::guest::{unpacked, HEAD_BYTES};
use crate::wire::{Frame, Refusal};

/// The size of reads, bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// The size of the buffer that is kept while it is empty, bytes.
const KEPT_BYTES: usize = 256 << 10;
/// The maximum number of descriptors whose frames are not complete yet.
const DESCRIPTORS_MAX: usize = 16;

/// Reads frames.
#[derive(Debug)]
pub(super) struct Incoming {
    stream: Arc<UnixStream>,
    bytes: BytesMut,
    chunk: Box<[u8]>,
    descriptors: VecDeque<OwnedFd>,
}

impl Incoming {
    pub fn new(stream: &Arc<UnixStream>) -> Incoming {
        Incoming {
            stream: stream.clone(),
            bytes: BytesMut::new(),
            chunk: vec![0; CHUNK_BYTES].into(),
            descriptors: VecDeque::new(),
        }
    }

    /// Waits for the next frame, and returns it with its payload. Anything else is [`io::ErrorKind::InvalidData`].
    pub async fn next<F: Frame>(&mut self) -> io::Result<(F, Bytes)> {
        loop {
            if let Some((frame, lengths)) = unpacked::<F>(&self.bytes).map_err(refused)? {
                let payload = &self.bytes[HEAD_BYTES + lengths.frame..lengths.whole()];
                // Copy, so that no message keeps alive a buffer of many.
                let payload = Bytes::copy_from_slice(payload);
                self.bytes.advance(lengths.whole());
                if self.bytes.is_empty() && self.bytes.capacity() > KEPT_BYTES {
                    self.bytes = BytesMut::new();
                }
                return Ok((frame, payload));
            }
            let (stream, chunk, descriptors) = (&*self.stream, &mut self.chunk, &mut self.descriptors);
            let read = stream.async_io(Interest::READABLE, || receive(stream, chunk, descriptors));
            let read = read.await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.bytes.extend_from_slice(&self.chunk[..read]);
        }
    }

    /// Returns the descriptor that came with the frame.
    pub fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.descriptors.pop_front().ok_or_else(|| refused(Refusal::Malformed))
    }
}

/// Returns the error for bytes that are not a frame.
pub(super) fn refused(refusal: Refusal) -> io::Error {
    let why = match refusal {
        Refusal::Oversized => "it sends an oversized frame",
        Refusal::Version(_) => "it has another version of Coorp",
        Refusal::Malformed => "it sends a malformed frame",
    };
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn receive(stream: &UnixStream, chunk: &mut [u8], descriptors: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let read = recvmsg(stream, &mut [IoSliceMut::new(chunk)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(refused(Refusal::Oversized));
    }
    Ok(read.bytes)
}

/// Writes as much as the socket takes now. A descriptor goes with the first byte.
pub(super) fn send(stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let descriptor = descriptor.map(|descriptor| [descriptor]);
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptor) = &descriptor {
        control.push(SendAncillaryMessage::ScmRights(descriptor));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Writes whole frames, one after another.
#[derive(Debug)]
pub(super) struct Outgoing {
    stream: Arc<UnixStream>,
    turn: tokio::sync::Mutex<()>,
}

impl Outgoing {
    pub fn new(stream: &Arc<UnixStream>) -> Outgoing {
        Outgoing {
            stream: stream.clone(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Waits until everything is written. Must not be cancelled earlier: half a frame would end the connection.
    pub async fn write(&self, bytes: &[u8], descriptor: Option<&OwnedFd>) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let (stream, mut done) = (&*self.stream, 0);
        while done < bytes.len() {
            let descriptor = descriptor.filter(|_| done == 0).map(AsFd::as_fd);
            let sent = stream.async_io(Interest::WRITABLE, || send(stream, &bytes[done..], descriptor));
            done += sent.await?;
        }
        Ok(())
    }
}
