//! Every interleaving of the threads that share a term, by loom: the module's own source, compiled here
//! with loom's atomics.

#![allow(dead_code, unused_imports)]

mod atomics {
    pub use loom::sync::atomic::{AtomicU64, Ordering};
}
#[path = "../src/clock.rs"]
mod clock;
#[path = "../src/lease.rs"]
mod lease;
#[path = "../src/term.rs"]
mod term;

use clock::Moment;
use loom::sync::Arc;
use loom::thread;

fn main() {
    an_extension_that_races_with_the_end_never_revives_the_term();
    println!("test an_extension_that_races_with_the_end_never_revives_the_term ... ok");
}

fn an_extension_that_races_with_the_end_never_revives_the_term() {
    loom::model(|| {
        let token = lease::Token::new(7).unwrap();
        let term = Arc::new(term::Term::new(
            token,
            String::new(),
            Moment::from_nanos(100),
        ));
        let extender = {
            let term = term.clone();
            thread::spawn(move || term.extend(Moment::from_nanos(200)))
        };
        let reader = {
            let term = term.clone();
            thread::spawn(move || {
                let first = term.is_led(Moment::from_nanos(50));
                let second = term.is_led(Moment::from_nanos(50));
                assert!(first || !second, "an ended term was led again");
            })
        };
        term.end();
        extender.join().unwrap();
        reader.join().unwrap();
        assert!(!term.is_led(Moment::from_nanos(1)));
    });
}
