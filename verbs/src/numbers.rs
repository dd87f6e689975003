//! Numbers of queue pairs. The upper 16 of their 24 bits are the TCP port at which the process
//! listens for their peers: a peer that knows the number knows the port, and no two processes of a
//! host use the same number.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use crate::errno::Errno;
use crate::event_queue::locked;

const BLOCK: usize = 256;
/// Numbers for rdma_cm's ids. Peers find these queue pairs by their connections, so the numbers use
/// TCP ports at which ordinary applications do not listen.
const OF_IDS: std::ops::Range<u32> = 1..1024 << 8;

pub(crate) const fn is_of_id(number: u32) -> bool {
    number >= OF_IDS.start && number < OF_IDS.end
}

pub(crate) trait PeerListener: Debug + Send + Sync {
    fn tcp_port(&self) -> u16;

    /// Peers may wait whose queue pair is ready now.
    fn look(self: Arc<Self>);
}

#[derive(Debug, Default)]
pub(crate) struct Numbers {
    blocks: Mutex<Vec<Block>>,
    next_of_ids: Mutex<u32>,
}

#[derive(Debug)]
struct Block {
    tcp_port: u16,
    used: [bool; BLOCK],
    /// Start of the search for a free number: a peer may still use one that was just given back.
    next: usize,
    listener: Arc<dyn PeerListener>,
}

impl Block {
    fn take(&mut self) -> Option<u32> {
        let index = (self.next..BLOCK).chain(0..self.next).find(|index| !self.used[*index])?;
        self.used[index] = true;
        self.next = (index + 1) % BLOCK;
        Some(u32::from(self.tcp_port) << 8 | u32::try_from(index).ok()?)
    }
}

impl Numbers {
    /// `listen` makes a listener if all numbers of the present ones are in use.
    pub(crate) fn take(
        &self,
        listen: impl FnOnce() -> Result<Arc<dyn PeerListener>, Errno>,
    ) -> Result<u32, Errno> {
        let mut blocks = locked(&self.blocks);
        if let Some(number) = blocks.iter_mut().find_map(Block::take) {
            return Ok(number);
        }
        let listener = listen()?;
        let tcp_port = listener.tcp_port();
        let mut block = Block { tcp_port, used: [false; BLOCK], next: 0, listener };
        let number = block.take().ok_or(Errno::NO_MEMORY);
        blocks.push(block);
        number
    }

    /// Numbers repeat when the range is exhausted.
    pub(crate) fn next_of_ids(&self) -> u32 {
        let mut next = locked(&self.next_of_ids);
        *next = if is_of_id(*next + 1) { *next + 1 } else { OF_IDS.start };
        *next
    }

    /// `is_free` returns true if no queue pair has the number.
    pub(crate) fn take_for_id(&self, is_free: impl Fn(u32) -> bool) -> Result<u32, Errno> {
        let mut numbers = OF_IDS.map(|_| self.next_of_ids());
        numbers.find(|number| is_free(*number)).ok_or(Errno::NO_MEMORY)
    }

    pub(crate) fn ready(&self, number: u32) {
        let blocks = locked(&self.blocks);
        if let Some(block) = blocks.iter().find(|block| u32::from(block.tcp_port) == number >> 8) {
            Arc::clone(&block.listener).look();
        }
    }

    pub(crate) fn give_back(&self, number: u32) {
        for block in &mut *locked(&self.blocks) {
            if u32::from(block.tcp_port) == number >> 8 {
                block.used[(number & 0xff) as usize] = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::requests::Requests;
    use crate::process::process;

    #[test]
    fn more_than_256_queue_pairs_listen_at_two_ports_and_no_number_is_given_twice() {
        let (process, numbers) = (process().unwrap(), Numbers::default());
        let listen = || Requests::listen(&process);
        let mut taken: Vec<u32> = (0..=BLOCK).map(|_| numbers.take(listen).unwrap()).collect();
        let ports: std::collections::HashSet<u32> =
            taken.iter().map(|number| number >> 8).collect();
        assert_eq!(ports.len(), 2);
        // The next free one, not the one that was just given back.
        numbers.give_back(taken[0]);
        taken.push(numbers.take(listen).unwrap());
        // Only that one was free: the next one is of another block.
        taken.push(numbers.take(listen).unwrap());
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), BLOCK + 2, "the first came back, and no other");
        assert!(taken.iter().all(|number| *number >= OF_IDS.end && *number < 1 << 24));
    }

    #[test]
    fn id_numbers_wrap_and_skip_those_in_use() {
        let numbers = Numbers::default();
        assert_eq!(numbers.take_for_id(|_| true), Ok(1));
        assert_eq!(numbers.take_for_id(|number| number > 4), Ok(5));
        *locked(&numbers.next_of_ids) = OF_IDS.end - 1;
        assert_eq!(numbers.take_for_id(|_| true), Ok(1));
        assert_eq!(numbers.take_for_id(|_| false), Err(Errno::NO_MEMORY));
    }
}
