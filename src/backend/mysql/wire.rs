//! One connection, in MySQL's protocol: logs in, sends text, and reads what comes back. Knows no election.
//!
//! It is written here because what a lease needs of the protocol is little, and what it needs to know is
//! much: whether a request was sent, who answered, and that a connection whose answer did not come is gone
//! with its value. Passwords are scrambled and encrypted by `mysql_common`.

use std::io;
use std::panic;
use std::sync::Arc;

use mysql_common::{crypto, scramble};
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use super::address::DEFAULT_PORT;
use crate::backend::stream::{Place, Stream, encrypted};

/// No answer of ours is longer.
const LONGEST_ANSWER: usize = 1 << 20;
const LONGEST_PACKET: usize = 0xff_ffff;
/// `utf8mb4_general_ci`, which every server since MySQL 5.5.3 knows.
const UTF8MB4: u8 = 45;
/// A server may ask for another way to log in, but not for ever.
const MOST_LOGIN_STEPS: usize = 8;

/// What both sides can do: `CLIENT_...` of the protocol.
mod can {
    pub const LONG_PASSWORD: u32 = 1;
    /// An update counts the rows that it found, not those that it changed.
    pub const FOUND_ROWS: u32 = 1 << 1;
    pub const LONG_FLAG: u32 = 1 << 2;
    pub const CONNECT_WITH_DB: u32 = 1 << 3;
    pub const PROTOCOL_41: u32 = 1 << 9;
    pub const SSL: u32 = 1 << 11;
    pub const TRANSACTIONS: u32 = 1 << 13;
    pub const SECURE_CONNECTION: u32 = 1 << 15;
    pub const MULTI_STATEMENTS: u32 = 1 << 16;
    pub const MULTI_RESULTS: u32 = 1 << 17;
    pub const PLUGIN_AUTH: u32 = 1 << 19;
    pub const CONNECT_ATTRS: u32 = 1 << 20;

    /// What no server of the last ten years lacks.
    pub const NEEDED: u32 = PROTOCOL_41
        | SECURE_CONNECTION
        | PLUGIN_AUTH
        | CONNECT_WITH_DB
        | MULTI_STATEMENTS
        | MULTI_RESULTS;
    pub const WANTED: u32 =
        NEEDED | LONG_PASSWORD | FOUND_ROWS | LONG_FLAG | TRANSACTIONS | CONNECT_ATTRS;
}

/// What an answer says of the session: `SERVER_STATUS_...` of the protocol.
mod status {
    pub const IN_TRANSACTION: u16 = 1;
    pub const MORE_RESULTS: u16 = 8;
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server said so, and goes on listening.
    Said { number: u16, words: String },
    /// The connection is gone.
    Broken(io::Error),
    /// The two sides do not trust each other, or one of them speaks no TLS.
    Untrusted(String),
    /// It is to be encrypted, and the server does not offer that.
    PlainOnly,
    /// Everything was carried out, and is not committed: a transaction is open that nobody here began.
    Uncommitted,
    /// Something that no server says.
    Nonsense(&'static str),
    /// A way to log in that is not known here, or not used like this.
    Login(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// What one statement brought.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// How many rows a write found.
    pub found: u64,
    pub rows: Vec<Row>,
}

/// Fields as text; `None` is NULL.
pub(super) type Row = Vec<Option<Vec<u8>>>;

/// Who logs in where.
pub(super) struct Login<'a> {
    pub user: &'a str,
    pub password: Option<&'a str>,
    pub database: &'a str,
    /// How it is encrypted, if it is.
    pub tls: Option<Arc<ClientConfig>>,
    /// Whether that proves who answers.
    pub verified: bool,
}

/// A connection that is logged in. Dropping it closes it, whatever was going on.
pub(super) struct Connection {
    stream: BufReader<Stream>,
    /// Of the next packet.
    sequence: u8,
    /// As the server calls it.
    pub version: String,
}

/// What the server says first.
#[derive(Debug)]
struct Greeting {
    version: String,
    nonce: Vec<u8>,
    can: u32,
    plugin: Vec<u8>,
}

/// Nobody else reads what is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Privacy {
    None,
    /// Encrypted, or on this machine.
    Private,
    /// And it is known who reads it.
    Proven,
}

impl Connection {
    pub async fn open(place: &Place, login: &Login<'_>) -> Result<Self, Trouble> {
        let stream = place.connect(DEFAULT_PORT).await?;
        let host = match place {
            Place::Socket(_) => None,
            Place::Tcp(host) => Some(&host.name),
        };
        let mut connection = Self {
            stream: BufReader::new(stream),
            sequence: 0,
            version: String::new(),
        };
        let greeting = greeting(&connection.read().await?)?;
        if greeting.can & can::NEEDED != can::NEEDED {
            return Err(Trouble::Nonsense(
                "a server that is older than MySQL 5.6 and MariaDB 10.2",
            ));
        }
        connection.version.clone_from(&greeting.version);
        let mut wanted = can::WANTED & greeting.can;
        let mut privacy = Privacy::None;
        match (host, &login.tls) {
            (None, _) => privacy = Privacy::Proven,
            (Some(_), None) => {}
            (Some(_), Some(_)) if greeting.can & can::SSL == 0 => return Err(Trouble::PlainOnly),
            (Some(host), Some(tls)) => {
                wanted |= can::SSL;
                connection = connection.encrypted(wanted, host, tls).await?;
                privacy = if login.verified {
                    Privacy::Proven
                } else {
                    Privacy::Private
                };
            }
        }
        connection.log_in(login, greeting, wanted, privacy).await?;
        Ok(connection)
    }

    pub fn is_mariadb(&self) -> bool {
        self.version.contains("MariaDB")
    }

    async fn encrypted(
        mut self,
        wanted: u32,
        host: &str,
        tls: &Arc<ClientConfig>,
    ) -> Result<Self, Trouble> {
        self.write(&beginning(wanted)).await?;
        // What came before the encryption is not to be taken for something that came through it.
        if !self.stream.buffer().is_empty() {
            return Err(Trouble::Nonsense("something behind its greeting"));
        }
        let stream = encrypted(self.stream.into_inner(), host, Arc::clone(tls))
            .await
            .map_err(|error| Trouble::Untrusted(error.to_string()))?;
        Ok(Self {
            stream: BufReader::new(stream),
            ..self
        })
    }

    async fn log_in(
        &mut self,
        login: &Login<'_>,
        greeting: Greeting,
        wanted: u32,
        privacy: Privacy,
    ) -> Result<(), Trouble> {
        let Greeting {
            mut nonce, plugin, ..
        } = greeting;
        let password = login.password.unwrap_or_default();
        let mut plugin = Plugin::of(&plugin).filter(|plugin| plugin.tells_nothing());
        // The server asks for the user's own way if it is another one.
        let first = *plugin.get_or_insert(Plugin::Native);
        let proof = first.proof(password, &nonce);
        let mut response = beginning(wanted);
        for text in [login.user.as_bytes(), b"\0"] {
            response.extend_from_slice(text);
        }
        response.push(u8::try_from(proof.len()).expect("32 bytes at most"));
        response.extend_from_slice(&proof);
        for text in [login.database.as_bytes(), b"\0", first.name(), b"\0"] {
            response.extend_from_slice(text);
        }
        if wanted & can::CONNECT_ATTRS != 0 {
            response.extend_from_slice(b"\x18\x0cprogram_name\x0awhenleader");
        }
        self.write(&response).await?;

        for _ in 0..MOST_LOGIN_STEPS {
            let packet = self.read().await?;
            match *packet {
                [0x00, ..] => return Ok(()),
                [0xff, ..] => return Err(said(&packet)),
                [0xfe] => return Err(unknown_plugin(b"mysql_old_password")),
                [0xfe, ref asked @ ..] => {
                    let (name, data) = up_to_nul(asked)?;
                    let next = Plugin::of(name).ok_or_else(|| unknown_plugin(name))?;
                    if next == Plugin::Clear && privacy != Privacy::Proven {
                        return Err(Trouble::Login(
                            "it asks for the password in clear text, which is only sent to a server that has \
                             proven who it is: add ?ssl-mode=verify_identity"
                                .into(),
                        ));
                    }
                    nonce = data.strip_suffix(b"\0").unwrap_or(data).to_vec();
                    plugin = Some(next);
                    self.write(&next.proof(password, &nonce)).await?;
                }
                // It knows the password's hash.
                [0x01, 0x03] if plugin == Some(Plugin::CachingSha2) => {}
                [0x01, 0x04] if plugin == Some(Plugin::CachingSha2) => {
                    self.tell_password(password, &nonce, privacy).await?;
                }
                _ => return Err(Trouble::Nonsense("something else than a log-in has")),
            }
        }
        Err(Trouble::Nonsense("a log-in without an end"))
    }

    /// To a server that must hear it once, so that it needs only its hash from then on.
    async fn tell_password(
        &mut self,
        password: &str,
        nonce: &[u8],
        privacy: Privacy,
    ) -> Result<(), Trouble> {
        let mut secret = password.as_bytes().to_vec();
        secret.push(0);
        if privacy != Privacy::None {
            return self.write(&secret).await;
        }
        // The key is that of whoever answers. Where nobody has to prove who he is, an encryption that anybody may
        // offer would be no better: only a certificate that is verified is.
        self.write(&[0x02]).await?;
        let packet = self.read().await?;
        let key = match &*packet {
            [0x01, key @ ..] => key,
            [0xff, ..] => return Err(said(&packet)),
            _ => return Err(Trouble::Nonsense("no public key")),
        };
        if nonce.is_empty() {
            return Err(Trouble::Nonsense("a log-in without a challenge"));
        }
        for (byte, mask) in secret.iter_mut().zip(nonce.iter().cycle()) {
            *byte ^= mask;
        }
        // A key that is none makes it panic, and a server may send anything.
        let encrypted = panic::catch_unwind(|| crypto::encrypt(&secret, key))
            .map_err(|_| Trouble::Nonsense("a public key that cannot be read"))?;
        self.write(&encrypted).await
    }

    /// Sends statements, and reads the answers of all that were carried out: with the number of good ones
    /// if one fails.
    pub async fn ask(&mut self, statements: &str) -> Result<Vec<Answer>, (usize, Trouble)> {
        let mut answers = Vec::new();
        match self.ask_all(statements, &mut answers).await {
            Ok(()) => Ok(answers),
            Err(trouble) => Err((answers.len(), trouble)),
        }
    }

    async fn ask_all(
        &mut self,
        statements: &str,
        answers: &mut Vec<Answer>,
    ) -> Result<(), Trouble> {
        self.sequence = 0;
        let mut command = vec![0x03];
        command.extend_from_slice(statements.as_bytes());
        self.write(&command).await?;
        loop {
            let (answer, status) = self.read_answer().await?;
            answers.push(answer);
            if status & status::MORE_RESULTS == 0 {
                // Each of our requests ends what it began.
                return match status & status::IN_TRANSACTION {
                    0 => Ok(()),
                    _ => Err(Trouble::Uncommitted),
                };
            }
        }
    }

    /// And the server's status behind it.
    async fn read_answer(&mut self) -> Result<(Answer, u16), Trouble> {
        let packet = self.read().await?;
        let mut rest = match *packet {
            [0x00, ref rest @ ..] => rest,
            [0xff, ..] => return Err(said(&packet)),
            [0xfb, ..] => return Err(Trouble::Nonsense("a wish for a file of this machine")),
            _ => return self.read_rows(&packet).await,
        };
        let found = number(&mut rest)?;
        number(&mut rest)?;
        let status = small(&mut rest)?;
        let rows = Vec::new();
        Ok((Answer { found, rows }, status))
    }

    async fn read_rows(&mut self, mut header: &[u8]) -> Result<(Answer, u16), Trouble> {
        let columns = number(&mut header)?;
        let mut length = 0;
        for _ in 0..columns {
            length += self.read().await?.len();
            if length > LONGEST_ANSWER {
                return Err(endless());
            }
        }
        if !matches!(*self.read().await?, [0xfe, ..]) {
            return Err(Trouble::Nonsense("columns without an end"));
        }
        let mut rows = Vec::new();
        loop {
            let packet = self.read().await?;
            match *packet {
                [0xff, ..] => return Err(said(&packet)),
                [0xfe, _, _, ref rest @ ..] if packet.len() < 9 => {
                    let status = small(&mut &*rest)?;
                    return Ok((Answer { found: 0, rows }, status));
                }
                _ => {}
            }
            length += packet.len() + 1;
            if length > LONGEST_ANSWER {
                return Err(endless());
            }
            let mut fields = &*packet;
            let mut row = Vec::new();
            for _ in 0..columns {
                row.push(field(&mut fields)?);
            }
            rows.push(row);
        }
    }

    /// Says good-bye, so that the server logs no connection that broke.
    pub async fn quit(mut self) {
        self.sequence = 0;
        let _ = self.write(&[0x01]).await;
    }

    async fn write(&mut self, payload: &[u8]) -> Result<(), Trouble> {
        let mut packets = Vec::with_capacity(payload.len() + 4);
        // One more packet, which may be empty, where the last one is full.
        for start in (0..=payload.len()).step_by(LONGEST_PACKET) {
            let part = &payload[start..payload.len().min(start + LONGEST_PACKET)];
            let length = u32::try_from(part.len()).expect("three bytes");
            packets.extend_from_slice(&length.to_le_bytes()[..3]);
            packets.push(self.sequence);
            packets.extend_from_slice(part);
            self.sequence = self.sequence.wrapping_add(1);
        }
        self.stream.write_all(&packets).await?;
        self.stream.flush().await?;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<u8>, Trouble> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).await?;
        let length =
            usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        if length > LONGEST_ANSWER {
            return Err(endless());
        }
        if header[3] != self.sequence {
            return Err(Trouble::Nonsense("packets out of order"));
        }
        self.sequence = self.sequence.wrapping_add(1);
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await?;
        Ok(payload)
    }
}

/// A way to prove that the password is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plugin {
    Native,
    CachingSha2,
    Ed25519,
    Clear,
}

impl Plugin {
    fn of(name: &[u8]) -> Option<Self> {
        [Self::Native, Self::CachingSha2, Self::Ed25519, Self::Clear]
            .into_iter()
            .find(|plugin| plugin.name() == name)
    }

    const fn name(self) -> &'static [u8] {
        match self {
            Self::Native => b"mysql_native_password",
            Self::CachingSha2 => b"caching_sha2_password",
            Self::Ed25519 => b"client_ed25519",
            Self::Clear => b"mysql_clear_password",
        }
    }

    /// Whoever hears its proof does not know the password.
    fn tells_nothing(self) -> bool {
        matches!(self, Self::Native | Self::CachingSha2)
    }

    fn proof(self, password: &str, nonce: &[u8]) -> Vec<u8> {
        let password = password.as_bytes();
        let proof = match self {
            Self::Clear => return [password, b"\0"].concat(),
            _ if password.is_empty() => None,
            Self::Native => scramble::scramble_native(nonce, password).map(Vec::from),
            Self::CachingSha2 => scramble::scramble_sha256(nonce, password).map(Vec::from),
            Self::Ed25519 => Some(scramble::create_response_for_ed25519(password, nonce).into()),
        };
        proof.unwrap_or_default()
    }
}

fn unknown_plugin(name: &[u8]) -> Trouble {
    Trouble::Login(format!(
        "it asks for the password by {}, which is not spoken here: give the user one of mysql_native_password, \
         caching_sha2_password and ed25519",
        String::from_utf8_lossy(&name[..name.len().min(64)])
    ))
}

fn endless() -> Trouble {
    Trouble::Nonsense("an answer without an end")
}

/// How both a wish for encryption and a log-in begin.
fn beginning(wanted: u32) -> Vec<u8> {
    let longest = u32::try_from(LONGEST_ANSWER).expect("less than 16 MiB");
    let mut text = [wanted.to_le_bytes(), longest.to_le_bytes()].concat();
    text.push(UTF8MB4);
    text.extend_from_slice(&[0; 23]);
    text
}

fn greeting(packet: &[u8]) -> Result<Greeting, Trouble> {
    let rest = match packet {
        [0xff, ..] => return Err(said(packet)),
        [10, rest @ ..] => rest,
        _ => return Err(Trouble::Nonsense("no greeting of MySQL or MariaDB")),
    };
    let (version, rest) = up_to_nul(rest)?;
    let short = Trouble::Nonsense("half a greeting");
    // 4 number, 8 nonce, 1, 2 can, 1 charset, 2 status, 2 can, 1 length, 10
    let Some((fixed, rest)) = rest.split_at_checked(31) else {
        return Err(short);
    };
    let can = u32::from_le_bytes([fixed[13], fixed[14], fixed[18], fixed[19]]);
    let length = usize::from(fixed[20]).saturating_sub(8).max(13);
    let Some((second, name)) = rest.split_at_checked(length) else {
        return Err(short);
    };
    let second = second.strip_suffix(b"\0").unwrap_or(second);
    Ok(Greeting {
        version: String::from_utf8_lossy(version).into_owned(),
        nonce: [&fixed[4..12], second].concat(),
        can,
        // Old servers forget its end.
        plugin: name
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default()
            .to_vec(),
    })
}

/// The server's own words.
fn said(packet: &[u8]) -> Trouble {
    let [_, low, high, rest @ ..] = packet else {
        return Trouble::Nonsense("half an error");
    };
    // With its state in five letters, unless it is said before the log-in.
    let words = match rest {
        [b'#', _, _, _, _, _, behind @ ..] => behind,
        _ => rest,
    };
    Trouble::Said {
        number: u16::from_le_bytes([*low, *high]),
        words: String::from_utf8_lossy(words).into_owned(),
    }
}

fn up_to_nul(text: &[u8]) -> Result<(&[u8], &[u8]), Trouble> {
    let end = text.iter().position(|byte| *byte == 0);
    let end = end.ok_or(Trouble::Nonsense("a text without an end"))?;
    Ok((&text[..end], &text[end + 1..]))
}

/// One whose length its first byte tells.
fn number(text: &mut &[u8]) -> Result<u64, Trouble> {
    let short = Trouble::Nonsense("half a number");
    let Some((first, rest)) = text.split_first() else {
        return Err(short);
    };
    let length = match first {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        0xfb | 0xff => return Err(Trouble::Nonsense("something else than a number")),
        small => {
            *text = rest;
            return Ok((*small).into());
        }
    };
    let Some((digits, rest)) = rest.split_at_checked(length) else {
        return Err(short);
    };
    *text = rest;
    let mut bytes = [0; 8];
    bytes[..length].copy_from_slice(digits);
    Ok(u64::from_le_bytes(bytes))
}

/// One of two bytes.
fn small(text: &mut &[u8]) -> Result<u16, Trouble> {
    match **text {
        [low, high, ref rest @ ..] => {
            *text = rest;
            Ok(u16::from_le_bytes([low, high]))
        }
        _ => Err(Trouble::Nonsense("half a status")),
    }
}

fn field(text: &mut &[u8]) -> Result<Option<Vec<u8>>, Trouble> {
    if let [0xfb, rest @ ..] = *text {
        *text = rest;
        return Ok(None);
    }
    let length = usize::try_from(number(text)?).map_err(|_| endless())?;
    let (field, rest) = text
        .split_at_checked(length)
        .ok_or(Trouble::Nonsense("half a row"))?;
    *text = rest;
    Ok(Some(field.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::url::Host;
    use tokio::net::{TcpListener, TcpStream};

    const NONCE: &[u8; 20] = b"abcdefghijklmnopqrst";
    const FINE: &[u8] = &[0, 0, 0, 2, 0, 0, 0];
    const SHA2: &str = "caching_sha2_password";
    /// Of a key that nobody has any more.
    const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
        MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDNECAXbpeUDATSrf22n4gpn3zd\n\
        2ss9WsAFfFaRqRwH+/y2A++/GYrxxHyOzU6BrA/4ON9wSfm9BzZh3RVztKkEyoh1\n\
        jFGGS+HgpEBzVtFoqkl+O4krZ274MyAMzK34yQ2ocQZkydBpA2QLVoZ9dMA07nGB\n\
        xi7Lb8xed+j/ZpULSQIDAQAB\n\
        -----END PUBLIC KEY-----\n";

    /// MySQL's part of a conversation, word by word: what the tests with real servers cannot make one say.
    struct Server(TcpStream, u8);

    impl Server {
        async fn accept(listener: &TcpListener, plugin: &str) -> Self {
            let mut server = Self(listener.accept().await.unwrap().0, 0);
            server.say(&greeting_of(plugin)).await;
            server
        }

        async fn say(&mut self, payload: &[u8]) {
            let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
            let header = [length[0], length[1], length[2], self.1];
            let packet = [&header[..], payload].concat();
            self.0.write_all(&packet).await.unwrap();
            self.1 = self.1.wrapping_add(1);
        }

        async fn hear(&mut self) -> Vec<u8> {
            let mut header = [0; 4];
            self.0.read_exact(&mut header).await.unwrap();
            assert_eq!(header[2], 0, "no packet is that long");
            let mut payload = vec![0; usize::from(u16::from_le_bytes([header[0], header[1]]))];
            self.0.read_exact(&mut payload).await.unwrap();
            self.1 = header[3].wrapping_add(1);
            payload
        }
    }

    fn greeting_of(plugin: &str) -> Vec<u8> {
        let flags = can::WANTED.to_le_bytes();
        let mut text = b"\x0a8.4.0\0\x07\0\0\0".to_vec();
        text.extend_from_slice(&NONCE[..8]);
        text.extend_from_slice(&[0, flags[0], flags[1], 255, 2, 0, flags[2], flags[3], 21]);
        text.extend_from_slice(&[0; 10]);
        text.extend_from_slice(&NONCE[8..]);
        text.push(0);
        text.extend_from_slice(plugin.as_bytes());
        text.push(0);
        text
    }

    async fn listen() -> (TcpListener, Place) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let place = Place::Tcp(Host {
            name: "127.0.0.1".into(),
            port: Some(port),
        });
        (listener, place)
    }

    async fn open(place: &Place, password: &str) -> Result<Connection, Trouble> {
        let login = Login {
            user: "app",
            password: Some(password),
            database: "shop",
            tls: None,
            verified: false,
        };
        Connection::open(place, &login).await
    }

    /// A connection to somebody who lets everybody in and then says just this.
    async fn answered(bytes: &[u8]) -> Result<Vec<Answer>, (usize, Trouble)> {
        let (listener, place) = listen().await;
        let play = async {
            let mut server = Server::accept(&listener, SHA2).await;
            server.hear().await;
            server.say(FINE).await;
            server.hear().await;
            let _ = server.0.write_all(bytes).await;
        };
        let ask = async {
            let mut connection = open(&place, "x").await.expect("let in");
            connection.ask("SELECT 1").await
        };
        tokio::join!(ask, play).0
    }

    fn packets(payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (payload, number) in payloads.iter().zip(1..) {
            let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
            bytes.extend_from_slice(&[length[0], length[1], length[2], number]);
            bytes.extend_from_slice(payload);
        }
        bytes
    }

    #[tokio::test]
    async fn a_log_in_names_user_and_database_and_proves_the_password() {
        let (listener, place) = listen().await;
        let play = async {
            let mut server = Server::accept(&listener, SHA2).await;
            let heard = server.hear().await;
            let proof = scramble::scramble_sha256(NONCE, b"s3cret").unwrap();
            let expected = [b"app\0\x20", &proof[..], b"shop\0caching_sha2_password\0"].concat();
            assert!(heard[32..].starts_with(&expected), "{heard:?}");
            // MySQL knows the hash, and says so first.
            server.say(&[1, 3]).await;
            server.say(FINE).await;
        };
        let (opened, ()) = tokio::join!(open(&place, "s3cret"), play);
        assert!(!opened.expect("let in").is_mariadb());
    }

    #[tokio::test]
    async fn a_server_may_ask_for_another_way_to_prove_it() {
        let (listener, place) = listen().await;
        let other = b"ABCDEFGHIJKLMNOPQRST";
        let play = async {
            let mut server = Server::accept(&listener, SHA2).await;
            server.hear().await;
            let asked = [b"\xfemysql_native_password\0", &other[..], b"\0"].concat();
            server.say(&asked).await;
            let proof = scramble::scramble_native(other, b"s3cret").unwrap();
            assert_eq!(server.hear().await, proof);
            server.say(FINE).await;
        };
        let (opened, ()) = tokio::join!(open(&place, "s3cret"), play);
        opened.expect("let in");
    }

    #[tokio::test]
    async fn a_password_goes_in_the_clear_to_nobody_who_may_be_anybody() {
        let (listener, place) = listen().await;
        let play = async {
            let mut server = Server::accept(&listener, SHA2).await;
            server.hear().await;
            server.say(b"\xfemysql_clear_password\0").await;
            let mut heard = Vec::new();
            server.0.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, b"");
        };
        let (opened, ()) = tokio::join!(
            async { open(&place, "s3cret").await.map(drop).expect_err("refused") },
            play
        );
        assert!(
            matches!(&opened, Trouble::Login(why) if why.contains("verify_identity")),
            "{opened:?}"
        );
    }

    #[tokio::test]
    async fn without_encryption_a_server_that_must_hear_it_gets_it_by_its_own_key() {
        for (key, good) in [
            (PUBLIC_KEY, true),
            ("", false),
            (
                "-----BEGIN PUBLIC KEY-----\nMIGf\n-----END PUBLIC KEY-----\n",
                false,
            ),
        ] {
            let (listener, place) = listen().await;
            let play = async {
                let mut server = Server::accept(&listener, SHA2).await;
                server.hear().await;
                server.say(&[1, 4]).await;
                assert_eq!(server.hear().await, [2]);
                server.say(&[b"\x01", key.as_bytes()].concat()).await;
                if good {
                    let heard = server.hear().await;
                    assert_eq!(heard.len(), 128);
                    server.say(FINE).await;
                }
            };
            let (opened, ()) = tokio::join!(open(&place, "s3cret"), play);
            assert_eq!(opened.is_ok(), good, "{key}");
        }
    }

    #[tokio::test]
    async fn who_says_no_is_quoted() {
        let (listener, place) = listen().await;
        let play = async {
            let mut server = Server::accept(&listener, SHA2).await;
            server.hear().await;
            server.say(b"\xff\x15\x04#28000Access denied").await;
        };
        let (opened, ()) = tokio::join!(open(&place, "x"), play);
        let refused = opened.map(drop).expect_err("refused");
        assert!(
            matches!(&refused, Trouble::Said { number: 1045, words } if words == "Access denied"),
            "{refused:?}"
        );
        // Before the log-in without a state.
        let busy = greeting(b"\xff\x10\x04Too many connections").expect_err("no room");
        assert!(
            matches!(&busy, Trouble::Said { number: 1040, words } if words == "Too many connections"),
            "{busy:?}"
        );
    }

    #[tokio::test]
    async fn rows_come_as_they_are_and_every_statement_has_its_answer() {
        let long = "x".repeat(300);
        let row = [b"\xfb\0\xfc\x2c\x01", long.as_bytes()].concat();
        let more: &[u8] = &[0xfe, 0, 0, 8, 0];
        let written: &[u8] = &[0, 0xfc, 0, 1, 0, 8, 0, 0, 0];
        let last: &[u8] = &[0xfe, 0, 0, 0, 0];
        let answers = answered(&packets(&[
            written,
            &[3],
            b"column",
            b"column",
            b"column",
            more,
            &row,
            more,
            &[1],
            b"column",
            last,
            last,
        ]))
        .await
        .expect("answers");
        let found: Vec<_> = answers.iter().map(|answer| answer.found).collect();
        assert_eq!(found, [256, 0, 0]);
        let expected = vec![None, Some(Vec::new()), Some(long.into_bytes())];
        assert_eq!(answers[1].rows, [expected]);
        assert!(answers[2].rows.is_empty());
    }

    #[tokio::test]
    async fn of_several_statements_those_before_the_one_that_failed_are_told() {
        let written: &[u8] = &[0, 1, 0, 8, 0, 0, 0];
        let bytes = packets(&[written, written, b"\xff\xbd\x04#40001Deadlock"]);
        let (done, trouble) = answered(&bytes).await.expect_err("the third");
        assert_eq!(done, 2);
        assert!(matches!(trouble, Trouble::Said { number: 1213, .. }));
    }

    #[tokio::test]
    async fn what_is_not_committed_was_not_done() {
        let (written, open): (&[u8], &[u8]) = (&[0, 1, 0, 10, 0, 0, 0], &[0, 1, 0, 3, 0, 0, 0]);
        let found: [&[u8]; 4] = [&[1], b"column", &[0xfe, 0, 0, 2, 0], &[0xfe, 0, 0, 3, 0]];
        for payloads in [
            vec![open],
            vec![written, open],
            [&[written], &found[..]].concat(),
        ] {
            let answer = answered(&packets(&payloads)).await;
            let (_, trouble) = answer.expect_err("nothing counts");
            assert!(matches!(trouble, Trouble::Uncommitted), "{trouble:?}");
        }
        // In the middle of a request of ours there may be one.
        let within: &[u8] = &[0, 1, 0, 11, 0, 0, 0];
        let answers = answered(&packets(&[within, FINE])).await;
        assert_eq!(answers.expect("answers").len(), 2);
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_no_answer_and_no_panic() {
        let endless: &[u8] = &[0xff; 100];
        for payload in [
            &[][..],
            &[0],
            &[0, 0xfb],
            &[0, 0xfe, 1],
            &[0xff],
            &[0xfb, b'/'],
            &[1],
            &[0xfe],
            &[0xfc, 1],
            endless,
        ] {
            let answer = answered(&packets(&[payload])).await;
            assert!(answer.is_err(), "{payload:?}: {answer:?}");
            let row = packets(&[&[1], b"column", &[0xfe, 0, 0, 0, 0], payload]);
            let _ = answered(&row).await;
        }
        // Out of order, and longer than any.
        assert!(answered(&[7, 0, 0, 9, 0, 0, 0, 2, 0, 0, 0]).await.is_err());
        assert!(answered(&[0xff, 0xff, 0xff, 1]).await.is_err());
        assert!(answered(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.is_err());

        // Whatever a greeting is cut to or changed into, it is read or refused.
        let whole = greeting_of(SHA2);
        for end in 0..whole.len() {
            let _ = greeting(&whole[..end]);
            for byte in [0, 1, 127, 255] {
                let mut changed = whole.clone();
                changed[end] = byte;
                let _ = greeting(&changed);
            }
        }
        assert!(greeting(b"").is_err());
        assert!(greeting(b"SSH-2.0-OpenSSH_9.2\r\n").is_err());
    }
}
