//! The election of one instance, as a pure state machine.
//!
//! A [`Candidate`] is told what happens, and when: `handle(now, input)`. It answers with what shall be
//! done: send a request to the store, tell the application that it was promoted or demoted. Between
//! inputs it asks to be woken at [`Candidate::wake_at`]. It reads no clock, does no I/O and knows no
//! runtime, so a simulation can run years of it, and a model checker every interleaving.
//!
//! # The protocol
//!
//! A **follower** campaigns: one request that acquires the lease if it is free. If somebody else holds
//! it, the answer says how long, and the follower asks again at that moment (or at `renewInterval`,
//! if nothing tells it of a release). If the request was granted, the follower is the **leader**, and
//! trusts that for S (see `timing`) **from the moment before the request was sent**. It renews every
//! `renewInterval`, and every success moves the deadline. When the deadline passes, the term is over,
//! whatever requests are pending, and whatever they answer later.
//!
//! One request is pending at most. An answer counts only for the request that is pending now: ending a
//! term forgets its request, so a late answer can revive nothing. An answer that never comes is a
//! failure after the request's limit, and it extends nothing; the next attempt finds out whether it
//! was applied. A term that ended never resumes: leading again takes a new campaign and a new token.
//!
//! Leadership that ends by our own will (`stop`, `stepDown`) ends at once for the application, but the
//! lease is **yielded**: kept and renewed until the application's callbacks have ended, then released,
//! so that a successor never overlaps with them. Callbacks that do not end in `stop_timeout` leave the
//! lease to its expiry. A lease that is won too late, when stopping already, is released unused; an answer
//! that does not come in `stop_timeout` either is not waited for.

use std::time::Duration;

use crate::clock::Moment;
use crate::lease::{FailureKind, Hint, Leader, LossReason, Outcome, Owner, Token};
use crate::timing::{Anchor, Jitter, RELEASE_TRIES, Timing};

/// What one instance does in an election, beside its [`Timing`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rules {
    pub timing: Timing,
    pub on_renew_error: OnRenewError,
    /// `false`: it only watches who leads.
    pub takes_part: bool,
    /// How long a yielded lease is kept for callbacks that do not end, and how long a stop waits for the answer
    /// to a campaign.
    pub stop_timeout: Duration,
    /// Where the jitter starts. Zero: no jitter, for a model checker.
    pub jitter_seed: u64,
}

/// What a leader does when a renewal failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnRenewError {
    /// Stop leading at once.
    StepDown,
    /// Try again, with back-off, until the deadline.
    Retry,
}

/// Names one request, so that its answer can be told from an older one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// What to ask of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    Campaign,
    Renew(Token),
    Release(Token),
    /// Only look who leads.
    Peek,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    pub id: RequestId,
    pub op: Op,
    /// The candidate gives the request up after this; so may the sender.
    pub limit: Duration,
}

/// What the store said.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// To a campaign or a renewal.
    Attempt(Outcome),
    /// To a release: whether the record was still that term's.
    Released(bool),
    /// To a peek.
    Seen(Option<Leader>),
    Failed(FailureKind),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Input {
    /// Time has passed.
    Tick,
    Answer {
        request: RequestId,
        answer: Answer,
    },
    Hint(Hint),
    /// The server says how long its leases last. Comes before the answer that told it.
    LeaseTold(Duration),
    /// The application's callbacks about the end of this term have ended.
    CallbacksEnded(Token),
    /// Hand the lease over and stay out of the election for a while.
    StepDown {
        pause: Duration,
    },
    /// The application's event loop did not turn for `stallTimeout`.
    LoopStalled,
    /// It turns again.
    LoopTurning,
    Stop,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Output {
    Send(Request),
    Promoted {
        token: Token,
    },
    Demoted {
        token: Token,
        reason: LossReason,
    },
    /// Another leader than before was seen (or this instance became it).
    LeaderChanged(Leader),
    /// The callbacks of a term have not ended although its lease is about to.
    Overrun {
        token: Token,
    },
    /// Requests began to fail. Said once, until [`Output::StoreBack`].
    StoreLost(FailureKind),
    StoreBack,
    /// Another process runs under this instance's id.
    IdShared(Leader),
    /// A yielded lease could not be released, and is left to its expiry.
    NotReleased {
        token: Token,
        /// Those of the application. If not, they had no more time.
        callbacks_ended: bool,
    },
    /// The store handed out a token that is not larger than an earlier one: it forgot the election.
    TokenWentBack {
        token: Token,
        earlier: Token,
    },
    /// The answer to [`Input::Stop`]. Only [`Output::Overrun`] may follow it, if callbacks still run: it
    /// comes to whoever goes on until [`Candidate::wake_at`] is [`Moment::NEVER`].
    Stopped,
}

/// See the module's description.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Candidate {
    owner: Owner,
    rules: Rules,
    random: Random,
    standing: Standing,
    pending: Option<Pending>,
    next_id: u64,
    /// When the next request is due, unless one is pending.
    next: Moment,
    last_sent: Option<Moment>,
    /// Failures in a row.
    failures: u32,
    store_lost: bool,
    /// Whether hints tell of releases, so that asking at every interval is not needed.
    watching: bool,
    /// When an attempt was last answered: hints alone are not believed for ever.
    last_answer: Moment,
    /// A hint came while a campaign was pending, whose answer may be older than the hint.
    look_again: bool,
    paused_until: Moment,
    stalled: bool,
    stopping: bool,
    /// The last term's callbacks, until they end.
    unsettled: Option<Unsettled>,
    seen: Option<Leader>,
    largest_token: Option<Token>,
    namesake: Option<Namesake>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Standing {
    Follower,
    Leader(Term),
    /// No longer the leader, by our own will; the lease is kept until the callbacks have ended.
    Yielding {
        token: Token,
        callbacks_ended: bool,
        release_by: Moment,
        pause: Duration,
    },
    Releasing {
        token: Token,
        tries: u32,
        pause: Duration,
    },
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Term {
    token: Token,
    deadline: Moment,
    /// When its work must have ended. As the deadline, it follows from the send of the last success and from
    /// what was granted then: the leases that are told later may be longer.
    overrun: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pending {
    id: RequestId,
    op: Op,
    anchor: Anchor,
    give_up: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Unsettled {
    token: Token,
    /// When the lease is about to end; `NEVER` once that was told.
    overrun: Moment,
}

/// Another process under this instance's id, or what one left behind when it was killed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Namesake {
    nonce: u64,
    first_seen: Moment,
    told: bool,
}

impl Candidate {
    /// A follower whose first attempt is due now.
    pub fn new(owner: Owner, rules: Rules, now: Moment) -> Self {
        Self {
            random: Random(rules.jitter_seed),
            owner,
            rules,
            standing: Standing::Follower,
            pending: None,
            next_id: 0,
            next: now,
            last_sent: None,
            failures: 0,
            store_lost: false,
            watching: false,
            last_answer: now,
            look_again: false,
            paused_until: now,
            stalled: false,
            stopping: false,
            unsettled: None,
            seen: None,
            largest_token: None,
            namesake: None,
        }
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The term that this instance leads, and its deadline. Leading is true only before the deadline;
    /// whoever shares this with others shares both, and compares with the clock at each look.
    pub fn leads_until(&self) -> Option<(Token, Moment)> {
        match &self.standing {
            Standing::Leader(term) => Some((term.token, term.deadline)),
            _ => None,
        }
    }

    /// The request whose answer still counts. Any other may be cancelled.
    pub fn pending_request(&self) -> Option<RequestId> {
        self.pending.as_ref().map(|pending| pending.id)
    }

    /// When to send [`Input::Tick`], at the latest.
    pub fn wake_at(&self) -> Moment {
        let mut wake = match &self.pending {
            Some(pending) => pending.give_up,
            None => self.due(),
        };
        match &self.standing {
            Standing::Leader(term) => wake = wake.min(term.deadline),
            Standing::Yielding { release_by, .. } => wake = wake.min(*release_by),
            Standing::Follower | Standing::Releasing { .. } | Standing::Stopped => {}
        }
        match &self.unsettled {
            Some(unsettled) => wake.min(unsettled.overrun),
            None => wake,
        }
    }

    /// The one way in. Outputs are appended to `out`, in the order in which they happened.
    pub fn handle(&mut self, now: Moment, input: Input, out: &mut Vec<Output>) {
        // What time alone has decided comes first: an answer that arrives after the deadline meets a
        // follower, even if nobody woke us in between.
        self.pass_time(now, out);
        match input {
            Input::Tick => {}
            Input::Answer { request, answer } => self.answered(now, request, answer, out),
            Input::Hint(hint) => self.hinted(now, hint),
            Input::LeaseTold(lease) => self.rules.timing = self.rules.timing.told_anew(lease),
            Input::CallbacksEnded(token) => self.callbacks_ended(token),
            Input::StepDown { pause } => self.step_down(now, pause, out),
            Input::LoopStalled => self.loop_stalled(now, out),
            Input::LoopTurning => self.stalled = false,
            Input::Stop => self.stop(now, out),
        }
        // And what the input began may be over at once: a grant that is too short, a wait of zero.
        self.pass_time(now, out);
        self.send_what_is_due(now, out);
    }

    // ---- time ----

    fn pass_time(&mut self, now: Moment, out: &mut Vec<Output>) {
        if let Standing::Leader(term) = &self.standing
            && now >= term.deadline
        {
            let trouble = self.pending.is_some() || self.failures > 0;
            let reason = if trouble {
                LossReason::Unreachable
            } else {
                LossReason::Expired
            };
            if self.pending.is_some() {
                self.lost_the_store(FailureKind::Ambiguous, out);
            }
            self.lose(now, reason, out);
        }
        if let Some(pending) = &self.pending
            && now >= pending.give_up
        {
            let request = pending.id;
            self.answered(now, request, Answer::Failed(FailureKind::Ambiguous), out);
        }
        if let Standing::Yielding {
            token,
            callbacks_ended,
            release_by,
            pause,
        } = self.standing
            && now >= release_by
        {
            out.push(Output::NotReleased {
                token,
                callbacks_ended,
            });
            self.leave(now, pause, out);
        }
        // Last: what was lost just now may have been overrun long ago.
        if let Some(unsettled) = &mut self.unsettled
            && now >= unsettled.overrun
        {
            unsettled.overrun = Moment::NEVER;
            out.push(Output::Overrun {
                token: unsettled.token,
            });
        }
    }

    // ---- answers ----

    fn answered(&mut self, now: Moment, id: RequestId, answer: Answer, out: &mut Vec<Output>) {
        let Some(pending) = self.pending.take_if(|pending| pending.id == id) else {
            return; // Of a request that was given up, or of a term that is over.
        };
        if let Answer::Failed(kind) = answer {
            return self.failed(now, &pending, kind, out);
        }
        self.last_answer = now;
        self.failures = 0;
        if self.store_lost {
            self.store_lost = false;
            out.push(Output::StoreBack);
        }
        match (pending.op, answer) {
            (Op::Campaign, Answer::Attempt(Outcome::Held { token, valid_for })) => {
                self.won(now, pending.anchor, token, valid_for, out);
            }
            (
                Op::Renew(token),
                Answer::Attempt(Outcome::Held {
                    token: renewed,
                    valid_for,
                }),
            ) if token == renewed => {
                self.renewed(pending.anchor, valid_for);
            }
            (Op::Renew(_), Answer::Attempt(Outcome::Held { .. })) => {
                self.lease_gone(now, LossReason::Taken, out);
            }
            (op, Answer::Attempt(Outcome::Other { leader, remaining })) => {
                let reason = if leader.is_some() {
                    LossReason::Taken
                } else {
                    LossReason::Released
                };
                if let Op::Renew(_) = op {
                    self.lease_gone(now, reason, out);
                }
                if self.standing != Standing::Stopped {
                    self.saw(now, leader, out);
                }
                if self.stopping && self.standing == Standing::Follower {
                    self.finish_stop(out);
                }
                self.schedule_look(now, remaining);
            }
            (Op::Release(_), _) => {
                if let Standing::Releasing { pause, .. } = self.standing {
                    self.leave(now, pause, out);
                }
            }
            (Op::Peek, Answer::Seen(leader)) => {
                self.saw(now, leader, out);
                self.schedule_look(now, None);
            }
            (Op::Campaign | Op::Renew(_) | Op::Peek, _) => {
                debug_assert!(false, "an answer of another kind than its request");
            }
        }
    }

    fn won(
        &mut self,
        now: Moment,
        anchor: Anchor,
        token: Token,
        valid_for: Duration,
        out: &mut Vec<Output>,
    ) {
        if let Some(earlier) = self.largest_token.filter(|earlier| token <= *earlier) {
            out.push(Output::TokenWentBack { token, earlier });
        }
        if !self.may_campaign(now) {
            // Won too late. Nobody has heard of it, so there is nothing to wait for.
            let pause = self.paused_until.since(now);
            self.standing = Standing::Releasing {
                token,
                tries: 0,
                pause,
            };
            self.next = now;
            return;
        }
        let deadline = anchor.plus(self.rules.timing.lead_limit(valid_for));
        if now >= deadline {
            // The answer took so long that it is worth nothing. The lease is ours, so the next
            // campaign begins a new term of it.
            self.failures += 1;
            self.next = now + self.rules.timing.retry_after_late_grant();
            return;
        }
        let overrun = anchor.plus(self.rules.timing.overrun_after(valid_for));
        self.standing = Standing::Leader(Term {
            token,
            deadline,
            overrun,
        });
        self.next = anchor.plus(self.next_renewal());
        out.push(Output::Promoted { token });
        self.saw(
            now,
            Some(Leader {
                owner: self.owner.clone(),
                token,
            }),
            out,
        );
    }

    fn renewed(&mut self, anchor: Anchor, valid_for: Duration) {
        let timing = &self.rules.timing;
        let overrun = anchor.plus(timing.overrun_after(valid_for));
        if let Standing::Leader(term) = &mut self.standing {
            term.deadline = anchor.plus(timing.lead_limit(valid_for));
            term.overrun = overrun;
        } else if let Some(unsettled) = &mut self.unsettled {
            unsettled.overrun = overrun;
        }
        self.next = anchor.plus(self.next_renewal());
    }

    fn next_renewal(&mut self) -> Duration {
        let jitter = self.random.jitter();
        self.rules.timing.next_renewal(jitter)
    }

    fn failed(&mut self, now: Moment, pending: &Pending, kind: FailureKind, out: &mut Vec<Output>) {
        self.failures += 1;
        self.lost_the_store(kind, out);
        let retry = pending
            .anchor
            .plus(self.rules.timing.retry_after(self.failures));
        self.next = retry.max(now);
        match (&mut self.standing, self.rules.on_renew_error) {
            (Standing::Leader(_), OnRenewError::StepDown) => {
                self.lose(now, LossReason::Unreachable, out);
                self.next = retry.max(now);
            }
            (Standing::Releasing { token, tries, .. }, _) if *tries >= RELEASE_TRIES => {
                out.push(Output::NotReleased {
                    token: *token,
                    callbacks_ended: true,
                });
                if let Standing::Releasing { pause, .. } = self.standing {
                    self.leave(now, pause, out);
                }
            }
            (Standing::Follower, _) if self.stopping => self.finish_stop(out),
            _ => {}
        }
    }

    fn lost_the_store(&mut self, kind: FailureKind, out: &mut Vec<Output>) {
        if !std::mem::replace(&mut self.store_lost, true) {
            out.push(Output::StoreLost(kind));
        }
    }

    /// When a follower that was denied asks again.
    fn schedule_look(&mut self, now: Moment, remaining: Option<Duration>) {
        let jitter = self.random.jitter();
        let timing = &self.rules.timing;
        let wait = match remaining {
            _ if self.look_again => timing.shortest_gap(),
            Some(remaining) if self.watching => timing.at_expiry(remaining, jitter),
            None if self.watching && !self.rules.takes_part => timing.check_interval(),
            _ => timing.next_look(remaining, jitter),
        };
        self.look_again = false;
        self.next = (now + wait).min(self.last_answer + timing.check_interval());
    }

    // ---- the end of a term ----

    /// The lease is no longer ours, or must not be trusted: leadership and lease end together.
    fn lose(&mut self, now: Moment, reason: LossReason, out: &mut Vec<Output>) {
        // Without its request: a late answer must not revive the term.
        self.pending = None;
        self.next = now;
        if let Some(term) = self.end_term(now, reason, out) {
            self.standing = Standing::Follower;
            self.unsettled = Some(term);
        }
    }

    /// Leadership ends now, the lease when the callbacks have ended.
    fn yield_lease(
        &mut self,
        now: Moment,
        reason: LossReason,
        pause: Duration,
        out: &mut Vec<Output>,
    ) {
        if let Some(term) = self.end_term(now, reason, out) {
            self.standing = Standing::Yielding {
                token: term.token,
                callbacks_ended: false,
                release_by: now + self.rules.stop_timeout,
                pause,
            };
            self.unsettled = Some(term);
        }
    }

    fn end_term(
        &mut self,
        now: Moment,
        reason: LossReason,
        out: &mut Vec<Output>,
    ) -> Option<Unsettled> {
        let Standing::Leader(term) = &self.standing else {
            return None;
        };
        out.push(Output::Demoted {
            token: term.token,
            reason,
        });
        // A process that slept through all of it hears of it late: its callbacks get their chance.
        let overrun = if now < term.overrun {
            term.overrun
        } else {
            now + self.rules.timing.shortest_notice()
        };
        Some(Unsettled {
            token: term.token,
            overrun,
        })
    }

    /// A renewal found the record gone or somebody else's.
    fn lease_gone(&mut self, now: Moment, reason: LossReason, out: &mut Vec<Output>) {
        match self.standing {
            Standing::Leader(_) => self.lose(now, reason, out),
            Standing::Yielding { pause, .. } => self.leave(now, pause, out),
            Standing::Follower | Standing::Releasing { .. } | Standing::Stopped => {}
        }
    }

    /// The lease that we kept or released is no longer our business.
    fn leave(&mut self, now: Moment, pause: Duration, out: &mut Vec<Output>) {
        self.pending = None;
        self.standing = Standing::Follower;
        self.paused_until = now + pause;
        self.next = self.paused_until;
        if self.stopping {
            self.finish_stop(out);
        }
    }

    fn finish_stop(&mut self, out: &mut Vec<Output>) {
        self.pending = None;
        self.standing = Standing::Stopped;
        out.push(Output::Stopped);
    }

    // ---- what the application and the watch say ----

    fn hinted(&mut self, now: Moment, hint: Hint) {
        let timing = &self.rules.timing;
        let campaigning = matches!(self.standing, Standing::Follower);
        match hint {
            Hint::Watching => {
                self.watching = true;
                self.look_at_once(now); // A release before this moment was not seen.
            }
            Hint::Blind => {
                self.watching = false;
                self.next = self.next.min(now + timing.renew_interval());
            }
            Hint::Free => self.look_at_once(now),
            Hint::Alive { token, valid_for } if campaigning => {
                if self.largest_token.is_none_or(|largest| token > largest) {
                    self.look_at_once(now); // A leader that we do not know yet.
                } else if self.watching {
                    let expiry = now + timing.at_expiry(valid_for, self.random.jitter());
                    self.next = expiry.min(self.last_answer + timing.check_interval());
                }
            }
            Hint::Alive { token, .. } => {
                // Somebody else began a later term: ours is over, and a renewal will say so.
                if self.largest_token.is_some_and(|largest| token > largest) {
                    self.look_at_once(now);
                }
            }
        }
    }

    fn look_at_once(&mut self, now: Moment) {
        match self.standing {
            Standing::Follower | Standing::Leader(_) => {
                self.look_again = self.pending.is_some();
                self.next = self.next.min(now);
            }
            Standing::Yielding { .. } | Standing::Releasing { .. } | Standing::Stopped => {}
        }
    }

    fn callbacks_ended(&mut self, ended: Token) {
        self.unsettled.take_if(|unsettled| unsettled.token == ended);
        if let Standing::Yielding {
            token,
            callbacks_ended,
            ..
        } = &mut self.standing
            && *token == ended
        {
            *callbacks_ended = true;
        }
    }

    fn step_down(&mut self, now: Moment, pause: Duration, out: &mut Vec<Output>) {
        match &mut self.standing {
            Standing::Leader(_) => self.yield_lease(now, LossReason::SteppedDown, pause, out),
            Standing::Follower => self.paused_until = self.paused_until.max(now + pause),
            Standing::Yielding { pause: planned, .. }
            | Standing::Releasing { pause: planned, .. } => *planned = pause.max(*planned),
            Standing::Stopped => {}
        }
    }

    fn loop_stalled(&mut self, now: Moment, out: &mut Vec<Output>) {
        self.stalled = true;
        // Not yielded: work that is stuck in the event loop may still act until the lease expires, so
        // handing over earlier could overlap with it.
        if matches!(self.standing, Standing::Leader(_)) {
            self.lose(now, LossReason::Stalled, out);
        }
    }

    fn stop(&mut self, now: Moment, out: &mut Vec<Output>) {
        let campaign_pending = matches!(&self.pending, Some(p) if p.op == Op::Campaign);
        let give_up = now + self.rules.stop_timeout;
        self.stopping = true;
        match &mut self.standing {
            Standing::Leader(_) => {
                self.yield_lease(now, LossReason::Stopped, Duration::ZERO, out);
            }
            Standing::Yielding { release_by, .. } => {
                *release_by = (*release_by).min(give_up);
            }
            // The answer decides: a lease that is won must be released. One that is won later runs out.
            Standing::Follower if campaign_pending => {
                if let Some(campaign) = &mut self.pending {
                    campaign.give_up = campaign.give_up.min(give_up);
                }
            }
            Standing::Follower => self.finish_stop(out),
            Standing::Releasing { .. } | Standing::Stopped => {}
        }
    }

    fn saw(&mut self, now: Moment, leader: Option<Leader>, out: &mut Vec<Output>) {
        let Some(leader) = leader else { return };
        self.largest_token = self.largest_token.max(Some(leader.token));
        let Owner { instance, nonce } = leader.owner.clone();
        if instance == self.owner.instance && nonce != self.owner.nonce {
            match &mut self.namesake {
                Some(namesake) if namesake.nonce == nonce => {
                    // The record of one that died before we began would have expired by now.
                    let lives = now.since(namesake.first_seen) >= self.rules.timing.lease();
                    if lives && !namesake.told {
                        namesake.told = true;
                        out.push(Output::IdShared(leader.clone()));
                    }
                }
                _ => {
                    self.namesake = Some(Namesake {
                        nonce,
                        first_seen: now,
                        told: false,
                    });
                }
            }
        }
        if self.seen.as_ref() != Some(&leader) {
            self.seen = Some(leader.clone());
            out.push(Output::LeaderChanged(leader));
        }
    }

    // ---- requests ----

    fn may_campaign(&self, now: Moment) -> bool {
        !self.stopping && !self.stalled && now >= self.paused_until
    }

    /// When the next request may be sent, if none is pending.
    fn due(&self) -> Moment {
        let next = match self.standing {
            Standing::Follower if self.stalled || self.stopping => Moment::NEVER,
            Standing::Follower => self.next.max(self.paused_until),
            // A release is the last request of its term: nothing is gained by delaying it, whatever a
            // renewal that was pending just planned.
            Standing::Yielding {
                callbacks_ended: true,
                ..
            } => return Moment::ORIGIN,
            Standing::Leader(_) | Standing::Yielding { .. } | Standing::Releasing { .. } => {
                self.next
            }
            Standing::Stopped => Moment::NEVER,
        };
        match self.last_sent {
            Some(sent) => next.max(sent + self.rules.timing.shortest_gap()),
            None => next,
        }
    }

    fn send_what_is_due(&mut self, now: Moment, out: &mut Vec<Output>) {
        if self.pending.is_some() || now < self.due() {
            return;
        }
        let timing = self.rules.timing;
        let (op, limit) = match &mut self.standing {
            Standing::Follower if !self.rules.takes_part => (Op::Peek, timing.campaign_limit()),
            Standing::Follower => (Op::Campaign, timing.campaign_limit()),
            Standing::Leader(term) => {
                let left = term.deadline.since(now);
                let limit = match self.rules.on_renew_error {
                    OnRenewError::StepDown => left,
                    OnRenewError::Retry => left.min(timing.retried_renewal_limit()),
                };
                (Op::Renew(term.token), limit)
            }
            Standing::Yielding {
                token,
                callbacks_ended: true,
                pause,
                ..
            } => {
                let (token, pause) = (*token, *pause);
                self.standing = Standing::Releasing {
                    token,
                    tries: 1,
                    pause,
                };
                (Op::Release(token), timing.release_limit())
            }
            Standing::Yielding { token, .. } => (Op::Renew(*token), timing.keeping_limit()),
            Standing::Releasing { token, tries, .. } => {
                *tries += 1;
                (Op::Release(*token), timing.release_limit())
            }
            Standing::Stopped => return,
        };
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.last_sent = Some(now);
        self.look_again = false;
        self.pending = Some(Pending {
            id,
            op,
            anchor: Anchor::before_sending(now),
            give_up: now + limit,
        });
        out.push(Output::Send(Request { id, op, limit }));
    }
}

/// A small generator of our own (SplitMix64): the machine must replay from its seed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Random(u64);

impl Random {
    fn jitter(&mut self) -> Jitter {
        if self.0 == 0 {
            return Jitter::NONE;
        }
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let [low, high, ..] = (bits ^ (bits >> 31)).to_le_bytes();
        Jitter::from_bits(u16::from_le_bytes([low, high]))
    }
}
