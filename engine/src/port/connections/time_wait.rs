//! Connections in TIME-WAIT, longest first: those that give up their slot or their TCP port.

use std::net::{IpAddr, SocketAddr};

use crate::port::connections::Connections;
use crate::port::connections::connection::{ConnectionId, PortConnection};
use crate::tcp::SeqNum;

impl Connections {
    /// A connection has done something: notes when it enters TIME-WAIT.
    pub(in crate::port) fn note_time_wait(&mut self, slot: u32) {
        let connection = &mut self[slot];
        if !connection.is_in_time_wait() || connection.in_time_wait {
            return;
        }
        connection.in_time_wait = true;
        let id = ConnectionId { slot, generation: connection.generation };
        self.time_wait.push_back(id);
        // Those that are over leave from the front, in whose order they end. A peer that repeats its
        // FIN can keep one there longer.
        if self.time_wait.len() > 2 * self.len() {
            let slots = &self.slots;
            self.time_wait.retain(|id| {
                slots.get(id.slot as usize).is_some_and(|one| one.generation == id.generation)
            });
        }
    }

    /// Takes the connection that has been in TIME-WAIT longest. It may be over.
    pub(in crate::port) fn next_in_time_wait(&mut self) -> Option<ConnectionId> {
        self.time_wait.pop_front()
    }

    /// Takes the connection from `local` to `remote` that has been in TIME-WAIT longest; its local
    /// port, and the sequence number behind the last one that this end has used.
    pub(in crate::port) fn take_in_time_wait(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Option<(ConnectionId, u16, SeqNum)> {
        let (index, port, used_to) =
            self.time_wait.iter().enumerate().find_map(|(index, id)| {
                let connection = self.waiting(*id)?;
                let tuple = connection.tuple();
                let fits = (tuple.local().ip(), tuple.remote()) == (local, remote);
                fits.then(|| (index, tuple.local_port(), connection.carrier.tcp.snd_end_seq()))
            })?;
        Some((self.time_wait.remove(index)?, port, used_to))
    }

    /// Whether the connection is in TIME-WAIT still.
    pub(in crate::port) fn is_in_time_wait(&self, id: ConnectionId) -> bool {
        self.waiting(id).is_some()
    }

    fn waiting(&self, id: ConnectionId) -> Option<&PortConnection> {
        let found = self.get(id.slot);
        found.filter(|one| one.generation == id.generation && one.is_in_time_wait())
    }

    /// Entries of the list, those of connections that are over included.
    #[cfg(test)]
    pub(in crate::port) fn time_wait_len(&self) -> usize {
        self.time_wait.len()
    }
}
