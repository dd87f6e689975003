//! The library's log, on standard error: `URNIC_LOG=debug PROGRAM`.

use std::fmt;
use std::io::{self, Write};

use rustix::stdio::stderr;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use urnic::environment;

/// Filter with the same values as `urnic --log`.
const LOG: &str = "URNIC_LOG";

/// Output without the lock of [`io::stderr`], which a thread of the parent may hold during a fork.
/// Each line is one call.
struct Unlocked;

impl Write for Unlocked {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(stderr(), line)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Format of `urnic --log` without spans: the crate's own format takes a lock to look up the span
/// at a thread's first line.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        SystemTime.format_time(&mut line)?;
        let about = event.metadata();
        write!(line, " {:>5} {}: ", about.level(), about.target())?;
        context.format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

/// Starts the log, unless the application has installed a `tracing` subscriber itself.
#[expect(clippy::print_stderr, reason = "the user who asked for a log reads standard error")]
pub(crate) fn start() {
    let Some(text) = environment(LOG).and_then(|text| text.into_string().ok()) else { return };
    match text.parse::<Targets>() {
        Ok(targets) => {
            let lines = tracing_subscriber::fmt::layer().with_writer(|| Unlocked).with_ansi(false);
            let lines = lines.event_format(Line);
            let told = tracing_subscriber::registry().with(lines).with(targets).try_init();
            let _the_program_has_its_own = told;
        }
        Err(error) => eprintln!("urnic: {LOG}={text}: {error}; use debug, or MODULE=LEVEL,…"),
    }
}
