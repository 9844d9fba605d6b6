//! Drives the programs of tools/ that run servers: one line of JSON asks, one line answers.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tokio::sync::oneshot;

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// The program that runs a server. It ends when its input does.
#[derive(Debug)]
pub struct Launcher {
    child: Child,
    input: Mutex<Option<ChildStdin>>,
    asked: AtomicU64,
    waiting: Waiting,
}

impl Launcher {
    /// With what it tells when the server is ready, or why there is none here.
    pub fn start(script: &str, args: &[&str]) -> Result<(Self, Value), String> {
        // Tests of several packages come here.
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .find(|dir| dir.join("package.json").is_file())
            .expect("a checkout");
        let script = root.join(script);
        let mut child = Command::new("node")
            .arg(script)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("node does not start: {error}"))?;
        let input = Mutex::new(child.stdin.take());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("the server starts").unwrap();
        let told: Value = serde_json::from_str(&first).unwrap();
        if let Some(why) = told["missing"].as_str() {
            let _ = child.wait();
            return Err(why.to_owned());
        }
        let waiting = Waiting::default();
        let answered = Arc::clone(&waiting);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let told: Value = serde_json::from_str(&line).unwrap();
                let id = told["id"].as_u64().expect("an answer to a question");
                // A test that has ended waits no longer.
                let asker = answered.lock().unwrap().remove(&id);
                let _ = asker.map(|asker| asker.send(told));
            }
            // Those who still wait learn that there will be no answer.
            answered.lock().unwrap().clear();
        });
        let launcher = Self {
            child,
            input,
            asked: AtomicU64::new(0),
            waiting,
        };
        Ok((launcher, told))
    }

    pub async fn ask(&self, mut question: Value) -> Value {
        let id = self.asked.fetch_add(1, Ordering::Relaxed);
        question["id"] = json!(id);
        let (asker, answer) = oneshot::channel();
        self.waiting.lock().unwrap().insert(id, asker);
        {
            let mut input = self.input.lock().unwrap();
            let input = input.as_mut().expect("open until the end");
            writeln!(input, "{question}").expect("the launcher runs");
        }
        let told = answer.await.expect("the launcher answers");
        assert_eq!(told["error"], Value::Null, "{question}");
        told
    }
}

impl Launcher {
    /// It dies, and cannot end its server itself.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        drop(self.input.lock().unwrap().take());
        let _ = self.child.wait();
    }
}
