//! Reads an input as a sequence of numbers and bytes.

pub(crate) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn word(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    /// Returns the next bytes, whose number the next byte gives, or fewer at the end.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = usize::from(self.byte()?).min(self.0.len());
        self.take(count)
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = (self.0.get(..count)?, &self.0[count..]);
        self.0 = rest;
        Some(bytes)
    }

    /// Changes some bytes of a datagram, and perhaps its length.
    pub fn change(&mut self, datagram: &mut Vec<u8>) -> Option<()> {
        let how = self.byte()?;
        for _ in 0..how % 8 {
            let (place, bits) = (usize::from(self.word()?), self.byte()?);
            let length = datagram.len().max(1);
            if let Some(byte) = datagram.get_mut(place % length) {
                *byte ^= bits;
            }
        }
        match how / 8 % 4 {
            2 => datagram.truncate(usize::from(self.word()?)),
            3 => datagram.extend(self.bytes()?),
            _ => {}
        }
        Some(())
    }
}
