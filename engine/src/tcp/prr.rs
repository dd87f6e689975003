//! Proportional rate reduction: what to send for each acknowledgment (RFC 6937, RFC 9937).

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prr {
    /// Bytes in flight that the recovery aims at.
    ssthresh: u64,
    /// "RecoverFS": bytes in flight when the recovery began.
    flight_at_start: u64,
    /// "prr_delivered": bytes delivered since.
    delivered: u64,
    /// "prr_out": bytes sent since.
    sent: u64,
    cwnd: u64,
}

impl Prr {
    pub(crate) fn new(ssthresh: u64, flight: u64) -> Self {
        Self { ssthresh, flight_at_start: flight.max(1), delivered: 0, sent: 0, cwnd: ssthresh }
    }

    pub(crate) const fn cwnd(&self) -> u64 {
        self.cwnd
    }

    pub(crate) const fn on_sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// `pipe` bytes are in flight now. `progress`: SND.UNA moved and no further loss was found
    /// ("safeACK").
    pub(crate) fn on_ack(&mut self, delivered: u64, pipe: u64, emss: u64, progress: bool) {
        if delivered == 0 {
            return;
        }
        self.delivered += delivered;
        let mut allowed = if pipe > self.ssthresh {
            // Proportional: sent / delivered = ssthresh / RecoverFS.
            let product = u128::from(self.delivered) * u128::from(self.ssthresh);
            let due = product.div_ceil(u128::from(self.flight_at_start));
            u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.sent)
        } else {
            // The network lost more than the reduction asks for: as many bytes are sent as arrive,
            // and one segment more while SND.UNA moves without further loss ("PRR-SSRB").
            let arrived = self.delivered.saturating_sub(self.sent).max(delivered);
            let grown = arrived + if progress { emss } else { 0 };
            grown.min(self.ssthresh - pipe)
        };
        if self.sent == 0 && allowed == 0 {
            // The first retransmission is sent at once.
            allowed = emss;
        }
        self.cwnd = pipe + allowed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMSS: u64 = 1000;

    /// The example of RFC 6937 §4: one loss of 20 segments, ssthresh of 10.
    #[test]
    fn a_single_loss_is_repaired_at_the_proportional_rate() {
        let mut prr = Prr::new(14_000, 20_000);
        // The first three SACKs were counted before; of 16 more, 70 % permit a segment.
        let (mut pipe, mut sent) = (16_000, 0);
        for _ in 0..16 {
            prr.on_ack(EMSS, pipe, EMSS, false);
            while pipe < prr.cwnd() {
                prr.on_sent(EMSS);
                pipe += EMSS;
                sent += 1;
            }
            pipe -= EMSS;
        }
        assert!((11..=13).contains(&sent), "{sent}");
        assert!(pipe <= 14_000);
    }

    #[test]
    fn after_heavy_loss_as_much_is_sent_as_arrives_and_one_more_with_progress() {
        let mut prr = Prr::new(10_000, 20_000);
        prr.on_ack(EMSS, 2000, EMSS, false);
        assert_eq!(prr.cwnd(), 3000);
        prr.on_sent(EMSS);
        prr.on_ack(EMSS, 2000, EMSS, true);
        assert_eq!(prr.cwnd(), 4000);
        prr.on_ack(50_000, 9500, EMSS, true);
        assert_eq!(prr.cwnd(), 10_000, "never beyond ssthresh");
    }

    #[test]
    fn the_first_retransmission_is_never_held_back() {
        let mut prr = Prr::new(10_000, 20_000);
        prr.on_ack(1, 10_000, EMSS, false);
        assert_eq!(prr.cwnd(), 11_000);
    }
}
