//! A stranger that begins QUIC handshakes with a robot and never finishes them.
//!
//!     target/release/examples/stranger 150 10.97.0.1 7000
//!
//! The numbers are the handshakes per second, and the address and `port` (in the team file) of the robot; they go to
//! its control and bulk ports. Each handshake proves its address, and then falls silent. The program ends when its
//! standard input does, and prints how many handshakes were begun, and how many proved. `studies/door.py` runs it.
#![allow(clippy::unwrap_used)] // as in the tests that share the flood

#[path = "../tests/common/flood.rs"]
mod flood;

use std::error::Error;
use std::net::{IpAddr, SocketAddr};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [per_second, address, port] = &words[..] else {
        return Err("stranger PER_SECOND ADDRESS PORT".into());
    };
    let (address, port): (IpAddr, u16) = (address.parse()?, port.parse()?);
    let doors = [port + 1, port + 2].map(|port| SocketAddr::new(address, port));
    let flood = flood::Flood::new(doors, &[[0, 0, 0, 0]], per_second.parse()?, true);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    println!("{} {}", flood.begun(), flood.proved());
    Ok(())
}
