//! What is around this process that says who it is to AWS: variables, and the shared files.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::environment;

/// As it is at one moment. Holds secrets: it is never shown.
#[derive(Clone, Default)]
pub(super) struct Surroundings {
    vars: HashMap<String, String>,
    home: Option<PathBuf>,
}

/// What the shared files say under one name.
pub(super) type Profile = HashMap<String, String>;

impl Surroundings {
    pub fn of_this_process() -> Self {
        let vars = (*environment::variables()).clone();
        Self::of(vars, environment::home())
    }

    pub fn of(vars: impl IntoIterator<Item = (String, String)>, home: Option<PathBuf>) -> Self {
        let vars = vars
            .into_iter()
            .filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty())
            .collect();
        Self { vars, home }
    }

    /// Set, and not to nothing.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str)
    }

    /// What stands in for AWS's own server of a service, `S3`, `DYNAMODB` or `STS`.
    pub fn endpoint(&self, service: &str) -> Option<&str> {
        if self.var("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") == Some("true") {
            return None;
        }
        self.var(&format!("AWS_ENDPOINT_URL_{service}"))
            .or(self.var("AWS_ENDPOINT_URL"))
    }

    pub fn vars(&self) -> &HashMap<String, String> {
        &self.vars
    }

    /// The profile that is named, or the one that counts where none is.
    pub fn profile_name(&self) -> &str {
        self.var("AWS_PROFILE").unwrap_or("default")
    }

    /// The shared files: with keys, and with everything else.
    pub fn files(&self) -> [Option<PathBuf>; 2] {
        [
            ("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            ("AWS_CONFIG_FILE", "config"),
        ]
        .map(|(name, file)| match self.var(name) {
            Some(path) => Some(self.expanded(path)),
            None => Some(self.home.as_ref()?.join(".aws").join(file)),
        })
    }

    /// What both files say of a profile; the one with keys counts more. Blocks. `Err`: a file that cannot be
    /// read.
    pub fn profile(&self, name: &str) -> Result<Option<Profile>, String> {
        let [credentials, config] = self.files();
        let titled = if name == "default" {
            name.to_owned()
        } else {
            format!("profile {name}")
        };
        let mut found = None;
        for (file, title) in [(config, &*titled), (credentials, name)] {
            let Some(file) = file else { continue };
            let text = match fs::read(&file) {
                Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(format!("{} cannot be read: {error}", file.display())),
            };
            if let Some(section) = section(&text, title) {
                found.get_or_insert_with(Profile::new).extend(section);
            }
        }
        Ok(found)
    }

    pub fn expanded(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), &self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => path.into(),
        }
    }
}

/// What stands below `[title]`. Lines that are indented belong to the setting before them, and none of those
/// is needed.
fn section(text: &str, title: &str) -> Option<Profile> {
    let (mut inside, mut found) = (false, None);
    for line in text.lines() {
        let line = uncommented(line);
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.split(']').next().unwrap_or_default();
            inside = name.split_whitespace().eq(title.split_whitespace());
            if inside {
                found.get_or_insert_with(Profile::new);
            }
        } else if inside
            && !line.starts_with(char::is_whitespace)
            && let Some((name, value)) = line.split_once('=')
        {
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
            found.get_or_insert_with(Profile::new).insert(name, value);
        }
    }
    found
}

/// A comment begins a line, or stands behind a space.
fn uncommented(line: &str) -> &str {
    if line.starts_with(['#', ';']) {
        return "";
    }
    let begins = [" #", " ;", "\t#", "\t;"].map(|mark| line.find(mark));
    let end = begins.into_iter().flatten().min();
    line[..end.unwrap_or(line.len())].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_found_by_its_title_and_read_without_comments() {
        let text = "\u{feff}# a\n[default]\naws_access_key_id=A\n\n[ profile  b ] ; two\nAWS_Access_Key_Id = B#1 # b\nregion\t=\teu-central-1\ns3 =\n  region = nested\n;x = y\n[profile c]\n";
        let b = section(text, "profile b").unwrap();
        assert_eq!(b["aws_access_key_id"], "B#1");
        assert_eq!(b["region"], "eu-central-1");
        assert_eq!(b["s3"], "");
        assert_eq!(b.len(), 3);
        assert_eq!(section(text, "default").unwrap().len(), 1);
        assert!(section(text, "profile c").unwrap().is_empty());
        assert_eq!(section(text, "b"), None);
    }

    #[test]
    fn a_variable_that_is_set_to_nothing_is_not_set() {
        let vars = [("AWS_PROFILE", ""), ("AWS_REGION", "x"), ("PATH", "/bin")];
        let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let around = Surroundings::of(vars, None);
        assert_eq!(around.profile_name(), "default");
        assert_eq!(around.var("AWS_REGION"), Some("x"));
        assert_eq!(around.vars().len(), 1);
        assert_eq!(around.files(), [None, None]);
    }
}
