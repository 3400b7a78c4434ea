//! `halfhitch backends`.

use std::fmt::Write as _;

use halfhitch_seam::{DeviceCapabilities, QuantSupport, Size};

use super::args::JsonArgs;
use super::failure::{Failure, one_line};
use super::{Context, output};
use crate::engine::{BackendStatus, State};

/// Runs the command.
pub fn run(args: JsonArgs, context: &Context) -> Result<(), Failure> {
    let rows = context.registry().list();
    if args.json {
        return output::json(&serde_json::json!({ "backends": rows }));
    }
    output::bytes(text(&rows).as_bytes())
}

/// What a state is called.
pub const fn state_name(state: State) -> &'static str {
    match state {
        State::Ready => "ready",
        State::NoDevice => "no device",
        State::Unavailable => "unavailable",
        State::Failed => "failed",
    }
}

fn text(rows: &[BackendStatus]) -> String {
    let mut out = String::new();
    for row in rows {
        let version = row.version.as_deref().unwrap_or("?");
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{}  {}  ({} {version})",
            row.name,
            state_name(row.state),
            row.origin
        );
        if let Some(reason) = &row.reason {
            let _ = writeln!(out, "  {}", one_line(reason));
        }
        for (name, version) in &row.components {
            let _ = writeln!(out, "  {name} {version}");
        }
        for device in &row.devices {
            out += &describe(&row.name, device);
        }
    }
    out
}

fn describe(backend: &str, c: &DeviceCapabilities) -> String {
    let mut rows = vec![
        ("precisions", list(&c.precisions)),
        ("resident", list(&c.resident)),
    ];
    rows.extend(c.quantization.iter().map(|q| ("packed", quantization(q))));
    rows.push(("features", list(&c.features)));
    rows.push(("sequences", c.max_sequences.to_string()));
    rows.extend(c.max_threads.map(|n| ("threads", format!("up to {n}"))));
    rows.extend(
        c.context_limit
            .map(|n| ("context", format!("up to {n} tokens"))),
    );
    let memory = [(c.memory.total, "in all"), (c.memory.free, "free")];
    let memory: Vec<String> = memory
        .iter()
        .filter_map(|(bytes, what)| bytes.map(|b| format!("{} {what}", Size(b))))
        .collect();
    if !memory.is_empty() {
        rows.push(("memory", memory.join(", ")));
    }
    rows.extend(c.codegen_target.clone().map(|t| ("target", t)));
    let d = &c.device;
    let mut out = format!(
        "  --backend {backend}:{}  {} (id {})\n",
        d.ordinal, d.name, d.id
    );
    for (name, value) in rows {
        let _ = writeln!(out, "    {name:<11} {value}");
    }
    out
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|i| i.to_string()).collect();
    if items.is_empty() {
        return "none".into();
    }
    items.join(", ")
}

fn quantization(q: &QuantSupport) -> String {
    format!(
        "{} bits in groups of {}, scales {}, {}",
        list(q.bits.iter().map(|b| b.get())),
        list(q.group_sizes.iter().map(|g| g.get())),
        list(&q.scale_dtypes),
        if q.fused { "fused" } else { "not fused" }
    )
}
