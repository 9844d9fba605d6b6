//! The clock that leadership is measured by: it never goes back, and it keeps counting while the
//! machine is suspended or the process is stopped. Wall-clock time has no place in an election.
//!
//! Knows nothing of leases. Code that needs the time takes a `&dyn Clock`, so tests bring their own.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point on a [`Clock`], in nanoseconds from that clock's own origin. Moments of two machines
/// cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The clock's origin.
    pub const ORIGIN: Self = Self(0);
    /// A moment that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it is yet to come.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Saturates at [`Moment::NEVER`].
    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Moment;
}

#[cfg(not(election_only))]
pub use system::SystemClock;

/// The real clock. The only unsafe code outside `node/`: three calls into the system's C library.
#[cfg(not(election_only))]
mod system {
    #![allow(unsafe_code)]

    use super::{Clock, Moment};

    /// `CLOCK_BOOTTIME` on Linux, `mach_continuous_time` on macOS, `QueryInterruptTime` on Windows.
    /// `std::time::Instant` is none of these on Linux and macOS: it stops during a suspend.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct SystemClock;

    impl Clock for SystemClock {
        #[inline]
        fn now(&self) -> Moment {
            Moment::from_nanos(nanos_since_boot())
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[inline]
    fn nanos_since_boot() -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a valid, writable timespec, and CLOCK_BOOTTIME exists since Linux 2.6.39.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
        time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
    }

    #[cfg(target_os = "macos")]
    fn nanos_since_boot() -> u64 {
        #[repr(C)]
        struct Timebase {
            numer: u32,
            denom: u32,
        }
        unsafe extern "C" {
            fn mach_continuous_time() -> u64;
            fn mach_timebase_info(info: *mut Timebase) -> i32;
        }
        static TIMEBASE: std::sync::OnceLock<(u32, u32)> = std::sync::OnceLock::new();
        let (numer, denom) = *TIMEBASE.get_or_init(|| {
            let mut info = Timebase { numer: 1, denom: 1 };
            // SAFETY: `info` is a valid, writable mach_timebase_info_data_t.
            unsafe { mach_timebase_info(&raw mut info) };
            (info.numer, info.denom.max(1))
        });
        // SAFETY: takes no argument and has no precondition.
        let ticks = u128::from(unsafe { mach_continuous_time() });
        u64::try_from(ticks * u128::from(numer) / u128::from(denom)).unwrap_or(u64::MAX)
    }

    #[cfg(windows)]
    fn nanos_since_boot() -> u64 {
        let mut hundred_nanos = 0_u64;
        // SAFETY: the argument is a valid, writable u64.
        unsafe {
            windows_sys::Win32::System::WindowsProgramming::QueryInterruptTime(
                &raw mut hundred_nanos,
            );
        }
        hundred_nanos * 100
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn never_goes_back() {
            let clock = SystemClock;
            let mut last = clock.now();
            for _ in 0..10_000 {
                let now = clock.now();
                assert!(now >= last);
                last = now;
            }
        }
    }
}
