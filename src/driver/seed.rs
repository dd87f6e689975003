//! Randomness from the operating system, to seed the engine with.

use std::io;

/// A fresh seed for [`RnicConfig`](crate::verbs::RnicConfig), which no peer can guess.
///
/// # Errors
/// When the operating system has no randomness to give.
pub fn random_seed() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_seeds_differ() {
        assert_ne!(random_seed().unwrap(), random_seed().unwrap());
    }
}
