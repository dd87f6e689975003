//! What the library tells a person who asks: `URNIC_LOG=debug PROGRAM`, on standard error.

use std::io;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use urnic::environment;

/// The variable, with the words of `urnic --log`.
const LOG: &str = "URNIC_LOG";

/// Begins to log, if it is asked for and the program does not log by the same means itself.
#[expect(clippy::print_stderr, reason = "who has asked for a log reads standard error")]
pub(crate) fn start() {
    let Some(text) = environment(LOG).and_then(|text| text.into_string().ok()) else { return };
    match text.parse::<Targets>() {
        Ok(targets) => {
            let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
            let told = tracing_subscriber::registry().with(lines).with(targets).try_init();
            let _the_program_has_its_own = told;
        }
        Err(error) => eprintln!("urnic: {LOG}={text}: {error}; say debug, or MODULE=LEVEL,…"),
    }
}
