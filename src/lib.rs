//! Leader election for Node.js services.
//!
//! Data flows one way, and dependencies with it:
//!
//! ```text
//! node        JavaScript's handles and callbacks; the only module that knows napi
//!   cluster     the elections of this process and the thread that they run on
//!     config      JSON to configuration
//!     identity    who this process is
//!     campaign    drives one candidate against one backend: timers, hints, commands
//!       candidate   the election of one instance, pure: (now, input) -> outputs
//!         timing      every deadline, with its reason
//!         lease       the words: election, instance, owner, token, reason
//!           clock       the clock that counts suspension
//!       backend     what holds the lease; knows `lease` and `clock` only
//!         observation  judges expiry for stores that do not, and who may write then; by `lease` and `clock` alone
//! ```

pub mod backend;
pub mod campaign;
pub mod candidate;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod environment;
pub mod go_duration;
pub mod identity;
pub mod lease;
mod locked;
pub mod observation;
mod random;
pub mod server;
pub mod term;
pub mod timing;

/// What `term` shares between threads with; a test of every interleaving brings its own.
mod atomics {
    pub use std::sync::atomic::{AtomicU64, Ordering};
}

// Its functions are reached from JavaScript alone, which a test of this crate is not.
#[cfg(all(feature = "node", not(test)))]
mod node;
