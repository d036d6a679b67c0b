//! A delivery that any number of threads and tasks wait for, each for as long as it likes.

use std::collections::VecDeque;
use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::Delivery;
use crate::sync::lock;
use crate::Error;

/// The most waiters for one message; beyond it the oldest is woken, and has most likely gone.
const WAKERS_MAX: usize = 1_024;

/// The outcome of a bulk message, for any number of waiters. Dropping it does not stop the message.
#[derive(Debug)]
pub struct Outcome {
    state: Mutex<Fate>,
    wakers: Arc<Wakers>,
}

#[derive(Debug)]
enum Fate {
    Pending(Delivery),
    Known(Result<(), Arc<Error>>),
}

/// Wakes all waiters.
#[derive(Debug, Default)]
struct Wakers(Mutex<VecDeque<Waker>>);

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Wakers {
    fn add(&self, waker: &Waker) {
        let mut wakers = lock(&self.0);
        if wakers.iter().any(|known| known.will_wake(waker)) {
            return;
        }
        wakers.push_back(waker.clone());
        let oldest = (wakers.len() > WAKERS_MAX).then(|| wakers.pop_front()).flatten();
        drop(wakers);
        if let Some(oldest) = oldest {
            oldest.wake();
        }
    }
}

impl From<Delivery> for Outcome {
    fn from(delivery: Delivery) -> Self {
        Outcome {
            state: Mutex::new(Fate::Pending(delivery)),
            wakers: Arc::default(),
        }
    }
}

impl Outcome {
    /// Returns the outcome, if it is known: delivered whole, or why not.
    pub fn look(&self) -> Poll<Result<(), Arc<Error>>> {
        let mut state = lock(&self.state);
        if let Fate::Pending(delivery) = &mut *state {
            // Every poll registers a waker that wakes all waiters, because only the latest waker is kept.
            let all = Waker::from(self.wakers.clone());
            let Poll::Ready(outcome) = Pin::new(delivery).poll(&mut Context::from_waker(&all)) else {
                return Poll::Pending;
            };
            *state = Fate::Known(outcome.map_err(Arc::new));
            drop(state);
            all.wake();
            return self.look();
        }
        match &*state {
            Fate::Known(outcome) => Poll::Ready(outcome.clone()),
            Fate::Pending(_) => Poll::Pending,
        }
    }

    /// Waits until the outcome is known.
    ///
    /// # Errors
    /// If the message has failed; see [`Delivery::wait`].
    pub async fn known(&self) -> Result<(), Arc<Error>> {
        poll_fn(|cx| {
            self.wakers.add(cx.waker());
            self.look()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn all_waiters_learn_the_outcome_also_later() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (done, outcome) = oneshot::channel();
        let outcome = Outcome::from(Delivery { outcome });
        assert!(outcome.look().is_pending());
        let ended = async { done.send(Err(Error::Undelivered("lost".to_owned()))).unwrap() };
        let all = async { tokio::join!(outcome.known(), outcome.known(), ended) };
        let (first, second, ()) = runtime.block_on(all);
        for told in [first, second, runtime.block_on(outcome.known())] {
            assert_eq!(told.unwrap_err().to_string(), "lost");
        }
        assert!(matches!(outcome.look(), Poll::Ready(Err(_))));
    }
}
