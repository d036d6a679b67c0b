//! Sets how many descriptors this process may have open.

use nix::sys::resource::{getrlimit, setrlimit, Resource};

/// Raises the number of descriptors to what the system allows.
///
/// The usual limit of 1,024 is a courtesy to programs that call `select`, which cannot name a higher descriptor. Neither
/// this crate nor what it builds on does. With 1,024, idle TCP connections from one stranger leave a robot without a
/// descriptor for its bulk, its disk or its next connection. The hard limit is usually half a million or more. Programs
/// that this process starts inherit it, as they would a service's `LimitNOFILE`.
pub(crate) fn raise() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft >= hard {
            return Ok(());
        }
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    });
    if let Err(error) = raised {
        tracing::warn!("cannot raise the limit of open descriptors: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_the_system_allows_may_be_open() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(256), hard).unwrap();
        raise();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    }
}
