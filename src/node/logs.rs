//! From `tracing` to JavaScript's logger: one layer, which hands each record to the oldest environment
//! that wants its level, and never blocks.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use super::environment::Link;
use crate::locked::locked;

/// Records that wait for JavaScript. More are counted and dropped.
const QUEUE: u32 = 1_024;

pub struct LogRecord {
    pub level: &'static str,
    pub message: String,
    pub fields: BTreeMap<String, String>,
}

/// How many records of an environment wait, and how many were dropped since the last one.
#[derive(Default)]
pub struct Waiting {
    waiting: AtomicU32,
    dropped: AtomicU32,
}

impl Waiting {
    pub fn enter(&self) -> bool {
        let free = self.waiting.fetch_add(1, Ordering::Relaxed) < QUEUE;
        if !free {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        free
    }

    pub fn leave(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn take_dropped(&self) -> u32 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

/// 0: nothing is listened to; 1 to 5: errors only to everything.
static MOST_DETAIL: AtomicU8 = AtomicU8::new(0);
static SINKS: Mutex<Vec<(Weak<Link>, u8)>> = Mutex::new(Vec::new());

/// Sets what an environment hears.
pub fn listen(link: &Arc<Link>, level: &str) {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(ToJavaScript);
        // Ours alone: these statics live in this addon. A second one is impossible.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
    let detail = detail(level);
    let mut sinks = locked(&SINKS);
    sinks.retain(|(other, _)| other.upgrade().is_some_and(|other| !other.is_gone()));
    match sinks
        .iter_mut()
        .find(|(other, _)| other.as_ptr() == Arc::as_ptr(link))
    {
        Some((_, known)) => *known = detail,
        None => sinks.push((Arc::downgrade(link), detail)),
    }
    let most = sinks.iter().map(|(_, detail)| *detail).max().unwrap_or(0);
    MOST_DETAIL.store(most, Ordering::Relaxed);
}

fn detail(level: &str) -> u8 {
    match level {
        "error" => 1,
        "warn" => 2,
        "info" => 3,
        "debug" => 4,
        "trace" => 5,
        _ => 0,
    }
}

fn detail_of(level: Level) -> (u8, &'static str) {
    match level {
        Level::ERROR => (1, "error"),
        Level::WARN => (2, "warn"),
        Level::INFO => (3, "info"),
        Level::DEBUG => (4, "debug"),
        Level::TRACE => (5, "trace"),
    }
}

struct ToJavaScript;

/// The fields of a span, kept with it.
struct SpanFields(Fields);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ToJavaScript {
    // Levels change at run time, so no call site may be switched off for good.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        // The fields of every span are needed once one of its events is.
        let ours = metadata.target().starts_with("whenleader");
        ours && (metadata.is_span()
            || detail_of(*metadata.level()).0 <= MOST_DETAIL.load(Ordering::Relaxed))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(SpanFields(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let (detail, level) = detail_of(*event.metadata().level());
        let sink = {
            let sinks = locked(&SINKS);
            sinks
                .iter()
                .filter(|(_, wanted)| *wanted >= detail)
                .find_map(|(link, _)| link.upgrade().filter(|link| !link.is_gone()))
        };
        let Some(sink) = sink else { return };
        let mut all = Fields::default();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(SpanFields(fields)) = span.extensions().get() {
                for (name, value) in &fields.named {
                    all.named
                        .entry(name.clone())
                        .or_insert_with(|| value.clone());
                }
            }
        }
        event.record(&mut all);
        let dropped = sink.take_dropped_logs();
        if dropped > 0 {
            all.named.insert("dropped".into(), dropped.to_string());
        }
        sink.log(LogRecord {
            level,
            message: all.message,
            fields: all.named,
        });
    }
}

impl Link {
    fn take_dropped_logs(&self) -> u32 {
        self.logs_waiting().take_dropped()
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    named: BTreeMap<String, String>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.named
                .insert(field.name().to_string(), format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.named
                .insert(field.name().to_string(), value.to_string());
        }
    }
}
