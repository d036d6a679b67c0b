//! The rights of an agent that protects its machine: what routes, TUNs and raw sockets need, and nothing else.
//!
//! Linux gives rights to threads, so the agent drops all other rights before it starts a second thread. Dropped rights
//! cannot come back: they leave the bounding set, and no program that the agent starts gains any. Of these programs,
//! only `ip` gets a right, to change routes.
//!
//! Left out: root's own files. They belong to the agent's user, who needs no capability to change them. A service has a
//! user of its own (`packaging/coorp@.service`).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{absolute, Path};

use coorp_core::protect::Rule;
use rustix::process::{geteuid, getrlimit, setrlimit, Resource, Rlimit};
use rustix::thread::{
    capabilities, capabilities_secure_bits, clear_ambient_capability_set, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets,
};

use crate::failure::Failure;
use crate::output;

/// TUNs, routes, `rp_filter` and long send buffers; packets with their headers, and sockets bound to an interface.
const ALWAYS: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW);
/// The rights that `ip` needs.
const FOR_PROGRAMS: CapabilitySet = CapabilitySet::NET_ADMIN;
/// Needed to find the program that holds a socket, if it is another user's.
const TO_SEE_PROGRAMS: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);
/// No capability has a higher number.
const NUMBERS: u32 = 64;
/// The real-time priority of threads that carry control: `coorp_node::real_time`.
const REAL_TIME: u64 = 1;

/// Drops all rights except those that protection needs. Must run before any other thread starts. `places` are the files
/// and folders that the agent will read or change. `rules` are the team's: those that name programs need further rights.
///
/// # Errors
/// The kernel refuses, or there are other threads.
pub fn drop_most(places: &[&Path], rules: &[Rule]) -> Result<(), Failure> {
    let refused = |error: io::Error| Failure::Found(format!("failed: cannot drop the rights of root: {error}"));
    let threads = fs::read_dir("/proc/self/task").map_err(refused)?.count();
    if threads > 1 {
        let others = format!("{} other threads would keep them", threads - 1);
        return Err(refused(io::Error::other(others)));
    }
    let had = capabilities(None).map_err(|error| refused(error.into()))?;
    let mut kept = ALWAYS;
    if !may_have_real_time() {
        kept |= CapabilitySet::SYS_NICE;
    }
    let me = geteuid().as_raw();
    let others = places.iter().find(|place| !is_own(place, me));
    if let Some(place) = others.filter(|_| had.permitted.contains(CapabilitySet::DAC_OVERRIDE)) {
        kept |= CapabilitySet::DAC_OVERRIDE;
        output::note(&format!(
            "note: the agent keeps the right to change all files, because {} is another user's: give it to root, or run the \
             agent as a service",
            place.display()
        ));
    }
    if rules.iter().any(Rule::needs_program) {
        kept |= TO_SEE_PROGRAMS;
        output::note(match had.permitted.contains(TO_SEE_PROGRAMS) {
            true => "note: the agent keeps the right to look into all programs, for rules with `executable` or `cgroup`",
            false => {
                "note: rules with `executable` or `cgroup` only cover programs of the agent's own user, because it lacks \
                 CAP_SYS_PTRACE or CAP_DAC_READ_SEARCH"
            }
        });
    }
    drop_but(kept & had.permitted, had).map_err(|error| refused(error.into()))
}

/// Drops all rights except these.
fn drop_but(kept: CapabilitySet, had: CapabilitySets) -> rustix::io::Result<()> {
    if had.effective.contains(CapabilitySet::SETPCAP) {
        let all = (0..NUMBERS).map(|number| CapabilitySet::from_bits_retain(1 << number));
        for one in all.filter(|one| !kept.contains(*one)) {
            match remove_capability_from_bounding_set(one) {
                // The kernel has no capabilities beyond this number.
                Err(rustix::io::Errno::INVAL) => break,
                removed => removed?,
            }
        }
        // A program gains no rights by being started by root, or by being set-uid root.
        let locked = CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::KEEP_CAPS_LOCKED;
        set_capabilities_secure_bits(capabilities_secure_bits()? | locked)?;
    }
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: kept & FOR_PROGRAMS,
        },
    )?;
    clear_ambient_capability_set()?;
    if kept.contains(FOR_PROGRAMS) {
        configure_capability_in_ambient_set(FOR_PROGRAMS, true)?;
    }
    set_no_new_privs(true)
}

/// Raises the limit, if necessary, so that threads may have a real-time priority. Returns whether they may.
fn may_have_real_time() -> bool {
    let limit = getrlimit(Resource::Rtprio);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= REAL_TIME);
    if enough(limit.current) {
        return true;
    }
    let raised = Rlimit {
        current: Some(REAL_TIME),
        maximum: limit.maximum.map(|maximum| maximum.max(REAL_TIME)),
    };
    setrlimit(Resource::Rtprio, raised).is_ok()
}

/// Returns whether a user without further rights can change a place, or create it if it does not exist.
fn is_own(place: &Path, me: u32) -> bool {
    let Ok(place) = absolute(place) else { return false };
    let Some(real) = place.ancestors().find_map(|part| fs::canonicalize(part).ok()) else {
        return false;
    };
    let mut needs = 0o3;
    real.ancestors().all(|part| {
        // For the folders above it, search permission is enough.
        let needed = std::mem::replace(&mut needs, 0o1);
        fs::metadata(part).is_ok_and(|about| about.uid() == me || about.mode() & needed == needed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_place_is_own_if_the_user_gets_there_and_may_change_it() {
        let folder = std::env::temp_dir().join(format!("coorp-rights-{}", std::process::id()));
        let inner = folder.join("inner");
        fs::create_dir_all(&inner).unwrap();
        let me = geteuid().as_raw();
        let mode = |of: &Path, mode| fs::set_permissions(of, fs::Permissions::from_mode(mode)).unwrap();
        let made_later = inner.join("state/r1");
        mode(&folder, 0o700);
        assert!(is_own(&inner, me) && is_own(&made_later, me));
        for (of_folder, of_inner, own) in [
            (0o755, 0o755, false),
            (0o755, 0o777, true),
            (0o711, 0o777, true),
            (0o700, 0o777, false),
        ] {
            mode(&folder, of_folder);
            mode(&inner, of_inner);
            assert_eq!(is_own(&inner, me + 1), own, "{of_folder:o} {of_inner:o}");
            assert_eq!(is_own(&made_later, me + 1), own, "{of_folder:o} {of_inner:o}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
