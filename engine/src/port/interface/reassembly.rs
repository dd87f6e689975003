//! IP datagrams out of fragments, in bounded memory. TCP for this engine mostly arrives with DF
//! set, unfragmented. Overlapping fragments end their datagram, as RFC 5722 requires for IPv6.

use std::net::IpAddr;

use smoltcp::wire::checksum;

use crate::limits::{REASSEMBLIES_MAX, REASSEMBLY_NS, REASSEMBLY_PIECES_MAX};
use crate::port::interface::framing::{IPV6_LEN, Opened};
use crate::time::Instant;

/// Fields that all fragments of one datagram share (RFC 791 §3.2, RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramKey {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) id: u32,
    pub(crate) protocol: u8,
}

#[derive(Debug)]
pub(crate) struct Part<'f> {
    pub(crate) key: DatagramKey,
    /// Offset of its payload in the datagram's, in bytes.
    pub(crate) offset: usize,
    pub(crate) more: bool,
    /// The IP header, including extension headers before the fragment header.
    pub(crate) header: &'f [u8],
    /// IPv6: offset of the byte that announces the fragment header, and the header behind.
    pub(crate) next_header: Option<(usize, u8)>,
    pub(crate) payload: &'f [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    datagrams: Vec<Datagram>,
}

#[derive(Debug)]
struct Datagram {
    key: DatagramKey,
    until: Instant,
    /// The first fragment's header, its length fields still to be set.
    header: Vec<u8>,
    octets: Vec<u8>,
    /// The ranges of `octets` that have arrived: disjoint, not touching, in order.
    ranges: Vec<(usize, usize)>,
    /// Length of the payload, known from the last fragment.
    total: Option<usize>,
    /// The datagram cannot be completed; its other fragments are dropped, too.
    spoilt: bool,
}

/// An IP datagram's length has 16 bits.
const DATAGRAM_LEN_MAX: usize = 65_535;
const FRAGMENT_UNIT: usize = 8;

impl Reassembly {
    /// If the fragment completes its datagram, returns the frame, without a tag, that would have
    /// arrived without fragmentation.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        opened: &Opened<'_>,
        part: &Part<'_>,
    ) -> Result<Option<Vec<u8>>, Refused> {
        // RFC 6946 §4: a fragment that is the whole datagram waits for no other.
        if part.offset == 0 && !part.more {
            let whole = assemble(opened, &header_of(part), part.payload);
            return whole.map(Some).ok_or(Refused);
        }
        self.expire(now);
        let index = self.find_or_begin(now, &part.key);
        let datagram = &mut self.datagrams[index];
        if datagram.spoilt || datagram.add(part).is_err() {
            // A few bytes of it remain until its time is over.
            datagram.spoil();
            return Err(Refused);
        }
        if !datagram.is_complete() {
            return Ok(None);
        }
        let datagram = self.datagrams.swap_remove(index);
        assemble(opened, &datagram.header, &datagram.octets).map(Some).ok_or(Refused)
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.datagrams.retain(|datagram| datagram.until > now);
    }

    fn find_or_begin(&mut self, now: Instant, key: &DatagramKey) -> usize {
        if let Some(index) = self.datagrams.iter().position(|datagram| datagram.key == *key) {
            return index;
        }
        let datagram = Datagram {
            key: *key,
            until: now.plus_nanos(REASSEMBLY_NS),
            header: Vec::new(),
            octets: Vec::new(),
            ranges: Vec::new(),
            total: None,
            spoilt: false,
        };
        if self.datagrams.len() < REASSEMBLIES_MAX {
            self.datagrams.push(datagram);
            return self.datagrams.len() - 1;
        }
        // The oldest datagram is evicted: no source can keep the room for long.
        let oldest = self.datagrams.iter().zip(0..).min_by_key(|(datagram, _)| datagram.until);
        let index = oldest.map_or(0, |(_, index)| index);
        self.datagrams[index] = datagram;
        index
    }
}

impl Datagram {
    fn add(&mut self, part: &Part<'_>) -> Result<(), Refused> {
        let (start, end) = (part.offset, part.offset + part.payload.len());
        let cut_well = !part.more || part.payload.len().is_multiple_of(FRAGMENT_UNIT);
        if !cut_well || part.payload.is_empty() || end > DATAGRAM_LEN_MAX {
            return Err(Refused);
        }
        if !part.more && self.total.is_some_and(|total| total != end) {
            return Err(Refused);
        }
        let known_end = self.ranges.last().map_or(0, |range| range.1);
        let total = if part.more { self.total } else { Some(end) };
        if total.is_some_and(|total| end > total || known_end > total) {
            return Err(Refused);
        }
        let at = self.ranges.partition_point(|range| range.1 <= start);
        if let Some(&(from, to)) = self.ranges.get(at)
            && from < end
        {
            // RFC 8200 §4.5: exact duplicates are ignored; other overlaps end the datagram (RFC
            // 5722 §4).
            let duplicate = from <= start && end <= to && self.octets[start..end] == *part.payload;
            return if duplicate { Ok(()) } else { Err(Refused) };
        }
        self.total = total;
        if start == 0 {
            self.header = header_of(part);
        }
        if self.octets.len() < end {
            self.octets.resize(end, 0);
        }
        self.octets[start..end].copy_from_slice(part.payload);
        self.note(at, start, end)
    }

    fn note(&mut self, at: usize, start: usize, end: usize) -> Result<(), Refused> {
        let joins_next = self.ranges.get(at).is_some_and(|range| range.0 == end);
        let joins_last = at > 0 && self.ranges[at - 1].1 == start;
        match (joins_last, joins_next) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].1 = end,
            (false, true) => self.ranges[at].0 = start,
            (false, false) if self.ranges.len() < REASSEMBLY_PIECES_MAX => {
                self.ranges.insert(at, (start, end));
            }
            (false, false) => return Err(Refused),
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.total.is_some_and(|total| self.ranges == [(0, total)])
    }

    fn spoil(&mut self) {
        self.spoilt = true;
        self.header = Vec::new();
        self.octets = Vec::new();
        self.ranges = Vec::new();
    }
}

/// The header of the whole datagram, without its length.
fn header_of(part: &Part<'_>) -> Vec<u8> {
    let mut header = part.header.to_vec();
    match part.next_header {
        Some((at, next)) => header[at] = next,
        // Not a fragment: no flags, no offset.
        None => header[6..8].fill(0),
    }
    header
}

/// `None` if the datagram is too long for a frame.
fn assemble(opened: &Opened<'_>, header: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
    let mut datagram = header.to_vec();
    if header[0] >> 4 == 4 {
        let total_len = u16::try_from(header.len() + payload.len()).ok()?;
        datagram[2..4].copy_from_slice(&total_len.to_be_bytes());
        datagram[10..12].fill(0);
        let sum = !checksum::data(&datagram);
        datagram[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let payload_len = u16::try_from(header.len() - IPV6_LEN + payload.len()).ok()?;
        datagram[4..6].copy_from_slice(&payload_len.to_be_bytes());
    }
    datagram.extend_from_slice(payload);
    let mut frame = Vec::with_capacity(datagram.len() + opened.addresses.len() + 2);
    Opened { payload: &datagram, ..*opened }.write(&mut frame);
    Some(frame)
}

#[cfg(test)]
mod tests;
