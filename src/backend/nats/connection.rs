//! One connection to a NATS server, and what is asked on it. It knows the protocol and nothing of JetStream.
//!
//! It never becomes another connection by itself, and keeps nothing back to send it later: whoever stops
//! waiting before a request was written takes it back. (What is kept for a connection to come would be written
//! when its leader has long given up.)

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::address::Address;
use super::failure::{Trouble, Why};
use crate::backend::url::Host;
use crate::locked::locked;
use crate::random::random_u64;

const DEFAULT_PORT: u16 = super::address::DEFAULT_PORT;
/// No operation's first line is longer.
const LONGEST_LINE: usize = 1 << 20;
/// No message that is asked for is longer.
const LONGEST_MESSAGE: usize = 16 << 20;
/// The subscription by which answers come.
const ANSWERS: u64 = 1;

/// Its drop closes it.
#[derive(Debug)]
pub(super) struct Connection {
    frames: mpsc::UnboundedSender<Frame>,
    shared: Arc<Shared>,
    inbox: String,
    task: JoinHandle<()>,
}

/// What arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub subject: String,
    pub reply: String,
    /// Of a message of the server's own: `503` for nobody who listens, `100` for a sign of life.
    pub status: Option<u16>,
    pub headers: Vec<(String, String)>,
    pub payload: Vec<u8>,
}

impl Message {
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }
}

/// What is told on one subject, until this is dropped or the connection ends.
#[derive(Debug)]
pub(super) struct Subscription {
    pub subject: String,
    messages: mpsc::UnboundedReceiver<Message>,
    shared: Arc<Shared>,
    id: u64,
}

impl Subscription {
    pub async fn next(&mut self) -> Result<Message, Trouble> {
        match self.messages.recv().await {
            Some(message) => Ok(message),
            None => Err(self.shared.why_it_ended()),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.lock().subscriptions.remove(&self.id);
    }
}

/// To be written in one piece.
#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    /// Nobody waits for it any more if this is the last one.
    fate: Option<Arc<AtomicBool>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// The server is about to close.
    leaving: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    ended: Option<Trouble>,
    last: u64,
    waiting: HashMap<u64, Waiting>,
    subscriptions: HashMap<u64, mpsc::UnboundedSender<Message>>,
}

#[derive(Debug)]
struct Waiting {
    subject: String,
    answer: oneshot::Sender<Result<Message, Trouble>>,
}

/// Somebody waits for an answer. Its drop takes the request back, if it was not written yet.
struct Asking<'a> {
    shared: &'a Shared,
    number: u64,
    /// Whether it was written.
    fate: Arc<AtomicBool>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.shared.lock().waiting.remove(&self.number);
    }
}

impl Connection {
    /// Whoever gives up waiting closes what there is of it.
    pub async fn dial(address: &Address, host: &Host) -> Result<Self, Trouble> {
        let place = host.with_port(DEFAULT_PORT);
        let port = host.port.unwrap_or(DEFAULT_PORT);
        let lost = |mut trouble: Trouble| {
            // Nothing but a greeting was sent.
            if trouble.why == Why::Halfway {
                trouble.why = Why::Unreachable;
            }
            trouble.message = format!("{place} {}", trouble.message);
            trouble
        };
        let socket = TcpStream::connect((&*host.name, port))
            .await
            .map_err(|error| Trouble::new(Why::Unreachable, format!("{place}: {error}")))?;
        let _ = socket.set_nodelay(true);
        let mut pipe: Pipe = Box::new(socket);
        if address.tls_first {
            pipe = encrypted(address, host, pipe).await?;
        }
        let mut parser = Parser::default();
        let info = match parser.next(&mut pipe).await {
            Ok(Operation::Info(info)) => info,
            Ok(_) => return Err(foreign(&place)),
            Err(trouble) if trouble.why == Why::Foreign => return Err(foreign(&place)),
            Err(trouble) => return Err(lost(trouble)),
        };
        let offers_tls = info["tls_required"] == true || info["tls_available"] == true;
        if !address.tls_first && (address.wants_tls || info["tls_required"] == true) {
            if !offers_tls {
                return Err(Trouble::new(Why::NoTls, format!("{place} speaks no TLS")));
            }
            // What came before it was encrypted is nobody's.
            parser = Parser::default();
            pipe = encrypted(address, host, pipe).await?;
        }

        let inbox = format!("{}.{:016x}", address.inbox, random_u64());
        let hello = address
            .hello(info["nonce"].as_str())
            .await
            .map_err(|message| Trouble::new(Why::Denied, message))?;
        let hello = format!("CONNECT {hello}\r\nSUB {inbox}.* {ANSWERS}\r\nPING\r\n");
        pipe.write_all(hello.as_bytes())
            .await
            .map_err(|error| lost(Trouble::new(Why::Halfway, format!("hung up: {error}"))))?;
        let shared = Arc::<Shared>::default();
        loop {
            let operation = parser.next(&mut pipe).await;
            match operation.map_err(lost)? {
                Operation::Pong => break,
                Operation::Error(words) => return Err(Trouble::said(&place, &words)),
                Operation::Info(info) => shared.heard(&info),
                _ => {}
            }
        }

        let (frames, unsent) = mpsc::unbounded_channel();
        let (reading, writing) = tokio::io::split(pipe);
        let task = tokio::spawn(carry(
            (reading, parser, frames.clone()),
            (writing, unsent),
            Arc::clone(&shared),
            place,
        ));
        Ok(Self {
            frames,
            shared,
            inbox,
            task,
        })
    }

    /// Whether the server told that it will close soon.
    pub fn is_leaving(&self) -> bool {
        self.shared.leaving.load(Ordering::Relaxed)
    }

    pub async fn ask(
        &self,
        subject: &str,
        headers: &[(&str, String)],
        payload: &[u8],
    ) -> Result<Message, Trouble> {
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut state = self.shared.lock();
            if let Some(ended) = &state.ended {
                // Known before, so nothing was sent.
                return Err(Trouble::new(Why::Unsent, ended.message.clone()));
            }
            state.last += 1;
            let number = state.last;
            let subject = subject.to_owned();
            state.waiting.insert(number, Waiting { subject, answer });
            number
        };
        let asking = Asking {
            shared: &self.shared,
            number,
            fate: Arc::default(),
        };
        let reply = format!("{}.{number}", self.inbox);
        self.send(
            published(subject, &reply, headers, payload),
            Some(Arc::clone(&asking.fate)),
        );
        if let Ok(result) = answered.await {
            return result;
        }
        let mut trouble = self.shared.why_it_ended();
        if !asking.fate.load(Ordering::SeqCst) {
            trouble.why = Why::Unsent;
        }
        Err(trouble)
    }

    /// Listens on a subject of its own.
    pub fn subscribe(&self) -> Subscription {
        let (told, messages) = mpsc::unbounded_channel();
        let mut state = self.shared.lock();
        state.last += 1;
        let id = ANSWERS + state.last;
        // Another level, so that it is no answer.
        let subject = format!("{}.told.{id}", self.inbox);
        if state.ended.is_none() {
            state.subscriptions.insert(id, told);
        }
        drop(state);
        self.send(format!("SUB {subject} {id}\r\n").into_bytes(), None);
        Subscription {
            subject,
            messages,
            shared: Arc::clone(&self.shared),
            id,
        }
    }

    fn send(&self, bytes: Vec<u8>, fate: Option<Arc<AtomicBool>>) {
        // If the connection has ended, whoever waits hears of it.
        let _ = self.frames.send(Frame { bytes, fate });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn why_it_ended(&self) -> Trouble {
        let ended = self.lock().ended.clone();
        ended.unwrap_or_else(|| Trouble::new(Why::Halfway, "the connection was closed"))
    }

    /// Nobody gets an answer any more.
    fn end(&self, trouble: Trouble) {
        let mut state = self.lock();
        state.ended = Some(trouble);
        state.waiting.clear();
        state.subscriptions.clear();
    }

    fn heard(&self, info: &Value) {
        if info["ldm"] == true {
            self.leaving.store(true, Ordering::Relaxed);
        }
    }

    fn arrived(&self, id: u64, message: Message) {
        let mut state = self.lock();
        if id != ANSWERS {
            if let Some(told) = state.subscriptions.get(&id) {
                let _ = told.send(message);
            }
            return;
        }
        let number = message.subject.rsplit('.').next();
        let number = number.and_then(|number| number.parse().ok());
        if let Some(waiting) = number.and_then(|number: u64| state.waiting.remove(&number)) {
            let _ = waiting.answer.send(Ok(message));
        }
    }

    /// Of an error that does not end the connection: a subject that is not allowed. Returns whether it was one.
    fn complained(&self, place: &str, words: &str) -> bool {
        let mut state = self.lock();
        let Some(subject) = words.split('"').nth(1) else {
            return false;
        };
        let refused: Vec<_> = state
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.subject == subject)
            .map(|(number, _)| *number)
            .collect();
        for number in refused {
            if let Some(waiting) = state.waiting.remove(&number) {
                let _ = waiting.answer.send(Err(Trouble::said(place, words)));
            }
        }
        true
    }
}

/// Reads and writes until the connection ends.
async fn carry(
    (mut reading, mut parser, frames): (ReadHalf<Pipe>, Parser, mpsc::UnboundedSender<Frame>),
    (writing, unsent): (WriteHalf<Pipe>, mpsc::UnboundedReceiver<Frame>),
    shared: Arc<Shared>,
    place: String,
) {
    let listening = async {
        let mut last_words = None;
        loop {
            let operation = match parser.next(&mut reading).await {
                Ok(operation) => operation,
                Err(mut trouble) => {
                    if let Some(words) = last_words {
                        trouble.message = format!("{}, which said: {words}", trouble.message);
                    }
                    return trouble;
                }
            };
            match operation {
                Operation::Message(id, message) => shared.arrived(id, message),
                Operation::Ping => {
                    let bytes = b"PONG\r\n".to_vec();
                    let _ = frames.send(Frame { bytes, fate: None });
                }
                Operation::Info(info) => shared.heard(&info),
                Operation::Error(words) => {
                    if !shared.complained(&place, &words) {
                        last_words = Some(words);
                    }
                }
                Operation::Pong | Operation::Okay => {}
            }
        }
    };
    let mut trouble = tokio::select! {
        trouble = listening => trouble,
        error = write_frames(writing, unsent) => {
            Trouble::new(Why::Halfway, format!("broke: {error}"))
        }
    };
    trouble.message = format!("the connection to {place} {}", trouble.message);
    shared.end(trouble);
}

async fn write_frames(
    mut writing: WriteHalf<Pipe>,
    mut unsent: mpsc::UnboundedReceiver<Frame>,
) -> std::io::Error {
    while let Some(frame) = unsent.recv().await {
        if let Some(fate) = &frame.fate {
            // Whoever asked has given up: it would come too late.
            if Arc::strong_count(fate) == 1 {
                continue;
            }
            fate.store(true, Ordering::SeqCst);
        }
        let written = async {
            writing.write_all(&frame.bytes).await?;
            writing.flush().await
        };
        if let Err(error) = written.await {
            return error;
        }
    }
    std::io::ErrorKind::BrokenPipe.into()
}

fn published(subject: &str, reply: &str, headers: &[(&str, String)], payload: &[u8]) -> Vec<u8> {
    let length = payload.len();
    let mut frame = if headers.is_empty() {
        format!("PUB {subject} {reply} {length}\r\n")
    } else {
        let lines = header_lines(headers);
        let of_headers = lines.len();
        let whole = of_headers + length;
        format!("HPUB {subject} {reply} {of_headers} {whole}\r\n{lines}")
    }
    .into_bytes();
    frame.extend_from_slice(payload);
    frame.extend_from_slice(b"\r\n");
    frame
}

/// As they stand before a message.
pub(super) fn header_lines(headers: &[(&str, String)]) -> String {
    let mut lines = String::from("NATS/1.0\r\n");
    for (name, value) in headers {
        let _ = write!(lines, "{name}: {value}\r\n");
    }
    lines.push_str("\r\n");
    lines
}

async fn encrypted(address: &Address, host: &Host, pipe: Pipe) -> Result<Pipe, Trouble> {
    let place = host.with_port(DEFAULT_PORT);
    let config = address.tls.client_config().await;
    let config = config.map_err(|message| Trouble::new(Why::Distrust, message))?;
    let name = ServerName::try_from(host.name.clone())
        .map_err(|error| Trouble::new(Why::Distrust, format!("{place}: {error}")))?;
    match TlsConnector::from(Arc::new(config))
        .connect(name, pipe)
        .await
    {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => {
            let why = match tls_error(&error) {
                Some(rustls::Error::InvalidMessage(_)) => Why::NoTls,
                Some(_) => Why::Distrust,
                None => Why::Unreachable,
            };
            Err(Trouble::new(why, format!("{place}: {error}")))
        }
    }
}

fn tls_error(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

fn foreign(place: &str) -> Trouble {
    Trouble::new(
        Why::Foreign,
        format!("{place} does not answer as a NATS server does"),
    )
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
type Pipe = Box<dyn Stream>;

/// What a server says.
#[derive(Debug, PartialEq)]
enum Operation {
    Info(Value),
    Ping,
    Pong,
    Okay,
    /// In its words, without quotation marks around them.
    Error(String),
    Message(u64, Message),
}

/// Cuts what arrives into operations.
#[derive(Default)]
struct Parser {
    unread: Vec<u8>,
    /// The unread part begins here.
    from: usize,
}

impl Parser {
    async fn next(&mut self, pipe: &mut (impl AsyncRead + Unpin)) -> Result<Operation, Trouble> {
        loop {
            if let Some(operation) = self.cut()? {
                return Ok(operation);
            }
            self.unread.drain(..std::mem::take(&mut self.from));
            match pipe.read_buf(&mut self.unread).await {
                Ok(0) => return Err(Trouble::new(Why::Halfway, "was closed by the server")),
                Ok(_) => {}
                Err(error) => {
                    // With TLS 1.3 a server refuses a certificate after the client believes that all is well.
                    let why = match tls_error(&error) {
                        Some(rustls::Error::AlertReceived(_)) => Why::Distrust,
                        _ => Why::Halfway,
                    };
                    return Err(Trouble::new(why, format!("broke: {error}")));
                }
            }
        }
    }

    /// `None`: the next one has not arrived as a whole.
    fn cut(&mut self) -> Result<Option<Operation>, Trouble> {
        let unread = &self.unread[self.from..];
        let Some(end) = unread.windows(2).position(|two| two == b"\r\n") else {
            return if unread.len() > LONGEST_LINE {
                Err(nonsense())
            } else {
                Ok(None)
            };
        };
        let line = std::str::from_utf8(&unread[..end]).map_err(|_| nonsense())?;
        let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let rest = rest.trim();
        let operation = match &*word.to_ascii_uppercase() {
            "INFO" => Operation::Info(serde_json::from_str(rest).map_err(|_| nonsense())?),
            "PING" => Operation::Ping,
            "PONG" => Operation::Pong,
            "+OK" => Operation::Okay,
            "-ERR" => Operation::Error(rest.trim_matches('\'').to_owned()),
            "MSG" | "HMSG" => {
                let sizes = if word.len() == "HMSG".len() { 2 } else { 1 };
                let begin = Begin::read(rest, sizes).ok_or_else(nonsense)?;
                let (payload, after) = (end + 2, end + 2 + begin.whole + 2);
                let Some(bytes) = unread.get(payload..after) else {
                    return Ok(None);
                };
                let message = begin.message(bytes).ok_or_else(nonsense)?;
                self.from += after;
                return Ok(Some(Operation::Message(begin.id, message)));
            }
            _ => return Err(nonsense()),
        };
        self.from += end + 2;
        Ok(Some(operation))
    }
}

/// The first line of a message.
struct Begin {
    subject: String,
    id: u64,
    reply: String,
    of_headers: usize,
    whole: usize,
}

impl Begin {
    fn read(line: &str, sizes: usize) -> Option<Self> {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let (names, sizes) = words.split_at_checked(words.len().checked_sub(sizes)?)?;
        let (subject, id, reply) = match *names {
            [subject, id] => (subject, id, ""),
            [subject, id, reply] => (subject, id, reply),
            _ => return None,
        };
        let sizes: Vec<usize> = sizes.iter().filter_map(|size| size.parse().ok()).collect();
        let (of_headers, whole) = match *sizes {
            [whole] => (0, whole),
            [of_headers, whole] if of_headers <= whole => (of_headers, whole),
            _ => return None,
        };
        (whole <= LONGEST_MESSAGE).then_some(())?;
        Some(Self {
            subject: subject.to_owned(),
            id: id.parse().ok()?,
            reply: reply.to_owned(),
            of_headers,
            whole,
        })
    }

    fn message(&self, bytes: &[u8]) -> Option<Message> {
        let (lines, payload) = bytes.strip_suffix(b"\r\n")?.split_at(self.of_headers);
        let (status, headers) = if lines.is_empty() {
            (None, Vec::new())
        } else {
            headers(lines)?
        };
        Some(Message {
            subject: self.subject.clone(),
            reply: self.reply.clone(),
            status,
            headers,
            payload: payload.to_vec(),
        })
    }
}

type Headers = Vec<(String, String)>;

/// The status, if there is one, and the lines behind it.
pub(super) fn headers(bytes: &[u8]) -> Option<(Option<u16>, Headers)> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split("\r\n");
    let first = lines.next()?.strip_prefix("NATS/1.0")?.trim();
    let status = first.split(' ').next().and_then(|word| word.parse().ok());
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
    Some((status, headers.collect()))
}

pub(super) fn header<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    let found = headers
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| &**value)
}

fn nonsense() -> Trouble {
    Trouble::new(Why::Foreign, "said something that no NATS server says")
}

/// What a client says first.
pub(super) fn hello() -> Value {
    json!({
        "verbose": false,
        "pedantic": false,
        "name": "whenleader",
        "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": 1,
        "headers": true,
        "no_responders": true,
        "echo": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(bytes: &[u8], chunk: usize) -> Vec<Operation> {
        let (mut near, mut far) = tokio::io::duplex(chunk);
        let bytes = bytes.to_vec();
        tokio::spawn(async move {
            let _ = far.write_all(&bytes).await;
        });
        let mut parser = Parser::default();
        let mut found = Vec::new();
        while let Ok(operation) = parser.next(&mut near).await {
            found.push(operation);
        }
        found
    }

    #[tokio::test]
    async fn what_a_server_says_is_understood_however_it_is_cut() {
        let said = b"INFO {\"ldm\":true} \r\nPING\r\npong\r\n+OK\r\n-ERR 'No \"x\"'\r\nMSG a.b 1 3\r\nx\r\n\r\nMSG a 2 r 0\r\n\r\nHMSG a 1 r 31 33\r\nNATS/1.0 100 Idle\r\nA: b : c\r\n\r\nhi\r\n";
        let message = |subject: &str, reply: &str, payload: &[u8]| Message {
            subject: subject.into(),
            reply: reply.into(),
            payload: payload.into(),
            ..Message::default()
        };
        let mut last = message("a", "r", b"hi");
        last.status = Some(100);
        last.headers = vec![("A".into(), "b : c".into())];
        let expected = [
            Operation::Info(json!({ "ldm": true })),
            Operation::Ping,
            Operation::Pong,
            Operation::Okay,
            Operation::Error("No \"x\"".into()),
            Operation::Message(1, message("a.b", "", b"x\r\n")),
            Operation::Message(2, message("a", "r", b"")),
            Operation::Message(1, last),
        ];
        for chunk in [1, 2, 3, 7, 1024] {
            assert_eq!(all(said, chunk).await, expected, "{chunk}");
        }
    }

    #[tokio::test]
    async fn nonsense_ends_the_connection_and_is_no_panic() {
        let endless = vec![b'x'; LONGEST_LINE + 2];
        let said: [&[u8]; 11] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\r\n",
            b"\xff\xfe\r\n",
            b"INFO {\r\n",
            b"MSG\r\n",
            b"MSG a 1 -1\r\n",
            b"MSG a x 1\r\nx\r\n",
            b"MSG a 1 99999999999999999999\r\n",
            b"MSG a 1 1\r\nxyz\r\n",
            b"HMSG a 1 9 3\r\nxxx\r\n",
            &endless,
        ];
        for said in said {
            assert_eq!(all(said, 64).await, [], "{}", String::from_utf8_lossy(said));
        }
    }

    #[test]
    fn what_is_published_is_framed_with_its_headers() {
        assert_eq!(published("s", "r", &[], b"ab"), b"PUB s r 2\r\nab\r\n");
        assert_eq!(
            published("s", "r", &[("A", "1".into())], b"ab"),
            b"HPUB s r 18 20\r\nNATS/1.0\r\nA: 1\r\n\r\nab\r\n"
        );
    }
}
