//! Records of stores that keep a text by its key, and write it on a condition.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::{Change, Document, Record, Records, Written};
use crate::backend::BackendError;
use crate::lease::{ElectionName, Owner, Token};

/// A store of texts. What it promises is said at [`Records`].
#[async_trait]
pub(in crate::backend) trait Values: fmt::Debug + Send + Sync + 'static {
    /// What a write's condition names.
    type Version: fmt::Debug + fmt::Display + Clone + Send + Sync + 'static;

    async fn get(
        &self,
        election: &ElectionName,
    ) -> Result<Option<Kept<Self::Version>>, BackendError>;

    /// Writes over what is of this version; `None`: where there is nothing. Returns the version of what was
    /// written; `None`: somebody else wrote or deleted first, and nothing was written.
    async fn put(
        &self,
        election: &ElectionName,
        over: Option<&Self::Version>,
        document: &Document,
    ) -> Result<Option<Self::Version>, BackendError>;
}

/// What is kept under an election's key.
#[derive(Debug, Clone)]
pub(in crate::backend) struct Kept<Version> {
    pub version: Version,
    /// `None`: a mark where a record was deleted, which a new one is written over.
    pub document: Option<Document>,
}

impl<Version> Kept<Version> {
    pub fn new(version: Version, text: &[u8]) -> Self {
        Self {
            version,
            document: Some(Document::read(text)),
        }
    }
}

#[async_trait]
impl<V: Values> Records for V {
    type Entry = Kept<V::Version>;

    fn record(&self, entry: &Self::Entry) -> Record {
        let version = &entry.version;
        match &entry.document {
            // The store's own may come again where it was set back; a word never does.
            Some(document) => document.record(format!("{version} {}", document.word())),
            None => Record {
                version: version.to_string(),
                holder: None,
                last: None,
            },
        }
    }

    async fn read(&self, election: &ElectionName) -> Result<Option<Self::Entry>, BackendError> {
        self.get(election).await
    }

    async fn create(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
        duration: Duration,
    ) -> Result<Option<Self::Entry>, BackendError> {
        let document = Document::first(owner, token, duration);
        let version = self.put(election, None, &document).await?;
        Ok(version.map(|version| Kept {
            version,
            document: Some(document),
        }))
    }

    async fn write(
        &self,
        election: &ElectionName,
        over: &Self::Entry,
        change: Change<'_>,
    ) -> Result<Written<Self::Entry>, BackendError> {
        let document = match (&over.document, change) {
            (Some(document), change) => document.changed(change),
            (
                None,
                Change::Begin {
                    owner,
                    token,
                    duration,
                },
            ) => Document::first(owner, token, duration),
            // Nobody's term is where a record was deleted.
            (None, Change::Renew { .. } | Change::Release) => return Ok(Written::Changed),
        };
        let version = self.put(election, Some(&over.version), &document).await?;
        Ok(version.map_or(Written::Changed, |version| {
            Written::Done(Kept {
                version,
                document: Some(document),
            })
        }))
    }
}
