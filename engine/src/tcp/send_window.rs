//! The window that the peer advertises: SND.WND, and the segment that set it.

use super::header::Header;
use super::seq::SeqNum;

/// SND.WND of RFC 9293 §3.3.1, with SND.WL1 and SND.WL2.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendWindow {
    /// Bytes. A window is below 2³⁰ (RFC 7323 §2.3).
    bytes: u32,
    bytes_max: u32,
    /// Sequence and acknowledgment number of the last window update.
    wl1: SeqNum,
    wl2: SeqNum,
    shift: u8,
}

impl SendWindow {
    pub(crate) const fn agree(&mut self, shift: u8) {
        self.shift = shift;
    }

    #[inline]
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Largest window the peer ever advertised (RFC 5961 "MAX.SND.WND").
    pub(crate) const fn bytes_max(&self) -> u64 {
        self.bytes_max as u64
    }

    /// Takes the window of a segment that acknowledges `ack`; that of a SYN is not scaled.
    pub(crate) fn set(&mut self, header: &Header, ack: SeqNum, scaled: bool) {
        let shift = if scaled { self.shift } else { 0 };
        // spec: TCP-9293-1
        self.bytes = u32::from(header.window) << shift;
        self.bytes_max = self.bytes_max.max(self.bytes);
        self.wl1 = header.seq;
        self.wl2 = ack;
    }

    /// Returns true if a segment that acknowledges `ack` is newer than the one that set SND.WND
    /// (RFC 9293 §3.10.7.4). A newer acknowledgment on retransmitted data counts, too. With the
    /// same numbers, the larger window is used, unless one closes it: reordered segments must not
    /// shrink it for long.
    #[inline]
    pub(crate) fn is_updated_by(&self, header: &Header, ack: SeqNum) -> bool {
        let bytes = u32::from(header.window) << self.shift;
        let is_news = || bytes > self.bytes || bytes == 0;
        ack.is_after(self.wl2)
            || header.seq.is_after(self.wl1)
            || (header.seq == self.wl1 && ack == self.wl2 && is_news())
    }
}
