//! Checks MessagePack before `coorp.reactor.codec` unpacks it: the bytes come from another process, perhaps a broken one.
//!
//! `msgpack` allocates a list when it reads the list's length. So a few bytes that announce nested long lists could
//! allocate gigabytes. Here every announced item must exist, so the length of the bytes bounds the memory. Not checked:
//! whether text is UTF-8, which `msgpack` does.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::Contents;

/// Raises ValueError unless the bytes are one MessagePack object, with at most `depth_max` nested containers and only
/// extensions from 1 to `extension_max`.
#[pyfunction]
pub fn check_header(header: &Bound<'_, PyAny>, depth_max: usize, extension_max: u8) -> PyResult<()> {
    let contents = Contents::of(header)?;
    check(contents.as_slice(), depth_max, extension_max).map_err(PyValueError::new_err)
}

/// The content after an object's first byte.
enum Object {
    /// This many bytes.
    Bytes(usize),
    /// This many objects.
    Items(usize),
    /// A byte with the extension's number, and this many bytes.
    Extension(usize),
}

struct Scan<'a>(&'a [u8]);

impl Scan<'_> {
    fn skip(&mut self, bytes: usize) -> Result<(), &'static str> {
        self.0 = self.0.get(bytes..).ok_or("it ends within a value")?;
        Ok(())
    }

    fn number(&mut self, bytes: usize) -> Result<usize, &'static str> {
        let number = self.0.get(..bytes).ok_or("it ends within a length")?;
        let number = number.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
        self.skip(bytes)?;
        Ok(number)
    }

    fn object(&mut self) -> Result<Object, &'static str> {
        let first = self.number(1)?;
        Ok(match first {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => Object::Bytes(0),
            0x80..=0x8f => Object::Items(2 * (first & 0x0f)),
            0x90..=0x9f => Object::Items(first & 0x0f),
            0xa0..=0xbf => Object::Bytes(first & 0x1f),
            0xc4..=0xc6 => Object::Bytes(self.number(1 << (first - 0xc4))?),
            0xc7..=0xc9 => Object::Extension(self.number(1 << (first - 0xc7))?),
            0xca => Object::Bytes(4),
            0xcb => Object::Bytes(8),
            0xcc..=0xcf => Object::Bytes(1 << (first - 0xcc)),
            0xd0..=0xd3 => Object::Bytes(1 << (first - 0xd0)),
            0xd4..=0xd8 => Object::Extension(1 << (first - 0xd4)),
            0xd9..=0xdb => Object::Bytes(self.number(1 << (first - 0xd9))?),
            0xdc..=0xdd => Object::Items(self.number(2 << (first - 0xdc))?),
            0xde..=0xdf => Object::Items(2 * self.number(2 << (first - 0xde))?),
            _ => return Err("it has a byte that cannot begin a value"),
        })
    }
}

fn check(bytes: &[u8], depth_max: usize, extension_max: u8) -> Result<(), &'static str> {
    let mut scan = Scan(bytes);
    // The number of objects still to come, in each container that has been entered.
    let mut left = vec![1_usize];
    while let Some(&items) = left.last() {
        if items == 0 {
            left.pop();
            continue;
        }
        if let Some(items) = left.last_mut() {
            *items -= 1;
        }
        match scan.object()? {
            Object::Bytes(bytes) => scan.skip(bytes)?,
            Object::Extension(bytes) => {
                let code = scan.number(1)?;
                if code == 0 || code > usize::from(extension_max) {
                    return Err("it has an extension of another version");
                }
                scan.skip(bytes)?;
            }
            Object::Items(items) => {
                if items > scan.0.len() {
                    return Err("it ends within a container");
                }
                if left.len() > depth_max {
                    return Err("it is nested too deeply");
                }
                left.push(items);
            }
        }
    }
    if scan.0.is_empty() {
        Ok(())
    } else {
        Err("it continues after its end")
    }
}
