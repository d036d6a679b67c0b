//! Names of domains and channels.

use crate::Error;

/// The longest name of a domain or a channel.
pub const NAME_BYTES_MAX: usize = 64;

/// A name that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name(String);

impl Name {
    pub fn new(name: &str) -> Result<Self, Error> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
        let problem = if name.is_empty() {
            "is empty"
        } else if name.len() > NAME_BYTES_MAX {
            "is longer than 64 bytes"
        } else if !name.bytes().all(allowed) {
            "has characters other than letters, digits, '.', '_', '-' and '/'"
        } else {
            return Ok(Self(name.to_owned()));
        };
        Err(Error::Name {
            name: name.chars().take(2 * NAME_BYTES_MAX).collect(),
            problem,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for good in ["a", "robot-1/camera.left_0", &"x".repeat(64)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a b", "nul\0", "äther", &"x".repeat(65)] {
            assert!(matches!(Name::new(bad), Err(Error::Name { .. })), "{bad:?}");
        }
    }
}
