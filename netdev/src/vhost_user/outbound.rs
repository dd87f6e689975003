//! Frames out, into buffers of the ring: the twin of [`inbound`](super::inbound).

use crate::digests::Destination;
use crate::frame::Digester;
use crate::vhost_user::offload::HEADER_LEN;
use crate::virtqueue::{MemoryTable, Run};
use crate::{Fragment, TxFrame};

/// Copies a frame behind its header to the front of `runs`.
///
/// # Panics
/// When they have no room for it.
#[inline]
pub(super) fn put_octets(
    table: &MemoryTable,
    runs: &[Run],
    header: &[u8; HEADER_LEN],
    frame: &TxFrame<'_>,
) {
    let mut writer = Writer { table, runs, run: 0, into: 0 };
    writer.put(Fragment::from_slice(header));
    writer.put(Fragment::from_slice(frame.head));
    frame.copy_payload(&mut writer);
}

/// Fills runs, one behind the other.
struct Writer<'a> {
    table: &'a MemoryTable,
    runs: &'a [Run],
    /// The run that is being filled, and how many of its octets are.
    run: usize,
    into: usize,
}

impl Writer<'_> {
    /// Calls `each` with the parts of `octets`, each with the place that it goes to.
    #[inline]
    fn fill(
        &mut self,
        octets: Fragment<'_>,
        mut each: impl FnMut(&MemoryTable, Run, Fragment<'_>),
    ) {
        let mut at = 0;
        while at < octets.len() {
            let run = self.runs[self.run];
            let now = (run.len - self.into).min(octets.len() - at);
            each(self.table, run.part(self.into, now), octets.part(at, now));
            at += now;
            self.into += now;
            if self.into == run.len {
                self.run += 1;
                self.into = 0;
            }
        }
    }
}

impl Destination for Writer<'_> {
    #[inline]
    fn put(&mut self, octets: Fragment<'_>) {
        self.fill(octets, |table, run, part| table.copy_from(run, part));
    }

    #[inline]
    fn put_and_digest(
        &mut self,
        octets: Fragment<'_>,
        digester: &Digester,
        mut register: u32,
    ) -> u32 {
        self.fill(octets, |table, run, part| {
            register = table.copy_and_digest(run, part, digester, register);
        });
        register
    }

    fn digest_last(&self, len: usize, digester: &Digester, mut register: u32) -> u32 {
        // Back to where they begin, and then through them in their order.
        let (mut first, mut into, mut left) = (self.run, self.into, len);
        while left > into {
            left -= into;
            first -= 1;
            into = self.runs[first].len;
        }
        let (mut at, mut left) = (into - left, len);
        for run in &self.runs[first..] {
            let now = (run.len - at).min(left);
            register = digester.append(register, self.table.fragment(run.part(at, now)));
            (at, left) = (0, left - now);
            if left == 0 {
                break;
            }
        }
        register
    }
}
