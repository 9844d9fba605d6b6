//! What every store must do that is reached over a network, whose connections break, fall silent and end.

use std::time::Duration;

use whenleader::lease::{FailureKind, Hint};

use super::{Client, Fixture, LONG, held, impatient, leading, name};
use crate::support::{Proxy, Trouble, eventually};

/// A store that a proxy can stand in front of.
pub trait Networked: Fixture {
    /// Where the server listens on this machine.
    fn port(&self) -> u16;

    /// The store by way of another port.
    fn url_at(&self, port: u16) -> String;

    /// Whether a campaign looks before it writes, also where it knew all.
    const LOOKS_FIRST: bool = false;
    /// So many bytes of an answer are not the whole of it.
    const HALF_AN_ANSWER: usize = 3;
}

pub async fn an_answer_that_never_came_counts_for_nothing_and_the_next_attempt_begins_a_new_term<
    N: Networked,
>(
    store: &N,
) {
    let proxy = Proxy::to(store.port()).await;
    let election = name("leader");
    let near = store.client("near").await;
    let far = impatient(&store.url_at(proxy.port));
    for trouble in [
        Trouble::CutAnswers,
        Trouble::HoldAnswers,
        Trouble::CutAfter(N::HALF_AN_ANSWER),
    ] {
        let first = far.win(&election, LONG).await;
        proxy.set(trouble);
        let error = far
            .attempt(&election, LONG, None)
            .await
            .expect_err("no answer");
        let leader = near.leader(&election).await.expect("far, at least once");
        if error.kind == FailureKind::Transient && N::LOOKS_FIRST {
            assert_eq!(leader.token, first, "{trouble:?}: surely not: {error}");
        } else {
            assert_eq!(error.kind, FailureKind::Ambiguous, "{trouble:?}: {error}");
            assert!(leader.token > first, "{trouble:?}: it was applied");
        }
        proxy.set(Trouble::None);
        let next = far.win(&election, LONG).await;
        assert!(next > leader.token, "{trouble:?}");
        assert!(far.release(&election, next).await);
    }
}

pub async fn what_was_given_up_before_the_store_was_reached_is_never_written(
    store: &impl Networked,
) {
    let proxy = Proxy::to(store.port()).await;
    let election = name("leader");
    let near = store.client("near").await;
    let far = Client::new(&store.url_at(proxy.port), "far").await;
    let token = far.win(&election, LONG).await;
    let leads = Some(leading(&far, token));
    for trouble in [Trouble::HalfOpen, Trouble::Refuse] {
        proxy.set(trouble);
        if trouble == Trouble::Refuse {
            proxy.cut();
        }
        for patience in [0, 1, 20, 200].map(Duration::from_millis) {
            // Each of them would be seen: a new term, or none.
            let attempt = far.attempt(&election, LONG, None);
            let _ = tokio::time::timeout(patience, attempt).await;
            let release = far.backend.release(&election, &far.owner, token);
            let _ = tokio::time::timeout(patience, release).await;
        }
        // What lies on the way is lost, also what a busy machine has yet to let through.
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.cut();
        proxy.set(Trouble::None);
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(near.leader(&election).await, leads, "{trouble:?}");
        }
    }
    assert_eq!(held(far.renew(&election, LONG, token).await), token);
}

pub async fn closing_leaves_no_connection(store: &impl Networked) {
    let proxy = Proxy::to(store.port()).await;
    let election = name("leader");
    let far = Client::new(&store.url_at(proxy.port), "far").await;
    let notifies = far.backend.capabilities().notifies;
    let hearing = if notifies {
        Some(far.watch(&election).await)
    } else {
        None
    };
    let token = far.win(&election, LONG).await;
    assert!(far.release(&election, token).await);
    assert!(proxy.open() > 0);
    drop(hearing);
    far.backend.close().await;
    eventually("no connection", async || (proxy.open() == 0).then_some(())).await;
    // And none is made.
    let connections = proxy.connections();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(proxy.connections(), connections);
}

pub async fn a_watch_is_blind_while_the_store_is_away_and_hears_again_when_it_is_back(
    store: &impl Networked,
) {
    let proxy = Proxy::to(store.port()).await;
    let election = name("leader");
    let near = store.client("near").await;
    let far = Client::new(&store.url_at(proxy.port), "far").await;
    let mut hearing = far.watch(&election).await;
    for _ in 0..2 {
        proxy.set(Trouble::Refuse);
        proxy.cut();
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        let token = near.win(&election, LONG).await;
        proxy.set(Trouble::None);
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        assert!(near.release(&election, token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;
    }
}
