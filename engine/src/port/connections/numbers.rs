//! Numbers of connections, last in first out, in cache lines of their own: each frame changes them,
//! and a small block could share its line with data that another queue reads for each frame.

/// Two cache lines, which some processors fetch together.
const PER_BLOCK: usize = 32;

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(128))]
struct Block([u32; PER_BLOCK]);

#[derive(Debug)]
pub(super) struct Numbers {
    blocks: Vec<Block>,
    len: usize,
}

impl Numbers {
    pub(super) fn new() -> Self {
        Self { blocks: vec![Block::default(); 2], len: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn push(&mut self, number: u32) {
        if self.len == PER_BLOCK * self.blocks.len() {
            self.blocks.push(Block::default());
        }
        self.blocks[self.len / PER_BLOCK].0[self.len % PER_BLOCK] = number;
        self.len += 1;
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.blocks[self.len / PER_BLOCK].0[self.len % PER_BLOCK])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pop_returns_the_last_pushed_number() {
        let mut numbers = Numbers::new();
        for round in 0..2 {
            (0..1000).for_each(|number| numbers.push(number + round));
            for number in (0..1000).rev() {
                assert_eq!(numbers.pop(), Some(number + round));
            }
            assert_eq!(numbers.pop(), None);
        }
        assert!(numbers.blocks.as_ptr().addr().is_multiple_of(128));
    }
}
