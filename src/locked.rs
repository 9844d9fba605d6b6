//! How a lock is taken that somebody may have poisoned: what is guarded is valid at every step, so a panic
//! elsewhere must not take it along.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
