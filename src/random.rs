//! Numbers that nobody else draws. For what must be unique, not for what must be secret: TLS and passwords
//! have their own source.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Of the system's source; where that fails, which it hardly ever does, of what tells this moment of this
/// process from all others: an election must not end for want of a number.
pub(crate) fn random_u64() -> u64 {
    getrandom::u64().unwrap_or_else(|_| makeshift())
}

fn makeshift() -> u64 {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    static PROCESS: OnceLock<(u32, Duration)> = OnceLock::new();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH);
    let process = PROCESS.get_or_init(|| (std::process::id(), now().unwrap_or_default()));
    let mut hasher =
        std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::new().build_hasher();
    process.hash(&mut hasher);
    gethostname::gethostname().hash(&mut hasher);
    now().unwrap_or_default().hash(&mut hasher);
    DRAWN.fetch_add(1, Ordering::Relaxed).hash(&mut hasher);
    hasher.finish()
}

/// Between a half and all of it, so that many who wait do not all wake at one moment.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let thousandths = u32::try_from(random_u64() % 500).unwrap_or(0);
    pause / 2 + pause * thousandths / 1_000
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_differ_also_without_the_systems_source() {
        let drawn: BTreeSet<_> = (0..10_000).map(|_| makeshift()).collect();
        assert_eq!(drawn.len(), 10_000);
    }

    #[test]
    fn a_pause_with_jitter_is_at_least_half_of_it_and_never_longer() {
        let pause = Duration::from_secs(1);
        for _ in 0..1_000 {
            let jittered = jittered(pause);
            assert!((pause / 2..pause).contains(&jittered), "{jittered:?}");
        }
    }
}
