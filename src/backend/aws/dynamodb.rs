//! `DynamoDB`.
//!
//! One item holds the record of one election: `election` (the key), `instanceId`, `nonce`, `fence` (the token, a
//! number), `leaseMs`, and `version`, a random word that is new in each write. The first write is a `PutItem` on
//! the condition that there is no item, and each later one on the condition that its `version` is the one that
//! was read; all reads are consistent ones. Nothing judges expiry and nothing notifies: followers look, and
//! [`Observed`] does the rest. A released lease is an item that names nobody: nothing is deleted, so tokens go on
//! growing. Its own expiry (TTL) is not used: it comes days late.

use std::fmt;
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
use crate::backend::observed::{Document, Kept, Observed, ObservedStore, Values};
use crate::backend::{Backend, BackendError, BadStore, Capabilities, StoreOptions, UNSUITABLE};
use crate::clock::Clock;
use crate::identity::default_instance_id;
use crate::lease::{ElectionName, FailureKind, Owner, Token};
use crate::random::random_u64;

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
struct Items {
    service: Service,
    table: String,
    may_create: bool,
    told_of_replicas: AtomicBool,
}

/// An item with what it says.
type Item = Kept<Version>;

/// What tells an item from others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    /// `None`: it has none that is a text, whatever else it is.
    word: Option<String>,
    /// All of the item.
    text: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word.as_ref().unwrap_or(&self.text))
    }
}

/// Makes the backend. Reads nothing and connects to nothing yet.
pub(in crate::backend) fn open(
    url: &str,
    options: &StoreOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let items = Items::new(url, options)?;
    Ok(Arc::new(Observed::with_options(items, options, clock)))
}

fn item_of(attributes: &Value) -> Item {
    let mut record = Map::new();
    for (name, attribute, kind) in ATTRIBUTES {
        let found = &attributes[attribute];
        let value = match found.get(kind) {
            Some(value) => value,
            None if found["NULL"] == true => &Value::Null,
            // What is of another type says nothing, but is not nothing: a holder is there, perhaps.
            None => found,
        };
        record.insert(name.to_owned(), value.clone());
    }
    let version = Version {
        word: attributes["version"]["S"].as_str().map(str::to_owned),
        text: attributes.to_string(),
    };
    Kept::new(version, Value::Object(record).to_string().as_bytes())
}

fn attributes_of(key: &str, document: &Document) -> (Version, Value) {
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
    let version = Version {
        word: record["version"].as_str().map(str::to_owned),
        text: attributes.to_string(),
    };
    (version, attributes)
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

    async fn read_at(&self, key: &str) -> Result<Option<Item>, BackendError> {
        let asked = json!({
            "TableName": self.table,
            "Key": { KEY: { "S": key } },
            "ConsistentRead": true,
        });
        let answer = self.ask("GetItem", &asked, false).await?;
        let body: Value = self.body(&answer, false)?;
        let item = &body["Item"];
        Ok((!item.is_null()).then(|| item_of(item)))
    }

    /// Writes over the item of that version, or where there is none. Returns the new one; `None`: refused.
    async fn write_at(
        &self,
        key: &str,
        document: &Document,
        over: Option<&Version>,
    ) -> Result<Option<Version>, BackendError> {
        let (version, attributes) = attributes_of(key, document);
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
            Some(Version { word: None, .. }) => {
                asked["ExpressionAttributeNames"] = json!({ "#key": KEY, "#version": "version" });
                asked["ExpressionAttributeValues"] = json!({ ":text": { "S": "S" } });
                "attribute_exists(#key) AND NOT attribute_type(#version, :text)"
            }
            Some(Version { word, .. }) => {
                asked["ExpressionAttributeNames"] = json!({ "#version": "version" });
                asked["ExpressionAttributeValues"] = json!({ ":version": { "S": word } });
                "#version = :version"
            }
        };
        asked["ConditionExpression"] = condition.into();
        let answer = self.ask("PutItem", &asked, true).await?;
        if answer.status == 200 {
            self.body(&answer, true)?;
            return Ok(Some(version));
        }
        match &*said(&answer).code {
            "ConditionalCheckFailedException" => {}
            "TransactionConflictException" | "ReplicatedWriteConflictException" => {
                return Ok(None);
            }
            _ => return Err(self.failed(&answer, true)),
        }
        if !answer.asked_before {
            return Ok(None);
        }
        // Perhaps by an earlier try of this very write. Not everything that speaks like it shows the item.
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let found = match &body["Item"] {
            Value::Null => self.read_at(key).await.map_err(unsure)?,
            found => Some(item_of(found)),
        };
        let is_ours = found.is_some_and(|found| found.document.as_ref() == Some(document));
        Ok(is_ours.then_some(version))
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
        self.read_at(&key).await?;
        let document = probed();
        let version = match self.write_at(&key, &document, None).await {
            Ok(Some(version)) => version,
            Ok(None) => {
                return Err(self.ignores("an item that is not there cannot be made"));
            }
            Err(error) => {
                // Only what surely was not written leaves nothing.
                if error.kind != FailureKind::Transient {
                    let _ = self.delete(&key).await;
                }
                return Err(error);
            }
        };
        let checked = self.check(&key, &document, &version).await;
        let deleted = self.delete(&key).await;
        checked.and(deleted)
    }

    async fn check(
        &self,
        key: &str,
        made: &Document,
        version: &Version,
    ) -> Result<(), BackendError> {
        let read = self.read_at(key).await?;
        if read.is_none_or(|read| read.document.as_ref() != Some(made)) {
            return Err(self.ignores("what was just written is not what is read"));
        }
        let put = async |over| self.write_at(key, &probed(), over).await;
        if put(None).await?.is_some() {
            return Err(self.ignores("an item that is there was made again"));
        }
        let (other, _) = attributes_of(key, &probed());
        if put(Some(&other)).await?.is_some() {
            return Err(self.ignores("somebody who did not know an item wrote over it"));
        }
        match put(Some(version)).await? {
            Some(_) => Ok(()),
            None => Err(self.ignores("somebody who knew an item could not write over it")),
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
impl Values for Items {
    type Version = Version;

    async fn get(&self, election: &ElectionName) -> Result<Option<Item>, BackendError> {
        self.read_at(&Self::key(election)).await
    }

    async fn put(
        &self,
        election: &ElectionName,
        over: Option<&Version>,
        document: &Document,
    ) -> Result<Option<Version>, BackendError> {
        self.write_at(&Self::key(election), document, over).await
    }
}

#[async_trait]
impl ObservedStore for Items {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: SHORTEST_LEASE,
            notifies: false,
        }
    }

    fn describe(&self) -> String {
        self.shown()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        self.check_table().await?;
        self.probe().await
    }

    async fn close(&self) {
        self.service.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::observed::Change;

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
            let (version, attributes) = attributes_of("cluster:a", &document);
            let read = item_of(&attributes);
            assert_eq!((read.version, read.document), (version, Some(document)));
            assert_eq!(attributes["fence"]["N"], "1");
            assert_eq!(attributes["election"]["S"], "cluster:a");
        }
    }

    #[test]
    fn an_attribute_of_another_type_frees_no_lease() {
        let nobody = [
            json!({ "instanceId": { "NULL": true }, "leaseMs": { "N": "0" } }),
            json!({ "leaseMs": { "N": "0" } }),
        ];
        let somebody = [
            json!({ "instanceId": { "N": "5" }, "leaseMs": { "N": "0" } }),
            json!({ "instanceId": { "NULL": true }, "leaseMs": { "S": "0" } }),
            json!({ "instanceId": { "NULL": true } }),
        ];
        let held = |item: &Value| {
            let document = item_of(item).document.expect("a record");
            document.record("v").holder.is_some()
        };
        for item in nobody {
            assert!(!held(&item), "{item}");
        }
        for item in somebody {
            assert!(held(&item), "{item}");
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
