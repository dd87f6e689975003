//! Orderly end of a session.

use std::time::Duration;

use urnic::{ConnectionEvent, monotonic_now};

use crate::client::Client;

impl Client<'_> {
    /// Closes in order, and waits until the server has closed, too.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        close_all(vec![self])
    }

    /// Returns true if both ends have closed, or the connection is over.
    fn is_closed(&self) -> anyhow::Result<bool> {
        while let Some(event) = self.connection.next_event(Duration::ZERO)? {
            match event {
                // An end that has closed and receives the other's close only waits for lost
                // segments: that is TIME-WAIT.
                ConnectionEvent::PeerClosed
                | ConnectionEvent::Closed(_)
                | ConnectionEvent::Failed(_)
                | ConnectionEvent::Terminated(_) => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }
}

/// Closes sessions in order, all at once, and waits until the server has closed, too: one round
/// trip for any number of sessions.
///
/// # Errors
/// If the endpoint has failed.
pub(crate) fn close_all(mut open: Vec<Client<'_>>) -> anyhow::Result<()> {
    let Some(host) = open.first().map(|client| client.host) else { return Ok(()) };
    for client in &open {
        client.connection.disconnect();
    }
    let deadline = monotonic_now() + CLOSE_TIMEOUT;
    loop {
        let mut failed = None;
        open.retain(|client| match client.is_closed() {
            Ok(is_closed) => !is_closed,
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        let now = monotonic_now();
        match failed {
            Some(error) => return Err(error),
            None if open.is_empty() || now >= deadline => break,
            None => host.endpoint.turn(deadline - now)?,
        }
    }
    // An acknowledgment may be delayed for a moment; the server waits for the last one.
    host.endpoint.run_for(LAST_ACK_TIME)?;
    Ok(())
}

/// Timeout of an orderly end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to wait until the last acknowledgment has left.
const LAST_ACK_TIME: Duration = Duration::from_micros(500);
