//! Randomness from the operating system, for the engine's seed.

use crate::error::Error;
use rustix::io::Errno;
use urnic_engine::verbs::Seed;

/// A fresh seed for [`RnicConfig`](urnic_engine::verbs::RnicConfig), which no peer can guess.
///
/// # Errors
/// If the operating system has no randomness.
pub fn random_seed() -> Result<Seed, Error> {
    random_octets().map(Seed::from_octets)
}

pub(crate) fn random_octets() -> Result<[u8; Seed::LEN], Error> {
    let mut octets = [0; Seed::LEN];
    getrandom::fill(&mut octets).map_err(|error| {
        let os_error = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        Error::System { action: "drawing a random seed", os_error }
    })?;
    Ok(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_seeds_differ() {
        assert_ne!(random_seed().unwrap(), random_seed().unwrap());
    }
}
