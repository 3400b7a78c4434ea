//! A plugin's log events reach the host's `tracing`.
//!
//! `tracing` keeps its dispatcher in a static, and a dynamic library has statics of its own: without
//! forwarding, a plugin's events go nowhere. The plugin installs a small subscriber that hands every
//! event's level, target, message and fields to a function of the host.

use std::fmt::{self, Write};

use abi_stable::StableAbi;
use abi_stable::std_types::RStr;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Receives a plugin's events. A plain function of the host, valid for ever.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct LogSink {
    /// Events above this level are not sent: 1 error, 2 warn, 3 info, 4 debug, 5 trace.
    pub max_level: u8,
    /// Level, target, message, other fields as ` key=value`.
    pub log: extern "C" fn(u8, RStr<'_>, RStr<'_>, RStr<'_>),
}

impl LogSink {
    /// The host's sink: events come out of its own `tracing` under target `plugin`, with the
    /// plugin's target as a field.
    pub fn host() -> Self {
        Self {
            max_level: tracing::level_filters::LevelFilter::current()
                .into_level()
                .map_or(0, |l| number(&l)),
            log: emit,
        }
    }

    /// Installs the forwarding subscriber in a plugin. The first call wins; a library is loaded once.
    pub(super) fn install(self) {
        // A failure means that the plugin has set its own subscriber, which is its good right.
        let _ = tracing::subscriber::set_global_default(Forward(self));
    }
}

fn number(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

extern "C" fn emit(level: u8, target: RStr<'_>, message: RStr<'_>, fields: RStr<'_>) {
    let (source, message, fields) = (target.as_str(), message.as_str(), fields.as_str());
    match level {
        1 => tracing::error!(target: "plugin", source, "{message}{fields}"),
        2 => tracing::warn!(target: "plugin", source, "{message}{fields}"),
        3 => tracing::info!(target: "plugin", source, "{message}{fields}"),
        4 => tracing::debug!(target: "plugin", source, "{message}{fields}"),
        _ => tracing::trace!(target: "plugin", source, "{message}{fields}"),
    }
}

struct Forward(LogSink);

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        number(metadata.level()) <= self.0.max_level
    }

    // Spans are not forwarded: only events are.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        (self.0.log)(
            number(event.metadata().level()),
            event.metadata().target().into(),
            text.message.as_str().into(),
            text.fields.as_str().into(),
        );
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}
