//! Operations of one direction: kinds, lengths and order, drawn from the seed.

use std::collections::VecDeque;

use super::pattern::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// RDMA Write.
    Write { len: usize },
    /// RDMA Read, posted by the end that receives the data.
    Read { len: usize },
    /// One of the four Sends.
    Send { len: usize, invalidate: bool, solicited: bool },
    /// Immediate Data.
    Immediate { solicited: bool },
    /// Atomic fetch-and-add.
    FetchAdd,
    /// Atomic compare-and-swap that finds what it compares with, or not.
    CmpSwap { equal: bool },
    /// Invalidates an STag of the sender's own.
    LocalInvalidate,
}

impl Operation {
    pub(super) const EMPTY_SEND: Self = Self::Send { len: 0, invalidate: false, solicited: false };

    /// Returns true if the peer gets a completion, which proves that all earlier data has arrived.
    pub(super) const fn is_message(self) -> bool {
        matches!(self, Self::Send { .. } | Self::Immediate { .. })
    }
}

#[derive(Debug)]
pub(super) struct Plan {
    random: Random,
    left: u64,
    len_max: usize,
    send_len_max: usize,
    /// Approximate payload of one FPDU.
    mulpdu: usize,
    /// One operation of each kind comes first, so that even the shortest run has all kinds.
    first: VecDeque<Operation>,
}

impl Plan {
    pub(super) fn new(
        seed: u64,
        bytes: u64,
        len_max: usize,
        send_len_max: usize,
        mtu: usize,
    ) -> Self {
        let send_len_max = send_len_max.min(len_max);
        let mut plan = Self {
            random: Random::new(seed),
            left: bytes,
            len_max,
            send_len_max,
            mulpdu: mtu.saturating_sub(HEADERS_LEN).max(1),
            first: VecDeque::new(),
        };
        plan.first = plan.one_of_each();
        plan
    }

    fn one_of_each(&mut self) -> VecDeque<Operation> {
        let mut list = VecDeque::new();
        for most in [0, 1, FIRST_LEN_MAX] {
            let len = self.draw_below(most);
            list.push_back(Operation::Write { len });
            let len = self.draw_below(most);
            list.push_back(Operation::Read { len });
            let len = self.draw_below(most);
            list.push_back(Operation::Send { len, invalidate: false, solicited: false });
        }
        for (invalidate, solicited) in [(true, false), (false, true), (true, true)] {
            let len = self.draw_below(FIRST_LEN_MAX);
            list.push_back(Operation::Send { len, invalidate, solicited });
        }
        list.extend([
            Operation::Immediate { solicited: false },
            Operation::FetchAdd,
            Operation::CmpSwap { equal: true },
            Operation::Immediate { solicited: true },
            Operation::CmpSwap { equal: false },
            Operation::LocalInvalidate,
        ]);
        list
    }

    /// `None` when the plan is done.
    pub(super) fn next(&mut self) -> Option<Operation> {
        if let Some(operation) = self.first.pop_front() {
            return Some(operation);
        }
        if self.left == 0 {
            return None;
        }
        Some(match self.random.below(100) {
            0..55 => Operation::Write { len: self.draw(self.len_max) },
            55..80 => Operation::Read { len: self.draw(self.len_max) },
            80..94 => self.send(),
            94..96 => Operation::Immediate { solicited: self.random.one_in(2) },
            96..98 => Operation::FetchAdd,
            98 => Operation::CmpSwap { equal: self.random.one_in(2) },
            _ => Operation::LocalInvalidate,
        })
    }

    pub(super) fn send(&mut self) -> Operation {
        Operation::Send {
            len: self.draw(self.send_len_max),
            invalidate: self.random.one_in(4),
            solicited: self.random.one_in(4),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == 0 && self.first.is_empty()
    }

    pub(super) fn short(&mut self) -> usize {
        self.draw_below(FIRST_LEN_MAX)
    }

    fn draw_below(&mut self, most: usize) -> usize {
        let most = most.min(self.len_max) as u64;
        let len = self.random.between(most.min(1), most);
        self.take(len)
    }

    /// Often at an edge of FPDUs, most bytes in long operations.
    fn draw(&mut self, most: usize) -> usize {
        // Lengths shrink toward the end of the plan, so that a short run has variety too.
        let most = (most as u64).min((self.left / 4).max(SHORT_LEN));
        let random = &mut self.random;
        let mulpdu = self.mulpdu as u64;
        let len = match random.below(16) {
            0 => 0,
            1 => 1,
            2 => random.between(2, 63),
            3 => random.below(512) * 2 + 1,
            4 | 5 => (mulpdu * random.between(1, 4) + EDGE).saturating_sub(random.below(2 * EDGE)),
            6..9 => random.between(SHORT_LEN, LONG_LEN),
            _ => random.between(most / 4, most),
        };
        self.take(len.min(most))
    }

    fn take(&mut self, len: u64) -> usize {
        let len = len.min(self.left);
        self.left -= len;
        usize::try_from(len).expect("no longer than the largest operation")
    }
}

/// IPv4, TCP with timestamps, MPA and DDP headers, CRC.
const HEADERS_LEN: usize = 20 + 32 + 2 + 14 + 4;
const FIRST_LEN_MAX: usize = 300;
/// Operations that do not shrink toward the end of the plan.
const SHORT_LEN: u64 = 4 << 10;
const LONG_LEN: u64 = 64 << 10;
const EDGE: u64 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn len(operation: Operation) -> usize {
        match operation {
            Operation::Write { len } | Operation::Read { len } | Operation::Send { len, .. } => len,
            _ => 0,
        }
    }

    #[test]
    fn a_plan_hands_out_exactly_its_octets() {
        for bytes in [0, 1, 2, 1000, 1 << 20, 50 << 20] {
            for len_max in [1, 64, 1 << 20] {
                if bytes / len_max > 100_000 {
                    continue;
                }
                let len_max = usize::try_from(len_max).unwrap();
                let mut plan = Plan::new(bytes, bytes, len_max, 4096, 1500);
                let operations: Vec<_> = std::iter::from_fn(|| plan.next()).collect();
                let total: u64 = operations.iter().map(|op| len(*op) as u64).sum();
                assert_eq!(total, bytes, "{bytes} in operations of at most {len_max}");
                assert!(operations.iter().all(|op| len(*op) <= len_max));
            }
        }
    }

    #[test]
    fn every_kind_comes_in_the_shortest_plan() {
        let mut plan = Plan::new(1, 0, 1, 1, 1500);
        let operations: Vec<_> = std::iter::from_fn(|| plan.next()).collect();
        for kind in [
            Operation::Write { len: 0 },
            Operation::Read { len: 0 },
            Operation::EMPTY_SEND,
            Operation::Send { len: 0, invalidate: true, solicited: true },
            Operation::Immediate { solicited: true },
            Operation::FetchAdd,
            Operation::CmpSwap { equal: true },
            Operation::LocalInvalidate,
        ] {
            assert!(operations.contains(&kind), "{kind:?}");
        }
    }
}
