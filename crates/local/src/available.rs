//! Estimates how much memory can be allocated before the kernel would have to kill a process.
//!
//! A memfd has no limit: the kernel allocates for it until processes die. So a store asks before it grows.

use std::fs::read_to_string;

/// The bytes that are left to all other programs.
const RESERVE_BYTES: u64 = 64 << 20;

/// Returns the bytes that can be allocated now, as far as the system tells.
pub(crate) fn available_bytes() -> u64 {
    let machine = read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| machine_bytes(&text));
    let group = read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|text| group_bytes(&text));
    machine
        .unwrap_or(u64::MAX)
        .min(group.unwrap_or(u64::MAX))
        .saturating_sub(RESERVE_BYTES)
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// Returns the bytes that the control group still allows (cgroup v2), if it has a limit. Memory that the kernel can
/// reclaim counts as free.
fn group_bytes(cgroup: &str) -> Option<u64> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let read = |file| read_to_string(format!("/sys/fs/cgroup{path}/{file}")).ok();
    let limit = read("memory.max")?.trim().parse::<u64>().ok()?;
    let used = read("memory.current")?.trim().parse::<u64>().ok()?;
    let cache = read("memory.stat")?
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file ")?.parse::<u64>().ok())?;
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(
            machine_bytes("MemTotal: 9 kB\nMemAvailable:   24 kB\n"),
            Some(24 * 1024)
        );
        assert_eq!(machine_bytes("MemTotal: 9 kB\n"), None);
        assert_eq!(group_bytes("5:memory:/x\n"), None);
        assert!(available_bytes() > 0);
    }
}
