//! The boundary to C: pointers are read and written here, panics end here, and errors become results and texts.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{c_char, c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::slice;
use std::time::{Duration, Instant};

use coorp_node::Error;

/// A timeout that never ends.
pub const COORP_FOREVER: i64 = -1;

/// What a function returns. Every result but COORP_OK comes with a text: coorp_last_error().
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::enum_variant_names)] // the names in C
pub enum CoorpResult {
    /// Done.
    CoorpOk = 0,
    /// Nothing came within the timeout. Everything is as before.
    CoorpTimeout = 1,
    /// Yours to fix: an argument, the team file, the keys, the order of calls. The text says how.
    CoorpInvalid = 2,
    /// The network, the machine or another robot did not do its part.
    CoorpFailed = 3,
    /// The node or the handle has been closed, perhaps by another thread, and perhaps during this call.
    CoorpClosed = 4,
    /// There is no room now. Nothing is lost: try again later.
    CoorpFull = 5,
    /// A bug in Coorp. Please report it with the text.
    CoorpBug = 6,
}

/// Why a function did not do what it was called for.
#[derive(Debug)]
pub struct Failure {
    result: CoorpResult,
    text: String,
}

impl Failure {
    /// The program has to change something.
    pub fn invalid(text: impl Into<String>) -> Failure {
        Failure::new(CoorpResult::CoorpInvalid, text)
    }

    /// The machine did not do its part.
    pub fn failed(text: impl Into<String>) -> Failure {
        Failure::new(CoorpResult::CoorpFailed, text)
    }

    /// It has been closed.
    pub fn closed(what: &str) -> Failure {
        Failure::new(CoorpResult::CoorpClosed, format!("this {what} has been closed"))
    }

    /// There is no room.
    pub fn full(text: impl Into<String>) -> Failure {
        Failure::new(CoorpResult::CoorpFull, text)
    }

    /// The time has passed.
    pub fn timeout(what: &str, timeout_ns: i64) -> Failure {
        let within = coorp_core::Duration::from_nanos(timeout_ns.try_into().unwrap_or(0));
        Failure::new(CoorpResult::CoorpTimeout, format!("{what} within {within}"))
    }

    fn new(result: CoorpResult, text: impl Into<String>) -> Failure {
        let text = text.into();
        Failure { result, text }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let result = match error {
            Error::Closed => CoorpResult::CoorpClosed,
            Error::QueueFull(_) => CoorpResult::CoorpFull,
            error if error.is_input() => CoorpResult::CoorpInvalid,
            _ => CoorpResult::CoorpFailed,
        };
        Failure::new(result, error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::from(&error)
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the inside of a function. No panic leaves it.
pub fn call(inside: impl FnOnce() -> Result<(), Failure>) -> CoorpResult {
    let failure = match catch_unwind(AssertUnwindSafe(inside)) {
        Ok(Ok(())) => return CoorpResult::CoorpOk,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().copied();
            let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let said = said.unwrap_or("a panic");
            Failure::new(
                CoorpResult::CoorpBug,
                format!("a bug in Coorp, please report it: {said}"),
            )
        }
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A thread that ends has nobody left to read it.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
    failure.result
}

/// Returns why the last call of this thread that did not return COORP_OK did not: what happened, and what to do if that is
/// known. Never NULL; empty if there was no such call. Calls that return COORP_OK leave it as it is.
///
/// Ownership: the text is the library's, and lasts until this thread's next call that does not return COORP_OK, or its end.
#[no_mangle]
pub extern "C" fn coorp_last_error() -> *const c_char {
    let last = LAST_ERROR.try_with(|last| last.borrow().as_ptr());
    last.unwrap_or_else(|_| c"".as_ptr())
}

/// Returns the version of the library, such as "0.1.0". The text lasts as long as the program.
#[no_mangle]
pub extern "C" fn coorp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

fn null(name: &str) -> Failure {
    Failure::invalid(format!("{name} is NULL"))
}

/// A text from C.
///
/// # Safety
/// It is NULL, or ends with a NUL and lasts for `'a`.
pub unsafe fn text<'a>(name: &str, given: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: as this function's.
    let given = unsafe { terminated(name, given)? };
    given
        .to_str()
        .map_err(|_| Failure::invalid(format!("{name} is not UTF-8: \"{}\"", given.to_string_lossy())))
}

/// A path from C, in whatever encoding.
///
/// # Safety
/// As [`text`].
pub unsafe fn path<'a>(name: &str, given: *const c_char) -> Result<&'a Path, Failure> {
    // SAFETY: as this function's.
    let given = unsafe { terminated(name, given)? };
    Ok(Path::new(OsStr::from_bytes(given.to_bytes())))
}

unsafe fn terminated<'a>(name: &str, given: *const c_char) -> Result<&'a CStr, Failure> {
    if given.is_null() {
        return Err(null(name));
    }
    // SAFETY: not null, so it ends with a NUL and lasts long enough.
    Ok(unsafe { CStr::from_ptr(given) })
}

/// Bytes from C, which may be NULL if there are none.
///
/// # Safety
/// It is NULL, or has so many bytes, which last for `'a` and which nobody writes meanwhile.
pub unsafe fn bytes<'a>(data: *const c_void, length_bytes: usize) -> Result<&'a [u8], Failure> {
    if length_bytes == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(null("data"));
    }
    if isize::try_from(length_bytes).is_err() {
        return Err(Failure::invalid(format!(
            "length_bytes is {length_bytes}, which is more than memory can have"
        )));
    }
    // SAFETY: not null, so there are so many bytes, and not more than a slice may have.
    Ok(unsafe { slice::from_raw_parts(data.cast(), length_bytes) })
}

/// The place for a result. It is `empty` from now on, whatever happens.
///
/// # Safety
/// It is NULL, or valid for writes of a `T` for `'a`.
pub unsafe fn place<'a, T>(name: &str, given: *mut T, empty: T) -> Result<&'a mut T, Failure> {
    if given.is_null() {
        return Err(null(name));
    }
    if !given.is_aligned() {
        return Err(Failure::invalid(format!(
            "{name} points to no such variable: it is not aligned"
        )));
    }
    // SAFETY: not null, so valid, and aligned; initialised before there is a reference.
    unsafe {
        given.write(empty);
        Ok(&mut *given)
    }
}

/// A struct from C that may be left out.
///
/// # Safety
/// It is NULL, or points to a `T` that lasts for `'a`.
pub unsafe fn optional<'a, T>(given: *const T) -> Option<&'a T> {
    // SAFETY: as this function's.
    unsafe { given.as_ref() }
}

/// A timeout: when it ends, if ever.
pub fn until(timeout_ns: i64) -> Option<Instant> {
    let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos)?;
    Instant::now().checked_add(timeout)
}

/// A time that may be unknown, in C: then it is negative.
pub fn or_unknown(nanos: Option<u64>) -> i64 {
    nanos.map_or(-1, |nanos| i64::try_from(nanos).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> String {
        // SAFETY: the library's own text.
        unsafe { CStr::from_ptr(coorp_last_error()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn a_panic_becomes_a_result_with_a_text_of_this_thread() {
        assert_eq!(call(|| Ok(())), CoorpResult::CoorpOk);
        assert_eq!(said(), "");
        assert_eq!(call(|| panic!("number {}", 7)), CoorpResult::CoorpBug);
        assert_eq!(said(), "a bug in Coorp, please report it: number 7");
        assert_eq!(call(|| Ok(())), CoorpResult::CoorpOk);
        assert_eq!(said(), "a bug in Coorp, please report it: number 7");
        std::thread::spawn(|| assert_eq!(said(), "")).join().unwrap();
        assert_eq!(call(|| Err(Failure::invalid("a\0b"))), CoorpResult::CoorpInvalid);
        assert_eq!(said(), "a b");
    }

    #[test]
    fn pointers_that_cannot_be_right_are_refused() {
        let mut number = 7_u32;
        let odd = (&raw mut number).wrapping_byte_add(1);
        // SAFETY: those that are valid are refused or not followed.
        unsafe {
            assert!(text("name", std::ptr::null())
                .unwrap_err()
                .text
                .contains("name is NULL"));
            assert!(text("name", c"\xff".as_ptr()).unwrap_err().text.contains("not UTF-8"));
            assert_eq!(path("name", c"\xff".as_ptr()).unwrap().as_os_str().as_bytes(), b"\xff");
            assert_eq!(bytes(std::ptr::null(), 0).unwrap(), b"");
            assert!(bytes(std::ptr::null(), 1).unwrap_err().text.contains("data is NULL"));
            assert!(bytes((&raw const number).cast(), usize::MAX)
                .unwrap_err()
                .text
                .contains("more than"));
            assert!(place("number", odd, 0).unwrap_err().text.contains("not aligned"));
            assert!(place("number", std::ptr::null_mut::<u32>(), 0)
                .unwrap_err()
                .text
                .contains("NULL"));
            *place("number", &raw mut number, 0).unwrap() += 1;
        }
        assert_eq!(number, 1);
    }

    #[test]
    fn a_negative_timeout_never_ends() {
        assert_eq!((until(COORP_FOREVER), until(i64::MIN)), (None, None));
        assert!(until(0).unwrap() <= Instant::now());
        assert!(until(i64::MAX).is_none_or(|until| until > Instant::now()));
        assert_eq!(
            (or_unknown(None), or_unknown(Some(7)), or_unknown(Some(u64::MAX))),
            (-1, 7, i64::MAX)
        );
    }
}
