//! What one process knows of one election's record, and which news of it count. No I/O, no lock, no log.
//!
//! News come on two ways that may overtake each other, and versions have no order. So it is settled by
//! when a request was sent:
//!
//! - **A read** was overtaken if an event came while it was on its way and they differ: nobody can tell
//!   which is newer. It is read again. Noting it would set the observation back, and a take-over would wait
//!   for a second duration.
//! - **A write of ours** is newer than every event before it was sent. Until the watch tells of that very
//!   version, other events are taken for late ones, unless they tell of a larger token: they are passed on,
//!   and not noted. Noting one would make the next renewal meet a conflict. If they were newer after all, it
//!   meets one then.
//! - Any other event counts, also one that may be late. An event that is not noted where it should be
//!   costs a follower a whole duration; one that is noted too much costs as long as it was late.
//!
//! None of this is needed for safety: every write is on the condition of the version that was judged.

use std::time::Duration;

use super::{Holder, Lasts, Record};
use crate::backend::{Attempt, token_floor};
use crate::clock::Moment;
use crate::lease::{Hint, Leader, Outcome, Owner, Token};
use crate::observation::{Decision, Numbering, Observation, Wish, decide};

/// How long a lease lasts whose record does not say, for those who never asked for one. They only look.
const UNSAID: Duration = Duration::from_secs(15);

/// An election that nothing was heard or asked of for so long is forgotten, unless its lease is longer still.
const IDLE: Duration = Duration::from_secs(10 * 60);

/// An entry with what it says.
#[derive(Debug, Clone)]
pub(super) struct Seen<Entry> {
    pub entry: Entry,
    pub record: Record,
}

pub(super) struct Known<Entry> {
    observation: Observation<String>,
    /// What was seen without taking part: no attempt depends on it.
    peeked: Observation<String>,
    /// The record as it was seen last. `None`: there is none, or what was seen is known to be old.
    latest: Option<Seen<Entry>>,
    /// Kept here too, in case that the record is deleted.
    numbering: Numbering,
    /// As long as a lease of ours lasts one whose record does not say. `None`: we never asked for one.
    own_duration: Option<Duration>,
    used: Moment,
    /// How many events came.
    events: u64,
    /// The version that a write of ours made, until the watch tells of it.
    ahead: Option<String>,
    oddities: Vec<Oddity>,
    /// To be logged as soon as no lock is held.
    unlogged: Vec<Oddity>,
}

/// When a read was sent, counted in events.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent(u64);

/// What a record holds that it should not. Told once for each election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Oddity {
    /// Somebody holds the lease for a time that makes no sense.
    Duration,
    /// The token is none.
    Token(Token),
}

/// What to do about an attempt.
pub(super) enum Plan<Entry> {
    Create(Token),
    /// And how long the lease still runs that the entry names.
    Begin(Entry, Token, Duration),
    Renew(Entry, Token, Duration),
    Denied(Outcome),
}

/// How a record stands.
enum Standing {
    Free,
    /// It is held, and its lease still runs for so long; zero: it has expired.
    Held(Duration),
    /// It is held for a time that it does not say, and nobody has asked for a lease to measure it by.
    Unmeasured,
}

impl Oddity {
    pub fn words(self) -> String {
        match self {
            Self::Duration => "the record names a holder but no duration that makes sense: it is waited out like a lease of this instance's own".into(),
            Self::Token(token) => format!(
                "the record holds the token {token}, which leaves too little room for larger ones: it is taken for unreadable"
            ),
        }
    }
}

impl<Entry: Clone> Known<Entry> {
    pub fn new() -> Self {
        Self {
            observation: Observation::new(),
            peeked: Observation::new(),
            latest: None,
            numbering: Numbering::default(),
            own_duration: None,
            used: Moment::ORIGIN,
            events: 0,
            ahead: None,
            oddities: Vec::new(),
            unlogged: Vec::new(),
        }
    }

    pub fn used(&mut self, now: Moment) {
        self.used = now;
    }

    /// Whether nobody needs it any more. Whoever campaigns asks at least every other lease, also where a
    /// watch tells of changes.
    pub fn is_idle(&self, now: Moment) -> bool {
        let lease = self.own_duration.unwrap_or_default();
        now.since(self.used) > IDLE.max(4 * lease)
    }

    // ---- news ----

    /// A watch tells of a record, or that it was deleted. Returns what campaigns should hear of it.
    pub fn told(&mut self, seen: Option<Seen<Entry>>, now: Moment) -> Option<Hint> {
        self.events += 1;
        let was_hidden = self
            .latest
            .as_ref()
            .is_some_and(|l| l.record.hides_holder());
        let record = seen.as_ref().map(|seen| &seen.record);
        let latest = self.latest.as_ref().map(|latest| &latest.record);
        // Tokens only grow, so what tells of a larger one is news for sure.
        let is_news = record.and_then(Record::token) > latest.and_then(Record::token);
        let is_late = self
            .ahead
            .as_ref()
            .is_some_and(|ahead| version(seen.as_ref()) != Some(ahead) && !is_news);
        let holder = record.and_then(|record| record.holder.as_ref());
        let leader = holder.and_then(Holder::readable).cloned();
        let standing = match holder {
            Some(holder) if is_late => self.standing_from_now(holder),
            None if is_late => Standing::Free,
            _ => self.note(record, now),
        };
        if !is_late {
            self.ahead = None;
            self.latest = seen;
        }
        match (standing, leader) {
            (Standing::Free, _) => Some(Hint::Free),
            // Alive, but nobody can be told who it is. Once is enough to look at it.
            (_, None) => (!was_hidden).then_some(Hint::Free),
            (Standing::Held(valid_for), Some(leader)) => Some(Hint::Alive {
                token: leader.token,
                valid_for,
            }),
            (Standing::Unmeasured, Some(leader)) => Some(Hint::Alive {
                token: leader.token,
                valid_for: UNSAID,
            }),
        }
    }

    /// To be called before a read is sent.
    pub fn sending(&self) -> Sent {
        Sent(self.events)
    }

    /// Whether it is in doubt that this answer is the latest news.
    pub fn is_overtaken(&self, sent: Sent, seen: Option<&Seen<Entry>>) -> bool {
        sent.0 != self.events && version(seen) != version(self.latest.as_ref())
    }

    /// A read was answered.
    pub fn answered(&mut self, seen: Option<Seen<Entry>>, now: Moment) {
        self.ahead = None;
        self.note(seen.as_ref().map(|seen| &seen.record), now);
        self.latest = seen;
    }

    /// A write of ours was answered.
    pub fn wrote(&mut self, seen: Seen<Entry>, now: Moment) {
        let told_already = version(self.latest.as_ref()) == Some(&seen.record.version);
        self.ahead = (!told_already).then(|| seen.record.version.clone());
        self.note(Some(&seen.record), now);
        self.latest = Some(seen);
    }

    /// A write met a record that is not this version any more.
    pub fn met_a_change(&mut self, over: Option<&str>) {
        self.ahead.take_if(|ahead| Some(&**ahead) == over);
        self.latest
            .take_if(|latest| Some(&*latest.record.version) == over);
    }

    // ---- what follows from it ----

    /// The record, if it is this term's.
    pub fn entry_of(&self, owner: &Owner, token: Token) -> Option<Entry> {
        let latest = self.latest.as_ref()?;
        let wish = Wish::Release(token);
        let decision = decide(owner, wish, latest.record.named(), None);
        (decision == Decision::Release).then(|| latest.entry.clone())
    }

    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        self.observation.remaining(now)
    }

    /// What is known already, if it leads to a write.
    pub fn plan_to_write(&mut self, attempt: &Attempt<'_>, now: Moment) -> Option<Plan<Entry>> {
        self.own_duration = Some(attempt.duration);
        self.latest.as_ref()?;
        let plan = self.plan(attempt, now);
        (!matches!(plan, Plan::Denied(_))).then_some(plan)
    }

    /// From the latest news.
    pub fn plan(&mut self, attempt: &Attempt<'_>, now: Moment) -> Plan<Entry> {
        self.own_duration = Some(attempt.duration);
        let latest = self.latest.take();
        let remaining = match self.note(latest.as_ref().map(|latest| &latest.record), now) {
            Standing::Free => None,
            Standing::Held(remaining) => Some(remaining),
            Standing::Unmeasured => Some(attempt.duration),
        };
        self.latest = latest;
        let record = self.latest.as_ref().map(|latest| &latest.record);
        let holder = record.and_then(|record| record.holder.as_ref());
        let named = record.and_then(Record::named);
        let wish = attempt.term.map_or(Wish::Campaign, Wish::Renew);
        let entry = self.latest.as_ref().map(|latest| latest.entry.clone());
        let left = remaining.unwrap_or_default();
        match (
            decide(attempt.owner, wish, named, remaining),
            entry,
            attempt.term,
        ) {
            (Decision::Begin, entry, _) => {
                let token = self.numbering.next(token_floor());
                match entry {
                    Some(entry) => Plan::Begin(entry, token, left),
                    None => Plan::Create(token),
                }
            }
            (Decision::Renew, Some(entry), Some(term)) => Plan::Renew(entry, term, left),
            _ => Plan::Denied(Outcome::Other {
                leader: holder.and_then(Holder::readable).cloned(),
                remaining,
            }),
        }
    }

    /// Who holds the lease, for somebody who takes no part.
    pub fn peeked(&mut self, record: Option<Record>, now: Moment) -> Option<Leader> {
        let Some((version, holder)) = record.and_then(|r| Some((r.version, r.holder?))) else {
            self.peeked.clear();
            return None;
        };
        let duration = self.duration_of(&holder).unwrap_or(UNSAID);
        let remaining = self.peeked.observe(version, duration, now);
        holder
            .leader
            .filter(|leader| !remaining.is_zero() && Numbering::allows(leader.token))
    }

    pub fn unlogged(&mut self) -> Vec<Oddity> {
        std::mem::take(&mut self.unlogged)
    }

    // ---- for all of them ----

    fn note(&mut self, record: Option<&Record>, now: Moment) -> Standing {
        let holder = record.and_then(|record| record.holder.as_ref());
        let tokens = [
            record.and_then(|record| record.last),
            record.and_then(Record::named).map(|(_, token)| token),
        ];
        for token in tokens.into_iter().flatten() {
            self.numbering.heard(token);
            if !Numbering::allows(token) {
                self.is_odd(Oddity::Token(token));
            }
        }
        let (Some(record), Some(holder)) = (record, holder) else {
            self.observation.clear();
            return Standing::Free;
        };
        if holder.lasts == Lasts::Unsaid {
            self.is_odd(Oddity::Duration);
        }
        match self.duration_of(holder) {
            Some(duration) => {
                let version = record.version.clone();
                Standing::Held(self.observation.observe(version, duration, now))
            }
            None => Standing::Unmeasured,
        }
    }

    fn standing_from_now(&self, holder: &Holder) -> Standing {
        self.duration_of(holder)
            .map_or(Standing::Unmeasured, Standing::Held)
    }

    fn duration_of(&self, holder: &Holder) -> Option<Duration> {
        match holder.lasts {
            Lasts::For(duration) => Some(duration),
            Lasts::Unsaid => self.own_duration,
        }
    }

    fn is_odd(&mut self, oddity: Oddity) {
        let kind = std::mem::discriminant(&oddity);
        let mut told = self.oddities.iter().map(std::mem::discriminant);
        if !told.any(|told| told == kind) {
            self.oddities.push(oddity);
            self.unlogged.push(oddity);
        }
    }
}

impl Record {
    /// The largest that it tells of.
    fn token(&self) -> Option<Token> {
        self.last.max(self.named().map(|(_, token)| token))
    }

    fn named(&self) -> Option<(&Owner, Token)> {
        let leader = self.holder.as_ref()?.leader.as_ref()?;
        Some((&leader.owner, leader.token))
    }

    fn hides_holder(&self) -> bool {
        let holder = self.holder.as_ref();
        holder.is_some_and(|holder| holder.readable().is_none())
    }
}

impl Holder {
    /// Whom others may be told of.
    fn readable(&self) -> Option<&Leader> {
        let leader = self.leader.as_ref();
        leader.filter(|leader| Numbering::allows(leader.token))
    }
}

fn version<Entry>(seen: Option<&Seen<Entry>>) -> Option<&String> {
    seen.map(|seen| &seen.record.version)
}
