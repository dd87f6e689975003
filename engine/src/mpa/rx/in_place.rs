//! Whole FPDUs in runs of memory that may change: passed up from where they are.
//!
//! Only the common case is here: a segment that continues the stream, with nothing held or ahead, and
//! without markers. Whatever is left is to be copied to one place, for the long way to judge.
//!
//! Lengths and headers are read once. Payload is read twice, by the CRC and by placement: a sender that
//! changes it in between places octets where it could have placed any others, for the CRC is no
//! authentication (RFC 5042 §2).

use crate::mem::{Scattered, crc32c_append_shared};
use crate::mpa::marker::{CRC_LEN, LENGTH_LEN, fpdu_len};
use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::error::Stop;
use crate::mpa::rx::octets::after;
use crate::mpa::rx::{FpduReceiver, FpduSink, RxConfig, Taken, Ulpdu};
use crate::types::StreamOffset;
use crate::wire::crc32c::{Crc32c, to_wire};

impl<T: Copy> FpduReceiver<T> {
    /// Takes stream octets at `offset` that were never given before, as far as they are whole FPDUs that
    /// continue the stream. Those from the end of what was taken on are to be given to
    /// [`handle_bytes`](Self::handle_bytes).
    pub fn handle_scattered<S: FpduSink<Token = T>>(
        &mut self,
        offset: StreamOffset,
        octets: &Scattered<'_>,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Taken<S::Error> {
        let end = after(offset, octets.len());
        // As in `handle_bytes`.
        if self.stopped {
            return Taken { end, error: None };
        }
        if offset != self.next || !self.is_plain() {
            return Taken { end: offset, error: None };
        }
        match self.pass_in_place(*octets, sink) {
            Ok(()) => Taken { end: self.next, error: None },
            Err(Stop { error, .. }) => {
                self.stop(store);
                Taken { end, error: Some(error) }
            }
        }
    }

    #[inline]
    fn pass_in_place<S: FpduSink<Token = T>>(
        &mut self,
        mut rest: Scattered<'_>,
        sink: &mut S,
    ) -> Result<(), Stop<S::Error>> {
        let RxConfig { crc, ulpdu_len_min, ulpdu_len_max, .. } = self.config;
        while let Some(length) = rest.read::<LENGTH_LEN>() {
            let ulpdu_len = usize::from(u16::from_be_bytes(length));
            if ulpdu_len < ulpdu_len_min || ulpdu_len > ulpdu_len_max {
                break;
            }
            let wire_len = fpdu_len(ulpdu_len);
            let crc_at = wire_len.saturating_sub(CRC_LEN);
            let Some((covered, behind)) = rest.split_at_checked(crc_at) else { break };
            let Some((field, next)) = behind.split_at_checked(CRC_LEN) else { break };
            // RFC 5044 §4.4: the CRC is compared before anything of the FPDU is used.
            if crc && Some(to_wire(digest(&covered))) != field.read::<CRC_LEN>() {
                break;
            }
            let Some((_, ulpdu)) = covered.split_at_checked(LENGTH_LEN) else { break };
            // Without the pad.
            let Some((ulpdu, _)) = ulpdu.split_at_checked(ulpdu_len) else { break };
            let ulpdu = Ulpdu::from_scattered(ulpdu);
            let token = sink.place(&ulpdu, self.next).map_err(Stop::of_sink)?;
            self.counters.fpdus = self.counters.fpdus.wrapping_add(1);
            self.counters.crc_good = self.counters.crc_good.wrapping_add(u64::from(crc));
            self.next = after(self.next, wire_len);
            rest = next;
            sink.deliver(token).map_err(Stop::of_sink)?;
        }
        Ok(())
    }
}

#[inline]
fn digest(octets: &Scattered<'_>) -> u32 {
    let state = octets.runs().fold(Crc32c::new().state(), crc32c_append_shared);
    Crc32c::from_state(state).finish()
}
