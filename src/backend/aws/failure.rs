//! What the refusals of AWS's services, and their silence, mean for an election.

use std::time::{Duration, SystemTime};

use http::header::DATE;
use reqsign_core::time::Timestamp;
use serde_json::Value;

use super::REFUSED;
use crate::backend::http::{Answer, Broken, Why, excerpt};
use crate::backend::{BackendError, UNSUITABLE};
use crate::lease::FailureKind::{self, Fatal, Transient};

/// What a service says that it did not do what was asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// The service's own word, such as `AccessDenied`.
    pub code: String,
    message: String,
    /// Where the thing really is.
    region: Option<String>,
}

struct Known {
    /// The beginnings of codes.
    codes: &'static [&'static str],
    kind: FailureKind,
    code: &'static str,
    advice: &'static str,
}

const fn known(
    codes: &'static [&'static str],
    kind: FailureKind,
    code: &'static str,
    advice: &'static str,
) -> Known {
    Known {
        codes,
        kind,
        code,
        advice,
    }
}

/// Stands for what the service says of the rights that it takes.
const RIGHTS: &str = "";

/// What blames the keys: others may do.
const KEYS_EXPIRED: &[&str] = &["ExpiredToken", "TokenRefreshRequired", "RequestExpired"];
const KEYS_WRONG: &[&str] = &[
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignature",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClient",
];

/// The first that fits counts.
const KNOWN: &[Known] = &[
    known(
        KEYS_EXPIRED,
        Fatal,
        REFUSED,
        "The AWS credentials have expired, and where they come from there are no newer ones yet",
    ),
    known(
        KEYS_WRONG,
        Fatal,
        REFUSED,
        "The AWS credentials are not believed: mend the access key or its secret, or take them from another place",
    ),
    known(
        &["MissingAuthenticationToken", "IncompleteSignature"],
        Fatal,
        REFUSED,
        "The service understands signatures otherwise, or something on the way changed the request",
    ),
    known(
        &[
            "AccessDenied",
            "AllAccessDisabled",
            "Unauthorized",
            "NotAuthorized",
        ],
        Fatal,
        REFUSED,
        RIGHTS,
    ),
    known(
        &["KMS", "KeyDisabled", "InaccessibleEncryptionKey"],
        Fatal,
        REFUSED,
        "The key that encrypts it cannot be used: its policy must let this process kms:GenerateDataKey and kms:Decrypt",
    ),
    known(
        &[
            "SlowDown",
            "Throttl",
            "ProvisionedThroughputExceeded",
            "RequestLimitExceeded",
            "TooManyRequests",
            "BandwidthLimitExceeded",
        ],
        Transient,
        "throttled",
        "It was asked too often, perhaps by others",
    ),
    known(
        &["NotImplemented", "MethodNotAllowed", "UnknownOperation"],
        Fatal,
        UNSUITABLE,
        "The server does not know how to write on a condition, and no election can be held there",
    ),
    known(
        &[
            "KeyTooLong",
            "InvalidURI",
            "InvalidBucketName",
            "InvalidObjectName",
            "XMinioInvalidObjectName",
        ],
        Fatal,
        UNSUITABLE,
        "It cannot hold that name",
    ),
    known(
        &[
            "QuotaExceeded",
            "StorageFull",
            "XMinioStorageFull",
            "InsufficientStorage",
            "EntityTooLarge",
        ],
        Transient,
        "full",
        "It has no room left",
    ),
    known(
        &[
            "TransactionConflict",
            "ReplicatedWriteConflict",
            "ConditionalRequestConflict",
            "OperationAborted",
        ],
        Transient,
        "conflict",
        "Somebody else wrote at the same time",
    ),
];

impl Said {
    fn is_one_of(&self, codes: &[&str]) -> bool {
        codes.iter().any(|code| self.code.starts_with(code))
    }

    /// Whether other keys might do.
    pub fn blames_keys(&self) -> bool {
        (self.is_one_of(KEYS_EXPIRED) || self.is_one_of(KEYS_WRONG)) && !self.blames_clock()
    }

    /// Some services know no word of its own for it.
    fn blames_clock(&self) -> bool {
        let words = ["Signature expired", "Signature not yet current"];
        self.code == "RequestTimeTooSkewed"
            || words.iter().any(|words| self.message.starts_with(words))
    }

    /// In one line.
    pub fn shown(&self, status: u16) -> String {
        let message = excerpt(&self.message);
        let message = message.trim_end_matches('.');
        if self.code.is_empty() {
            format!("{status} {message}")
        } else {
            format!("{}: {message}", self.code)
        }
    }
}

/// Services speak JSON or XML.
pub(super) fn said(answer: &Answer) -> Said {
    let mut said = Said {
        region: answer
            .headers
            .get("x-amz-bucket-region")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned),
        ..Said::default()
    };
    let text = String::from_utf8_lossy(&answer.body);
    if let Ok(value) = serde_json::from_slice::<Value>(&answer.body) {
        let kind = value["__type"].as_str().unwrap_or_default();
        kind.rsplit('#')
            .next()
            .unwrap_or_default()
            .clone_into(&mut said.code);
        let message = value["message"].as_str().or(value["Message"].as_str());
        message.unwrap_or_default().clone_into(&mut said.message);
    } else if let Some(code) = element(&text, "Code") {
        said.code = code;
        said.message = element(&text, "Message").unwrap_or_default();
        said.region = element(&text, "Region").or(said.region);
    } else {
        said.message = text.into_owned();
    }
    said
}

/// The text of the first element of that name.
fn element(xml: &str, name: &str) -> Option<String> {
    let (_, behind) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = behind.split_once(&format!("</{name}>"))?;
    let mut text = text.trim().to_owned();
    for (entity, character) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&apos;", "'"),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ] {
        text = text.replace(entity, character);
    }
    Some(text)
}

/// What was asked, for whoever reads that it was refused.
pub(super) struct About<'a> {
    /// The place, such as `S3 bucket b in eu-central-1`.
    pub place: &'a str,
    pub region: &'a str,
    /// What to do where rights are missing.
    pub rights: &'a dyn Fn() -> String,
    pub writes: bool,
}

/// What an answer means that is neither the wanted one nor one that its service understands.
pub(super) fn failure(answer: &Answer, about: &About<'_>) -> BackendError {
    meaning(answer, about).doubted(about.writes && answer.asked_before)
}

fn meaning(answer: &Answer, about: &About<'_>) -> BackendError {
    let said = said(answer);
    let place = about.place;
    let shown = said.shown(answer.status);
    let unsure = |code, message| {
        if about.writes {
            BackendError::ambiguous(code, message)
        } else {
            BackendError::transient(code, message)
        }
    };
    if said.blames_clock() {
        return BackendError::transient(
            "clock",
            format!("{place} refused: {shown}. {}", clocks(answer)),
        );
    }
    // A redirect, or a signature for the wrong region.
    if let Some(region) = said
        .region
        .as_deref()
        .filter(|region| *region != about.region)
        && (matches!(answer.status, 301 | 302 | 307 | 308) || answer.status == 400)
    {
        return BackendError::fatal(
            "wrong-region",
            format!(
                "{place} is in {region}, and was looked for in {}: write ?region={region} into the URL",
                about.region
            ),
        );
    }
    if let Some(known) = KNOWN.iter().find(|known| said.is_one_of(known.codes)) {
        let advice = match known.advice {
            RIGHTS => (about.rights)(),
            advice => advice.to_owned(),
        };
        let message = format!("{place} refused: {shown}. {advice}");
        return BackendError {
            kind: known.kind,
            code: known.code,
            message,
        };
    }
    match answer.status {
        300..=399 => BackendError::transient(
            "unexpected",
            format!(
                "{place} sends requests elsewhere, and none is followed: {shown}. Name the server itself as ?endpoint"
            ),
        ),
        403 => BackendError::fatal(
            REFUSED,
            format!("{place} refused: {shown}. {}", (about.rights)()),
        ),
        429 => {
            BackendError::transient("throttled", format!("{place} was asked too often: {shown}"))
        }
        // A server that has too much to do says so before it begins.
        503 if said.code == "ServiceUnavailable" || !about.writes => unsure(
            "overloaded",
            format!("{place} is not able to answer now: {shown}"),
        ),
        500..=599 => unsure("store", format!("{place} failed: {shown}")),
        400..=499 => BackendError::transient("store", format!("{place} refused: {shown}")),
        _ => unsure(
            "unexpected",
            format!("{place} gave an answer that makes no sense here: {shown}"),
        ),
    }
}

/// How far the two clocks are apart, for people.
fn clocks(answer: &Answer) -> String {
    let date = answer
        .headers
        .get(DATE)
        .and_then(|value| value.to_str().ok());
    let there = date.and_then(|date| Timestamp::parse_rfc2822(date).ok());
    let Some(there) = there else {
        return "This machine's clock is wrong: set it (by NTP)".into();
    };
    let (here, there) = (SystemTime::now(), there.as_system_time());
    let (apart, word) = match here.duration_since(there) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    if apart < Duration::from_secs(60) {
        return "Requests take minutes to get there, or this machine's clock was just set".into();
    }
    format!(
        "This machine's clock is {} min {word} the server's, and requests that are 15 min off are not believed: set it (by NTP)",
        apart.as_secs() / 60
    )
}

/// What it means that nothing came.
pub(super) fn broken(broken: Broken, writes: bool) -> BackendError {
    let said = broken.message;
    let unsure = |code, message| {
        if writes {
            BackendError::ambiguous(code, message)
        } else {
            BackendError::transient(code, message)
        }
    };
    match broken.why {
        Why::Unreachable => BackendError::transient("unreachable", said),
        Why::Silence => unsure("timeout", said),
        Why::Halfway => unsure("unreachable", said),
        Why::OtherProtocol => BackendError::transient(
            "unreachable",
            format!("{said}. If it speaks no TLS, begin its ?endpoint with http://"),
        ),
        Why::Distrust => BackendError::fatal(
            "certificate",
            format!("{said}. Trust the server's authority with ?ca=<file> in the URL, in PEM"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer {
            status,
            headers: HeaderMap::new(),
            body: body.into(),
            asked_before: false,
        }
    }

    fn fails(answer: &Answer, writes: bool) -> BackendError {
        failure(
            answer,
            &About {
                place: "the place",
                region: "eu-central-1",
                rights: &|| "Give it rights".into(),
                writes,
            },
        )
    }

    #[test]
    fn xml_and_json_say_the_same() {
        let xml = "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>a &lt;b&gt; &amp;amp; c.</Message><Region>x</Region></Error>";
        let from_xml = said(&answer(403, xml));
        assert_eq!(from_xml.code, "AccessDenied");
        assert_eq!(from_xml.message, "a <b> &amp; c.");
        let json = r#"{"__type":"com.amazon.coral.service#AccessDeniedException","Message":"no"}"#;
        let from_json = said(&answer(400, json));
        assert_eq!(from_json.code, "AccessDeniedException");
        for (status, body) in [(403, xml), (400, json)] {
            let error = fails(&answer(status, body), true);
            assert_eq!((error.kind, error.code), (FailureKind::Fatal, "refused"));
            assert!(error.message.contains("Give it rights"), "{error}");
        }
        let page = said(&answer(502, "<html>Bad gateway</html>"));
        assert_eq!(
            (&*page.code, &*page.message),
            ("", "<html>Bad gateway</html>")
        );
    }

    #[test]
    fn only_what_may_have_been_written_is_ambiguous() {
        let throttled = r#"{"__type":"x#ThrottlingException","message":"slow"}"#;
        for (status, body, code, certain) in [
            (
                503,
                "<Error><Code>SlowDown</Code></Error>",
                "throttled",
                true,
            ),
            (400, throttled, "throttled", true),
            (429, "", "throttled", true),
            (
                500,
                "<Error><Code>InternalError</Code></Error>",
                "store",
                false,
            ),
            (
                503,
                "<Error><Code>ServiceUnavailable</Code></Error>",
                "overloaded",
                false,
            ),
            (502, "<html>", "store", false),
            (400, "<Error><Code>Whatever</Code></Error>", "store", true),
            (200, "hello", "unexpected", false),
            (302, "", "unexpected", true),
        ] {
            let read = fails(&answer(status, body), false);
            let written = fails(&answer(status, body), true);
            assert_eq!(
                (read.kind, read.code),
                (FailureKind::Transient, code),
                "{body}"
            );
            let kind = if certain {
                FailureKind::Transient
            } else {
                FailureKind::Ambiguous
            };
            assert_eq!(written.kind, kind, "{status} {body}");
        }
    }

    #[test]
    fn a_refusal_of_a_write_that_was_sent_before_says_nothing_of_the_first_copy() {
        for (status, body, kind) in [
            (
                503,
                "<Error><Code>SlowDown</Code></Error>",
                FailureKind::Ambiguous,
            ),
            (429, "", FailureKind::Ambiguous),
            (302, "", FailureKind::Ambiguous),
            (
                403,
                "<Error><Code>RequestTimeTooSkewed</Code></Error>",
                FailureKind::Ambiguous,
            ),
            (
                403,
                "<Error><Code>AccessDenied</Code></Error>",
                FailureKind::Fatal,
            ),
        ] {
            let mut answer = answer(status, body);
            answer.asked_before = true;
            assert_eq!(fails(&answer, true).kind, kind, "{status} {body}");
            let read = fails(&answer, false).kind;
            assert_ne!(read, FailureKind::Ambiguous, "{status} {body}");
        }
    }

    #[test]
    fn the_right_region_is_named() {
        let malformed = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'eu-central-1' is wrong; expecting 'eu-west-1'</Message><Region>eu-west-1</Region></Error>";
        let mut redirect = answer(301, "");
        let region = HeaderValue::from_static("eu-west-1");
        redirect.headers.insert("x-amz-bucket-region", region);
        for answer in [answer(400, malformed), redirect] {
            let error = fails(&answer, true);
            assert_eq!(
                (error.kind, error.code),
                (FailureKind::Fatal, "wrong-region")
            );
            assert!(error.message.contains("?region=eu-west-1"), "{error}");
        }
    }

    #[test]
    fn a_clock_that_is_wrong_is_told_from_keys_that_are() {
        let date = HeaderValue::from_static("Mon, 30 Nov 2020 00:45:04 GMT");
        for (status, body) in [
            (403, "<Error><Code>RequestTimeTooSkewed</Code></Error>"),
            (
                400,
                r#"{"__type":"x#InvalidSignatureException","message":"Signature expired: 20201130T004504Z is now earlier than 1"}"#,
            ),
        ] {
            let mut answer = answer(status, body);
            assert!(!said(&answer).blames_keys());
            answer.headers.insert(DATE, date.clone());
            let error = fails(&answer, true);
            assert_eq!((error.kind, error.code), (FailureKind::Transient, "clock"));
            assert!(
                error.message.contains("min ahead of the server's"),
                "{error}"
            );
        }
        let wrong = r#"{"__type":"x#InvalidSignatureException","message":"The request signature we calculated does not match"}"#;
        assert!(said(&answer(400, wrong)).blames_keys());
        assert!(said(&answer(403, "<Error><Code>ExpiredToken</Code></Error>")).blames_keys());
    }
}
