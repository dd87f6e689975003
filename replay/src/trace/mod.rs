//! Data for the pictures of a connection, collected while its frames are replayed.
//!
//! All data is bounded: at most some thousand marks of each kind represent all events ([`marks`]).

pub(crate) mod answers;
pub(crate) mod bins;
pub(crate) mod delays;
pub(crate) mod detail;
pub(crate) mod map;
pub(crate) mod marks;
pub(crate) mod pauses;

use std::collections::BTreeMap;

use urnic_engine::types::Stag;

use answers::Answers;
use bins::Bins;
use delays::Delays;
use detail::Detail;
use map::MemoryMap;
use marks::{Canvas, Mark, Marks};
use pauses::Pauses;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    /// Times of the first and of the last segment with payload.
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) len: [u64; 2],
    pub(crate) pauses: Pauses,
    /// Greatest common divisor of the times between segments with payload: the step of their clock,
    /// or a multiple.
    pub(crate) step_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    InOrder,
    /// A segment beyond a gap.
    OutOfOrder,
    /// A segment without new bytes.
    Retransmitted,
    /// An FPDU placed before all earlier bytes had arrived.
    Ahead,
    /// A complete FPDU that was not placed at once: from its completion to its placement.
    Waited,
    /// An FPDU with a wrong CRC, or one that a marker contradicts.
    Wrong,
    Terminate,
    /// Acknowledgment of the other side.
    Ack,
    /// Highest byte that its window allows.
    Window,
    /// SACK block of the other side.
    Sack,
    FpduStart,
    Marker,
}

impl Class {
    pub(crate) const COUNT: usize = Self::Marker as usize + 1;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Aligned,
    Unaligned,
    CrcAlone,
}

impl Fit {
    pub(crate) const COUNT: usize = Self::CrcAlone as usize + 1;
}

#[derive(Debug, Default)]
pub(crate) struct Operation {
    /// From the first byte of a message to its delivery.
    pub(crate) latency: Delays,
    pub(crate) octets: u64,
    open: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct SideTrace {
    pub(crate) canvas: Canvas,
    pub(crate) now_ns: u64,
    marks: [Marks; Class::COUNT],
    fits: [Marks; Fit::COUNT],
    /// From the arrival of the last byte of an FPDU to its placement, and to its delivery.
    pub(crate) placement: Delays,
    pub(crate) delivery: Delays,
    /// Most bytes that wait at one time in TCP and in MPA.
    pub(crate) held_peak: u64,
    pub(crate) bins: Bins,
    pub(crate) detail: Detail,
    pub(crate) maps: BTreeMap<Stag, MemoryMap>,
    pub(crate) maps_left_out: u64,
    pub(crate) operations: BTreeMap<u8, Operation>,
    /// Messages of all kinds over time; their opcode takes the place of their stream position.
    pub(crate) messages: Marks,
    /// End and time of a segment whose acknowledgment will give a round trip.
    timed: Option<(u64, u64)>,
    pub(crate) rtt: Delays,
    acked: u64,
    pub(crate) window_scale: u32,
}

impl SideTrace {
    pub(crate) fn new(extent: &Extent, side: usize, marks_max: usize) -> Self {
        let canvas = Canvas::new(extent, extent.len[side]);
        let by_opcode = canvas.with_len(16);
        Self {
            canvas,
            now_ns: extent.first_ns,
            marks: std::array::from_fn(|_| Marks::new(canvas, marks_max)),
            fits: std::array::from_fn(|_| Marks::along(canvas, marks_max)),
            placement: Delays::default(),
            delivery: Delays::default(),
            held_peak: 0,
            bins: Bins::new(&canvas, extent.step_ns),
            detail: Detail::default(),
            maps: BTreeMap::new(),
            maps_left_out: 0,
            operations: BTreeMap::new(),
            messages: Marks::new(by_opcode, marks_max),
            timed: None,
            rtt: Delays::default(),
            acked: 0,
            window_scale: 0,
        }
    }

    pub(crate) const fn of(&self, class: Class) -> &Marks {
        &self.marks[class as usize]
    }

    pub(crate) const fn fits(&self, fit: Fit) -> &Marks {
        &self.fits[fit as usize]
    }

    pub(crate) fn mark(&mut self, class: Class, octets: (u64, u64), frame: u64) {
        self.mark_from(class, self.now_ns, octets, frame);
    }

    fn mark_from(&mut self, class: Class, from_ns: u64, octets: (u64, u64), frame: u64) {
        let mark = Mark { at_ns: (from_ns, self.now_ns), octets, frame, count: 1 };
        self.marks[class as usize].add(mark);
    }

    pub(crate) fn segment(&mut self, class: Class, (start, end): (u64, u64), frame: u64) {
        self.mark(class, (start, end), frame);
        self.bins.octets(self.now_ns, end - start, class == Class::Retransmitted);
        // Karn's rule: a retransmitted segment gives no round trip.
        match (class, self.timed) {
            (Class::Retransmitted, Some((timed, _))) if start < timed => self.timed = None,
            (Class::InOrder, None) => self.timed = Some((end, self.now_ns)),
            _ => {}
        }
    }

    /// Records that the other side acknowledges bytes before `ack` and allows `window` more.
    pub(crate) fn acknowledged(&mut self, ack: u64, window: u64, frame: u64) {
        self.mark(Class::Ack, (ack, ack), frame);
        self.mark(Class::Window, (ack + window, ack + window), frame);
        self.bins.window(self.now_ns, window);
        self.acked = self.acked.max(ack);
        if let Some((end, at_ns)) = self.timed
            && self.acked >= end
        {
            let rtt = self.now_ns.saturating_sub(at_ns);
            self.rtt.add(rtt);
            self.bins.rtt(self.now_ns, rtt);
            self.timed = None;
        }
    }

    /// Records the placement of an FPDU that was complete at `whole_ns`.
    pub(crate) fn placed(&mut self, fpdu: (u64, u64), whole_ns: u64, is_ahead: bool, frame: u64) {
        let wait = self.now_ns.saturating_sub(whole_ns);
        self.placement.add(wait);
        self.mark(Class::FpduStart, (fpdu.0, fpdu.0), frame);
        if wait > 0 {
            self.mark_from(Class::Waited, whole_ns, fpdu, frame);
        }
        if is_ahead {
            self.mark(Class::Ahead, fpdu, frame);
        }
    }

    pub(crate) fn delivered(&mut self, fpdu: (u64, u64), whole_ns: u64) {
        self.delivery.add(self.now_ns.saturating_sub(whole_ns));
        self.detail.fpdu(fpdu);
    }

    pub(crate) fn fit(&mut self, fit: Fit, octets: (u64, u64), count: u64, frame: u64) {
        let mark = Mark { at_ns: (self.now_ns, self.now_ns), octets, frame, count };
        self.fits[fit as usize].add(mark);
        self.detail.segment(fit, octets);
    }

    /// Records the delivery of a part of a message that came at `first_ns` in `frame`.
    pub(crate) fn message(
        &mut self,
        opcode: u8,
        (first_ns, frame): (u64, u64),
        len: usize,
        last: bool,
    ) {
        let operation = self.operations.entry(opcode).or_default();
        operation.octets += len as u64;
        let (from_ns, frame) = *operation.open.get_or_insert((first_ns, frame));
        if last {
            operation.open = None;
            operation.latency.add(self.now_ns.saturating_sub(from_ns));
            let row = u64::from(opcode);
            let at_ns = (from_ns, self.now_ns);
            self.messages.add(Mark { at_ns, octets: (row, row), frame, count: 1 });
        }
    }

    /// `fresh` bytes are written for the first time.
    pub(crate) fn written(&mut self, stag: Stag, at: u64, len: u64, fresh: u64) {
        if !self.maps.contains_key(&stag) && self.maps.len() == MAPS_MAX {
            self.maps_left_out += 1;
            return;
        }
        self.maps.entry(stag).or_default().write(at, len, fresh, self.now_ns);
    }

    pub(crate) const fn holds(&mut self, bytes: u64) {
        if bytes > self.held_peak {
            self.held_peak = bytes;
        }
    }
}

#[derive(Debug)]
pub(crate) struct ConnectionTrace {
    /// The initiator's stream, then the responder's.
    pub(crate) sides: [SideTrace; 2],
    /// Times of requests and answers, by the requesting side.
    pub(crate) answers: [Answers; 2],
}

/// Most steering tags of one direction that have a map.
const MAPS_MAX: usize = 32;
