//! `halfhitch cache`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use halfhitch_seam::{CacheReport, ErrorCode, SeamError, Size};

use super::args::{CacheArgs, CacheCommand};
use super::failure::{Failure, one_line};
use super::{Context, output};
use crate::import::ModelLocator;
use crate::import::cache::ImportCache;

/// Runs the command: what backends keep, then what was imported.
pub fn run(args: &CacheArgs, context: &Context) -> Result<(), Failure> {
    let action = args.action.into();
    let mut reports = context.registry().caches(action)?;
    if let Some(root) = ModelLocator::from_env().cache {
        reports.extend(ImportCache::new(root).report(action)?);
    }
    if args.json {
        output::json(&serde_json::json!({ "caches": reports }))?;
    } else {
        print(args.action, &reports)?;
    }
    let damaged = reports.iter().flat_map(|r| &r.entries);
    let damaged = damaged.filter(|e| e.damage.is_some()).count();
    if damaged == 0 {
        return Ok(());
    }
    if args.json {
        return Err(Failure::Reported);
    }
    Err(
        SeamError::new(ErrorCode::Io, format!("{damaged} damaged entries"))
            .hint("they are made again when they are needed; `halfhitch cache clear` removes all")
            .into(),
    )
}

fn print(action: CacheCommand, reports: &[CacheReport]) -> Result<(), Failure> {
    if reports.is_empty() {
        return output::line("nothing is kept");
    }
    for report in reports {
        let total: u64 = report.entries.iter().map(|e| e.bytes).sum();
        let what = match action {
            CacheCommand::Clear => format!("{} freed", Size(report.freed)),
            CacheCommand::List | CacheCommand::Verify => {
                format!("{} entries, {}", report.entries.len(), Size(total))
            }
        };
        output::line(&format!("{}: {what}", report.folder.display()))?;
        let rows: Vec<Vec<String>> = report
            .entries
            .iter()
            .map(|e| {
                let state = match (&e.damage, action) {
                    (Some(why), _) => format!("damaged: {}", one_line(why)),
                    (None, CacheCommand::Verify) => "whole".into(),
                    (None, _) => String::new(),
                };
                vec![
                    format!("  {}", &e.key.get(..16).unwrap_or(&e.key)),
                    Size(e.bytes).to_string(),
                    age(e.last_used),
                    state,
                ]
            })
            .collect();
        if !rows.is_empty() {
            output::bytes(output::table(&rows).as_bytes())?;
        }
    }
    Ok(())
}

/// How long ago, in the largest unit that fits.
fn age(seconds: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_secs(seconds);
    let ago = SystemTime::now().duration_since(then).unwrap_or_default();
    let (n, unit) = match ago.as_secs() {
        s if s < 60 => return "just now".into(),
        s if s < 3600 => (s / 60, "min"),
        s if s < 86_400 => (s / 3600, "h"),
        s => (s / 86_400, "d"),
    };
    format!("{n} {unit} ago")
}
