//! Log of the library and the engine, on standard error.

use std::io;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

#[derive(Clone, Debug)]
pub(crate) struct Filter(Targets);

/// Parses `debug`, or `info,urnic::tcp=trace`.
pub(crate) fn filter(text: &str) -> Result<Filter, String> {
    for part in text.split(',') {
        let (target, level) = part.split_once('=').unwrap_or(("urnic", part));
        let is_path = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
        if target.is_empty() || !target.chars().all(is_path) || !LEVELS.contains(&level) {
            return Err(format!(
                "'{part}' is no level: use {}, or MODULE=LEVEL,…",
                LEVELS.join(", ")
            ));
        }
    }
    text.parse().map(Filter).map_err(|error| format!("{error}"))
}

/// Each event has its time. Without a filter, events cost nothing.
pub(crate) fn start(filter: Option<Filter>) {
    let Some(Filter(targets)) = filter else { return };
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(targets).init();
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_made_of_levels() {
        for text in ["off", "trace", "info,urnic::tcp=trace", "urnic=error"] {
            assert!(filter(text).is_ok(), "{text}");
        }
        for text in ["", "loud", "debug,", "urnic_engine=", "=debug", "-1", "a b=info"] {
            assert!(filter(text).unwrap_err().contains("is no level"), "{text}");
        }
    }
}
