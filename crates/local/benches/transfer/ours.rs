//! This crate, as the benchmark's transport.

use std::time::Duration;

use coorp_local::{Domain, DomainOptions, Loan, ReceiverOptions, SenderOptions};

use crate::scenarios;

struct Ours(Domain);

pub fn join(domain: &str) -> Box<dyn scenarios::Transport> {
    Box::new(Ours(Domain::join(domain, DomainOptions::default()).unwrap()))
}

struct Sender(coorp_local::Sender, Option<Loan>);
struct Receiver(coorp_local::Receiver);

impl scenarios::Transport for Ours {
    fn sender(&self, channel: &str, _bytes_max: usize) -> Box<dyn scenarios::Sender> {
        Box::new(Sender(self.0.sender(channel, SenderOptions::default()).unwrap(), None))
    }

    fn receiver(&self, channel: &str) -> Box<dyn scenarios::Receiver> {
        Box::new(Receiver(self.0.receiver(channel, ReceiverOptions::default()).unwrap()))
    }
}

impl scenarios::Sender for Sender {
    fn wait_for_readers(&mut self, readers: usize) {
        assert!(self.0.wait_for_readers(readers, Duration::from_secs(10)));
    }

    fn send_copy(&mut self, stamp: u64, bytes: &[u8]) {
        let mut loan = self.0.loan_parts(8, &[bytes.len()]).unwrap();
        loan.header_mut().copy_from_slice(&stamp.to_le_bytes());
        loan.part_mut(0).copy_from_slice(bytes);
        self.0.send(loan).unwrap();
    }

    fn prepare(&mut self, bytes: usize) {
        let mut loan = self.0.loan_parts(8, &[bytes]).unwrap();
        loan.part_mut(0).iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        self.1 = Some(loan);
    }

    fn send_prepared(&mut self, stamp: u64) {
        let mut loan = self.1.take().unwrap();
        loan.header_mut().copy_from_slice(&stamp.to_le_bytes());
        self.0.send(loan).unwrap();
    }
}

impl scenarios::Receiver for Receiver {
    fn recv(&mut self, _patient: bool, bytes: &mut dyn FnMut(&[u8])) -> u64 {
        // It spins briefly and then sleeps, even if the peer only spins.
        let payload = self.0.recv(None).unwrap().unwrap();
        bytes(payload.part(0).unwrap());
        u64::from_le_bytes(payload.header().try_into().unwrap())
    }
}
