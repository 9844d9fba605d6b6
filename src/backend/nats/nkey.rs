//! NATS' keys: how a client proves who it is without sending a secret. A seed is written as 58 letters; it
//! signs the number that the server drew for the connection.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use crate::backend::blocking::read_text;

const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// The five bits that a seed begins with, `S`.
const SEED: u8 = 18 << 3;
/// Those of a user, `U`.
const USER: u8 = 20 << 3;

/// A user's pair of keys.
pub(super) struct Key {
    pair: Ed25519KeyPair,
}

impl Key {
    /// `None`: that is no user's seed.
    fn from_seed(text: &str) -> Option<Self> {
        let bytes = from_base32(text)?;
        let (body, checksum) = bytes.split_at_checked(34)?;
        let kind = (body[0] & 7) << 5 | body[1] >> 3;
        let sound = checksum == crc16(body).to_le_bytes() && body[0] & 0xf8 == SEED;
        let seed = body.get(2..).filter(|_| sound && kind == USER)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
        Some(Self { pair })
    }

    pub fn public(&self) -> String {
        let mut bytes = vec![USER];
        bytes.extend_from_slice(self.pair.public_key().as_ref());
        bytes.extend_from_slice(&crc16(&bytes).to_le_bytes());
        base32(&bytes)
    }

    pub fn sign(&self, nonce: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.pair.sign(nonce.as_bytes()))
    }
}

/// A file that holds a user's seed, among whatever lines. `Err`: what is wrong with it.
pub(super) async fn seed_in(path: &Path) -> Result<Key, String> {
    let text = read_text(path).await?;
    key_in(&text).ok_or_else(|| {
        format!(
            "{} holds no user's seed: that is a line of 58 letters that begins with SU",
            path.display()
        )
    })
}

/// A file of credentials: a user's JWT and its seed.
pub(super) async fn credentials_in(path: &Path) -> Result<(String, Key), String> {
    let text = read_text(path).await?;
    let bad = |what| format!("{} holds no {what}", path.display());
    let jwt = text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("eyJ") && line.matches('.').count() == 2);
    let jwt = jwt.ok_or_else(|| bad("user's JWT"))?;
    let key = key_in(&text).ok_or_else(|| bad("user's seed beside the JWT"))?;
    Ok((jwt.to_owned(), key))
}

fn key_in(text: &str) -> Option<Key> {
    text.lines().find_map(|line| Key::from_seed(line.trim()))
}

fn base32(bytes: &[u8]) -> String {
    let (mut text, mut buffer, mut bits) = (String::new(), 0_u32, 0);
    for byte in bytes {
        buffer = buffer << 8 | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[(buffer >> bits & 31) as usize]));
        }
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[(buffer << (5 - bits) & 31) as usize]));
    }
    text
}

fn from_base32(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut buffer, mut bits) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == letter)?;
        buffer = buffer << 5 | u32::try_from(value).ok()?;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(buffer >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    let mut crc = 0_u16;
    for byte in bytes {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= 0x1021;
            }
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that NATS' documents show.
    const SEED_SHOWN: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    const PUBLIC_SHOWN: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

    #[test]
    fn a_seed_is_read_with_its_checksum_and_nothing_else_is_taken_for_one() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        let key = Key::from_seed(SEED_SHOWN).unwrap();
        assert_eq!(key.public(), PUBLIC_SHOWN);
        assert_eq!(key.sign("x").len(), 86);
        let seed = SEED_SHOWN;
        let flipped = seed.replacen("SUA", "SUB", 1);
        for bad in [
            "",
            "SU",
            &seed[1..],
            &flipped,
            &key.public(),
            &seed.to_lowercase(),
        ] {
            assert!(Key::from_seed(bad).is_none(), "{bad}");
        }
    }
}
