//! Connections in TIME-WAIT: a record for each, oldest first. Most connections of a busy port only
//! wait until old segments have left the network: a record is as small as possible, and no
//! operation on one reads others. The records are in blocks, which never move, linked in the order
//! in which they end. All wait equally long, so a record that restarts goes to the end.

use crate::port::connections::table::ENTRY_BYTES_MAX;
use crate::port::tuple::Tuple;
use crate::tcp::TimeWait;
use crate::time::Instant;

#[derive(Debug)]
pub(in crate::port) struct TimeWaitRecord {
    pub(in crate::port) tcp: TimeWait,
    until: Instant,
    tuple: Tuple,
    older: u32,
    newer: u32,
    pub(in crate::port) ready: bool,
    /// An answer to the neighbour query wakes the connection.
    pub(in crate::port) awaits_neighbour: bool,
}

impl TimeWaitRecord {
    pub(in crate::port) const fn tuple(&self) -> Tuple {
        self.tuple
    }

    pub(in crate::port) const fn until(&self) -> Instant {
        self.until
    }
}

#[derive(Debug)]
enum Place {
    Taken(TimeWaitRecord),
    Free(u32),
}

/// The record, an entry of the table of numbers, and two of the list of connections that may send.
const BYTES_MAX: usize = size_of::<Place>() + ENTRY_BYTES_MAX + 2 * size_of::<u32>();

const _: () = assert!(BYTES_MAX <= 256);

#[derive(Debug)]
pub(super) struct TimeWaits {
    blocks: Vec<Vec<Place>>,
    len: usize,
    free: u32,
    oldest: u32,
    newest: u32,
}

/// Records of one block, allocated together.
const BLOCK_LEN: usize = 64;
const NONE: u32 = u32::MAX;

impl Default for TimeWaits {
    fn default() -> Self {
        Self { blocks: Vec::new(), len: 0, free: NONE, oldest: NONE, newest: NONE }
    }
}

impl TimeWaits {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, index: u32) -> Option<&TimeWaitRecord> {
        let index = index as usize;
        match self.blocks.get(index / BLOCK_LEN)?.get(index % BLOCK_LEN)? {
            Place::Taken(record) => Some(record),
            Place::Free(_) => None,
        }
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut TimeWaitRecord> {
        let index = index as usize;
        match self.blocks.get_mut(index / BLOCK_LEN)?.get_mut(index % BLOCK_LEN)? {
            Place::Taken(record) => Some(record),
            Place::Free(_) => None,
        }
    }

    /// Adds a record that ends at `until`, but at least 1 ns after the newest: the list stays
    /// sorted, although the connections of one burst may be added in another order than their ends.
    pub(super) fn insert(&mut self, tuple: Tuple, tcp: TimeWait, until: Instant) -> u32 {
        let record = TimeWaitRecord {
            tcp,
            until,
            tuple,
            older: NONE,
            newer: NONE,
            ready: false,
            awaits_neighbour: false,
        };
        let index = self.place(record);
        self.len += 1;
        self.link_newest(index);
        index
    }

    fn place(&mut self, record: TimeWaitRecord) -> u32 {
        if self.free != NONE {
            let index = self.free;
            let at = index as usize;
            let place = &mut self.blocks[at / BLOCK_LEN][at % BLOCK_LEN];
            let Place::Free(next) = *place else { unreachable!("the list is of free places") };
            (self.free, *place) = (next, Place::Taken(record));
            return index;
        }
        if self.blocks.last().is_none_or(|block| block.len() == BLOCK_LEN) {
            self.blocks.push(Vec::with_capacity(BLOCK_LEN));
        }
        let before = (self.blocks.len() - 1) * BLOCK_LEN;
        let block = self.blocks.last_mut().expect("one was pushed");
        let index = before + block.len();
        block.push(Place::Taken(record));
        u32::try_from(index).expect("bounded by TIME_WAIT_MAX")
    }

    /// Removing the last record frees all memory.
    pub(super) fn remove(&mut self, index: u32) -> Option<Tuple> {
        let tuple = self.get(index)?.tuple;
        self.unlink(index);
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        } else {
            let at = index as usize;
            self.blocks[at / BLOCK_LEN][at % BLOCK_LEN] = Place::Free(self.free);
            self.free = index;
        }
        Some(tuple)
    }

    pub(super) fn restart(&mut self, index: u32, until: Instant) {
        self.unlink(index);
        self[index].until = until;
        self.link_newest(index);
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.get(self.oldest).map(|record| record.until)
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest(), |&index| {
            self.get(index).map(|record| record.newer).filter(|newer| *newer != NONE)
        })
    }

    fn link_newest(&mut self, index: u32) {
        let newest = std::mem::replace(&mut self.newest, index);
        let not_before = match self.get_mut(newest) {
            Some(before) => {
                before.newer = index;
                before.until.plus_nanos(1)
            }
            None => {
                self.oldest = index;
                Instant::ZERO
            }
        };
        let record = &mut self[index];
        (record.older, record.newer) = (newest, NONE);
        record.until = record.until.max(not_before);
    }

    fn unlink(&mut self, index: u32) {
        let TimeWaitRecord { older, newer, .. } = self[index];
        match self.get_mut(older) {
            Some(record) => record.newer = newer,
            None => self.oldest = newer,
        }
        match self.get_mut(newer) {
            Some(record) => record.older = older,
            None => self.newest = older,
        }
    }
}

impl std::ops::Index<u32> for TimeWaits {
    type Output = TimeWaitRecord;

    fn index(&self, index: u32) -> &TimeWaitRecord {
        self.get(index).expect("the index is that of a record")
    }
}

impl std::ops::IndexMut<u32> for TimeWaits {
    fn index_mut(&mut self, index: u32) -> &mut TimeWaitRecord {
        self.get_mut(index).expect("the index is that of a record")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::tcp::{Config, Flags, Header, Options, PathConfig, SeqNum, Tcb};
    use crate::types::StreamOffset;

    fn tuple(number: u32) -> Tuple {
        let [high, low, port, _] = number.to_le_bytes();
        Tuple::new([10, 0, 0, 1].into(), 7174, [10, 1, high, low].into(), u16::from(port))
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    pub(in crate::port::connections) fn closed() -> TimeWait {
        let now = at(1);
        let header = |seq: u32, ack: u32, flags| Header {
            seq: SeqNum(seq),
            ack: SeqNum(ack),
            flags,
            window: 1000,
            options: Options::default(),
            ..Header::default()
        };
        let config = Config { timestamps: false, ..Config::default() };
        let config = PathConfig::new(config, 1500, 20);
        let syn = header(99, 0, Flags::SYN);
        let mut tcb = Tcb::accept(now, &Arc::new(config), &syn, SeqNum(9), 0);
        tcb.poll_transmit(now).unwrap();
        tcb.handle_segment(now, &header(100, 10, Flags::ACK), 0, 1);
        tcb.close(StreamOffset::ZERO);
        tcb.poll_transmit(now).unwrap();
        tcb.handle_segment(now, &header(100, 11, Flags::ACK | Flags::FIN), 0, 1);
        while tcb.poll_event().is_some() {}
        tcb.time_wait().unwrap().0
    }

    fn listed(table: &TimeWaits) -> Vec<Tuple> {
        table.indices().map(|index| table[index].tuple()).collect()
    }

    #[test]
    fn records_end_in_the_order_of_their_time_and_start_anew_at_the_end() {
        let mut table = TimeWaits::default();
        let [a, b, c] = [1, 2, 3].map(|n| table.insert(tuple(n), closed(), at(60 + u64::from(n))));
        assert_eq!((table.oldest(), table.next_deadline()), (Some(a), Some(at(61))));
        table.restart(a, at(70));
        assert_eq!(listed(&table), [2, 3, 1].map(tuple));
        assert_eq!(table.next_deadline(), Some(at(62)));
        // Restarting the last record leaves it in its place.
        table.restart(a, at(71));
        assert_eq!(listed(&table), [2, 3, 1].map(tuple));
        assert_eq!(table[a].until(), at(71));
        // A record added late ends just after the newest.
        let late = table.insert(tuple(4), closed(), at(65));
        assert_eq!(table[late].until(), at(71).plus_nanos(1));
        assert_eq!(table.remove(c), Some(tuple(3)));
        assert_eq!(table.remove(c), None);
        assert_eq!(listed(&table), [2, 1, 4].map(tuple));
        // Its place is used again.
        assert_eq!(table.insert(tuple(5), closed(), at(72)), c);
        for index in [b, a, late, c] {
            table.remove(index).unwrap();
        }
        assert_eq!((table.len(), table.oldest(), table.next_deadline()), (0, None, None));
        assert!(table.blocks.is_empty(), "all memory is given back");
    }

    /// Compares with a map, with enough records to fill several blocks.
    #[test]
    fn time_wait_records_match_a_map_model() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (mut table, mut model) = (TimeWaits::default(), BTreeMap::new());
        let rest = closed();
        let (mut now, mut made) = (0, 0);
        for _ in 0..20_000 {
            now += 1;
            let drawn = rng.random_range(0..10);
            let grows = table.len() < 200 || (now / 2000) % 2 == 0;
            if drawn < 5 && grows {
                let index = table.insert(tuple(made), rest.clone(), at(now));
                assert_eq!(model.insert(index, (now, tuple(made))), None, "{index} was taken");
                made += 1;
            } else if drawn < 7
                && let Some(&index) = model.keys().nth(rng.random_range(0..model.len().max(1)))
            {
                table.restart(index, at(now));
                model.get_mut(&index).unwrap().0 = now;
            } else if let Some(&index) = model.keys().nth(rng.random_range(0..model.len().max(1))) {
                let (_, tuple) = model.remove(&index).unwrap();
                assert_eq!(table.remove(index), Some(tuple));
            }
            assert_eq!(table.len(), model.len());
            if now % 50 == 0 {
                let mut by_time: Vec<_> = model.values().copied().collect();
                by_time.sort_unstable_by_key(|(until, _)| *until);
                let by_time: Vec<Tuple> = by_time.into_iter().map(|(_, tuple)| tuple).collect();
                assert_eq!(listed(&table), by_time);
            }
        }
        assert!(made > 5000 && table.blocks.len() > 3);
        // There are at most as many places as there were records at one time.
        assert!(table.blocks.len() * BLOCK_LEN < 2000);
    }
}
