//! Orderly end of a session.

use std::time::Duration;

use urnic::{ConnectionEvent, monotonic_now};

use crate::client::Client;

impl Client<'_> {
    /// Waits until the server has closed, too.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        close_all(vec![self])
    }

    fn is_closed(&self) -> anyhow::Result<bool> {
        while let Some(event) = self.connection.next_event(Duration::ZERO)? {
            match event {
                // Both ends have closed: TIME-WAIT only waits for lost segments.
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

/// Closes all at once, in one round trip. Waits until the server has closed, too.
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

const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to wait until the last acknowledgment has left.
const LAST_ACK_TIME: Duration = Duration::from_micros(500);
