//! The table of the leases: which one it is, and making it.

use super::address::{TableName, quoted};
use super::failure::{Advice, NO_TABLE};
use super::link::Link;
use super::statements::{Values, literal, read};
use crate::backend::{BackendError, UNSUITABLE};

const MAKE: &str = include_str!("table.sql");
const FIND: &str = "SELECT n.nspname AS schema, c.relkind AS kind, c.relpersistence AS persistence \
     FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
     WHERE c.oid = pg_catalog.to_regclass($name)";

impl Link {
    /// The table in SQL, with its schema: found once, so that a `search_path` that changes under us does not
    /// lead to another one.
    pub async fn table(&self) -> Result<String, BackendError> {
        if let Some(table) = self.table.get() {
            return Ok(table.quoted());
        }
        let table = match self.find_table().await? {
            Some(table) => table,
            None => self.make_table().await?,
        };
        Ok(self.table.get_or_init(|| table).quoted())
    }

    async fn find_table(&self) -> Result<Option<TableName>, BackendError> {
        let known = self.table.get().unwrap_or(&self.address.table);
        let values = Values::default().with("name", literal(&known.quoted()));
        let answer = self.run(|| read(FIND, &values)).await?;
        let Some(row) = answer.rows.first() else {
            return Ok(None);
        };
        let found = TableName {
            schema: row.get("schema").map(str::to_owned),
            name: known.name.clone(),
        };
        let unsuitable = match (row.get("kind"), row.get("persistence")) {
            (Some("r" | "p"), Some("p")) => return Ok(Some(found)),
            (_, Some("t")) => "is a temporary table, which every session has for itself",
            (_, Some("u")) => {
                "is unlogged, so a crash of the server empties it, and with it leases that somebody still trusts"
            }
            _ => "is no table",
        };
        Err(BackendError::fatal(
            UNSUITABLE,
            format!(
                "{} on {} {unsuitable}. Name another one: ?table=<schema>.<table>",
                found.quoted(),
                self.address.shown
            ),
        ))
    }

    /// Makes it, unless somebody else does at the same moment.
    pub async fn make_table(&self) -> Result<TableName, BackendError> {
        let known = self.table.get().unwrap_or(&self.address.table);
        let values = Values::default().with("table", known.quoted());
        let made = self.run(|| read(MAKE, &values)).await;
        // Of several who make it at the same moment some are refused for one of several reasons.
        match self.find_table().await {
            Ok(Some(table)) => Ok(table),
            Ok(None) => Err(made.err().unwrap_or_else(|| {
                BackendError::transient(
                    NO_TABLE,
                    format!(
                        "the table of the leases vanishes from {} as soon as it is made",
                        self.address.shown
                    ),
                )
            })),
            Err(error) => Err(error),
        }
    }
}

impl Advice for Link {
    fn place(&self) -> &str {
        &self.address.shown
    }

    fn rights(&self) -> String {
        let table = self.table.get().unwrap_or(&self.address.table);
        let user = quoted(self.address.user());
        let schema = table
            .schema
            .as_ref()
            .map(|schema| format!("GRANT USAGE ON SCHEMA {} TO {user}; ", quoted(schema)));
        format!(
            "Whoever may shall say once: {}; {}GRANT SELECT, INSERT, UPDATE ON {} TO {user};",
            definition(table),
            schema.unwrap_or_default(),
            table.quoted()
        )
    }

    fn shape(&self) -> String {
        let table = self.table.get().unwrap_or(&self.address.table);
        format!(
            "{} is not as an election makes it. If nobody needs it, drop it; if another program does, choose \
             another name with ?table=<schema>.<table>. It should be: {}",
            table.quoted(),
            definition(table)
        )
    }
}

fn definition(table: &TableName) -> String {
    let text = read(MAKE, &Values::default().with("table", table.quoted()));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
