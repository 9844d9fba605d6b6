//! S3, on `SeaweedFS`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Method;
use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use super::{Said, ask, encoded, url};
use crate::suite::{Fixture, Networked, open};
use crate::support::{Kind, Server};

/// Made by the launcher.
pub const BUCKET: &str = "elections";

/// A prefix of the test's own.
pub struct Prefix {
    pub server: &'static Server,
    pub prefix: String,
}

impl Prefix {
    pub fn new(test: &str) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let server = Server::shared(test, Kind::S3)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("p{number}");
        Some(Self { server, prefix })
    }

    pub fn place(&self) -> String {
        format!("{BUCKET}/{}", self.prefix)
    }

    pub fn url(&self) -> String {
        self.url_at(self.server.port)
    }

    /// Of an election's object.
    pub fn path(&self, election: &ElectionName) -> String {
        let name = encoded(&format!("cluster:{}", encoded(election.as_str())));
        format!("/{}/{name}", self.place())
    }

    pub async fn ask(&self, method: Method, path: &str, body: &[u8]) -> Said {
        ask("s3", self.server, method, path, &[], body.to_vec()).await
    }
}

impl Fixture for Prefix {
    const RUBBISH_EXPIRES: bool = true;

    async fn start(test: &str) -> Option<Self> {
        Self::new(test)
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&self.url())
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let said = self.ask(Method::PUT, &self.path(election), rubbish).await;
        assert_eq!(said.status, 200, "{}", said.text());
    }

    async fn forget(&self, election: &ElectionName) {
        let said = self.ask(Method::DELETE, &self.path(election), b"").await;
        assert_eq!(said.status, 204, "{}", said.text());
    }

    async fn list(&self) -> Vec<String> {
        let path = format!("/{BUCKET}?list-type=2&prefix={}%2F", self.prefix);
        let said = self.ask(Method::GET, &path, b"").await;
        assert_eq!(said.status, 200, "{}", said.text());
        let text = said.text();
        let keys = text.split("<Key>").skip(1);
        keys.map(|key| key.split("</Key>").next().unwrap().to_owned())
            .collect()
    }
}

impl Networked for Prefix {
    fn port(&self) -> u16 {
        self.server.port
    }

    fn url_at(&self, port: u16) -> String {
        url("s3", self.server, &self.place(), port)
    }
}

mod conforms {
    crate::conformance!(super::Prefix, on a network, without a watch);
}

/// What only this store can get wrong.
mod alone {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use whenleader::lease::FailureKind::{Ambiguous, Fatal, Transient};

    use super::{BUCKET, Prefix, ask};
    use crate::aws::web::{Asked, Reply, Web, forward};
    use crate::aws::{encoded, url};
    use crate::suite::{
        Client, Fixture as _, LONG, Networked as _, SHORT, denied, held, impatient, leading, name,
        open, unprepared,
    };
    use crate::support::{Kind, Proxy, Server, eventually};

    /// A stand-in in front of the server, which changes what it is told to.
    async fn between(
        store: &Prefix,
        change: impl Fn(&Asked, Reply) -> Option<Reply> + Send + Sync + 'static,
    ) -> Web {
        let (port, change) = (store.server.port, Arc::new(change));
        Web::answering(move |asked| {
            let change = Arc::clone(&change);
            Box::pin(async move {
                let reply = forward(port, &asked).await;
                change(&asked, reply)
            })
        })
        .await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_renewal_is_one_write_and_a_look_is_one_read() {
        let Some(store) = Prefix::new("s3: requests") else {
            return;
        };
        let web = between(&store, |_, reply| Some(reply)).await;
        let a = Client::new(&store.url_at(web.port), "a").await;
        let b = Client::new(&store.url_at(web.port), "b").await;
        let prepared = web.asked().len();
        let election = name("leader");
        web.forget();
        let token = a.win(&election, LONG).await;
        let methods =
            |web: &Web| -> Vec<_> { web.asked().into_iter().map(|asked| asked.method).collect() };
        assert_eq!(methods(&web), ["GET", "PUT"]);
        web.forget();
        held(a.renew(&election, LONG, token).await);
        assert_eq!(methods(&web), ["PUT"]);
        web.forget();
        denied(b.campaign(&election, LONG).await);
        assert_eq!(methods(&web), ["GET"]);
        let start = Instant::now();
        for _ in 0..50 {
            held(a.renew(&election, LONG, token).await);
        }
        let each = start.elapsed() / 50;
        println!(
            "FIGURES: S3: {} requests to start, 1 to renew, 1 to look; a renewal took {each:?} through a stand-in",
            prepared / 2
        );
        web.forget();
        assert!(a.release(&election, token).await);
        assert_eq!(methods(&web), ["PUT"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_bucket_that_is_not_there_is_named_with_the_command_that_makes_it() {
        let Some(store) = Prefix::new("s3: no bucket") else {
            return;
        };
        let url = url("s3", store.server, "nowhere", store.server.port);
        let error = open(&url).prepare().await.unwrap_err();
        assert_eq!((error.kind, error.code), (Fatal, "no-bucket"), "{error}");
        assert!(error.message.contains("aws s3 mb s3://nowhere"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn wrong_keys_are_refused_for_good_and_never_shown() {
        let Some(store) = Prefix::new("s3: keys") else {
            return;
        };
        let secret = encoded(store.server.told("/secretKey"));
        for (right, wrong) in [(&*secret, "hunter2"), ("//tests:", "//nobody:")] {
            let backend = open(&store.url().replace(right, wrong));
            let error = backend.prepare().await.unwrap_err();
            assert_eq!((error.kind, error.code), (Fatal, "refused"), "{error}");
            assert!(error.message.contains("not believed"), "{error}");
            for text in [error.message, backend.describe(), format!("{backend:?}")] {
                assert!(
                    !text.contains("hunter2") && !text.contains(store.server.told("/secretKey")),
                    "{text}"
                );
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_right_that_is_missing_is_found_at_start_and_told_with_the_policy() {
        let Some(store) = Prefix::new("s3: rights") else {
            return;
        };
        for (user, missing) in [
            ("reader", "write"),
            ("writer", "read"),
            ("stranger", "read"),
        ] {
            let whole = "//tests:tests%2Fsecret%2Bkey@";
            let url = store.url().replace(whole, &format!("//{user}:{user}@"));
            let error = open(&url).prepare().await.expect_err(missing);
            assert_eq!(
                (error.kind, error.code),
                (Fatal, "refused"),
                "{user}: {error}"
            );
            assert!(error.message.contains("s3:PutObject"), "{user}: {error}");
            let resource = format!("arn:aws:s3:::{}/*", store.place());
            assert!(error.message.contains(&resource), "{user}: {error}");
        }
        let url = store
            .url()
            .replace("//tests:tests%2Fsecret%2Bkey@", "//elector:elector@");
        let a = Client::new(&url, "a").await;
        let token = a.win(&name("leader"), LONG).await;
        assert!(a.release(&name("leader"), token).await);
    }

    /// AWS says so to whoever may read objects, and may not list them.
    fn denying_what_is_absent(reply: Reply) -> Reply {
        if reply.status == 404 {
            Reply::xml(403, "AccessDenied", "")
        } else {
            reply
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_may_not_list_is_told_no_absence_and_elects_all_the_same() {
        let Some(store) = Prefix::new("s3: list") else {
            return;
        };
        let web = between(&store, |_, reply| Some(denying_what_is_absent(reply))).await;
        let a = Client::new(&store.url_at(web.port), "a").await;
        let b = Client::new(&store.url_at(web.port), "b").await;
        let election = name("leader");
        assert_eq!(a.leader(&election).await, None);
        let token = a.win(&election, LONG).await;
        let (leader, _) = denied(b.campaign(&election, LONG).await);
        assert_eq!(leader, Some(leading(&a, token)));
        assert!(a.release(&election, token).await);
        b.win(&election, LONG).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_record_that_is_hidden_all_of_a_sudden_is_an_error_and_no_free_lease() {
        let Some(store) = Prefix::new("s3: hidden") else {
            return;
        };
        let hides = Arc::new(AtomicBool::new(false));
        let hide = Arc::clone(&hides);
        let web = between(&store, move |asked, reply| {
            if asked.method == "GET" && hide.load(Ordering::SeqCst) {
                return Some(Reply::xml(403, "AccessDenied", ""));
            }
            Some(denying_what_is_absent(reply))
        })
        .await;
        let a = Client::new(&store.url(), "a").await;
        let b = Client::new(&store.url_at(web.port), "b").await;
        a.win(&name("leader"), LONG).await;
        hides.store(true, Ordering::SeqCst);
        let error = b.attempt(&name("leader"), LONG, None).await.unwrap_err();
        assert_eq!(error.code, "refused", "{error}");
        assert!(error.message.contains("s3:GetObject"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_ignores_a_condition_is_refused_at_start() {
        let Some(store) = Prefix::new("s3: ignores") else {
            return;
        };
        for (header, words) in [
            ("if-none-match", "does not honour If-None-Match"),
            ("if-match", "does not honour If-Match"),
        ] {
            let server = store.server;
            let web = Web::answering(move |asked| {
                Box::pin(async move {
                    // Signed anew, since the condition is a part of what was signed.
                    let kept = ["if-none-match", "if-match", "content-type"];
                    let headers: Vec<_> = kept
                        .iter()
                        .filter(|name| **name != header)
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
            .await;
            let error = open(&store.url_at(web.port)).prepare().await.unwrap_err();
            assert_eq!((error.kind, error.code), (Fatal, "unsuitable"), "{error}");
            assert!(error.message.contains(words), "{error}");
            assert_eq!(store.list().await, [""; 0], "nothing is left");
        }
    }

    /// Between the store and a server that honours conditions, and calls every content by one name.
    async fn naming_all_alike(store: &Prefix) -> Web {
        const NAME: &str = "\"the same\"";
        let (server, real) = (store.server, Arc::new(Mutex::new(String::new())));
        Web::answering(move |asked| {
            let real = Arc::clone(&real);
            Box::pin(async move {
                let known = real.lock().unwrap().clone();
                let condition = asked.header("if-match");
                let condition = condition.map(|name| if name == NAME { &*known } else { name });
                let mut headers: Vec<_> = condition
                    .map(|name| ("if-match", name))
                    .into_iter()
                    .collect();
                headers.extend(
                    asked
                        .header("if-none-match")
                        .map(|all| ("if-none-match", all)),
                );
                let (method, body) = (asked.method.parse().unwrap(), asked.body.clone());
                let said = ask("s3", server, method, &asked.path, &headers, body).await;
                let mut reply = Reply::new(said.status, said.body);
                if let Some(etag) = said.headers.get("etag") {
                    etag.to_str().unwrap().clone_into(&mut real.lock().unwrap());
                    reply = reply.with("etag", NAME);
                }
                Some(reply)
            })
        })
        .await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_calls_every_content_by_one_name_is_refused_at_start() {
        let Some(store) = Prefix::new("s3: one ETag") else {
            return;
        };
        let web = naming_all_alike(&store).await;
        let error = open(&store.url_at(web.port)).prepare().await.unwrap_err();
        assert_eq!((error.kind, error.code), (Fatal, "unsuitable"), "{error}");
        assert!(error.message.contains("the same ETag"), "{error}");
        assert_eq!(store.list().await, [""; 0], "nothing is left");
    }

    /// The first copy of each write is done, and its answer lost; the second one is refused.
    async fn refusing_what_is_done(store: &Prefix, reply: Reply) -> Web {
        let done = AtomicBool::new(false);
        between(store, move |asked, answer| {
            if asked.method != "PUT" {
                return Some(answer);
            }
            let was_done = done.fetch_xor(true, Ordering::SeqCst);
            was_done.then(|| reply.clone())
        })
        .await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_write_of_which_only_the_second_copy_was_refused_may_have_been_done() {
        let Some(store) = Prefix::new("s3: two copies") else {
            return;
        };
        let election = name("leader");
        let b = Client::new(&store.url(), "b").await;
        let web = refusing_what_is_done(&store, Reply::xml(503, "SlowDown", "")).await;
        let a = unprepared(&store.url_at(web.port));
        let error = a.attempt(&election, LONG, None).await.unwrap_err();
        assert_eq!(
            (error.kind, error.code),
            (Ambiguous, "throttled"),
            "{error}"
        );
        let leader = b.leader(&election).await.expect("the first copy was done");
        assert_eq!(leader.owner, a.owner);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_tried_out_at_start_is_deleted_where_it_may_have_been_written() {
        let Some(store) = Prefix::new("s3: half a probe") else {
            return;
        };
        for reply in [
            Reply::xml(503, "SlowDown", ""),
            Reply::xml(403, "AccessDenied", ""),
            Reply::new(502, ""),
        ] {
            let web = refusing_what_is_done(&store, reply).await;
            let error = open(&store.url_at(web.port)).prepare().await.unwrap_err();
            assert_eq!(store.list().await, [""; 0], "after {error}");
        }
    }

    #[allow(clippy::too_many_lines)] // A table.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_service_refuses_is_told_with_its_cure() {
        let Some(store) = Prefix::new("s3: refusals") else {
            return;
        };
        let lock = "<Message>Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters</Message>";
        for (reply, kind, code, words) in [
            (
                Reply::new(301, "").with("x-amz-bucket-region", "eu-west-1"),
                Fatal,
                "wrong-region",
                "?region=eu-west-1",
            ),
            (
                Reply::new(307, "").with("x-amz-bucket-region", "eu-west-1"),
                Fatal,
                "wrong-region",
                "?region=eu-west-1",
            ),
            (
                Reply::xml(
                    400,
                    "AuthorizationHeaderMalformed",
                    "<Region>eu-west-1</Region>",
                ),
                Fatal,
                "wrong-region",
                "?region=eu-west-1",
            ),
            (
                Reply::new(302, "moved"),
                Transient,
                "unexpected",
                "?endpoint",
            ),
            (
                Reply::xml(400, "InvalidRequest", lock),
                Fatal,
                "unsuitable",
                "Object Lock",
            ),
            (
                Reply::xml(501, "NotImplemented", ""),
                Fatal,
                "unsuitable",
                "on a condition",
            ),
            (
                Reply::xml(503, "SlowDown", ""),
                Transient,
                "throttled",
                "too often",
            ),
            (
                Reply::xml(500, "InternalError", ""),
                Ambiguous,
                "store",
                "InternalError",
            ),
            (Reply::new(502, "<html>"), Ambiguous, "store", "502"),
            (
                Reply::xml(403, "RequestTimeTooSkewed", ""),
                Transient,
                "clock",
                "clock",
            ),
            (
                Reply::xml(403, "ExpiredToken", ""),
                Fatal,
                "refused",
                "expired",
            ),
            (
                Reply::xml(403, "KMS.DisabledException", ""),
                Fatal,
                "refused",
                "kms:Decrypt",
            ),
            (
                Reply::xml(507, "InsufficientStorage", ""),
                Transient,
                "full",
                "no room",
            ),
        ] {
            let port = store.server.port;
            let web = Web::answering(move |asked| {
                let reply = reply.clone();
                Box::pin(async move {
                    let refuses = asked.path.contains("cluster") && asked.method == "PUT";
                    Some(if refuses {
                        reply
                    } else {
                        forward(port, &asked).await
                    })
                })
            })
            .await;
            let client = Client::new(&store.url_at(web.port), "a").await;
            let attempt = client.attempt(&name("leader"), LONG, None).await;
            let error = attempt.expect_err(words);
            assert_eq!((error.kind, error.code), (kind, code), "{error}");
            assert!(error.message.contains(words), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_no_s3_is_never_an_empty_bucket() {
        for reply in [
            Reply::new(404, "not found"),
            Reply::new(200, "<html>hello</html>"),
            Reply::new(204, ""),
            Reply::new(400, "what?"),
        ] {
            let web = Web::saying(reply).await;
            let url = format!("s3://k:s@{BUCKET}?endpoint=http://127.0.0.1:{}", web.port);
            let backend = open(&url);
            backend.prepare().await.expect_err("no S3");
            let election = name("leader");
            backend.peek(&election).await.expect_err("no S3");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_write_whose_answer_got_lost_knows_itself_when_it_is_sent_again() {
        let Some(store) = Prefix::new("s3: lost answers") else {
            return;
        };
        let losses = Arc::new(AtomicUsize::new(0));
        let losing = Arc::clone(&losses);
        let web = between(&store, move |asked, reply| {
            let take = |left: usize| left.checked_sub(1);
            let lost = asked.method == "PUT"
                && losing
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                    .is_ok();
            (!lost).then_some(reply)
        })
        .await;
        let a = Client::new(&store.url_at(web.port), "a").await;
        let b = Client::new(&store.url(), "b").await;
        let election = name("leader");
        losses.store(1, Ordering::SeqCst);
        let token = a.win(&election, LONG).await;
        assert_eq!(b.leader(&election).await, Some(leading(&a, token)));
        losses.store(1, Ordering::SeqCst);
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        losses.store(1, Ordering::SeqCst);
        assert!(a.release(&election, token).await, "it was released by it");
        assert_eq!(b.leader(&election).await, None);
        assert_eq!(losses.load(Ordering::SeqCst), 0);
        let next = b.win(&election, LONG).await;
        assert!(next > token);
        // Somebody else's is told from it.
        losses.store(1, Ordering::SeqCst);
        let (leader, _) = denied(a.renew(&election, LONG, token).await);
        assert_eq!(leader, Some(leading(&b, next)));
        assert!(!a.release(&election, token).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_died_is_replaced_within_the_attempt() {
        let Some(store) = Prefix::new("s3: connections") else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let client = Client::new(&store.url_at(proxy.port), "a").await;
        let election = name("leader");
        let token = client.win(&election, LONG).await;
        proxy.cut();
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
        // Half-open: nothing tells that the other end has gone.
        proxy.freeze();
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
        assert!(client.release(&election, token).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_stands_still_is_waited_for_and_one_that_was_started_again_knows_its_records()
     {
        let test = "s3: a server of its own";
        let Some(server) = Server::own(test, Kind::S3, &[]) else {
            return;
        };
        let url = url("s3", &server, BUCKET, server.port);
        let election = name("leader");
        let (a, b) = (impatient(&url), Client::new(&url, "b").await);
        let token = a.win(&election, LONG).await;
        server.freeze().await;
        let error = a.attempt(&election, LONG, Some(token)).await.unwrap_err();
        assert_eq!((error.kind, error.code), (Ambiguous, "timeout"), "{error}");
        server.thaw().await;
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        server.kill().await;
        let error = a.attempt(&election, LONG, Some(token)).await.unwrap_err();
        assert_eq!(error.code, "unreachable", "{error}");
        let error = a.attempt(&election, LONG, Some(token)).await.unwrap_err();
        assert_eq!(
            (error.kind, error.code),
            (Transient, "unreachable"),
            "{error}"
        );
        assert!(error.message.contains(&server.port.to_string()), "{error}");
        server.restart().await;
        let leader = eventually("it answers again", async || {
            b.backend.peek(&election).await.ok()
        })
        .await;
        assert_eq!(leader, Some(leading(&a, token)));
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_crash_is_taken_over_when_the_lease_has_been_seen_to_stand_still() {
        let Some(store) = Prefix::new("s3: takeover") else {
            return;
        };
        let (a, b) = (
            Client::new(&store.url(), "a").await,
            Client::new(&store.url(), "b").await,
        );
        let election = name("leader");
        let sent = Instant::now();
        a.win(&election, SHORT * 2).await;
        b.take_over(&election, SHORT * 2).await;
        let leases = sent.elapsed().as_secs_f64() / (SHORT * 2).as_secs_f64();
        println!("FIGURES: S3: a crash was taken over after {leases:.2} leases");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_listens_where_the_endpoint_is() {
        let port = crate::support::free_port();
        let url = format!("s3://k:s@{BUCKET}?endpoint=http://127.0.0.1:{port}");
        let error = impatient(&url).backend.prepare().await.unwrap_err();
        assert_eq!(
            (error.kind, error.code),
            (Transient, "unreachable"),
            "{error}"
        );
    }
}
