//! Follow-up of what connections did: events, deadlines, backlog slots, and their end. Connections
//! are marked for each frame and processed once per burst, before the caller drains the port.

use tracing::debug;

use crate::port::listeners::BacklogSlot;
use crate::port::{ConnectionId, Port, PortEvent, TRACE};
use crate::tcp;

impl Port {
    pub(super) fn process_active(&mut self) {
        while let Some(slot) = self.connections.next_touched() {
            self.process_connection(slot);
        }
        self.reclaim_pieces();
    }

    fn process_connection(&mut self, slot: u32) {
        let connection = &mut self.connections[slot];
        if connection.carrier.stream.wants_retry() {
            return self.retry_startup(slot);
        }
        let id = ConnectionId { slot, generation: connection.generation };
        while let Some(event) = connection.carrier.stream.poll_event() {
            self.events.push_back(PortEvent::Stream { connection: id, event });
        }
        self.connections.arm(slot);
        let connection = &mut self.connections[slot];
        let (over, closed) = (connection.is_over(), connection.is_in_time_wait());
        if connection.carrier.stream.is_over() {
            connection.carrier.stream.release(&mut self.pieces);
        }
        self.update_backlog(slot);
        if over {
            self.remove(id);
        } else if closed {
            self.retire(id);
            self.keep_time_wait(slot);
        }
    }

    /// The connection is reopened with fewer features after TCP has ended the old one.
    fn retry_startup(&mut self, slot: u32) {
        let connection = &mut self.connections[slot];
        if connection.is_over() {
            self.connections.push_retry(slot);
        } else {
            // Either the peer has ended the connection, or there is no reason to wait for the peer.
            connection.carrier.tcp.abort();
            self.connections.wake(slot);
        }
    }

    /// Reports the close and releases all resources except the addresses. RFC 9293 §3.10.7.4: the
    /// user is notified when TIME-WAIT begins.
    fn retire(&mut self, id: ConnectionId) {
        let connection = &mut self.connections[id.slot];
        if connection.retired {
            return;
        }
        connection.retired = true;
        let stream = &mut connection.carrier.stream;
        stream.connection_lost();
        stream.release(&mut self.pieces);
        while let Some(event) = stream.poll_event() {
            self.events.push_back(PortEvent::Stream { connection: id, event });
        }
        let (slot, counters) = (connection.take_backlog_slot(), Box::new(connection.counters()));
        debug!(target: TRACE, tuple = %connection.tuple(), "connection closed");
        connection.carrier.stream.retire();
        if let Some(slot) = slot {
            self.listeners.release(slot);
        }
        self.events.push_back(PortEvent::Closed { connection: id, counters });
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        self.retire(id);
        self.connections.remove(id.slot);
    }

    fn update_backlog(&mut self, slot: u32) {
        let connection = &mut self.connections[slot];
        let Some(before) = connection.backlog_slot().copied() else { return };
        if before.is_waiting() {
            return self.update_waiting(slot, before);
        }
        match connection.carrier.tcp.state() {
            tcp::State::SynReceived => return,
            tcp::State::Closed => drop(connection.take_backlog_slot()),
            _ => {}
        }
        let source = connection.tuple().remote().ip();
        let stands = connection.backlog_slot().is_some();
        let Some(listener) = self.listeners.of(before) else { return };
        listener.release(before);
        if !stands {
            return;
        }
        match listener.take_waiting(source, slot) {
            Ok((taken, evicted)) => {
                self.connections[slot].set_backlog_slot(taken);
                if let Some(evicted) = evicted {
                    self.evict(evicted);
                }
                self.update_waiting(slot, taken);
            }
            Err(_) => self.evict(slot),
        }
    }

    fn update_waiting(&mut self, slot: u32, mut backlog_slot: BacklogSlot) {
        let connection = &mut self.connections[slot];
        let setup = connection.carrier.stream.setup();
        let closing = connection.carrier.stream.is_closing();
        backlog_slot.asked |= setup == crate::stream::Setup::AwaitingAnswer;
        if let Some(standing) = setup.standing(backlog_slot.asked, closing) {
            connection.set_backlog_slot(backlog_slot);
            if let Some(listener) = self.listeners.of(backlog_slot) {
                listener.set_standing(backlog_slot, standing);
            }
        } else {
            connection.take_backlog_slot();
            self.listeners.release(backlog_slot);
        }
    }

    /// Resets a connection for which there is no slot in the backlog.
    fn evict(&mut self, slot: u32) {
        self.counters.backlog_evicted += 1;
        let connection = &mut self.connections[slot];
        let evicted = self.counters.backlog_evicted;
        if evicted.is_power_of_two() {
            let tuple = connection.tuple();
            debug!(target: TRACE, %tuple, evicted, "connection evicted from a full backlog");
        }
        connection.take_backlog_slot();
        let generation = connection.generation;
        self.abort(ConnectionId { slot, generation });
    }
}
