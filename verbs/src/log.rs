//! What the library tells a person who asks: `URNIC_LOG=debug PROGRAM`, on standard error.

use std::io;

use tracing_subscriber::EnvFilter;

/// The variable, with the words of `urnic --log`.
const LOG: &str = "URNIC_LOG";

/// Begins to log, if it is asked for and the program does not log by the same means itself.
pub(crate) fn start() {
    if let Ok(filter) = EnvFilter::try_from_env(LOG) {
        let told = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        let _the_program_has_its_own = told.try_init();
    }
}
