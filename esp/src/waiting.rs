//! Packets that wait for an association (a larval state): bounded, and dropped after a time.

use std::collections::{BTreeMap, VecDeque};

use crate::association::Purpose;
use crate::limits::{ACQUIRE_NS, LARVAL_MAX, WAITING_BYTES_MAX, WAITING_MAX};

/// Packets that wait for associations.
#[derive(Debug, Default)]
pub struct Waiting {
    larval: BTreeMap<Purpose, Larval>,
    /// Packets whose association was made.
    released: VecDeque<Vec<u8>>,
    /// Bytes of all packets.
    bytes: usize,
}

/// An association that was asked for.
#[derive(Debug)]
struct Larval {
    until_ns: u64,
    packets: VecDeque<Vec<u8>>,
}

/// Result of [`Waiting::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The association was not asked for before.
    pub is_first: bool,
    /// The packet waits.
    pub is_kept: bool,
    /// Packets dropped for lack of room, the new one included.
    pub dropped: usize,
}

impl Waiting {
    /// Keeps a copy of a packet until there is an association, or for a time.
    pub fn push(&mut self, now_ns: u64, purpose: Purpose, packet: &[u8]) -> Pushed {
        let is_first = !self.larval.contains_key(&purpose);
        let bytes = self.bytes + packet.len();
        if bytes > WAITING_BYTES_MAX || is_first && self.larval.len() >= LARVAL_MAX {
            return Pushed { is_first: false, is_kept: false, dropped: 1 };
        }
        let until_ns = now_ns.saturating_add(ACQUIRE_NS);
        let new = || Larval { until_ns, packets: VecDeque::new() };
        let packets = &mut self.larval.entry(purpose).or_insert_with(new).packets;
        packets.push_back(packet.to_vec());
        self.bytes = bytes;
        let mut dropped = 0;
        if packets.len() > WAITING_MAX {
            self.bytes -= packets.pop_front().map_or(0, |oldest| oldest.len());
            dropped = 1;
        }
        Pushed { is_first, is_kept: true, dropped }
    }

    /// Releases the packets that wait for an association.
    pub fn release(&mut self, purpose: &Purpose) {
        if let Some(larval) = self.larval.remove(purpose) {
            self.released.extend(larval.packets);
        }
    }

    /// Returns the next released packet.
    pub fn next_released(&mut self) -> Option<Vec<u8>> {
        let packet = self.released.pop_front()?;
        self.bytes -= packet.len();
        Some(packet)
    }

    /// Drops the packets that waited too long; returns their number.
    pub fn expire(&mut self, now_ns: u64) -> usize {
        let (mut count, mut bytes) = (0, 0);
        self.larval.retain(|_, larval| {
            let stays = now_ns < larval.until_ns;
            if !stays {
                count += larval.packets.len();
                bytes += larval.packets.iter().map(Vec::len).sum::<usize>();
            }
            stays
        });
        self.bytes -= bytes;
        count
    }

    /// Returns the time of the next [`expire`](Self::expire).
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.larval.values().map(|larval| larval.until_ns).min()
    }

    /// Bytes of all packets that wait or were released.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::association::Mode;

    fn purpose(request: u32) -> Purpose {
        let [source, destination] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
        Purpose { request, mode: Mode::Transport, source, destination }
    }

    #[test]
    fn packets_are_released_in_their_order() {
        let mut waiting = Waiting::default();
        for (byte, request) in [(1, 1), (2, 2), (3, 1)] {
            let pushed = waiting.push(0, purpose(request), &[byte]);
            assert_eq!(pushed, Pushed { is_first: byte != 3, is_kept: true, dropped: 0 });
        }
        assert_eq!(waiting.next_released(), None);
        waiting.release(&purpose(1));
        waiting.release(&purpose(9));
        assert_eq!(waiting.next_released(), Some(vec![1]));
        assert_eq!(waiting.next_released(), Some(vec![3]));
        assert_eq!((waiting.next_released(), waiting.bytes()), (None, 1));
        assert_eq!(waiting.deadline(), Some(ACQUIRE_NS));
        assert_eq!(waiting.expire(ACQUIRE_NS - 1), 0);
        assert_eq!((waiting.expire(ACQUIRE_NS), waiting.bytes()), (1, 0));
        assert!(waiting.push(ACQUIRE_NS, purpose(2), &[4]).is_first, "it is asked for again");
    }

    #[test]
    fn one_association_keeps_the_newest_packets() {
        let mut waiting = Waiting::default();
        for number in 0..=u8::try_from(WAITING_MAX).unwrap() {
            let pushed = waiting.push(0, purpose(1), &[number]);
            assert_eq!(pushed.dropped, usize::from(usize::from(number) == WAITING_MAX));
        }
        assert_eq!(waiting.bytes(), WAITING_MAX);
        waiting.release(&purpose(1));
        assert_eq!(waiting.next_released(), Some(vec![1]), "the oldest was dropped");
    }

    #[test]
    fn memory_has_a_limit_for_any_number_of_associations() {
        let mut waiting = Waiting::default();
        let packet = vec![0; 60_000];
        let mut asked = 0;
        for request in 0..10_000 {
            let pushed = waiting.push(0, purpose(request), &packet);
            asked += u32::from(pushed.is_first);
            assert!(waiting.bytes() <= WAITING_BYTES_MAX);
        }
        assert_eq!(asked, 17);
        assert_eq!(waiting.expire(u64::MAX), 17);
        let asked = (0..1000).filter(|request| waiting.push(0, purpose(*request), &[0]).is_first);
        assert_eq!(asked.count(), LARVAL_MAX);
    }
}
