//! Runs jobs in parallel on all cores. Results are in the requested order, and independent of the number of
//! threads.
//!
//! Jobs are distributed by an atomic counter, so a long one does not delay the rest. If a job panics (an
//! assertion in production code failed), the panic becomes that job's failure; the others continue.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Once;
use std::thread;

use crate::failure::NoResult;

thread_local! {
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns the number of threads that the machine can run at once.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Records a job's panic message for its result, instead of printing it over the progress bar. Calling it
/// once is enough.
pub fn record_panics() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(hook);
}

fn hook() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !IN_JOB.get() {
            return usual(info);
        }
        let place = info
            .location()
            .map(|at| format!(" at {}:{}", at.file(), at.line()))
            .unwrap_or_default();
        let text = payload_text(info.payload());
        PANIC.with_borrow_mut(|slot| *slot = Some(format!("{text}{place}")));
    }));
}

/// Runs `work` on every job, `threads` at a time. Results are in the order of `jobs`; a panic becomes
/// [`NoResult::Broken`] with its message.
pub fn run<J, T, W>(jobs: &[J], threads: usize, work: W) -> Vec<Result<T, NoResult>>
where
    J: Sync,
    T: Send,
    W: Fn(usize, &J) -> Result<T, NoResult> + Sync,
{
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some((index, job)) = take(&next, jobs) {
            done.push((index, guarded(|| work(index, job))));
        }
        done
    };
    let mut all: Vec<(usize, Result<T, NoResult>)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.clamp(1, jobs.len().max(1)))
            .map(|_| scope.spawn(worker))
            .collect();
        workers
            .into_iter()
            .flat_map(|handle| handle.join().unwrap_or_default())
            .collect()
    });
    all.sort_by_key(|(index, _)| *index);
    assert_eq!(all.len(), jobs.len(), "every job gives one result");
    all.into_iter().map(|(_, result)| result).collect()
}

fn take<'a, J>(next: &AtomicUsize, jobs: &'a [J]) -> Option<(usize, &'a J)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(index).map(|job| (index, job))
}

/// Runs `work`; a panic becomes [`NoResult::Broken`] with its message.
///
/// # Errors
/// The error of `work`, or its panic.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, NoResult>) -> Result<T, NoResult> {
    IN_JOB.set(true);
    // The job only reads what it borrows, and its own objects are dropped with it, so no partial state is visible.
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    IN_JOB.set(false);
    outcome.unwrap_or_else(|payload| {
        let text = PANIC.take().unwrap_or_else(|| payload_text(payload.as_ref()));
        Err(NoResult::Broken(text))
    })
}

fn payload_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_on_any_number_of_threads() {
        let jobs: Vec<u64> = (0..100).collect();
        for threads in [1, 3, 200] {
            let results = run(&jobs, threads, |_, job| Ok(job * job));
            let squares: Vec<u64> = results.into_iter().flatten().collect();
            assert_eq!(squares, jobs.iter().map(|job| job * job).collect::<Vec<_>>());
        }
        assert!(run(&[] as &[u64], 4, |_, job| Ok(*job)).is_empty());
    }

    #[test]
    fn one_panic_does_not_take_the_others_with_it() {
        let results = run(&[1, 2, 3], 2, |_, job| {
            assert!(*job != 2, "two holders");
            Ok(*job)
        });
        assert!(matches!(results[0], Ok(1)) && matches!(results[2], Ok(3)));
        assert!(matches!(&results[1], Err(NoResult::Broken(text)) if text.contains("two holders")));
    }
}
