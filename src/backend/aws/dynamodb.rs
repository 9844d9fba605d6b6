//! `DynamoDB`.
//!
//! One item holds the record of one election: `election` (the key), `instanceId`, `nonce`, `fence` (the token, a
//! number), `leaseMs`, and `version`, a random word that is new in each write. The first write is a `PutItem` on
//! the condition that there is no item, and each later one on the condition that its `version` is the one that
//! was read; all reads are consistent ones. Nothing judges expiry and nothing notifies: followers look, and
//! [`Observed`] does the rest. A released lease is an item that names nobody: nothing is deleted, so tokens go on
//! growing. Its own expiry (TTL) is not used: it comes days late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::address::Address;
use super::failure::{About, failure, said};
use super::{Call, REFUSED, Service};
use crate::backend::http::Answer;
use crate::backend::observed::{Change, Document, Observed, Record, Records, Written};
use crate::backend::{
    Attempt, Backend, BackendError, BadStore, Capabilities, StoreOptions, UNSUITABLE,
};
use crate::clock::Clock;
use crate::identity::{default_instance_id, random_u64};
use crate::lease::{ElectionName, FailureKind, Leader, Outcome, Owner, Token};

const EXAMPLE: &str = "dynamodb://<table>?region=<region>";
const DEFAULT_TABLE: &str = "whenleader-leases";
const KEY: &str = "election";
/// What a record calls it, what the item does, and its type. `token` is a word that expressions cannot use.
const ATTRIBUTES: [(&str, &str, &str); 5] = [
    ("version", "version", "S"),
    ("instanceId", "instanceId", "S"),
    ("nonce", "nonce", "S"),
    ("token", "fence", "N"),
    ("leaseDuration", "leaseMs", "N"),
];
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// How often a table that is being made is looked at, and how long it is waited for at a time.
const TABLE_PAUSE: Duration = Duration::from_millis(500);
const TABLE_LOOKS: u32 = 40;

/// See the module's description.
#[derive(Debug)]
struct DynamoDb {
    leases: Observed<Items>,
}

#[derive(Debug)]
struct Items {
    service: Service,
    table: String,
    may_create: bool,
    told_of_replicas: AtomicBool,
}

/// An item with what it says.
#[derive(Debug, Clone)]
struct Item {
    /// `None`: it has none that is a text, whatever else it is.
    version: Option<String>,
    /// What tells it from others that have no version.
    text: String,
    document: Document,
}

enum Put {
    Done(Item),
    Refused,
}

/// Makes the backend. Reads nothing and connects to nothing yet.
pub(in crate::backend) fn open(
    url: &str,
    options: &StoreOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let items = Items::new(url, options)?;
    Ok(Arc::new(DynamoDb {
        leases: Observed::new(items, clock),
    }))
}

impl Item {
    fn new(attributes: &Value) -> Self {
        let mut record = Map::new();
        for (name, attribute, kind) in ATTRIBUTES {
            let value = attributes[attribute][kind].clone();
            record.insert(name.to_owned(), value);
        }
        Self {
            version: attributes["version"]["S"].as_str().map(str::to_owned),
            text: attributes.to_string(),
            document: Document::read(Value::Object(record).to_string().as_bytes()),
        }
    }

    fn of(key: &str, document: Document) -> (Self, Value) {
        let record: Value = serde_json::from_str(&document.text()).unwrap_or_default();
        let mut attributes = Map::new();
        attributes.insert(KEY.to_owned(), json!({ "S": key }));
        for (name, attribute, kind) in ATTRIBUTES {
            let value = match &record[name] {
                Value::Null => json!({ "NULL": true }),
                Value::String(text) => json!({ kind: text }),
                // As text: so a number is exact whoever reads it.
                number => json!({ kind: number.to_string() }),
            };
            attributes.insert(attribute.to_owned(), value);
        }
        let attributes = Value::Object(attributes);
        let item = Self {
            version: record["version"].as_str().map(str::to_owned),
            text: attributes.to_string(),
            document,
        };
        (item, attributes)
    }
}

impl Items {
    fn new(url: &str, options: &StoreOptions) -> Result<Self, BadStore> {
        let address = Address::parse(url, EXAMPLE, &["create"], &options.base_dir)?;
        let table = address.name.clone();
        let table = table.unwrap_or_else(|| DEFAULT_TABLE.to_owned());
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !(3..=255).contains(&table.len()) || !table.bytes().all(is_fine) {
            return Err(BadStore::url(format!(
                "name a table with 3 to 255 letters, digits, dots, - or _: {EXAMPLE}"
            )));
        }
        if !address.path.is_empty() {
            return Err(BadStore::url(format!(
                "have nothing behind the table's name: {EXAMPLE}"
            )));
        }
        Ok(Self {
            table,
            may_create: address.flags[0] == Some(true),
            service: Service::new(
                "dynamodb",
                address,
                |_, target| target.endpoint.clone(),
                options,
            ),
            told_of_replicas: AtomicBool::new(false),
        })
    }

    fn key(election: &ElectionName) -> String {
        format!("cluster:{election}")
    }

    /// `Ok`: what the service answers that did it.
    async fn ask(
        &self,
        operation: &str,
        asked: &Value,
        writes: bool,
    ) -> Result<Answer, BackendError> {
        let target = format!("DynamoDB_20120810.{operation}");
        let call = Call {
            method: Method::POST,
            path: "/",
            headers: vec![
                ("content-type", "application/x-amz-json-1.0"),
                ("x-amz-target", &target),
            ],
            body: asked.to_string().into_bytes(),
            writes,
        };
        self.service.ask(&call).await
    }

    async fn get(&self, key: &str) -> Result<Option<Item>, BackendError> {
        let asked = json!({
            "TableName": self.table,
            "Key": { KEY: { "S": key } },
            "ConsistentRead": true,
        });
        let answer = self.ask("GetItem", &asked, false).await?;
        let body: Value = self.body(&answer, false)?;
        let item = &body["Item"];
        Ok((!item.is_null()).then(|| Item::new(item)))
    }

    /// Writes over an item, or where there is none.
    async fn put(
        &self,
        key: &str,
        document: Document,
        over: Option<&Item>,
    ) -> Result<Put, BackendError> {
        let (item, attributes) = Item::of(key, document);
        let mut asked = json!({
            "TableName": self.table,
            "Item": attributes,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        });
        let condition = match over {
            None => {
                asked["ExpressionAttributeNames"] = json!({ "#key": KEY });
                "attribute_not_exists(#key)"
            }
            Some(Item { version: None, .. }) => {
                asked["ExpressionAttributeNames"] = json!({ "#key": KEY, "#version": "version" });
                asked["ExpressionAttributeValues"] = json!({ ":text": { "S": "S" } });
                "attribute_exists(#key) AND NOT attribute_type(#version, :text)"
            }
            Some(Item { version, .. }) => {
                asked["ExpressionAttributeNames"] = json!({ "#version": "version" });
                asked["ExpressionAttributeValues"] = json!({ ":version": { "S": version } });
                "#version = :version"
            }
        };
        asked["ConditionExpression"] = condition.into();
        let answer = self.ask("PutItem", &asked, true).await?;
        if answer.status == 200 {
            self.body(&answer, true)?;
            return Ok(Put::Done(item));
        }
        match &*said(&answer).code {
            "ConditionalCheckFailedException" => {}
            "TransactionConflictException" | "ReplicatedWriteConflictException" => {
                return Ok(Put::Refused);
            }
            _ => return Err(self.failed(&answer, true)),
        }
        if !answer.asked_before {
            return Ok(Put::Refused);
        }
        // Perhaps by an earlier try of this very write. Not everything that speaks like it shows the item.
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let found = match &body["Item"] {
            Value::Null => self.get(key).await.map_err(unsure)?,
            found => Some(Item::new(found)),
        };
        Ok(match found {
            Some(found) if found.document == item.document => Put::Done(item),
            _ => Put::Refused,
        })
    }

    fn body(&self, answer: &Answer, writes: bool) -> Result<Value, BackendError> {
        match serde_json::from_slice(&answer.body) {
            Ok(Value::Object(body)) if answer.status == 200 => Ok(body.into()),
            _ => Err(self.failed(answer, writes)),
        }
    }

    fn shown(&self) -> String {
        format!("DynamoDB table {}{}", self.table, self.service.shown())
    }

    fn failed(&self, answer: &Answer, writes: bool) -> BackendError {
        let said = said(answer);
        let place = self.shown();
        match &*said.code {
            "ResourceNotFoundException" => BackendError::fatal(
                "no-table",
                format!("{place} does not exist: {}", self.how_to_create()),
            ),
            "ValidationException" => BackendError::fatal(
                UNSUITABLE,
                format!(
                    "{place} cannot hold elections: {}. Its key must be one text that is called {KEY}: {}",
                    said.shown(answer.status),
                    self.how_to_create()
                ),
            ),
            _ => {
                let reached = self.service.reached.get();
                failure(
                    answer,
                    &About {
                        place: &place,
                        region: reached.map_or("", |reached| &reached.target.region),
                        rights: &|| self.rights(),
                        writes,
                    },
                )
            }
        }
    }

    fn rights(&self) -> String {
        let policy = json!({
            "Version": "2012-10-17",
            "Statement": [{
                "Effect": "Allow",
                "Action": [
                    "dynamodb:GetItem",
                    "dynamodb:PutItem",
                    "dynamodb:DeleteItem",
                    "dynamodb:DescribeTable",
                ],
                "Resource": format!("arn:aws:dynamodb:*:*:table/{}", self.table),
            }],
        });
        format!("Give its user or role this policy: {policy}")
    }

    fn how_to_create(&self) -> String {
        let region = match self.service.reached.get() {
            Some(reached) => format!(" --region {}", reached.target.region),
            None => String::new(),
        };
        format!(
            "create one with `aws dynamodb create-table{region} --table-name {} --billing-mode PAY_PER_REQUEST --attribute-definitions AttributeName={KEY},AttributeType=S --key-schema AttributeName={KEY},KeyType=HASH`, or write ?create=true into the URL",
            self.table
        )
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        self.check_table().await?;
        self.probe().await
    }

    /// Looks at the table, if that is allowed, and waits for one that is being made.
    async fn check_table(&self) -> Result<(), BackendError> {
        for look in 0.. {
            let asked = json!({ "TableName": self.table });
            let answer = self.ask("DescribeTable", &asked, false).await?;
            let said = said(&answer);
            if said.code == "ResourceNotFoundException" && self.may_create {
                if look == 0 {
                    self.create_table().await?;
                }
            } else if said.code.starts_with("AccessDenied") {
                // The requests below find out what matters most.
                return Ok(());
            } else {
                let body = self.body(&answer, false)?;
                let table = &body["Table"];
                self.check_key(table)?;
                self.tell_of_replicas(table);
                if !matches!(table["TableStatus"].as_str(), Some("CREATING" | "DELETING")) {
                    return Ok(());
                }
            }
            if look == TABLE_LOOKS {
                break;
            }
            sleep(TABLE_PAUSE).await;
        }
        Err(BackendError::transient(
            "no-table",
            format!("{} is still being made, or deleted", self.shown()),
        ))
    }

    async fn create_table(&self) -> Result<(), BackendError> {
        let asked = json!({
            "TableName": self.table,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{ "AttributeName": KEY, "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": KEY, "KeyType": "HASH" }],
        });
        let answer = self.ask("CreateTable", &asked, true).await?;
        let said = said(&answer);
        if said.code == "ResourceInUseException" {
            // Somebody else was faster.
            return Ok(());
        }
        if said.code.starts_with("AccessDenied") {
            return Err(BackendError::fatal(
                REFUSED,
                format!(
                    "{} does not exist, and this process may not make it (dynamodb:CreateTable): {}",
                    self.shown(),
                    self.how_to_create()
                ),
            ));
        }
        self.body(&answer, true).map(|_| ())
    }

    fn check_key(&self, table: &Value) -> Result<(), BackendError> {
        let key = json!([{ "AttributeName": KEY, "KeyType": "HASH" }]);
        let is_text = json!({ "AttributeName": KEY, "AttributeType": "S" });
        let attributes = table["AttributeDefinitions"].as_array();
        if table["KeySchema"] == key && attributes.is_some_and(|all| all.contains(&is_text)) {
            return Ok(());
        }
        let parts = table["KeySchema"].as_array();
        let parts = parts.into_iter().flatten();
        let names: Vec<_> = parts
            .filter_map(|part| part["AttributeName"].as_str())
            .collect();
        Err(BackendError::fatal(
            UNSUITABLE,
            format!(
                "{} cannot hold elections: its key is {}, and must be one text that is called {KEY}. Name another table, and {}",
                self.shown(),
                names.join(" and "),
                self.how_to_create()
            ),
        ))
    }

    /// A table whose replicas take each other's writes later has a winner in each region.
    fn tell_of_replicas(&self, table: &Value) {
        let replicas = table["Replicas"].as_array().map_or(0, Vec::len);
        let is_strong = table["MultiRegionConsistency"] == "STRONG";
        if replicas > 0 && !is_strong && !self.told_of_replicas.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{} is a global table whose regions agree later: instances in two regions would both lead. Let all of them use one region, or a table with multi-Region strong consistency",
                self.shown()
            );
        }
    }

    /// Every request and every right that an election takes, on an item that is gone afterwards.
    async fn probe(&self) -> Result<(), BackendError> {
        let key = format!("probe:{:016x}", random_u64());
        self.get(&key).await?;
        let made = match self.put(&key, probed(), None).await {
            Ok(Put::Done(made)) => made,
            Ok(Put::Refused) => {
                return Err(self.ignores("an item that is not there cannot be made"));
            }
            Err(error) => {
                if error.kind == FailureKind::Ambiguous {
                    let _ = self.delete(&key).await;
                }
                return Err(error);
            }
        };
        let checked = self.check(&key, &made).await;
        let deleted = self.delete(&key).await;
        checked.and(deleted)
    }

    async fn check(&self, key: &str, made: &Item) -> Result<(), BackendError> {
        let read = self.get(key).await?;
        if read.is_none_or(|read| read.document != made.document) {
            return Err(self.ignores("what was just written is not what is read"));
        }
        if let Put::Done(_) = self.put(key, probed(), None).await? {
            return Err(self.ignores("an item that is there was made again"));
        }
        let (other, _) = Item::of(key, probed());
        if let Put::Done(_) = self.put(key, probed(), Some(&other)).await? {
            return Err(self.ignores("somebody who did not know an item wrote over it"));
        }
        match self.put(key, probed(), Some(made)).await? {
            Put::Done(_) => Ok(()),
            Put::Refused => Err(self.ignores("somebody who knew an item could not write over it")),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), BackendError> {
        let asked = json!({ "TableName": self.table, "Key": { KEY: { "S": key } } });
        let answer = self.ask("DeleteItem", &asked, true).await?;
        self.body(&answer, true).map(|_| ())
    }

    fn ignores(&self, how: &str) -> BackendError {
        BackendError::fatal(
            UNSUITABLE,
            format!(
                "{} does not honour conditions ({how}), so two instances would lead: it is no DynamoDB",
                self.shown()
            ),
        )
    }
}

/// Of nobody, and different each time.
fn probed() -> Document {
    let owner = Owner {
        instance: default_instance_id().clone(),
        nonce: random_u64(),
    };
    Document::first(&owner, Token::FIRST, SHORTEST_LEASE)
}

/// Something was written all the same, perhaps.
fn unsure(error: BackendError) -> BackendError {
    BackendError::ambiguous(error.code, error.message)
}

#[async_trait]
impl Records for Items {
    type Entry = Item;

    fn record(&self, item: &Item) -> Record {
        let version = item.version.as_ref().unwrap_or(&item.text);
        item.document.record(version)
    }

    async fn read(&self, election: &ElectionName) -> Result<Option<Item>, BackendError> {
        self.get(&Self::key(election)).await
    }

    async fn create(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
        duration: Duration,
    ) -> Result<Option<Item>, BackendError> {
        let document = Document::first(owner, token, duration);
        Ok(
            match self.put(&Self::key(election), document, None).await? {
                Put::Done(item) => Some(item),
                Put::Refused => None,
            },
        )
    }

    async fn write(
        &self,
        election: &ElectionName,
        over: &Item,
        change: Change<'_>,
    ) -> Result<Written<Item>, BackendError> {
        let document = over.document.changed(change);
        Ok(
            match self.put(&Self::key(election), document, Some(over)).await? {
                Put::Done(item) => Written::Done(item),
                Put::Refused => Written::Changed,
            },
        )
    }
}

#[async_trait]
impl Backend for DynamoDb {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: SHORTEST_LEASE,
            notifies: false,
        }
    }

    fn describe(&self) -> String {
        self.leases.records.shown()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        self.leases.records.prepare().await
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        self.leases.attempt(attempt).await
    }

    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        self.leases.release(election, owner, token).await
    }

    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        self.leases.peek(election).await
    }

    async fn close(&self) {
        self.leases.records.service.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(url: &str) -> Result<Items, String> {
        Items::new(url, &StoreOptions::new(".")).map_err(|bad| bad.rule)
    }

    #[test]
    fn a_table_is_named_or_goes_without_saying() {
        for (url, table) in [
            ("dynamodb://leases.eu_1-a?region=x", "leases.eu_1-a"),
            ("dynamodb://?region=x", DEFAULT_TABLE),
            ("dynamodb:///?region=x", DEFAULT_TABLE),
            ("dynamodb://", DEFAULT_TABLE),
        ] {
            assert_eq!(items(url).unwrap().table, table, "{url}");
        }
        for url in [
            "dynamodb:leases",
            "dynamodb://ab",
            "dynamodb://a%20table",
            "dynamodb://leases/more",
            "dynamodb://leases?create=yes",
            "dynamodb://leases?path_style=true",
        ] {
            assert!(items(url).is_err(), "{url}");
        }
    }

    #[test]
    fn an_item_says_what_its_record_says() {
        let first = probed();
        for document in [first.changed(Change::Release), first] {
            let (item, attributes) = Item::of("cluster:a", document.clone());
            let read = Item::new(&attributes);
            assert_eq!(read.document, document);
            assert_eq!((read.version, read.text), (item.version, item.text));
            assert_eq!(attributes["fence"]["N"], "1");
            assert_eq!(attributes["election"]["S"], "cluster:a");
        }
    }

    #[test]
    fn regions_that_agree_later_are_told_of() {
        for (table, told) in [
            (json!({}), false),
            (json!({ "Replicas": [] }), false),
            (
                json!({ "Replicas": [{}], "MultiRegionConsistency": "STRONG" }),
                false,
            ),
            (
                json!({ "Replicas": [{}], "MultiRegionConsistency": "EVENTUAL" }),
                true,
            ),
            (json!({ "Replicas": [{ "RegionName": "eu-west-1" }] }), true),
        ] {
            let items = items("dynamodb://leases").unwrap();
            items.tell_of_replicas(&table);
            assert_eq!(
                items.told_of_replicas.load(Ordering::Relaxed),
                told,
                "{table}"
            );
        }
    }
}
