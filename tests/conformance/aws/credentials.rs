//! Who signs: from every place where AWS's programs look for keys. What they find is what the environment of a
//! process says, so each case is a process of its own: this very program, asked to elect once.

use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::process::Command;

use super::ask;
use super::s3::Prefix;
use super::web::{Asked, Reply, Web};
use crate::suite::{Client, LONG, held, name, open, owner};
use crate::support::{Server, TempDir};

const URL: &str = "WHENLEADER_TEST_URL";
const PAUSE: &str = "WHENLEADER_TEST_PAUSE";
const DONE: &str = "it led";

/// Not a test: what the processes of the tests below do.
#[tokio::test]
#[ignore = "for the tests of credentials, each in a process of its own"]
async fn one_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let backend = open(&url);
    if let Err(error) = backend.prepare().await {
        println!("{}: {error}", error.code);
        return;
    }
    let owner = owner("child");
    let client = Client { backend, owner };
    let election = name("child");
    let token = client.win(&election, LONG).await;
    if let Ok(millis) = std::env::var(PAUSE) {
        tokio::time::sleep(Duration::from_millis(millis.parse().unwrap())).await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }
    assert!(client.release(&election, token).await);
    println!("{DONE}");
}

/// What such a process says, and how long it took.
async fn elect(url: &str, vars: &[(&str, &str)]) -> (String, Duration) {
    let start = Instant::now();
    let told = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "aws::credentials::one_process",
            "--ignored",
            "--nocapture",
        ])
        .env_clear()
        // Nobody's files, and nobody's machine.
        .env("HOME", "/nowhere")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env(URL, url)
        .envs(vars.iter().copied())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let text = [told.stdout, told.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), start.elapsed())
}

/// Without keys.
fn plain(store: &Prefix, port: u16) -> String {
    format!(
        "s3://{}?region=us-east-1&endpoint=http://127.0.0.1:{port}",
        store.place()
    )
}

/// The server, for whoever comes with these keys that somebody else gave; only that is looked at here, and what
/// the server is asked is signed anew.
async fn gate(
    server: &'static Server,
    given: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static,
) -> Web {
    Web::answering(move |asked| {
        let refused = given(&asked);
        Box::pin(async move {
            if refused.is_some() {
                return refused;
            }
            let kept = ["if-none-match", "if-match", "content-type"];
            let headers: Vec<_> = kept
                .iter()
                .filter_map(|name| Some((*name, asked.header(name)?)))
                .collect();
            let method = asked.method.parse().unwrap();
            let said = ask(
                "s3",
                server,
                method,
                &asked.path,
                &headers,
                asked.body.clone(),
            )
            .await;
            let mut reply = Reply::new(said.status, said.body);
            if let Some(etag) = said.headers.get("etag") {
                reply = reply.with("etag", etag.to_str().unwrap());
            }
            Some(reply)
        })
    })
    .await
}

/// Refuses all but those who come with this key and this token.
fn only(key: &'static str, token: &'static str) -> impl Fn(&Asked) -> Option<Reply> + Send + Sync {
    move |asked| {
        let signed = asked.header("authorization").unwrap_or_default();
        let is_known = signed.contains(&format!("Credential={key}/"));
        let has_token = asked.header("x-amz-security-token") == Some(token);
        (!is_known || !has_token).then(|| Reply::xml(403, "InvalidAccessKeyId", ""))
    }
}

fn in_an_hour() -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    jiff::Timestamp::from_second(time.as_second())
        .unwrap()
        .to_string()
}

/// As containers and machines are given keys.
fn given(key: &str, token: &str) -> String {
    serde_json::json!({
        "Code": "Success",
        "AccessKeyId": key,
        "SecretAccessKey": "a secret",
        "Token": token,
        "Expiration": in_an_hour(),
    })
    .to_string()
}

/// As STS gives a role.
fn taken(action: &str, key: &str, token: &str) -> String {
    format!(
        "<{action}Response><{action}Result><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>{token}</SessionToken><Expiration>{}</Expiration></Credentials></{action}Result></{action}Response>",
        in_an_hour()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_found_in_the_environment() {
    let Some(store) = Prefix::new("credentials: environment") else {
        return;
    };
    let keys = [
        ("AWS_ACCESS_KEY_ID", store.server.told("/accessKey")),
        ("AWS_SECRET_ACCESS_KEY", store.server.told("/secretKey")),
    ];
    let (said, _) = elect(&plain(&store, store.server.port), &keys).await;
    assert!(said.contains(DONE), "{said}");
    let (said, _) = elect(&plain(&store, store.server.port), &keys[..1]).await;
    assert!(said.contains("only one is set"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_endpoint_and_the_region_are_found_in_the_environment() {
    let Some(store) = Prefix::new("credentials: endpoint") else {
        return;
    };
    let vars = [
        ("AWS_ACCESS_KEY_ID", store.server.told("/accessKey")),
        ("AWS_SECRET_ACCESS_KEY", store.server.told("/secretKey")),
        ("AWS_ENDPOINT_URL_S3", store.server.url()),
        ("AWS_REGION", "us-east-1"),
    ];
    let url = format!("s3://{}", store.place());
    let (said, _) = elect(&url, &vars).await;
    assert!(said.contains(DONE), "{said}");
    let (said, _) = elect(&url, &vars[..2]).await;
    assert!(said.contains("?region="), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_found_in_the_shared_files_by_profile() {
    let Some(store) = Prefix::new("credentials: files") else {
        return;
    };
    let home = TempDir::new();
    let (key, secret) = (
        store.server.told("/accessKey"),
        store.server.told("/secretKey"),
    );
    let aws = home.path().join(".aws");
    fs::create_dir(&aws).unwrap();
    let mut keys = String::new();
    for profile in ["default", "team"] {
        write!(
            keys,
            "[{profile}]\naws_access_key_id = {key}\naws_secret_access_key={secret}\n"
        )
        .unwrap();
    }
    fs::write(aws.join("credentials"), &keys).unwrap();
    let config = format!(
        "[default]\nregion = us-east-1\n[profile other]\naws_access_key_id={key}\naws_secret_access_key={secret}\n[profile people]\nsso_session = x\n"
    );
    fs::write(aws.join("config"), config).unwrap();
    let url = plain(&store, store.server.port);
    let folder = home.path().to_str().unwrap();
    let elsewhere = aws.join("credentials");
    let elsewhere = elsewhere.to_str().unwrap();
    for (vars, words) in [
        (&[("HOME", folder)][..], DONE),
        (&[("HOME", folder), ("AWS_PROFILE", "team")], DONE),
        (&[("HOME", folder), ("AWS_PROFILE", "other")], DONE),
        (&[("AWS_SHARED_CREDENTIALS_FILE", elsewhere)], DONE),
        (
            &[("HOME", folder), ("AWS_PROFILE", "nobody")],
            "no AWS profile nobody",
        ),
        (
            &[("HOME", folder), ("AWS_PROFILE", "people")],
            "export-credentials",
        ),
        (&[], "no AWS credentials"),
    ] {
        let (said, _) = elect(&url, vars).await;
        assert!(said.contains(words), "{vars:?}: {said}");
        assert!(!said.contains(secret), "{vars:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_given_keys_and_shows_its_token_for_them() {
    let Some(store) = Prefix::new("credentials: container") else {
        return;
    };
    let gate = gate(store.server, only("CONTAINER", "session")).await;
    let agent = Web::answering(|asked| {
        Box::pin(async move {
            let known =
                asked.header("authorization") == Some("a token") && asked.path == "/v1/credentials";
            Some(if known {
                Reply::new(200, given("CONTAINER", "session"))
            } else {
                Reply::new(401, "who are you?")
            })
        })
    })
    .await;
    let home = TempDir::new();
    let file = home.path().join("token");
    fs::write(&file, "a token\n").unwrap();
    let url = plain(&store, gate.port);
    let full = format!("http://127.0.0.1:{}/v1/credentials", agent.port);
    let full = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*full);
    let file = (
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        file.to_str().unwrap(),
    );
    let (said, _) = elect(&url, &[full, file]).await;
    assert!(said.contains(DONE), "{said}");
    let (said, _) = elect(
        &url,
        &[full, ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "a token")],
    )
    .await;
    assert!(said.contains(DONE), "{said}");
    let (said, _) = elect(&url, &[full]).await;
    assert!(
        said.contains("the role of this container cannot be had"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_given_keys_after_it_asked_for_a_token() {
    let Some(store) = Prefix::new("credentials: machine") else {
        return;
    };
    let gate = gate(store.server, only("MACHINE", "session")).await;
    let service = Web::answering(|asked| {
        Box::pin(async move {
            let known = asked.header("x-aws-ec2-metadata-token") == Some("imds");
            Some(match (&*asked.method, &*asked.path) {
                ("PUT", "/latest/api/token") => Reply::new(200, "imds"),
                ("GET", "/latest/meta-data/iam/security-credentials/") if known => {
                    Reply::new(200, "the-role")
                }
                ("GET", "/latest/meta-data/iam/security-credentials/the-role") if known => {
                    Reply::new(200, given("MACHINE", "session"))
                }
                _ => Reply::new(401, ""),
            })
        })
    })
    .await;
    let at = format!("http://127.0.0.1:{}", service.port);
    let vars = [
        ("AWS_EC2_METADATA_DISABLED", "false"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*at),
    ];
    let (said, _) = elect(&plain(&store, gate.port), &vars).await;
    assert!(said.contains(DONE), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_gives_nothing_is_not_waited_for() {
    let Some(store) = Prefix::new("credentials: silence") else {
        return;
    };
    // It takes connections, and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}", silent.local_addr().unwrap());
    let vars = [
        ("AWS_EC2_METADATA_DISABLED", "false"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*at),
    ];
    let (said, took) = elect(&plain(&store, store.server.port), &vars).await;
    assert!(
        said.contains("no AWS credentials: set AWS_ACCESS_KEY_ID"),
        "{said}"
    );
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_identity_takes_its_role_and_one_that_is_refused_becomes_nobody_else() {
    let Some(store) = Prefix::new("credentials: web identity") else {
        return;
    };
    let gate = gate(store.server, only("ROLEROLEROLEROLE", "session")).await;
    let sts = Web::answering(|asked| {
        Box::pin(async move {
            let form = asked.text();
            let known = form.contains("WebIdentityToken=a.web.token")
                && form.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Felector")
                && form.contains("RoleSessionName=whenleader");
            Some(if known {
                Reply::new(200, taken("AssumeRoleWithWebIdentity", "ROLEROLEROLEROLE", "session"))
            } else {
                Reply::new(
                    403,
                    "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>",
                )
            })
        })
    })
    .await;
    let home = TempDir::new();
    let file = home.path().join("token");
    fs::write(&file, "a.web.token\n").unwrap();
    let url = plain(&store, gate.port);
    let at = format!("http://127.0.0.1:{}", sts.port);
    let at = ("AWS_ENDPOINT_URL_STS", &*at);
    let file = ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap());
    let right = ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/elector");
    let (said, _) = elect(&url, &[at, file, right]).await;
    assert!(said.contains(DONE), "{said}");
    let wrong = ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/other");
    // The node would give keys of its own, and they are not asked for.
    let node = Web::saying(Reply::new(200, "keys")).await;
    let node_at = format!("http://127.0.0.1:{}", node.port);
    let more = [
        at,
        file,
        wrong,
        ("AWS_EC2_METADATA_DISABLED", "false"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &node_at),
    ];
    let (said, _) = elect(&url, &more).await;
    assert!(
        said.contains("web identity cannot be had") && said.contains("not you"),
        "{said}"
    );
    assert!(!said.contains("a.web.token"), "{said}");
    assert!(node.asked().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_profile_takes_the_role_that_it_names_with_the_keys_of_another() {
    let Some(store) = Prefix::new("credentials: role") else {
        return;
    };
    let gate = gate(store.server, only("ROLEROLEROLEROLE", "session")).await;
    let sts = Web::answering(|asked| {
        Box::pin(async move {
            let signed = asked.header("authorization").unwrap_or_default();
            let known = signed.contains("Credential=BASE/") && signed.contains("/us-east-1/sts/");
            let form = format!("{}{}", asked.path, asked.text());
            let right = form.contains("Action=AssumeRole") && form.contains("ExternalId=outside");
            Some(if known && right {
                Reply::new(200, taken("AssumeRole", "ROLEROLEROLEROLE", "session"))
            } else {
                Reply::new(403, format!("{form} {signed}"))
            })
        })
    })
    .await;
    let home = TempDir::new();
    let file = home.path().join("config");
    let role = "role_arn = arn:aws:iam::123456789012:role/elector\nexternal_id = outside";
    let text = format!(
        "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = s\n[profile elector]\n{role}\nsource_profile = base\n[profile lost]\n{role}\n[profile a]\n{role}\nsource_profile = b\n[profile b]\n{role}\nsource_profile = a\n"
    );
    fs::write(&file, text).unwrap();
    let at = format!("http://127.0.0.1:{}", sts.port);
    for (profile, words) in [
        ("elector", DONE),
        ("lost", "it needs a source_profile"),
        ("a", "a row that does not end"),
    ] {
        let vars = [
            ("AWS_ENDPOINT_URL_STS", &*at),
            ("AWS_CONFIG_FILE", file.to_str().unwrap()),
            ("AWS_PROFILE", profile),
        ];
        let (said, _) = elect(&plain(&store, gate.port), &vars).await;
        assert!(said.contains(words), "{profile}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_expired_early_are_replaced_within_the_attempt() {
    let Some(store) = Prefix::new("credentials: expired") else {
        return;
    };
    let asked_for = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked_for);
    let agent = Web::answering(move |_| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Some(Reply::new(200, given(&format!("KEY{number}"), "session"))) })
    })
    .await;
    let begun = Instant::now();
    // The first keys are good for a moment only, whatever was said of them.
    let gate = gate(store.server, move |asked| {
        let signed = asked.header("authorization").unwrap_or_default();
        let old = signed.contains("Credential=KEY0/") && begun.elapsed() > Duration::from_secs(6);
        old.then(|| Reply::xml(403, "ExpiredToken", ""))
    })
    .await;
    let full = format!("http://127.0.0.1:{}/", agent.port);
    let vars = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*full),
        (PAUSE, "7000"),
    ];
    let (said, _) = elect(&plain(&store, gate.port), &vars).await;
    assert!(said.contains(DONE), "{said}");
    assert_eq!(asked_for.load(Ordering::SeqCst), 2);
}
