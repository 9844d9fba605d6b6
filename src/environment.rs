//! The variables of this process's environment, as they were when JavaScript last asked for something.
//!
//! Node.js changes them without regard for the threads of others, and a read at the same time can end the
//! process. So they are read on JavaScript's thread alone, and everybody else looks at what was read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::locked::locked;

/// Those that are text.
pub type Variables = HashMap<String, String>;

static READ: Mutex<Option<Arc<Variables>>> = Mutex::new(None);

/// Reads them anew. Where JavaScript runs, on its thread.
pub fn read() -> Arc<Variables> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let now = Arc::new(std::env::vars_os().filter_map(text).collect());
    *locked(&READ) = Some(Arc::clone(&now));
    now
}

/// All, as they were read last. Without JavaScript nobody has read them yet, and nobody changes them.
pub(crate) fn variables() -> Arc<Variables> {
    let last = locked(&READ).clone();
    last.unwrap_or_else(read)
}

/// One that is set, and not to nothing.
pub(crate) fn variable(name: &str) -> Option<String> {
    let variables = variables();
    variables
        .get(name)
        .filter(|value| !value.is_empty())
        .cloned()
}

/// Where files of this user lie.
pub(crate) fn home() -> Option<PathBuf> {
    let name = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
    variable(name).map(PathBuf::from)
}
