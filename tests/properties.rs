//! Properties of the numbers, the machine and the names, for any input; a failure is shrunk to a small one.
//!
//! ```text
//! cargo test --no-default-features --test properties
//! PROPTEST_CASES=100000 cargo test ...          more of them
//! ```

use std::time::Duration;

use proptest::prelude::*;
use whenleader::candidate::{Answer, Candidate, Input, OnRenewError, Op, Output, Request, Rules};
use whenleader::clock::Moment;
use whenleader::lease::{
    ElectionName, FailureKind, Hint, InstanceId, Leader, NAME_LIMIT, Outcome, Owner, Token,
};
use whenleader::timing::{Anchor, Jitter, Timing};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn margin(lease: Duration) -> Duration {
    ms(250).max(lease / 100)
}

// ---- timing ----

/// Numbers of every order of magnitude, good and bad.
fn millis() -> impl Strategy<Value = u64> {
    prop_oneof![0..2_000_u64, 0..100_000_u64, 0..200_000_000_u64]
}

fn good_timing() -> impl Strategy<Value = Timing> {
    (400..120_000_u64, 50..1_000_u64, 0..1_000_u64, any::<bool>()).prop_filter_map(
        "numbers without room",
        |(lease, renew, limit, own)| {
            let renew = 50 + lease * renew / 1_200;
            let limit = own.then(|| ms(renew + lease * limit / 1_000));
            let timing = Timing::new(ms(lease), ms(renew), limit).ok()?;
            match renew % 3 {
                0 => timing.with_campaign_interval(ms(renew * 2)).ok(),
                _ => Some(timing),
            }
        },
    )
}

proptest! {
    #[test]
    fn numbers_are_accepted_only_with_room_and_refused_with_the_name_of_a_parameter(
        lease in millis(), renew in millis(), limit in prop::option::of(millis()),
    ) {
        match Timing::new(ms(lease), ms(renew), limit.map(ms)) {
            Ok(timing) => {
                let trust = timing.lead_limit(ms(lease));
                prop_assert!(trust + margin(ms(lease)) <= ms(lease));
                prop_assert!(trust >= ms(renew) + ms(100));
                prop_assert!(limit.is_none_or(|limit| trust == ms(limit)));
            }
            Err(refused) => {
                prop_assert!(!refused.rule.is_empty());
                match refused.parameter {
                    "renewInterval" | "leaseDuration" => {}
                    "leadLimit" => prop_assert!(limit.is_some()),
                    other => prop_assert!(false, "there is no parameter {other}"),
                }
            }
        }
    }

    #[test]
    fn a_deadline_keeps_its_margin_from_the_end_of_any_grant(
        timing in good_timing(), anchor in any::<u32>(), granted in millis(),
    ) {
        let anchor = Moment::ORIGIN + ms(anchor.into());
        let deadline = Anchor::before_sending(anchor).plus(timing.lead_limit(ms(granted)));
        let granted = ms(granted);
        prop_assert!(deadline <= anchor + granted.saturating_sub(margin(granted)));
        prop_assert!(deadline <= anchor + timing.lease().saturating_sub(margin(timing.lease())));
    }

    #[test]
    fn attempts_fit_into_the_time_that_they_are_for(timing in good_timing()) {
        let renew = timing.renew_interval();
        prop_assert!(timing.campaign_limit() <= renew);
        prop_assert!(timing.release_limit() * 3 <= renew);
        let two = timing.retried_renewal_limit() * 2;
        prop_assert!(renew + two <= timing.lead_limit(timing.lease()));
        prop_assert!(!timing.retried_renewal_limit().is_zero());
        prop_assert!(timing.lead_limit(timing.lease()) <= timing.overrun_after(timing.lease()));
        prop_assert!(timing.drift_allowed() > 0.0);
    }

    /// Whatever the numbers, and whatever the store grants.
    #[test]
    fn who_is_ended_hears_of_it_before_and_is_ended_before_the_lease(
        timing in good_timing(), told in any::<bool>(), granted in millis(),
    ) {
        let timing = if told { Timing::told(timing.lease()) } else { timing };
        if let Ok(timing) = timing.with_time_to_end(None) {
            for timing in [timing, timing.told_anew(ms(granted))] {
                for lease in [timing.lease(), timing.lease().min(ms(granted))] {
                    let (hears, ended) = (timing.lead_limit(lease), timing.overrun_after(lease));
                    prop_assert!(ended == Duration::ZERO || hears < ended, "{hears:?} {ended:?}");
                    prop_assert!(ended < lease || lease.is_zero(), "{ended:?} {lease:?}");
                }
            }
        }
    }

    #[test]
    fn attempts_for_a_told_lease_fit_into_it_and_it_keeps_its_margin(
        lease in 100_u64..=24 * 3_600_000, granted in millis(),
    ) {
        let lease = ms(lease);
        let timing = Timing::told(lease);
        let margin = |lease: Duration| margin(lease).min(lease / 10);
        let limit = timing.lead_limit(ms(granted));
        prop_assert!(limit <= lease.saturating_sub(margin(lease)));
        prop_assert!(limit <= ms(granted).saturating_sub(margin(ms(granted))));
        prop_assert!(limit <= timing.overrun_after(ms(granted)));
        // When the latest renewal was lost, there is time for another one.
        let latest = timing.next_renewal(Jitter::from_bits(u16::MAX));
        prop_assert!(latest + timing.keeping_limit() * 3 / 2 <= lease);
        prop_assert!(timing.release_limit() * 3 <= timing.renew_interval());
    }

    #[test]
    fn waits_grow_with_failures_and_never_exceed_the_interval(
        timing in good_timing(), failures in 1..u32::MAX, jitter in any::<u16>(),
        remaining in prop::option::of(millis()),
    ) {
        let renew = timing.renew_interval();
        prop_assert!(timing.retry_after(failures) <= renew);
        prop_assert!(timing.retry_after(failures) >= timing.shortest_gap());
        prop_assert!(timing.retry_after(failures) >= timing.retry_after(failures - 1));
        let remaining = remaining.map(ms);
        let jitter = Jitter::from_bits(jitter);
        prop_assert!(timing.next_look(remaining, jitter) <= timing.longest_pause());
        if let Some(remaining) = remaining {
            let at_expiry = timing.at_expiry(remaining, jitter);
            prop_assert!(at_expiry >= remaining);
            prop_assert!(at_expiry <= (remaining + ms(50)).max(timing.shortest_gap()));
        }
    }
}

// ---- the machine ----

/// What happens to a candidate. Answers are to the last request but `older`.
#[derive(Debug, Clone)]
enum Happening {
    Tick,
    TickAtWake,
    Granted {
        older: usize,
        valid_for: u64,
    },
    Denied {
        older: usize,
        remaining: Option<u64>,
        named: bool,
    },
    Failed {
        older: usize,
    },
    Hint(u8, u64),
    CallbacksEnded(u64),
    StepDown(u64),
    LoopStalled,
    LoopTurning,
    Stop,
}

fn happening() -> impl Strategy<Value = Happening> {
    let older = || prop_oneof![4 => Just(0_usize), 1 => 1..3_usize];
    prop_oneof![
        2 => Just(Happening::Tick),
        6 => Just(Happening::TickAtWake),
        6 => (older(), prop_oneof![Just(15_000), 0..20_000_u64])
            .prop_map(|(older, valid_for)| Happening::Granted { older, valid_for }),
        3 => (older(), prop::option::of(0..20_000_u64), any::<bool>())
            .prop_map(|(older, remaining, named)| Happening::Denied { older, remaining, named }),
        3 => older().prop_map(|older| Happening::Failed { older }),
        2 => (any::<u8>(), 0..70_000_u64).prop_map(|(kind, of)| Happening::Hint(kind, of)),
        1 => (1..20_u64).prop_map(Happening::CallbacksEnded),
        1 => (0..20_000_u64).prop_map(Happening::StepDown),
        1 => Just(Happening::LoopStalled),
        1 => Just(Happening::LoopTurning),
        1 => Just(Happening::Stop),
    ]
}

/// The machine, and what it may trust at most.
struct Trial {
    candidate: Candidate,
    takes_part: bool,
    now: Moment,
    sent: Vec<(Request, Moment)>,
    granted: u64,
    trusted_until: Moment,
    led: Option<Token>,
    stopped: bool,
}

const LEASE: Duration = ms(15_000);
const TRUST: Duration = ms(10_000);

impl Trial {
    fn new(on_renew_error: OnRenewError, takes_part: bool, stop_timeout: Duration) -> Self {
        let rules = Rules {
            timing: Timing::new(LEASE, ms(5_000), None).expect("the defaults"),
            on_renew_error,
            takes_part,
            stop_timeout,
            jitter_seed: 7,
        };
        let now = Moment::ORIGIN + ms(1_000);
        Self {
            candidate: Candidate::new(owner(1), rules, now),
            takes_part,
            now,
            sent: Vec::new(),
            granted: 0,
            trusted_until: Moment::ORIGIN,
            led: None,
            stopped: false,
        }
    }

    fn happens(&mut self, happening: &Happening) -> Result<(), TestCaseError> {
        if matches!(happening, Happening::TickAtWake) && self.candidate.wake_at() < Moment::NEVER {
            self.now = self.candidate.wake_at();
        }
        let Some(input) = self.input(happening) else {
            return Ok(());
        };
        let mut outputs = Vec::new();
        self.candidate.handle(self.now, input, &mut outputs);
        for output in outputs {
            self.note(&output)?;
        }
        prop_assert!(self.candidate.wake_at() > self.now, "a hot loop");
        let leads = self.candidate.leads_until();
        prop_assert_eq!(leads.map(|(token, _)| token), self.led);
        if let Some((_, deadline)) = leads {
            prop_assert!(
                deadline <= self.trusted_until,
                "trusts more than any grant gave"
            );
            prop_assert!(self.now < deadline, "leads after its deadline");
        }
        Ok(())
    }

    fn input(&mut self, happening: &Happening) -> Option<Input> {
        Some(match happening {
            Happening::Tick | Happening::TickAtWake => Input::Tick,
            Happening::Granted { older, valid_for } => {
                let (request, sent) = self.request(*older)?;
                let trust = TRUST.min(ms(*valid_for).saturating_sub(margin(ms(*valid_for))));
                let token = match request.op {
                    Op::Campaign => {
                        self.granted += 1;
                        Token::new(self.granted)?
                    }
                    Op::Renew(token) => token,
                    Op::Release(_) => return Some(answered(&request, Answer::Released(true))),
                    Op::Peek => return Some(answered(&request, Answer::Seen(None))),
                };
                self.trusted_until = self.trusted_until.max(sent + trust);
                let valid_for = ms(*valid_for);
                let held = Outcome::Held { token, valid_for };
                answered(&request, Answer::Attempt(held))
            }
            Happening::Denied {
                older,
                remaining,
                named,
            } => {
                let (request, _) = self.request(*older)?;
                let token = Token::new(self.granted.max(1))?;
                let leader = named.then(|| Leader {
                    owner: owner(2),
                    token,
                });
                let remaining = remaining.map(ms);
                let denied = match request.op {
                    Op::Campaign | Op::Renew(_) => {
                        Answer::Attempt(Outcome::Other { leader, remaining })
                    }
                    Op::Release(_) => Answer::Released(false),
                    Op::Peek => Answer::Seen(leader),
                };
                answered(&request, denied)
            }
            Happening::Failed { older } => {
                let (request, _) = self.request(*older)?;
                answered(&request, Answer::Failed(FailureKind::Ambiguous))
            }
            Happening::Hint(kind, of) => Input::Hint(match kind % 4 {
                0 => Hint::Watching,
                1 => Hint::Blind,
                2 => Hint::Free,
                _ => Hint::Alive {
                    token: Token::new(of % 8 + 1)?,
                    valid_for: ms(*of),
                },
            }),
            Happening::CallbacksEnded(token) => Input::CallbacksEnded(Token::new(*token)?),
            Happening::StepDown(pause) => Input::StepDown { pause: ms(*pause) },
            Happening::LoopStalled => Input::LoopStalled,
            Happening::LoopTurning => Input::LoopTurning,
            Happening::Stop => Input::Stop,
        })
    }

    fn request(&self, older: usize) -> Option<(Request, Moment)> {
        let index = self.sent.len().checked_sub(older + 1)?;
        self.sent.get(index).copied()
    }

    fn note(&mut self, output: &Output) -> Result<(), TestCaseError> {
        if self.stopped {
            prop_assert!(
                matches!(output, Output::Overrun { .. }),
                "{output:?} after Stopped"
            );
        }
        match output {
            Output::Send(request) => {
                prop_assert!(self.sent.iter().all(|(sent, _)| sent.id < request.id));
                prop_assert!(!request.limit.is_zero());
                self.sent.push((*request, self.now));
            }
            Output::Promoted { token } => {
                prop_assert_eq!(self.led.replace(*token), None);
                prop_assert!(self.takes_part);
            }
            Output::Demoted { token, .. } => prop_assert_eq!(self.led.take(), Some(*token)),
            Output::Stopped => self.stopped = true,
            _ => {}
        }
        Ok(())
    }
}

fn owner(nonce: u64) -> Owner {
    Owner {
        instance: InstanceId::new("i").expect("a good name"),
        nonce,
    }
}

fn answered(request: &Request, answer: Answer) -> Input {
    let request = request.id;
    Input::Answer { request, answer }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_096, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_candidate_trusts_only_what_was_granted_and_only_from_its_send(
        retry in any::<bool>(),
        takes_part in prop::bool::weighted(0.9),
        stop_timeout in prop_oneof![Just(0), 0..30_000_u64],
        happenings in prop::collection::vec((0..6_000_u64, happening()), 1..80),
    ) {
        let policy = if retry { OnRenewError::Retry } else { OnRenewError::StepDown };
        let mut trial = Trial::new(policy, takes_part, ms(stop_timeout));
        for (later, happening) in &happenings {
            trial.now = trial.now + ms(later.saturating_sub(3_000));
            trial.happens(happening)?;
        }
    }
}

// ---- names ----

proptest! {
    #[test]
    fn a_name_is_accepted_exactly_by_its_rules(name in "\\PC{0,20}|[ a-z\\x00-\\x1f]{0,6}|a{250,256}|é{120,130}") {
        let good = !name.is_empty()
            && name.len() <= NAME_LIMIT
            && !name.chars().any(char::is_control)
            && name.trim() == name;
        prop_assert_eq!(ElectionName::new(&name).is_ok(), good);
        match InstanceId::new(&name) {
            Ok(id) => prop_assert_eq!(id.as_str(), &name),
            Err(refused) => prop_assert!(!good && !refused.0.is_empty()),
        }
    }
}
