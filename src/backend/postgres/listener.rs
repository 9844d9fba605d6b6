//! One connection that listens for all elections of a store: turns what leaders tell into hints. It
//! reconnects by itself and says when it cannot hear.
//!
//! Behind a pooler LISTEN seems to work and nothing ever comes, and a connection to a server that is the
//! primary no more is as silent. So the listener believes only what it hears: a message of its own, sent over
//! the connection that elections use.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_postgres::Notification;

use super::failure::{self, Stage};
use super::link::{Link, Wire};
use super::random;
use super::statements::{channel, hint_of};
use crate::backend::watchers::{Listening, Running, Watchers};
use crate::backend::{BackendError, Hints};
use crate::lease::{ElectionName, Hint};

/// After so many timeouts without a message it makes sure that it still hears.
const QUIET_TIMEOUTS: u32 = 4;
/// The first wait before it connects again. It doubles up to the time that a connection may take.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// A pooler stays one: then it doubles up to so many times that.
const DEAF_PAUSES: u32 = 12;
/// The code of a server that takes LISTEN and tells nothing.
const DEAF: &str = "deaf";

#[derive(Debug)]
pub(super) struct Listener {
    link: Arc<Link>,
    watchers: Arc<Watchers>,
}

/// What is listened to: the elections by their channels, each with its latest listener.
type Channels = HashMap<String, (ElectionName, u64)>;

/// A connection that listens.
struct Ear {
    wire: Wire,
    heard: mpsc::UnboundedReceiver<Notification>,
    /// Where it talks to itself.
    own: String,
}

impl Listener {
    pub fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            watchers: Arc::default(),
        }
    }

    pub fn listen(self: &Arc<Self>, election: ElectionName, hints: Hints) -> Listening {
        let listening = self.watchers.add(election, hints);
        if let Some(running) = self.watchers.begin() {
            let listener = Arc::clone(self);
            tokio::spawn(async move { listener.run(running).await });
        }
        listening
    }

    pub fn stop(&self) {
        self.watchers.stop();
    }

    async fn run(&self, mut running: Running) {
        let mut pause = FIRST_PAUSE;
        let mut blind = false;
        while !running.has_ended() {
            let mut heard = false;
            let Err(error) = self.hear(&mut running, &mut heard).await else {
                return;
            };
            if heard {
                pause = FIRST_PAUSE;
                blind = false;
            }
            if !blind {
                blind = true;
                let store = &self.link.address.shown;
                tracing::info!(%store, %error, "changes are not heard of: asking at every interval");
                self.watchers.tell_all(Hint::Blind);
            }
            let mut longest = self.link.connect_timeout;
            if error.code == DEAF {
                pause = pause.max(longest);
                longest *= DEAF_PAUSES;
            }
            let _ = timeout(pause, self.stopping()).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Until the connection breaks, or (`Ok`) nobody listens any more.
    async fn hear(&self, running: &mut Running, heard: &mut bool) -> Result<(), BackendError> {
        let table = self.link.table().await?;
        let mut ear = self.connect().await?;
        let mut channels = Channels::new();
        self.prove(&mut ear, &channels).await?;
        let mut generation = None;
        loop {
            let current = Some(self.watchers.generation());
            if generation != current {
                generation = current;
                self.follow_watchers(&ear, &table, &mut channels).await?;
                *heard = true;
            }
            if running.has_ended() {
                return Ok(());
            }
            tokio::select! {
                message = ear.heard.recv() => {
                    let Some(message) = message else {
                        return Err(self.broken());
                    };
                    self.tell(&channels, &message);
                }
                () = self.watchers.changed() => {}
                // Renewals of a leader are heard more often than this.
                () = sleep(self.link.request_timeout * QUIET_TIMEOUTS) => {
                    let proven = self.prove(&mut ear, &channels).await;
                    // It did hear once, so this is another server by now, or none.
                    proven.map_err(|_| self.broken())?;
                }
            }
        }
    }

    async fn connect(&self) -> Result<Ear, BackendError> {
        let (sender, heard) = mpsc::unbounded_channel();
        let wire = self.link.dial(Some(sender)).await?;
        let own = format!("whenleader_self_{:016x}", random());
        self.say(&wire, &format!("LISTEN {own}")).await?;
        Ok(Ear { wire, heard, own })
    }

    /// Makes sure that it hears what is told on the connection of the elections.
    async fn prove(&self, ear: &mut Ear, channels: &Channels) -> Result<(), BackendError> {
        let word = format!("{:016x}", random());
        let told = format!("SELECT pg_notify('{}', '{word}')", ear.own);
        self.link.run(|| told.clone()).await?;
        let hearing = async {
            while let Some(message) = ear.heard.recv().await {
                if message.channel() == ear.own && message.payload() == word {
                    return Ok(());
                }
                self.tell(channels, &message);
            }
            Err(self.broken())
        };
        match timeout(self.link.connect_timeout, hearing).await {
            Ok(heard) => heard,
            Err(_) => Err(BackendError::transient(
                DEAF,
                format!(
                    "{} takes LISTEN, and notifications do not come, as behind a pooler: a hand-over waits until a \
                     follower asks",
                    self.link.address.shown
                ),
            )),
        }
    }

    fn tell(&self, channels: &Channels, message: &Notification) {
        if let Some((election, _)) = channels.get(message.channel())
            && let Some(hint) = hint_of(message.payload(), election)
        {
            self.watchers.tell(election, hint);
        }
    }

    async fn follow_watchers(
        &self,
        ear: &Ear,
        table: &str,
        channels: &mut Channels,
    ) -> Result<(), BackendError> {
        let mut gone = std::mem::take(channels);
        let mut joined = Vec::new();
        let mut wanted = String::new();
        for (election, listener) in self.watchers.elections() {
            let channel = channel(table, election.as_str());
            let known = gone.remove(&channel).map(|(_, listener)| listener);
            if known.is_none() {
                let _ = write!(wanted, "LISTEN {channel}; ");
            }
            if known != Some(listener) {
                joined.push(election.clone());
            }
            channels.insert(channel, (election, listener));
        }
        for channel in gone.into_keys() {
            let _ = write!(wanted, "UNLISTEN {channel}; ");
        }
        if !wanted.is_empty() {
            self.say(&ear.wire, &wanted).await?;
        }
        for election in joined {
            self.watchers.tell(&election, Hint::Watching);
        }
        Ok(())
    }

    async fn say(&self, wire: &Wire, text: &str) -> Result<(), BackendError> {
        match timeout(self.link.request_timeout, wire.ask(text)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                let error = failure::meaning(&error, &*self.link, Stage::Connecting);
                if error.code == failure::READ_ONLY {
                    self.link.turn_away(wire);
                }
                Err(error)
            }
            Err(_) => Err(failure::silence(
                &self.link.address.shown,
                Stage::Connecting,
            )),
        }
    }

    fn broken(&self) -> BackendError {
        BackendError::transient(
            "unreachable",
            format!(
                "the connection that listens to {} broke",
                self.link.address.shown
            ),
        )
    }

    async fn stopping(&self) {
        while !self.watchers.is_over() {
            self.watchers.changed().await;
        }
    }
}
