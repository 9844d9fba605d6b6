//! Who this process is, and which candidates are its own.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::environment;
use crate::lease::{InstanceId, Owner};
use crate::locked::locked;
use crate::random::random_u64;

/// `<HOSTNAME or hostname()>-<pid>-<random>`, the same for the whole process.
#[allow(clippy::missing_panics_doc)] // The second one is always good.
pub fn default_instance_id() -> &'static InstanceId {
    static ID: OnceLock<InstanceId> = OnceLock::new();
    ID.get_or_init(|| {
        let host = environment::variable("HOSTNAME")
            .unwrap_or_else(|| gethostname::gethostname().to_string_lossy().into_owned());
        let unique = format!("-{}-{:08x}", std::process::id(), random_u64() >> 32);
        InstanceId::new(&format!("{}{unique}", host.trim()))
            .or_else(|_| InstanceId::new(&format!("host{unique}")))
            .expect("a short name without control characters")
    })
}

/// The nonces of this process's candidates. One of them in a record is no stranger who shares our id: it
/// may be a campaign of ours that is just ending.
static DRAWN: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// A new candidate of this process.
pub fn draw_owner(instance: &InstanceId) -> Owner {
    let nonce = random_u64();
    drawn().insert(nonce);
    Owner {
        instance: instance.clone(),
        nonce,
    }
}

/// Whether a candidate of this process has this nonce.
pub fn is_ours(nonce: u64) -> bool {
    drawn().contains(&nonce)
}

fn drawn() -> MutexGuard<'static, BTreeSet<u64>> {
    locked(&DRAWN)
}

/// As the W3C's trace context has it.
pub fn trace_id() -> String {
    format!("{:016x}{:016x}", random_u64(), random_u64())
}
