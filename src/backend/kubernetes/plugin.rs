//! Asks a credential plugin (`exec` of a kubeconfig) for credentials.
//!
//! Errors show neither a plugin's arguments nor its environment, it is not lent this process's terminal, and
//! one that hangs is ended.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::failure::excerpt;
use super::kubeconfig::Plugin;
use crate::environment::variables;

/// A plugin that signs in to a cloud takes seconds. One that takes longer is ended.
const LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What its children still hold open does not matter.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a plugin issued.
#[derive(Default)]
pub(super) struct Issued {
    pub token: Option<String>,
    /// A certificate and its key, in PEM form.
    pub certificate: Option<(String, String)>,
    /// How long it is good for, from now.
    pub expires: Option<Duration>,
}

/// Blocks until it has answered. Nothing of what it prints is in an error, but what it complains of is.
/// `cluster`: what it is told of it.
pub(super) fn ask(plugin: &Plugin, cluster: &Value) -> Result<Issued, String> {
    if plugin.command.is_empty() {
        return Err("the kubeconfig's exec has no command".into());
    }
    let name = plugin.command.display();
    if plugin.needs_a_person {
        return Err(format!(
            "the credential plugin {name} wants to ask a person (interactiveMode: Always), and a service has none: use other credentials"
        ));
    }
    let failed = |why: String| format!("the credential plugin {name} {why}");
    let mut child =
        start(plugin, cluster).map_err(|error| failed(format!("does not start: {error}")))?;
    let (answer, complaint) = (read(child.stdout.take()), read(child.stderr.take()));
    let status = wait(&mut child);
    let complaint = complaint.recv_timeout(LAST_WORDS).unwrap_or_default();
    let complaint = excerpt(&String::from_utf8_lossy(&complaint));
    match status {
        None => Err(failed(format!(
            "was ended: it did not answer within {} s, and said {complaint}",
            LIMIT.as_secs()
        ))),
        Some(status) if !status.success() => Err(failed(format!("failed ({status}): {complaint}"))),
        Some(_) => {
            let answer = answer.recv_timeout(LAST_WORDS).unwrap_or_default();
            understand(&answer).map_err(failed)
        }
    }
}

fn start(plugin: &Plugin, cluster: &Value) -> std::io::Result<Child> {
    let info = json!({
        "apiVersion": plugin.api_version,
        "kind": "ExecCredential",
        "spec": { "interactive": false, "cluster": cluster },
    });
    let mut command = Command::new(&plugin.command);
    command
        .args(&plugin.args)
        .env_clear()
        .envs(&*variables())
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let env = plugin.env.iter().map(|(name, value)| (name, value));
    command.envs(env);
    command.spawn()
}

/// On a thread of its own: a plugin that says much must not wait for a reader.
fn read(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (tell, told) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = tell.send(bytes);
    });
    told
}

/// `None`: it had to be ended.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(LOOK_EVERY);
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Errors follow the plugin's name.
fn understand(answer: &[u8]) -> Result<Issued, String> {
    let answer: Value = serde_json::from_slice(answer)
        .map_err(|_| "did not answer with an ExecCredential in JSON".to_owned())?;
    let status = &answer["status"];
    let text = |field: &str| status[field].as_str().map(str::to_owned);
    let issued = Issued {
        token: text("token").filter(|token| !token.is_empty()),
        certificate: text("clientCertificateData").zip(text("clientKeyData")),
        expires: match status["expirationTimestamp"].as_str() {
            Some(moment) => Some(
                until(moment)
                    .ok_or_else(|| "told no time as its expirationTimestamp".to_owned())?,
            ),
            None => None,
        },
    };
    if issued.token.is_none() && issued.certificate.is_none() {
        return Err("issued neither a token nor a certificate".into());
    }
    Ok(issued)
}

/// Zero for what has passed.
fn until(moment: &str) -> Option<Duration> {
    let moment = SystemTime::from(moment.parse::<Timestamp>().ok()?);
    Some(moment.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plugin_issues_is_understood() {
        let token = br#"{"kind":"ExecCredential","status":{"token":"t"}}"#;
        let issued = understand(token).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((issued.token.as_deref(), issued.expires), (Some("t"), None));
        let certificate = br#"{"status":{"clientCertificateData":"c","clientKeyData":"k","expirationTimestamp":"2020-01-01T00:00:00Z"}}"#;
        let issued = understand(certificate).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(issued.certificate, Some(("c".into(), "k".into())));
        assert_eq!(issued.expires, Some(Duration::ZERO));
        for (answer, words) in [
            (&b""[..], "in JSON"),
            (b"token", "in JSON"),
            (b"{}", "neither a token"),
            (br#"{"status":{"token":""}}"#, "neither a token"),
            (
                br#"{"status":{"token":"t","expirationTimestamp":"soon"}}"#,
                "no time",
            ),
        ] {
            let why = understand(answer).err().expect("no credentials");
            assert!(why.contains(words), "{why}");
        }
    }
}
