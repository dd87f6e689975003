//! Connections of closed sockets. Memory that their peers may write is kept until they end.

use std::sync::{Arc, Mutex};

use urnic::{Connection, ConnectionEvent, monotonic_now};
use urnic_engine::time::{Duration, Instant};

use super::stream::Stream;
use crate::event_queue::locked;
use crate::fork::PerProcess;
use crate::turn::{self, OwnWaker, Timer, Turn};

/// Time that a connection has to close in order: memory is not kept for a peer that does not close.
const CLOSED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Lingering {
    connection: Box<Connection>,
    until: Instant,
    timer: Timer,
    waker: OwnWaker,
    _stream: Mutex<Box<Stream>>,
}

static LINGERING: PerProcess<Mutex<Vec<Arc<Lingering>>>> =
    PerProcess::new(|_parents| Mutex::default());

impl Turn for Lingering {
    fn turn(self: Arc<Self>) {
        self.connection.notify(self.waker.of(&self));
        loop {
            match self.connection.next_event(Duration::ZERO) {
                Ok(None) if monotonic_now() >= self.until => return self.connection.abort(),
                Ok(None) => return self.timer.set(&self, self.until),
                Ok(Some(ConnectionEvent::Closed(_))) | Err(_) => {
                    return locked(LINGERING.of_this()).retain(|other| !Arc::ptr_eq(other, &self));
                }
                Ok(Some(_)) => {}
            }
        }
    }
}

/// Closes the connection in order, in the background.
pub(super) fn close(stream: Box<Stream>, connection: Box<Connection>) {
    connection.disconnect();
    let (until, stream) = (monotonic_now() + CLOSED_WITHIN, Mutex::new(stream));
    let (timer, waker) = (Timer::default(), OwnWaker::default());
    let lingering = Arc::new(Lingering { connection, until, timer, waker, _stream: stream });
    locked(LINGERING.of_this()).push(Arc::clone(&lingering));
    turn::request(&lingering);
}
