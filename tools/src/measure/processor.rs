//! Processor time of both ends.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Time of all threads, in the kernel too.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The server's time is that of its process and includes its other peers. Interrupt handling in the
/// kernel is not counted at either end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Processor {
    pub(crate) local_seconds: f64,
    pub(crate) server_seconds: f64,
    /// Seconds for 10⁹ bytes of payload; `None` without payload.
    pub(crate) local_seconds_per_gb: Option<f64>,
    pub(crate) server_seconds_per_gb: Option<f64>,
}

impl Processor {
    /// Computes the times for `bytes` of payload.
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    pub(crate) fn new(local: Duration, server: Duration, bytes: u64) -> Self {
        let (local_seconds, server_seconds) = (local.as_secs_f64(), server.as_secs_f64());
        let per_gb = |seconds: f64| (bytes > 0).then(|| seconds * 1e9 / bytes as f64);
        Self {
            local_seconds,
            server_seconds,
            local_seconds_per_gb: per_gb(local_seconds),
            server_seconds_per_gb: per_gb(server_seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_for_a_gigabyte_are_of_the_payload() {
        let (local, server) = (Duration::from_millis(500), Duration::from_millis(250));
        let Processor { local_seconds, server_seconds, .. } = Processor::new(local, server, 0);
        assert_eq!((local_seconds, server_seconds), (0.5, 0.25));
        let of = |bytes| {
            let it = Processor::new(local, server, bytes);
            (it.local_seconds_per_gb, it.server_seconds_per_gb)
        };
        assert_eq!(of(2_000_000_000), (Some(0.25), Some(0.125)));
        assert_eq!(of(0), (None, None), "not free of charge");
    }
}
