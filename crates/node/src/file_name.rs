//! File names for robots, teams and bulk messages: every legal name fits, and two names never share a file.
//!
//! A legal name has up to 64 letters, digits, `-`, `_` and `.`, in any script. In UTF-8 that can be 256 bytes, and Linux
//! allows 255 for a file name, prefixes included. So a long name is packed: `~`, and three characters for each of its
//! own. So are `.` and `..`, which mean folders. `~` is not legal in a name, so both forms can be told apart.

/// A name of more bytes is packed. This leaves room for a number in front of it.
const PLAIN_BYTES_MAX: usize = 200;
/// The first character of packed names.
const MARK: char = '~';
/// The digits of packed names, six bits each.
const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
/// Digits for each character: letters and digits of all scripts lie below 2^18.
const DIGITS_EACH: usize = 3;

/// Returns the part of a file's name that stands for a legal name. It has at most 200 bytes.
pub fn file_name(name: &str) -> String {
    if name.len() <= PLAIN_BYTES_MAX && !matches!(name, "." | "..") {
        return name.to_owned();
    }
    let mut packed = String::from(MARK);
    for c in name.chars() {
        for place in (0..DIGITS_EACH).rev() {
            let digit = u32::from(c) >> (6 * place) & 63;
            packed.push(char::from(DIGITS[digit as usize]));
        }
    }
    packed
}

/// Returns the name that [`file_name`] turned into this; `None` if there is no such name.
pub(crate) fn name_in(file: &str) -> Option<String> {
    let Some(packed) = file.strip_prefix(MARK) else {
        return Some(file.to_owned());
    };
    let value = |digit: &u8| DIGITS.iter().position(|known| known == digit);
    let unpack = |digits: &[u8]| {
        let mut code = 0;
        for digit in digits {
            code = code << 6 | u32::try_from(value(digit)?).ok()?;
        }
        char::from_u32(code)
    };
    let name = packed
        .as_bytes()
        .chunks(DIGITS_EACH)
        .map(unpack)
        .collect::<Option<String>>()?;
    (file_name(&name) == file).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::checked;
    use proptest::prelude::*;

    #[test]
    fn all_letters_of_all_scripts_can_be_packed() {
        let highest = (0..=u32::from(char::MAX))
            .filter_map(char::from_u32)
            .filter(|c| c.is_alphanumeric())
            .map(u32::from)
            .max()
            .unwrap();
        assert!(highest < 1 << (6 * DIGITS_EACH), "{highest:x}");
    }

    #[test]
    fn names_that_mean_folders_do_not_stay() {
        assert_eq!(file_name("pose.2"), "pose.2");
        for name in [".", ".."] {
            assert!(checked(name).is_ok());
            assert!(file_name(name).starts_with('~'), "{name}");
            assert_eq!(name_in(&file_name(name)).as_deref(), Some(name));
        }
        for file in ["~", "~12", "~zzz~", "~00k"] {
            assert_eq!(name_in(file), None, "{file}");
        }
    }

    proptest! {
        #[test]
        fn every_legal_name_fits_and_comes_back(
            name in "[\\p{L}\\p{Nd}._-]{1,64}|[\u{20000}-\u{2A6DF}]{1,64}|\u{20000}{64}"
        ) {
            prop_assume!(checked(&name).is_ok());
            let file = file_name(&name);
            prop_assert!(file.len() <= PLAIN_BYTES_MAX && !file.contains('/'), "{}", file.len());
            prop_assert_eq!(name_in(&file), Some(name));
        }
    }
}
