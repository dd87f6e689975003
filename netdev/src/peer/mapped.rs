//! Count of the bytes of peers' memory that this process maps.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::peer::limits::PROCESS_BYTES_MAX;

/// Bytes mapped by all devices of the process.
static PROCESS: Count = Count::new(PROCESS_BYTES_MAX);

/// Bytes of a peer that are mapped, or about to be mapped. Dropping it subtracts them.
#[derive(Debug)]
pub(crate) struct Mapped {
    bytes: u64,
    count: &'static Count,
}

/// Error: the process has reached its limit of mapped peer memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process maps no more than {max} bytes of its peers' memory")]
pub(crate) struct ProcessFull {
    max: u64,
}

#[derive(Debug)]
struct Count {
    bytes: AtomicU64,
    max: u64,
}

impl Count {
    const fn new(max: u64) -> Self {
        Self { bytes: AtomicU64::new(0), max }
    }

    fn take(&'static self, bytes: u64) -> Result<Mapped, ProcessFull> {
        let more = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= self.max);
        match self.bytes.fetch_update(Relaxed, Relaxed, more) {
            Ok(_) => Ok(Mapped { bytes, count: self }),
            Err(_) => Err(ProcessFull { max: self.max }),
        }
    }
}

impl Mapped {
    /// Counts bytes before they are mapped. Errors: [`ProcessFull`]: they must not be mapped.
    pub(crate) fn take(bytes: u64) -> Result<Self, ProcessFull> {
        PROCESS.take(bytes)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.count.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_up_to_the_limit_and_given_back() {
        static COUNT: Count = Count::new(100);
        let first = COUNT.take(60).unwrap();
        let error = COUNT.take(41).unwrap_err();
        assert!(error.to_string().contains("no more than 100 bytes"), "{error}");
        assert!(COUNT.take(u64::MAX).is_err());
        let second = COUNT.take(40).unwrap();
        assert!(COUNT.take(1).is_err());
        drop(first);
        assert!(COUNT.take(61).is_err());
        drop(second);
        drop(COUNT.take(100).unwrap());
        assert_eq!(COUNT.bytes.load(Relaxed), 0);
    }

    #[test]
    fn the_process_has_its_limit() {
        assert!(Mapped::take(PROCESS_BYTES_MAX + 1).is_err());
        assert!(Mapped::take(4096).is_ok());
    }
}
