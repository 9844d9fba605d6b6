//! `DynamoDB`, on Dynalite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use http::Method;
use serde_json::{Value, json};
use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use super::{ask, url};
use crate::suite::{Fixture, Networked, open};
use crate::support::{Kind, Server};

/// A table of the test's own.
pub struct Table {
    pub server: &'static Server,
    pub name: String,
}

impl Table {
    /// Its name, and no table.
    pub fn absent(test: &str) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let server = Server::shared(test, Kind::DynamoDb)?;
        let name = format!("table-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Some(Self { server, name })
    }

    pub fn url(&self) -> String {
        self.url_at(self.server.port)
    }

    pub async fn ask(&self, operation: &str, mut asked: Value) -> Value {
        asked["TableName"] = json!(self.name);
        let target = format!("DynamoDB_20120810.{operation}");
        let headers = [
            ("content-type", "application/x-amz-json-1.0"),
            ("x-amz-target", target.as_str()),
        ];
        let body = asked.to_string().into_bytes();
        let said = ask("dynamodb", self.server, Method::POST, "/", &headers, body).await;
        assert_eq!(said.status, 200, "{operation}: {}", said.text());
        serde_json::from_slice(&said.body).unwrap()
    }

    pub async fn create(&self, attributes: Value, keys: Value) {
        let asked = json!({
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": attributes,
            "KeySchema": keys,
        });
        self.ask("CreateTable", asked).await;
    }

    pub async fn item(&self, election: &ElectionName) -> Value {
        let key = json!({ "Key": key(election), "ConsistentRead": true });
        self.ask("GetItem", key).await["Item"].clone()
    }
}

pub fn key(election: &ElectionName) -> Value {
    json!({ "election": { "S": format!("cluster:{election}") } })
}

impl Fixture for Table {
    const RUBBISH_EXPIRES: bool = true;

    async fn start(test: &str) -> Option<Self> {
        let table = Self::absent(test)?;
        let attributes = json!([{ "AttributeName": "election", "AttributeType": "S" }]);
        let keys = json!([{ "AttributeName": "election", "KeyType": "HASH" }]);
        table.create(attributes, keys).await;
        Some(table)
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&self.url())
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let mut item = key(election);
        // No item is larger.
        let rubbish = &rubbish[..rubbish.len().min(100_000)];
        if let Ok(Value::Object(fields)) = serde_json::from_slice(rubbish) {
            let attributes = [
                ("instanceId", "instanceId"),
                ("nonce", "nonce"),
                ("version", "version"),
                ("token", "fence"),
                ("leaseDuration", "leaseMs"),
            ];
            for (name, attribute) in attributes {
                if let Some(value) = fields.get(name) {
                    item[attribute] = typed(value);
                }
            }
            self.ask("PutItem", json!({ "Item": item })).await;
            return;
        }
        let bytes = base64::engine::general_purpose::STANDARD.encode([b"x", rubbish].concat());
        item["instanceId"] = json!({ "B": bytes });
        // Also one without a version, and one whose version is of another type.
        match rubbish.len() % 3 {
            0 => {}
            1 => item["version"] = json!({ "N": "7" }),
            _ => item["version"] = json!({ "S": format!("v{}", rubbish.len()) }),
        }
        self.ask("PutItem", json!({ "Item": item })).await;
    }

    async fn forget(&self, election: &ElectionName) {
        self.ask("DeleteItem", json!({ "Key": key(election) }))
            .await;
    }

    async fn list(&self) -> Vec<String> {
        let all = self.ask("Scan", json!({})).await;
        let items = all["Items"].as_array().expect("a list").iter();
        items.map(|item| item["election"].to_string()).collect()
    }
}

/// As an attribute has it.
fn typed(value: &Value) -> Value {
    match value {
        Value::Null => json!({ "NULL": true }),
        Value::Bool(value) => json!({ "BOOL": value }),
        // No larger one is taken.
        Value::Number(number) if number.as_f64().is_some_and(|number| number > 1e100) => {
            json!({ "N": "1e100" })
        }
        Value::Number(number) => json!({ "N": number.to_string() }),
        Value::String(text) => json!({ "S": text }),
        Value::Array(_) => json!({ "L": [] }),
        Value::Object(_) => json!({ "M": {} }),
    }
}

impl Networked for Table {
    fn port(&self) -> u16 {
        self.server.port
    }

    fn url_at(&self, port: u16) -> String {
        url("dynamodb", self.server, &self.name, port)
    }
}

mod conforms {
    crate::conformance!(super::Table, on a network, without a watch);
}

/// What only this store can get wrong.
mod alone {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use serde_json::{Value, json};
    use whenleader::lease::FailureKind::{Ambiguous, Fatal, Transient};

    use super::{Table, key};
    use crate::aws::url;
    use crate::aws::web::{Asked, Reply, Web, forward};
    use crate::suite::{
        Client, Fixture, LONG, Networked as _, SHORT, denied, held, impatient, leading, name, open,
    };
    use crate::support::{Kind, Proxy, Server, eventually};

    fn operation(asked: &Asked) -> &str {
        let target = asked.header("x-amz-target").unwrap_or_default();
        target.rsplit('.').next().unwrap_or_default()
    }

    /// A stand-in in front of the server: it answers what `instead` does, and else what the server does to what
    /// `changed` makes of the request.
    async fn between(
        table: &Table,
        instead: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static,
        changed: impl Fn(&mut Value) + Send + Sync + 'static,
    ) -> Web {
        let (port, changed) = (table.server.port, Arc::new(changed));
        Web::answering(move |mut asked| {
            let (reply, changed) = (instead(&asked), Arc::clone(&changed));
            Box::pin(async move {
                if let Some(reply) = reply {
                    return Some(reply);
                }
                let mut body = serde_json::from_slice(&asked.body).unwrap();
                changed(&mut body);
                asked.body = body.to_string().into_bytes();
                asked.headers.retain(|(name, _)| name != "content-length");
                Some(forward(port, &asked).await)
            })
        })
        .await
    }

    fn operations(web: &Web) -> Vec<String> {
        web.asked()
            .iter()
            .map(|asked| operation(asked).to_owned())
            .collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_renewal_is_one_write_and_a_look_is_one_read() {
        let Some(table) = Table::start("dynamodb: requests").await else {
            return;
        };
        let web = between(&table, |_| None, |_| ()).await;
        let a = Client::new(&table.url_at(web.port), "a").await;
        let prepared = web.asked().len();
        let b = Client::new(&table.url_at(web.port), "b").await;
        let election = name("leader");
        web.forget();
        let token = a.win(&election, LONG).await;
        assert_eq!(operations(&web), ["GetItem", "PutItem"]);
        let look = web.asked()[0].text();
        assert!(look.contains(r#""ConsistentRead":true"#), "{look}");
        web.forget();
        held(a.renew(&election, LONG, token).await);
        assert_eq!(operations(&web), ["PutItem"]);
        web.forget();
        denied(b.campaign(&election, LONG).await);
        assert_eq!(operations(&web), ["GetItem"]);
        let start = Instant::now();
        for _ in 0..50 {
            held(a.renew(&election, LONG, token).await);
        }
        let each = start.elapsed() / 50;
        println!(
            "FIGURES: DynamoDB: {prepared} requests to start, 1 to renew, 1 to look; a renewal took {each:?} through a stand-in"
        );
        web.forget();
        assert!(a.release(&election, token).await);
        assert_eq!(operations(&web), ["PutItem"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_item_holds_what_the_documents_say_and_its_token_is_exact() {
        let Some(table) = Table::start("dynamodb: item").await else {
            return;
        };
        let a = Client::new(&table.url(), "a").await;
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        let item = table.item(&election).await;
        assert_eq!(item["fence"], json!({ "N": token.to_string() }));
        assert_eq!(
            item["leaseMs"],
            json!({ "N": LONG.as_millis().to_string() })
        );
        assert_eq!(item["instanceId"], json!({ "S": "a" }));
        assert_eq!(item.as_object().unwrap().len(), 6);
        assert!(a.release(&election, token).await);
        let item = table.item(&election).await;
        assert_eq!(item["instanceId"], json!({ "NULL": true }));
        assert_eq!(item["fence"], json!({ "N": token.to_string() }));
        // Odd, and far above what a rounded number would tell.
        let largest = 7_000_000_000_000_001_u64;
        let mut changed = item.clone();
        changed["fence"] = json!({ "N": largest.to_string() });
        changed["version"] = json!({ "S": "of somebody else" });
        table.ask("PutItem", json!({ "Item": changed })).await;
        assert_eq!(a.take_over(&election, SHORT).await.number(), largest + 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_table_that_is_not_there_is_named_with_the_command_that_makes_it() {
        let Some(table) = Table::absent("dynamodb: no table") else {
            return;
        };
        let error = open(&table.url()).prepare().await.unwrap_err();
        assert_eq!((error.kind, error.code), (Fatal, "no-table"), "{error}");
        for words in [
            "aws dynamodb create-table",
            "--region us-east-1",
            &table.name,
            "?create=true",
        ] {
            assert!(error.message.contains(words), "{error}");
        }
        let client = impatient(&table.url());
        let error = client
            .attempt(&name("leader"), LONG, None)
            .await
            .unwrap_err();
        assert_eq!((error.kind, error.code), (Fatal, "no-table"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn several_processes_that_may_make_the_table_make_one() {
        let Some(table) = Table::absent("dynamodb: create") else {
            return;
        };
        let url = format!("{}&create=true", table.url());
        let clients = ["a", "b", "c", "d"].map(|id| Client::new(&url, id));
        let clients = futures_util::future::join_all(clients).await;
        let token = clients[0].win(&name("leader"), LONG).await;
        let (leader, _) = denied(clients[3].campaign(&name("leader"), LONG).await);
        assert_eq!(leader, Some(leading(&clients[0], token)));
        let told = table.ask("DescribeTable", json!({})).await;
        assert_eq!(
            told["Table"]["BillingModeSummary"]["BillingMode"],
            "PAY_PER_REQUEST"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_table_with_another_key_is_refused_whether_it_may_be_looked_at_or_not() {
        let test = "dynamodb: other keys";
        for (kind, keys) in [
            ("S", json!([{ "AttributeName": "id", "KeyType": "HASH" }])),
            (
                "N",
                json!([{ "AttributeName": "election", "KeyType": "HASH" }]),
            ),
            (
                "S",
                json!([
                    { "AttributeName": "election", "KeyType": "HASH" },
                    { "AttributeName": "id", "KeyType": "RANGE" },
                ]),
            ),
        ] {
            let Some(table) = Table::absent(test) else {
                return;
            };
            let names = keys.as_array().unwrap().iter();
            let attributes: Vec<_> = names
                .map(
                    |part| json!({ "AttributeName": part["AttributeName"], "AttributeType": kind }),
                )
                .collect();
            table.create(json!(attributes), keys).await;
            let blind = between(
                &table,
                |asked| {
                    let is_look = operation(asked) == "DescribeTable";
                    is_look.then(|| Reply::json("AccessDeniedException", "no"))
                },
                |_| (),
            )
            .await;
            for port in [table.server.port, blind.port] {
                let error = open(&table.url_at(port)).prepare().await.unwrap_err();
                assert_eq!((error.kind, error.code), (Fatal, "unsuitable"), "{error}");
                assert!(error.message.contains("called election"), "{error}");
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_right_that_is_missing_is_found_at_start_and_told_with_the_policy() {
        let Some(table) = Table::start("dynamodb: rights").await else {
            return;
        };
        for missing in ["GetItem", "PutItem", "DeleteItem"] {
            let deny = move |asked: &Asked| {
                let words = "User: arn:aws:iam::1:user/a is not authorized to perform it";
                (operation(asked) == missing).then(|| Reply::json("AccessDeniedException", words))
            };
            let web = between(&table, deny, |_| ()).await;
            let error = open(&table.url_at(web.port))
                .prepare()
                .await
                .expect_err(missing);
            assert_eq!((error.kind, error.code), (Fatal, "refused"), "{error}");
            let right = format!("dynamodb:{missing}");
            assert!(error.message.contains(&right), "{error}");
            assert!(
                error.message.contains(&format!("table/{}", table.name)),
                "{error}"
            );
        }
        // Looking at the table is no more than a help.
        let deny = |asked: &Asked| {
            let is_look = operation(asked) == "DescribeTable";
            is_look.then(|| Reply::json("AccessDeniedException", "no"))
        };
        let web = between(&table, deny, |_| ()).await;
        Client::new(&table.url_at(web.port), "a")
            .await
            .win(&name("leader"), LONG)
            .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_ignores_conditions_is_refused_at_start() {
        let Some(table) = Table::start("dynamodb: ignores").await else {
            return;
        };
        let careless = |asked: &mut Value| {
            for name in [
                "ConditionExpression",
                "ExpressionAttributeNames",
                "ExpressionAttributeValues",
                "ReturnValuesOnConditionCheckFailure",
            ] {
                asked.as_object_mut().unwrap().remove(name);
            }
        };
        let web = between(&table, |_| None, careless).await;
        let error = open(&table.url_at(web.port)).prepare().await.unwrap_err();
        assert_eq!((error.kind, error.code), (Fatal, "unsuitable"), "{error}");
        assert!(
            error.message.contains("does not honour conditions"),
            "{error}"
        );
        assert_eq!(table.ask("Scan", json!({})).await["Count"], 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_the_service_refuses_is_told_with_its_cure() {
        let Some(table) = Table::start("dynamodb: refusals").await else {
            return;
        };
        for (reply, kind, code, words) in [
            (
                Reply::json("ProvisionedThroughputExceededException", ""),
                Transient,
                "throttled",
                "too often",
            ),
            (
                Reply::json("ThrottlingException", ""),
                Transient,
                "throttled",
                "too often",
            ),
            (
                Reply::json("RequestLimitExceeded", ""),
                Transient,
                "throttled",
                "too often",
            ),
            (
                Reply::json("ExpiredTokenException", ""),
                Fatal,
                "refused",
                "expired",
            ),
            (
                Reply::json("UnrecognizedClientException", ""),
                Fatal,
                "refused",
                "not believed",
            ),
            (
                Reply::json(
                    "InvalidSignatureException",
                    "Signature expired: 1 is now earlier than 2",
                ),
                Transient,
                "clock",
                "clock",
            ),
            (
                Reply::json("InternalServerError", ""),
                Transient,
                "store",
                "InternalServerError",
            ),
            (
                Reply::new(500, r#"{"__type":"x#InternalServerError"}"#),
                Ambiguous,
                "store",
                "InternalServerError",
            ),
            (Reply::new(200, "<html>"), Ambiguous, "unexpected", "<html>"),
        ] {
            let reply = reply.clone();
            let refuses = move |asked: &Asked| {
                let is_election =
                    operation(asked) == "PutItem" && asked.text().contains("cluster:");
                is_election.then(|| reply.clone())
            };
            let web = between(&table, refuses, |_| ()).await;
            let client = Client::new(&table.url_at(web.port), "a").await;
            let attempt = client.attempt(&name("leader"), LONG, None).await;
            let error = attempt.expect_err(words);
            assert_eq!((error.kind, error.code), (kind, code), "{error}");
            assert!(error.message.contains(words), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_conflict_with_somebody_elses_transaction_is_tried_again() {
        let Some(table) = Table::start("dynamodb: conflict").await else {
            return;
        };
        let left = AtomicUsize::new(2);
        let conflicts = move |asked: &Asked| {
            let is_election = operation(asked) == "PutItem" && asked.text().contains("cluster:");
            let take = |left: usize| left.checked_sub(1);
            let conflicts = is_election
                && left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                    .is_ok();
            conflicts.then(|| Reply::json("TransactionConflictException", "ongoing"))
        };
        let web = between(&table, conflicts, |_| ()).await;
        let client = Client::new(&table.url_at(web.port), "a").await;
        client.win(&name("leader"), LONG).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_write_whose_answer_got_lost_knows_itself_when_it_is_sent_again() {
        let Some(table) = Table::start("dynamodb: lost answers").await else {
            return;
        };
        let losses = Arc::new(AtomicUsize::new(0));
        let (losing, port) = (Arc::clone(&losses), table.server.port);
        let web = Web::answering(move |asked| {
            let losing = Arc::clone(&losing);
            Box::pin(async move {
                let reply = forward(port, &asked).await;
                let take = |left: usize| left.checked_sub(1);
                let lost = operation(&asked) == "PutItem"
                    && losing
                        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                        .is_ok();
                (!lost).then_some(reply)
            })
        })
        .await;
        let a = Client::new(&table.url_at(web.port), "a").await;
        let b = Client::new(&table.url(), "b").await;
        let election = name("leader");
        losses.store(1, Ordering::SeqCst);
        let token = a.win(&election, LONG).await;
        assert_eq!(b.leader(&election).await, Some(leading(&a, token)));
        losses.store(1, Ordering::SeqCst);
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        losses.store(1, Ordering::SeqCst);
        assert!(a.release(&election, token).await, "it was released by it");
        assert_eq!(losses.load(Ordering::SeqCst), 0);
        let next = b.win(&election, LONG).await;
        losses.store(1, Ordering::SeqCst);
        let (leader, _) = denied(a.renew(&election, LONG, token).await);
        assert_eq!(leader, Some(leading(&b, next)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_dead_connection_is_replaced_within_the_attempt() {
        let Some(table) = Table::start("dynamodb: connections").await else {
            return;
        };
        let proxy = Proxy::to(table.server.port).await;
        let election = name("leader");
        let far = impatient(&table.url_at(proxy.port));
        let token = far.win(&election, LONG).await;
        proxy.cut();
        assert_eq!(held(far.renew(&election, LONG, token).await), token);
        proxy.freeze();
        assert_eq!(held(far.renew(&election, LONG, token).await), token);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_stands_still_is_waited_for_and_one_that_was_started_again_knows_its_records()
     {
        let test = "dynamodb: a server of its own";
        let Some(server) = Server::own(test, Kind::DynamoDb, &[]) else {
            return;
        };
        let url = format!(
            "{}&create=true",
            url("dynamodb", &server, "leases", server.port)
        );
        let election = name("leader");
        Client::new(&url, "first").await;
        let a = impatient(&url);
        let token = a.win(&election, LONG).await;
        server.freeze().await;
        let error = a.attempt(&election, LONG, Some(token)).await.unwrap_err();
        assert_eq!((error.kind, error.code), (Ambiguous, "timeout"), "{error}");
        server.thaw().await;
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        server.kill().await;
        a.attempt(&election, LONG, Some(token)).await.unwrap_err();
        let error = a.attempt(&election, LONG, Some(token)).await.unwrap_err();
        assert_eq!(
            (error.kind, error.code),
            (Transient, "unreachable"),
            "{error}"
        );
        server.restart().await;
        let leader = eventually("it answers again", async || {
            a.backend.peek(&election).await.ok()
        })
        .await;
        assert_eq!(leader, Some(leading(&a, token)));
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_item_of_another_shape_is_waited_out_and_written_over() {
        let Some(table) = Table::start("dynamodb: shapes").await else {
            return;
        };
        let a = Client::new(&table.url(), "a").await;
        for (number, attributes) in [
            json!({}),
            json!({ "version": { "N": "1" } }),
            json!({ "version": { "M": { "a": { "L": [] } } }, "fence": { "S": "x" } }),
            json!({ "instanceId": { "S": "b" }, "fence": { "N": "1.5" }, "leaseMs": { "N": "-1" } }),
            json!({ "instanceId": { "S": "b" }, "nonce": { "S": "1" }, "fence": { "N": "99999999999999999999999999999999999999" }, "leaseMs": { "N": "600" }, "version": { "S": "v" } }),
        ]
        .into_iter()
        .enumerate()
        {
            let election = name(&format!("e{number}"));
            let mut item = key(&election);
            let more = attributes.as_object().unwrap().clone();
            item.as_object_mut().unwrap().extend(more);
            table.ask("PutItem", json!({ "Item": item })).await;
            let start = Instant::now();
            let (leader, _) = denied(a.campaign(&election, SHORT).await);
            assert_eq!(leader, None, "{attributes}");
            a.take_over(&election, SHORT).await;
            assert!(start.elapsed() >= SHORT, "{attributes}");
        }
    }
}
