//! KRNs, `krn:<kind>:<name>`: what resources are called, and who competes for them.

use std::fmt;

/// What one looks like, as words that follow "must".
pub(super) const RULE: &str = "be a resource name like krn:app:my-app: krn, a kind of letters, digits, - and _, and a name without spaces, between colons";

pub(super) fn is_krn(text: &str) -> bool {
    let Some((kind, name)) = text
        .strip_prefix("krn:")
        .and_then(|rest| rest.split_once(':'))
    else {
        return false;
    };
    let is_kind = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_name = |c: char| !c.is_whitespace() && !c.is_control();
    !kind.is_empty() && kind.bytes().all(is_kind) && !name.is_empty() && name.chars().all(is_name)
}

/// Who a workload of the platform is: `krn:wl:<cluster>/<workload>`
#[derive(Debug)]
pub struct Identity<'a> {
    pub cluster: &'a str,
    pub workload: &'a str,
}

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "krn:wl:{}/{}", self.cluster, self.workload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_krn_has_three_parts() {
        for good in [
            "krn:app:my-app",
            "krn:wl:cluster/workload",
            "krn:ad:pump-1/flow:x",
            "krn:job:ü",
            "krn:batch_job-2:x",
        ] {
            assert!(is_krn(good), "{good}");
        }
        for bad in [
            "",
            "krn",
            "krn:",
            "krn:app",
            "krn:app:",
            "krn::x",
            "app:x:y",
            "KRN:app:x",
            "krn:a p:x",
            "krn:app:a b",
            " krn:app:x",
        ] {
            assert!(!is_krn(bad), "{bad}");
        }
    }
}
