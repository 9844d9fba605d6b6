//! The leases that candidates of this process were granted, and that may not have ended: whoever leads under this
//! process's identity may be one of its own. A process opens one backend for each session of a `LeaderElection`, so
//! this is the process's and no backend's.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lease::{ElectionName, InstanceId, LONGEST_LEASE, Owner, Token};
use crate::locked::locked;

/// So many leases after the last grant was heard of there is none any more, also if the server adds something to it
/// and the answer to one more renewal was lost.
const LEASES_UNTIL_OVER: u32 = 2;

/// One lease that was granted.
#[derive(Debug, Clone)]
struct Own {
    server: String,
    election: ElectionName,
    owner: Owner,
    token: Token,
    over: Instant,
}

static GRANTED: Mutex<Vec<Own>> = Mutex::new(Vec::new());

/// It was granted, or renewed, for so long.
pub(super) fn granted(
    server: &str,
    election: &ElectionName,
    owner: &Owner,
    token: Token,
    lease: Duration,
) {
    let now = Instant::now();
    let mut all = locked(&GRANTED);
    all.retain(|own| own.over > now && (own.owner != *owner || own.election != *election));
    all.push(Own {
        server: server.to_owned(),
        election: election.clone(),
        owner: owner.clone(),
        token,
        over: now + lease.min(LONGEST_LEASE) * LEASES_UNTIL_OVER,
    });
}

/// Which candidate of this process leads there as that instance, and its token. `told`: the token of the leader that
/// is meant; `None`: the server tells none.
pub(super) fn who_leads(
    server: &str,
    election: &ElectionName,
    instance: &InstanceId,
    told: Option<Token>,
) -> Option<(Owner, Token)> {
    let now = Instant::now();
    let all = locked(&GRANTED);
    let found = all.iter().rev().find(|own| {
        own.over > now
            && own.server == server
            && own.election == *election
            && own.owner.instance == *instance
            && told.is_none_or(|told| told == own.token)
    })?;
    Some((found.owner.clone(), found.token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(5);

    #[test]
    fn a_leader_is_of_this_process_if_its_lease_was_granted_here_and_has_not_ended() {
        let token = |number| Token::new(number).unwrap();
        let election = ElectionName::new("krn:app:own").unwrap();
        let instance = InstanceId::new("me").unwrap();
        let owner = |nonce| Owner {
            instance: instance.clone(),
            nonce,
        };
        let who = |server: &str, told| {
            let (owner, token) = who_leads(server, &election, &instance, told)?;
            Some((owner.nonce, token.number()))
        };
        granted("a", &election, &owner(7), token(1), LEASE);
        granted("a", &election, &owner(7), token(2), LEASE);
        granted("a", &election, &owner(8), token(3), LEASE);
        assert_eq!(who("a", Some(token(2))), Some((7, 2)));
        assert_eq!(who("a", Some(token(3))), Some((8, 3)));
        assert_eq!(who("a", Some(token(1))), None, "an earlier term");
        assert_eq!(who("a", None), Some((8, 3)), "no token is told");
        assert_eq!(who("b", Some(token(3))), None, "another server");
        let other = InstanceId::new("other").unwrap();
        assert_eq!(who_leads("a", &election, &other, Some(token(3))), None);
        granted("a", &election, &owner(8), token(3), Duration::ZERO);
        assert_eq!(who("a", Some(token(3))), None, "its lease has ended");
    }
}
