//! YAML as a tree that keeps each scalar as it is written: `token: 0123` is a text if a text is wanted.
//!
//! Knows nothing of kubeconfigs. Errors name a line and never what is in it.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use granit_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Number, Value};

/// With what aliases repeat. No kubeconfig is larger, and a few lines of aliases can stand for millions.
const MOST_NODES: usize = 100_000;

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub line: usize,
    pub kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// `plain`: without quotes or a tag, so that it may be more than a text.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    /// No key is there twice.
    Map(Vec<(String, Node)>),
}

/// The line where it stops being YAML.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoYaml(pub usize);

/// What each document of a text holds.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, NoYaml> {
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        left: MOST_NODES,
    };
    let mut all = Vec::new();
    loop {
        let (event, line) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(all),
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            event => all.push(reader.node(event, line)?),
        }
    }
}

struct Reader<'a> {
    events: Parser<'a, granit_parser::StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    left: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), NoYaml> {
        match self.events.next() {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => Err(NoYaml(error.marker().line())),
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    fn node(&mut self, event: Event<'a>, line: usize) -> Result<Node, NoYaml> {
        let no_yaml = NoYaml(line);
        self.left = self.left.checked_sub(1).ok_or(NoYaml(line))?;
        let (kind, anchor) = match event {
            Event::Alias(anchor) => {
                // What contains itself is not there yet.
                let node = self.anchors.get(&anchor).ok_or(no_yaml)?;
                self.left = self.left.checked_sub(node.size()).ok_or(NoYaml(line))?;
                return Ok(node.clone());
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let kind = scalar(text.into_owned(), plain, tag.as_deref()).ok_or(no_yaml)?;
                (kind, anchor)
            }
            Event::SequenceStart(_, anchor, tag) if is_of(tag.as_deref(), "seq") => {
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (event, line) => list.push(self.node(event, line)?),
                    }
                }
                (Kind::List(list), anchor)
            }
            Event::MappingStart(_, anchor, tag) if is_of(tag.as_deref(), "map") => {
                (Kind::Map(self.map()?), anchor)
            }
            _ => return Err(no_yaml),
        };
        let node = Node { line, kind };
        if anchor > 0 {
            self.left = self.left.checked_sub(node.size()).ok_or(NoYaml(line))?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn map(&mut self) -> Result<Vec<(String, Node)>, NoYaml> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut merged = Vec::new();
        loop {
            let key = match self.next()? {
                (Event::MappingEnd, _) => break,
                (event, line) => self.node(event, line)?,
            };
            let (event, line) = self.next()?;
            let value = self.node(event, line)?;
            match &key.kind {
                Kind::Scalar { text, plain: true } if text == "<<" => merged.push(value),
                _ => {
                    let name = key.text().ok_or(NoYaml(key.line))?.to_owned();
                    if entries.iter().any(|(known, _)| *known == name) {
                        return Err(NoYaml(key.line));
                    }
                    entries.push((name, value));
                }
            }
        }
        for node in merged {
            let line = node.line;
            let maps = match node.kind {
                Kind::List(maps) => maps,
                _ => vec![node],
            };
            for map in maps {
                let Kind::Map(more) = map.kind else {
                    return Err(NoYaml(line));
                };
                for (name, value) in more {
                    if !entries.iter().any(|(known, _)| *known == name) {
                        entries.push((name, value));
                    }
                }
            }
        }
        Ok(entries)
    }
}

/// Whether a collection's tag, if it has one that YAML knows, is this one.
fn is_of(tag: Option<&Tag>, name: &str) -> bool {
    tag.and_then(Tag::core_suffix)
        .is_none_or(|suffix| suffix == name)
}

/// `None`: not what its tag says.
fn scalar(text: String, plain: bool, tag: Option<&Tag>) -> Option<Kind> {
    let Some(tag) = tag else {
        return Some(Kind::Scalar { text, plain });
    };
    if tag.suffix_in_namespace("tag:yaml.org,2002:").as_deref() == Some("binary") {
        let text = String::from_utf8(BASE64.decode(without_spaces(&text)).ok()?).ok()?;
        return Some(Kind::Scalar { text, plain: false });
    }
    match tag.core_suffix() {
        Some("null") => Some(Kind::Scalar {
            text: String::new(),
            plain: true,
        }),
        Some("bool" | "int" | "float") => Some(Kind::Scalar { text, plain: true }),
        Some("seq" | "map") => None,
        _ => Some(Kind::Scalar { text, plain: false }),
    }
}

pub(super) fn without_spaces(text: &str) -> String {
    text.split_ascii_whitespace().collect()
}

impl Node {
    pub fn is_null(&self) -> bool {
        match &self.kind {
            Kind::Scalar { text, plain: true } => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }

    /// Of everything that is neither a collection nor nothing.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    /// Also as YAML 1.1 spells it, and in quotes.
    pub fn bool(&self) -> Option<bool> {
        let text = self.text()?.to_ascii_lowercase();
        match text.as_str() {
            "true" | "yes" | "on" | "y" => Some(true),
            "false" | "no" | "off" | "n" => Some(false),
            _ => None,
        }
    }

    pub fn json(&self) -> Value {
        match &self.kind {
            _ if self.is_null() => Value::Null,
            Kind::Scalar { text, plain: true } => match (self.bool(), number(text)) {
                (Some(bool), _) => bool.into(),
                (None, Some(number)) => number.into(),
                (None, None) => text.as_str().into(),
            },
            Kind::Scalar { text, .. } => text.as_str().into(),
            Kind::List(list) => list.iter().map(Self::json).collect(),
            Kind::Map(map) => map
                .iter()
                .map(|(name, value)| (name.clone(), value.json()))
                .collect(),
        }
    }

    fn size(&self) -> usize {
        match &self.kind {
            Kind::Scalar { .. } => 1,
            Kind::List(list) => 1 + list.iter().map(Self::size).sum::<usize>(),
            Kind::Map(map) => 1 + map.iter().map(|(_, node)| node.size()).sum::<usize>(),
        }
    }
}

/// As a YAML number is written, if JSON has it.
fn number(text: &str) -> Option<Number> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let (radix, whole) = match digits.get(..2) {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        _ => (10, digits),
    };
    let whole = whole.replace('_', "");
    let known = whole.starts_with(|first: char| first.is_digit(radix));
    match i128::from_str_radix(&whole, radix).ok().filter(|_| known) {
        Some(whole) => {
            let whole = if negative { -whole } else { whole };
            Number::from_i128(whole).or_else(|| text.parse().ok().and_then(Number::from_f64))
        }
        None => text.parse().ok().and_then(Number::from_f64),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn json(text: &str) -> Value {
        let mut all = documents(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        assert_eq!(all.len(), 1, "{text}");
        all.remove(0).json()
    }

    #[test]
    fn scalars_are_what_yaml_calls_them() {
        for (yaml, json_text) in [
            ("5", "5"),
            ("-5", "-5"),
            ("+1", "1"),
            ("1_0", "10"),
            ("0x10", "16"),
            ("-0x10", "-16"),
            ("0o17", "15"),
            ("0b11", "3"),
            ("18446744073709551615", "18446744073709551615"),
            ("99999999999999999999", "1e20"),
            ("2.50", "2.5"),
            (".5", "0.5"),
            ("1e3", "1000.0"),
            ("1e400", r#""1e400""#),
            (".nan", r#"".nan""#),
            ("-.inf", r#""-.inf""#),
            ("1:30", r#""1:30""#),
            ("2020-01-01", r#""2020-01-01""#),
            ("1.2.3", r#""1.2.3""#),
            ("0x", r#""0x""#),
            ("0x-1", r#""0x-1""#),
            ("-", "[null]"),
            ("infinity", r#""infinity""#),
            ("yes", "true"),
            ("Off", "false"),
            ("TRUE", "true"),
            ("~", "null"),
            ("Null", "null"),
            ("'5'", r#""5""#),
            ("\"null\"", r#""null""#),
            ("!!str 5", r#""5""#),
            ("!!str", r#""""#),
            ("!!int '5'", "5"),
            ("!!float 1.5", "1.5"),
            ("!!bool yes", "true"),
            ("!!null x", "null"),
            ("!!binary aGVs\n  bG8=", r#""hello""#),
            ("!own 5", r#""5""#),
            ("|\n  a\n  b", r#""a\nb\n""#),
            (">-\n  a\n  b", r#""a b""#),
        ] {
            let expected: Value = serde_json::from_str(json_text).unwrap();
            assert_eq!(json(yaml), expected, "{yaml}");
        }
    }

    #[test]
    fn aliases_and_merges_stand_for_what_they_name() {
        assert_eq!(json("a: &x [1, {b: c}]\nd: *x")["d"][1]["b"], "c");
        let base = "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\n";
        for (merged, json_text) in [
            ("{<<: *x}", r#"{"a":1,"b":2}"#),
            ("{b: 5, <<: *x}", r#"{"b":5,"a":1}"#),
            ("{<<: *x, b: 5}", r#"{"b":5,"a":1}"#),
            ("{<<: [*y, *x]}", r#"{"b":3,"c":4,"a":1}"#),
            ("{'<<': 5}", r#"{"<<":5}"#),
        ] {
            let expected: Value = serde_json::from_str(json_text).unwrap();
            assert_eq!(
                json(&format!("{base}z: {merged}"))["z"],
                expected,
                "{merged}"
            );
        }
    }

    #[test]
    fn texts_may_hold_several_documents_or_none() {
        for (text, count) in [
            ("", 0),
            ("# nothing", 0),
            ("---", 1),
            ("a: b", 1),
            ("%YAML 1.1\n---\na: b", 1),
            ("a: b\n---\nc: d", 2),
            ("a: b\n...\n---\n---\n", 3),
        ] {
            assert_eq!(documents(text).unwrap().len(), count, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_yaml_or_means_two_things_is_refused_with_its_line() {
        let mut bomb = "a0: &a0 x\n".to_owned();
        for n in 1..9 {
            let below = vec![format!("*a{}", n - 1); 9].join(", ");
            let _ = writeln!(bomb, "a{n}: &a{n} [{below}]");
        }
        for (text, line) in [
            ("a: b\nc: {", 2),
            ("a:\n\t- b", 2),
            ("a: \"b", 1),
            ("a:\n  - b\n c: d", 3),
            ("a: b\na: c", 2),
            ("a: *nobody", 1),
            ("a: &a [*a]", 1),
            ("a: b\n? [c]\n: d", 2),
            ("~: b", 1),
            ("a: !!seq b", 1),
            ("a: !!map [b]", 1),
            ("a: !!seq {b: c}", 1),
            ("a: !!binary '?'", 1),
            ("a: {<<: b}", 1),
            (&"[".repeat(100_000), 1),
            (&bomb, 6),
        ] {
            let shown: String = text.chars().take(50).collect();
            assert_eq!(documents(text).err(), Some(NoYaml(line)), "{shown}");
        }
    }
}
