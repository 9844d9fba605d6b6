//! The embedded store.

use std::fs;
use std::path::PathBuf;

use whenleader::lease::ElectionName;

use crate::suite::Fixture;
use crate::support::TempDir;

pub struct Embedded {
    dir: TempDir,
}

impl Embedded {
    fn election(&self, election: &ElectionName) -> PathBuf {
        // The suite's names need no encoding here.
        self.dir.path().join(format!("e-{election}"))
    }
}

impl Fixture for Embedded {
    const RUBBISH_EXPIRES: bool = true;

    async fn start(_test: &str) -> Option<Self> {
        Some(Self {
            dir: TempDir::new(),
        })
    }

    fn url(&self) -> String {
        format!("file:{}", self.dir.path().display())
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let dir = self.election(election);
        let names = fs::read_dir(&dir).unwrap();
        let newest = names.map(|entry| entry.unwrap().file_name()).max().unwrap();
        let next = newest.to_str().unwrap().parse::<u64>().unwrap() + 1;
        fs::write(dir.join(format!("{next:020}")), rubbish).unwrap();
    }

    async fn forget(&self, election: &ElectionName) {
        fs::remove_dir_all(self.election(election)).unwrap();
    }
}

mod conforms {
    crate::conformance!(super::Embedded);
}
