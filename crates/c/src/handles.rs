//! What C's pointers stand for: a table in which each is looked up, and none is ever followed.
//!
//! A handle is an odd number that is not used a second time. So the use of a closed one, or of one of another kind, is told
//! and harms nothing, also while other threads close it. What C reads itself (a message, a table) has an even number, its
//! address; it can be freed twice, unless another has got its address meanwhile.

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use coorp_node::shared_node::Closing;

use crate::boundary::Failure;

/// The most handles, messages and tables at once. A program that has more has forgotten to free them.
const HELD_MAX: usize = 1 << 20;

/// A type of C's.
pub trait Kind: Sized {
    /// What it stands for.
    type Value: Any + Send + Sync;
    /// Its name in C.
    const NAME: &'static str;
}

struct Held {
    value: Arc<dyn Any + Send + Sync>,
    kind: &'static str,
    /// The handle of the node that it was opened with, if it is closed with that.
    node: Option<usize>,
    closing: Option<Arc<Closing>>,
}

struct Table {
    held: BTreeMap<usize, Held>,
    /// The next handle.
    next: usize,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    held: BTreeMap::new(),
    next: 1,
});

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a handle of something. With `node`, it is closed with that; `closing` is told when it is closed.
pub fn open<K: Kind>(value: Arc<K::Value>, node: Option<usize>, closing: Arc<Closing>) -> Result<*mut K, Failure> {
    let mut table = table();
    table.checked_room()?;
    if node.is_some_and(|node| !table.held.contains_key(&node)) {
        return Err(Failure::closed("CoorpNode"));
    }
    let handle = table.next;
    table.next = handle
        .checked_add(2)
        .ok_or_else(|| Failure::full("no handles are left"))?;
    let held = Held {
        // A refused one is dropped after the lock.
        value: value.clone(),
        kind: K::NAME,
        node,
        closing: Some(closing),
    };
    table.held.insert(handle, held);
    Ok(ptr::without_provenance_mut(handle))
}

/// Keeps something that C reads at `address` until it is freed.
pub fn show<K: Kind>(value: Arc<K::Value>, address: *const K) -> Result<*const K, Failure> {
    let mut table = table();
    table.checked_room()?;
    let held = Held {
        value: value.clone(),
        kind: K::NAME,
        node: None,
        closing: None,
    };
    table.held.insert(address.addr(), held);
    Ok(address)
}

/// What a handle or an address stands for.
pub fn get<K: Kind>(handle: *const K) -> Result<Arc<K::Value>, Failure> {
    let table = table();
    let held = table.of_kind::<K>(handle)?;
    let value = held.value.clone().downcast();
    value.map_err(|_| Failure::invalid(format!("this is no {}", K::NAME)))
}

/// Closes a handle, and all that was opened with it, or frees what C reads; nothing if it is NULL.
pub fn close<K: Kind>(handle: *const K) -> Result<(), Failure> {
    if handle.is_null() {
        return Ok(());
    }
    let mut table = table();
    table.of_kind::<K>(handle)?;
    let closed = table.take(handle.addr());
    // What it stands for may take a while to end.
    drop(table);
    for closing in closed.iter().filter_map(|held| held.closing.as_ref()) {
        closing.close();
    }
    Ok(())
}

impl Table {
    /// Removes something, and what was opened with it.
    fn take(&mut self, handle: usize) -> Vec<Held> {
        let mut taken: Vec<Held> = self.held.remove(&handle).into_iter().collect();
        // Only handles have others; messages are freed often.
        if handle % 2 == 1 {
            let of_it = self.held.iter().filter(|(_, held)| held.node == Some(handle));
            let with_it: Vec<usize> = of_it.map(|(with_it, _)| *with_it).collect();
            taken.extend(with_it.iter().filter_map(|with_it| self.held.remove(with_it)));
        }
        taken
    }

    fn checked_room(&self) -> Result<(), Failure> {
        if self.held.len() >= HELD_MAX {
            return Err(Failure::full(format!(
                "{HELD_MAX} handles, messages and tables are open, which is the limit: close or free them"
            )));
        }
        Ok(())
    }

    fn of_kind<K: Kind>(&self, handle: *const K) -> Result<&Held, Failure> {
        if handle.is_null() {
            return Err(Failure::invalid(format!("the {} is NULL", K::NAME)));
        }
        let number = handle.addr();
        match self.held.get(&number) {
            Some(held) if held.kind == K::NAME => Ok(held),
            Some(held) => Err(Failure::invalid(format!("this is a {}, not a {}", held.kind, K::NAME))),
            None if number % 2 == 1 && number < self.next => Err(Failure::closed(K::NAME)),
            None => Err(Failure::invalid(format!(
                "this is no {}, or one that has been freed",
                K::NAME
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::{call, CoorpResult};

    struct Parent;
    struct Child;

    impl Kind for Parent {
        type Value = u8;
        const NAME: &'static str = "Parent";
    }

    impl Kind for Child {
        type Value = String;
        const NAME: &'static str = "Child";
    }

    fn result<T>(of: Result<T, Failure>) -> CoorpResult {
        call(|| of.map(drop))
    }

    #[test]
    fn handles_are_told_apart_and_end_with_their_node() {
        let closing = Arc::<Closing>::default();
        let parent = open::<Parent>(Arc::new(7), None, Arc::default()).unwrap();
        let child = open::<Child>(Arc::new("seven".to_owned()), Some(parent.addr()), closing.clone()).unwrap();
        assert_eq!((*get(parent).unwrap(), get(child).unwrap().as_str()), (7, "seven"));
        assert_eq!(result(get(child.cast::<Parent>())), CoorpResult::CoorpInvalid);
        assert_eq!(result(close(child.cast::<Parent>())), CoorpResult::CoorpInvalid);
        for never in [2, 4_096, usize::MAX, usize::MAX - 1] {
            let never: *const Parent = ptr::without_provenance(never);
            assert_eq!(result(get(never)), CoorpResult::CoorpInvalid);
        }
        assert_eq!(result(get(ptr::null::<Parent>())), CoorpResult::CoorpInvalid);
        let in_use = get(child).unwrap();
        closing.check().unwrap();
        close(parent).unwrap();
        closing.check().unwrap_err();
        assert_eq!(*in_use, "seven");
        assert_eq!(result(get(child)), CoorpResult::CoorpClosed);
        assert_eq!(result(close(parent)), CoorpResult::CoorpClosed);
        close(ptr::null::<Parent>()).unwrap();
        let late = open::<Child>(Arc::default(), Some(parent.addr()), Arc::default());
        assert_eq!(result(late), CoorpResult::CoorpClosed);
    }

    #[test]
    fn what_is_shown_is_freed_once() {
        let value = Arc::new("shown".to_owned());
        let address = Arc::as_ptr(&value).cast::<Child>();
        assert_eq!(show(value, address).unwrap(), address);
        assert_eq!(get(address).unwrap().as_str(), "shown");
        close(address).unwrap();
        assert_eq!(result(close(address)), CoorpResult::CoorpInvalid);
    }
}
