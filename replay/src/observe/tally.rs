//! Counts and state of one direction in full operation.

use std::collections::BTreeMap;

use crate::figures::json_name;
use urnic_engine::counters::MpaRxCounters;
use urnic_engine::mpa::marker::{MarkerGrid, mulpdu};
use urnic_engine::types::{Stag, StreamOffset};
use urnic_engine::wire::ProtocolVersion;
use urnic_engine::wire::mpa::RtrKinds;

use super::image::{Image, ImageBudget};
use crate::judge::behaviour::Seen;
use crate::judge::findings::{Findings, Kind};
use crate::judge::order::Order;
use crate::limits::{Holding, Room};
use crate::report::{BufferReport, DirectionReport, TerminateReport};

#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) grid: MarkerGrid,
    pub(crate) version: ProtocolVersion,
    pub(crate) crc: bool,
    pub(crate) fpdus: u64,
    pub(crate) by_opcode: [u64; 16],
    pub(crate) messages: [u64; 16],
    pub(crate) crc_good: u64,
    pub(crate) crc_bad: u64,
    /// Frame of the last FPDU whose CRC came in two segments, and was right.
    pub(crate) crc_split: Option<u64>,
    pub(crate) markers: u64,
    pub(crate) marker_errors: u64,
    pub(crate) bytes_placed: u64,
    pub(crate) bytes_placed_out_of_order: u64,
    pub(crate) terminate: Vec<TerminateReport>,
    pub(crate) images: BTreeMap<Stag, Image>,
    pub(crate) order: Order,
    starts: Vec<u64>,
    starts_held: Holding,
    starts_known_from: u64,
    pub(crate) delivered_end: StreamOffset,
    pub(crate) rtr: Option<RtrKinds>,
    /// Bytes of a segment, if known; count of longer FPDUs, and the longest.
    pub(crate) emss: Option<u64>,
    pub(crate) too_long: Seen,
    longest: u64,
}

impl Tally {
    pub(crate) const fn new(
        origin: StreamOffset,
        markers: bool,
        crc: bool,
        version: ProtocolVersion,
    ) -> Self {
        Self {
            grid: MarkerGrid::new(origin, markers),
            version,
            crc,
            fpdus: 0,
            by_opcode: [0; 16],
            messages: [0; 16],
            crc_good: 0,
            crc_bad: 0,
            crc_split: None,
            markers: 0,
            marker_errors: 0,
            bytes_placed: 0,
            bytes_placed_out_of_order: 0,
            terminate: Vec::new(),
            images: BTreeMap::new(),
            order: Order::new(),
            starts: Vec::new(),
            starts_held: Holding::of_starts(),
            starts_known_from: 0,
            delivered_end: origin,
            rtr: None,
            emss: None,
            too_long: Seen { times: 0, first: 0 },
            longest: 0,
        }
    }

    /// Records a start. If there is no room, the older half of the starts is dropped.
    pub(crate) fn delivered_start(&mut self, position: u64, room: &mut Room) {
        if !self.starts_held.has_room(room) {
            let old = self.starts.len().div_ceil(2);
            self.starts.drain(..old);
            self.starts_held.give(old, room);
            self.starts_known_from = self.starts.first().copied().unwrap_or(position);
        }
        if self.starts_held.take(room) {
            self.starts.push(position);
        }
    }

    /// Starts of delivered FPDUs before this position were dropped.
    pub(crate) const fn starts_known_from(&self) -> u64 {
        self.starts_known_from
    }

    pub(crate) fn note_len(&mut self, wire_len: u64, frame: u64) {
        if self.emss.is_some_and(|emss| wire_len > emss) {
            self.too_long.again(frame);
            self.longest = self.longest.max(wire_len);
        }
    }

    pub(crate) fn note_lengths(
        &self,
        from: &'static str,
        mss: Option<u16>,
        frame: u64,
        findings: &mut Findings,
    ) {
        let (Some(emss), Some(mss)) = (self.emss, mss) else { return };
        // RFC 5044 §4.5: the MULPDU is at least 128 for any EMSS.
        if emss < 128 {
            findings.add(Kind::EmssSmall, from, frame, || {
                format!("its segments hold {emss} bytes (MSS {mss}): too few for aligned FPDUs")
            });
        } else if self.too_long.times > 0 {
            let mulpdu =
                mulpdu(usize::try_from(emss).unwrap_or(usize::MAX), self.grid.is_enabled());
            findings.add(Kind::FpduTooLong, from, self.too_long.first, || {
                format!(
                    "{} FPDUs of up to {} bytes are longer than a segment, which holds {emss} (MSS {mss}): \
                     its ULPDUs were to have at most {mulpdu}",
                    self.too_long.times, self.longest
                )
            });
        }
    }

    pub(crate) fn release(&mut self, starts: &mut Room, images: &mut ImageBudget) {
        self.starts_held.give_all(starts);
        for image in std::mem::take(&mut self.images).values() {
            images.release(image);
        }
    }

    pub(crate) fn is_start(&self, position: u64) -> bool {
        // Nearly always recent starts are searched.
        let late = self.starts.len().saturating_sub(STARTS_LATE);
        let (early, late) = self.starts.split_at(late);
        let among = if late.first().is_some_and(|first| *first <= position) { late } else { early };
        among.binary_search(&position).is_ok()
    }

    pub(crate) fn is_boundary(&self, position: u64) -> bool {
        position == self.delivered_end.0 || self.is_start(position)
    }

    pub(crate) const fn delivered_end(&self) -> StreamOffset {
        self.delivered_end
    }

    /// Rules about order cannot be checked across bytes that are not examined.
    pub(crate) fn forget_order(&mut self) {
        self.order.forget();
    }

    pub(crate) fn report(
        &self,
        mpa: &MpaRxCounters,
        budget: &mut ImageBudget,
        out: &mut DirectionReport,
    ) {
        let named = |counts: &[u64; 16]| {
            let named = (0..16).zip(counts).filter(|(_, count)| **count > 0);
            named.map(|(bits, count)| (json_name(bits), *count)).collect()
        };
        out.fpdus = self.fpdus;
        out.fpdus_by_opcode = named(&self.by_opcode);
        out.messages = named(&self.messages);
        out.crc_good = self.crc_good;
        out.crc_bad = self.crc_bad;
        out.markers = self.markers;
        out.marker_errors = self.marker_errors;
        out.fpdus_by_marker = mpa.fpdus_by_marker;
        out.fpdus_out_of_order = mpa.fpdus_out_of_order;
        out.bytes_placed = self.bytes_placed;
        out.bytes_placed_out_of_order = self.bytes_placed_out_of_order;
        out.bytes_held_peak = mpa.bytes_held_peak;
        out.terminate.clone_from(&self.terminate);
        out.buffers = self
            .images
            .iter()
            .filter_map(|(stag, image)| {
                Some(BufferReport {
                    stag: stag.to_string(),
                    first_offset: image.first_offset()?,
                    bytes: image.bytes(),
                    sha256: image.sha256(budget),
                })
            })
            .collect();
    }
}

const STARTS_LATE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_starts_are_forgotten_first() {
        let mut tally = Tally::new(StreamOffset(20), false, true, ProtocolVersion::IETF);
        let mut room = Room::new(16);
        for position in (20..).step_by(10).take(48) {
            tally.delivered_start(position, &mut room);
        }
        let from = tally.starts_known_from();
        assert_eq!(from, 180, "half of 32, when the 33rd came");
        assert!(tally.is_start(from) && tally.is_start(490) && !tally.is_start(from - 10));
        assert_eq!(tally.starts.len() as u64, (500 - from) / 10);
        tally.release(&mut room, &mut ImageBudget::new());
        assert!(room.take(16) && !room.take(1));
    }
}
