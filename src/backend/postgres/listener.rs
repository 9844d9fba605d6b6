//! One connection that listens for all elections of a store: turns what leaders tell into hints. It
//! reconnects by itself and says when it cannot hear.
//!
//! Behind a pooler LISTEN seems to work and nothing ever comes, and a connection to a server that is the
//! primary no more is as silent. So the listener believes only what it hears: a message of its own, sent over
//! the connection that elections use.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_postgres::Notification;

use super::failure::{self, Stage};
use super::link::{Link, Wire};

use super::statements::{channel, hint_of};
use crate::backend::watchers::{Listening, Running, Watchers};
use crate::backend::{BackendError, Hints};
use crate::lease::ElectionName;
use crate::random::random_u64;

/// After so many timeouts without a message it makes sure that it still hears.
const QUIET_TIMEOUTS: u32 = 4;
/// The code of a server that takes LISTEN and tells nothing.
const DEAF: &str = "deaf";

#[derive(Debug)]
pub(super) struct Listener {
    link: Arc<Link>,
    watchers: Arc<Watchers>,
}

/// What is listened to: the elections by their channels.
type Channels = HashMap<String, ElectionName>;

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
        let listener = Arc::clone(self);
        let run = |running| async move { listener.run(running).await };
        self.watchers.listen(election, hints, run)
    }

    pub async fn close(&self) {
        self.watchers.close().await;
    }

    async fn run(&self, mut running: Running) {
        while !running.has_ended() {
            let Err(error) = self.hear(&mut running).await else {
                return;
            };
            running.lost(&self.link.address.shown, &error).await;
        }
    }

    /// Until the connection breaks, or (`Ok`) nobody listens any more.
    async fn hear(&self, running: &mut Running) -> Result<(), BackendError> {
        let table = self.link.table().await?;
        let mut ear = self.connect().await?;
        let mut channels = Channels::new();
        self.prove(&mut ear, &channels).await?;
        let mut generation = None;
        loop {
            let current = Some(self.watchers.generation());
            if generation != current {
                generation = current;
                self.follow_watchers(&ear, &table, &mut channels, running)
                    .await?;
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
        let own = format!("whenleader_self_{:016x}", random_u64());
        self.say(&wire, &format!("LISTEN {own}")).await?;
        Ok(Ear { wire, heard, own })
    }

    /// Makes sure that it hears what is told on the connection of the elections.
    async fn prove(&self, ear: &mut Ear, channels: &Channels) -> Result<(), BackendError> {
        let word = format!("{:016x}", random_u64());
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
            // A pooler stays one.
            Err(_) => Err(BackendError::fatal(
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
        if let Some(election) = channels.get(message.channel())
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
        running: &mut Running,
    ) -> Result<(), BackendError> {
        let mut gone = std::mem::take(channels);
        let mut wanted = String::new();
        for election in self.watchers.elections() {
            let channel = channel(table, election.as_str());
            if gone.remove(&channel).is_none() {
                let _ = write!(wanted, "LISTEN {channel}; ");
            }
            channels.insert(channel, election);
        }
        for channel in gone.into_keys() {
            let _ = write!(wanted, "UNLISTEN {channel}; ");
        }
        if !wanted.is_empty() {
            self.say(&ear.wire, &wanted).await?;
        }
        for election in channels.values() {
            running.hears(election);
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
}
