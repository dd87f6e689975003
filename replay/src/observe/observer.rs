//! The layer above MPA: places, counts and judges the ULPDUs from the receive code.

mod extensions;

use std::collections::btree_map::Entry;
use std::convert::Infallible;

use urnic_engine::ddp;
use urnic_engine::mpa::MpaFault;
use urnic_engine::mpa::marker::{FpduLayout, LENGTH_LEN};
use urnic_engine::mpa::rx::{FaultyFpdu, FpduSink, HEAD_LEN, Ulpdu};
use urnic_engine::rdmap;
use urnic_engine::types::{QueueNumber, StreamOffset};
use urnic_engine::wire::ddp::{DdpHeader, TaggedHeader, UntaggedHeader};
use urnic_engine::wire::mpa::{CRC_LEN, pad_len};
use urnic_engine::wire::rdmap::{Control, Opcode, ReadRequest};
use urnic_engine::wire::terminate::{Terminate, TerminateLayout};

use super::arrivals::Arrivals;
use super::image::{ImageBudget, OutOfMemory};
use super::pending_requests::PendingRequests;
use super::tally::Tally;
use crate::judge::findings::{Findings, Kind};
use crate::limits::{Holding, Room};
use crate::report::TerminateReport;
use crate::trace::{Class, SideTrace};

pub(crate) struct Observer<'a> {
    pub(crate) tally: &'a mut Tally,
    pub(crate) findings: &'a mut Findings,
    pub(crate) requested: &'a mut PendingRequests,
    pub(crate) answered: &'a mut PendingRequests,
    pub(crate) budget: &'a mut ImageBudget,
    pub(crate) held: &'a mut Holding,
    pub(crate) notes: &'a mut Room,
    pub(crate) starts: &'a mut Room,
    pub(crate) arrivals: &'a Arrivals,
    pub(crate) segment: (StreamOffset, &'a [u8]),
    pub(crate) frame: u64,
    pub(crate) from: &'static str,
    pub(crate) now_ns: u64,
    pub(crate) trace: Option<&'a mut SideTrace>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    start: StreamOffset,
    end: StreamOffset,
    frame: u64,
    times_ns: (u64, u64),
    part: Part,
    /// Set if it is ahead of the delivery point, and room was taken for it.
    is_noted: bool,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    /// Unknown, because it is invalid.
    Unusable,
    Tagged {
        opcode: Opcode,
        header: TaggedHeader,
        len: usize,
    },
    Untagged {
        opcode: Opcode,
        header: UntaggedHeader,
        len: usize,
        request: Option<Request>,
    },
    Terminate,
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Read(ReadRequest),
    Atomic(u32),
    AtomicAnswer(u32),
}

impl Observer<'_> {
    fn token(&mut self, start: StreamOffset, layout: FpduLayout) -> Token {
        let end = start + layout.wire_len() as u64;
        let frame = self.arrivals.frame_before(end).unwrap_or(self.frame);
        let is_noted = start != self.tally.delivered_end && self.held.take(self.notes);
        let times_ns =
            self.arrivals.times_of((start.0, end.0)).unwrap_or((self.now_ns, self.now_ns));
        Token { start, end, frame, times_ns, part: Part::Unusable, is_noted }
    }

    /// Comments on the frame that completed the FPDU: its contents and placement.
    fn comment(&self, token: &Token) {
        let Some(comments) = &self.findings.comments else { return };
        let Token { start, end, frame, part, .. } = *token;
        let mut line = match part {
            Part::Unusable => format!("FPDU of {} bytes, of no use", end.0 - start.0),
            Part::Tagged { opcode, header, len } => {
                let last = if header.last { ", last" } else { "" };
                format!("{opcode} to STag {} at {:#x}, {len} bytes{last}", header.stag, header.to.0)
            }
            Part::Untagged { opcode, header, len, .. } => {
                let UntaggedHeader { qn, msn, mo, last, .. } = header;
                let last = if last { ", last" } else { "" };
                format!(
                    "{opcode}, message {} of queue {} at offset {}, {len} bytes{last}",
                    msn.0, qn.0, mo.0
                )
            }
            Part::Terminate => Opcode::Terminate.to_string(),
        };
        let first = self.arrivals.frame_before(start + 1).unwrap_or(frame);
        if first != frame {
            line.push_str(&format!(", begun in frame {first}"));
        }
        if start != self.tally.delivered_end {
            line.push_str(", placed ahead of a gap");
        }
        if self.frame != frame {
            line.push_str(&format!(", placed with frame {}", self.frame));
        }
        comments.line(frame, &line);
    }

    fn count(&mut self, layout: FpduLayout) {
        self.tally.fpdus += 1;
        self.tally.markers += layout.marker_count() as u64;
    }

    /// Checks the pad if the FPDU is in one segment.
    fn check_pad(&mut self, token: &Token, layout: FpduLayout) {
        let (at, bytes) = self.segment;
        let first = LENGTH_LEN + layout.ulpdu_len();
        let is_set = (first..first + pad_len(layout.ulpdu_len())).any(|octet| {
            let position = token.start.0.saturating_add(layout.wire_of(octet) as u64);
            let index = position.checked_sub(at.0).and_then(|index| usize::try_from(index).ok());
            index.and_then(|index| bytes.get(index)).is_some_and(|octet| *octet != 0)
        });
        if is_set {
            let from = self.from;
            self.findings.add(Kind::Pad, from, token.frame, || "pad that is not zero".to_owned());
        }
    }

    fn take(&mut self, ulpdu: &Ulpdu<'_>, token: &Token) -> Part {
        let mut scratch = [0; HEAD_LEN];
        let head = ulpdu.head(&mut scratch);
        let from = self.from;
        let Ok(header) = DdpHeader::parse(head) else {
            self.findings.add(Kind::DdpHeader, from, token.frame, || {
                format!("ULPDU of {} bytes, shorter than a DDP header", ulpdu.len())
            });
            return Part::Unusable;
        };
        let Control { opcode, .. } = Control::from_byte(header.rsvd_ulp());
        let index = usize::from(opcode.bits());
        self.tally.by_opcode[index] += 1;
        self.tally.messages[index] += u64::from(header.last());
        let is_legal = self.check_header(head, &header, opcode, token.frame);
        let len = ulpdu.len() - header.len();
        match header {
            DdpHeader::Tagged(header) => {
                if matches!(opcode, Opcode::RdmaWrite | Opcode::ReadResponse) {
                    self.place_tagged(ulpdu, &header, len, token);
                }
                if is_legal { Part::Tagged { opcode, header, len } } else { Part::Unusable }
            }
            DdpHeader::Untagged(header) => {
                self.take_untagged(head, opcode, &header, len, token, is_legal)
            }
        }
    }

    /// Checks the header as the receive path does before it places anything.
    fn check_header(
        &mut self,
        head: &[u8],
        header: &DdpHeader,
        opcode: Opcode,
        frame: u64,
    ) -> bool {
        let (from, version) = (self.from, self.tally.version);
        let mut is_legal = true;
        let mut find = |kind, text: &dyn Fn() -> String| {
            is_legal &= matches!(kind, Kind::DdpReserved | Kind::RdmapReserved);
            self.findings.add(kind, from, frame, text);
        };
        if let Err(error) = ddp::rx::header(head, version) {
            find(Kind::DdpVersion, &|| format!("{error}: {}", header.version()));
        }
        if let DdpHeader::Untagged(UntaggedHeader { qn, .. }) = header
            && qn.0 > QueueNumber::ATOMIC_RESPONSE.0
        {
            find(Kind::QueueNumber, &|| format!("invalid queue number {}", qn.0));
        }
        match rdmap::rx::opcode(header, version) {
            Ok(_) => {}
            Err(rdmap::RdmapError::Version) => {
                let found = Control::from_byte(header.rsvd_ulp()).version;
                find(Kind::RdmapVersion, &|| format!("invalid RDMAP version: {found}"));
            }
            Err(error) => find(extensions::opcode_kind(opcode), &|| match header {
                DdpHeader::Tagged(_) => format!("{error}: {opcode} in a tagged segment"),
                DdpHeader::Untagged(header) => {
                    format!("{error}: {opcode} on queue {}", header.qn.0)
                }
            }),
        }
        let reserved =
            |index: usize, mask: u8| head.get(index).is_some_and(|octet| octet & mask != 0);
        if reserved(0, 0x3c) {
            find(Kind::DdpReserved, &|| "sets reserved bits of the DDP control byte".to_owned());
        }
        if reserved(1, 0x30) {
            find(Kind::RdmapReserved, &|| {
                "sets reserved bits of the RDMAP control byte".to_owned()
            });
        }
        is_legal
    }

    fn place_tagged(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        header: &TaggedHeader,
        len: usize,
        token: &Token,
    ) {
        // RFC 5041 §5.2: STag and TO of an empty message are ignored.
        if len == 0 {
            return;
        }
        let from = self.from;
        if u128::from(header.to.0) + len as u128 > 1 << 64 {
            self.findings.add(Kind::TaggedOffsetWrap, from, token.frame, || {
                format!("{len} bytes at tagged offset {:#x} wrap", header.to.0)
            });
            return;
        }
        if self.fill_image(ulpdu, header).is_err() {
            self.findings.add(Kind::MemoryFull, from, token.frame, || {
                format!("no memory left for the buffer of STag {}", header.stag)
            });
            return;
        }
        self.count_placed(len, token);
    }

    fn fill_image(&mut self, ulpdu: &Ulpdu<'_>, header: &TaggedHeader) -> Result<(), OutOfMemory> {
        if self.budget.is_off() {
            return Ok(());
        }
        let image = match self.tally.images.entry(header.stag) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.budget.image().ok_or(OutOfMemory)?),
        };
        let mut copied = Vec::new();
        let payload = if let Some(octets) = ulpdu.as_slice() {
            &octets[TaggedHeader::LEN..]
        } else {
            // In several pieces, or with markers in between.
            copied.resize(ulpdu.len() - TaggedHeader::LEN, 0);
            ulpdu.copy_to(TaggedHeader::LEN, &mut copied);
            &copied[..]
        };
        let before = image.bytes();
        image.place(header.to.0, payload, self.budget)?;
        if let Some(trace) = &mut self.trace
            && !payload.is_empty()
        {
            let len = payload.len() as u64;
            trace.written(header.stag, header.to.0, len, image.bytes() - before);
        }
        Ok(())
    }

    fn count_placed(&mut self, len: usize, token: &Token) {
        self.tally.bytes_placed += len as u64;
        if token.start != self.tally.delivered_end {
            self.tally.bytes_placed_out_of_order += len as u64;
        }
    }

    fn take_untagged(
        &mut self,
        head: &[u8],
        opcode: Opcode,
        header: &UntaggedHeader,
        len: usize,
        token: &Token,
        is_legal: bool,
    ) -> Part {
        let after = head.get(UntaggedHeader::LEN..).unwrap_or_default();
        match opcode {
            Opcode::Terminate => {
                self.take_terminate(after, token.frame);
                if let Some(trace) = &mut self.trace {
                    trace.mark(Class::Terminate, (token.start.0, token.end.0), token.frame);
                }
                return Part::Terminate;
            }
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => self.count_placed(len, token),
            _ => {}
        }
        let message = after.get(..len).unwrap_or(after);
        let request = if is_legal {
            self.request_in(opcode, header, (message, len), token.frame)
        } else {
            None
        };
        if is_legal {
            Part::Untagged { opcode, header: *header, len, request }
        } else {
            Part::Unusable
        }
    }

    fn take_terminate(&mut self, message: &[u8], frame: u64) {
        let from = self.from;
        let Ok((terminate, layout)) = Terminate::parse(message) else {
            self.findings.add(Kind::TerminateLength, from, frame, || {
                format!("Terminate of {} bytes", message.len())
            });
            return;
        };
        if let Some(msn) = extensions::send_in_error(&terminate) {
            self.answered.terminated(msn, self.now_ns);
        }
        let code = terminate.code;
        let about = in_error(&terminate);
        if self.tally.terminate.len() < TERMINATES_MAX {
            self.tally.terminate.push(TerminateReport {
                layer: code.layer,
                etype: code.etype,
                code: code.code,
                text: code.text(),
                frame,
                is_about_tagged: matches!(about, Some(DdpHeader::Tagged(_))),
                about: about.map(|header| described(&header, terminate.segment_len)),
            });
        }
        self.findings.add(Kind::Terminate, from, frame, || {
            format!("ends the stream with Terminate {code}: {}", code.text())
        });
        if layout == TerminateLayout::SwappedBitFields {
            self.findings.add(Kind::TerminateLayout, from, frame, || {
                "layer, type and flags of the Terminate are swapped, as siw does it".to_owned()
            });
        }
    }
}

impl FpduSink for Observer<'_> {
    type Token = Token;
    type Error = Infallible;

    fn place(&mut self, ulpdu: &Ulpdu<'_>, at: StreamOffset) -> Result<Token, Infallible> {
        let layout = self.tally.grid.layout(at, ulpdu.len());
        self.count(layout);
        self.tally.crc_good += u64::from(self.tally.crc);
        let mut token = self.token(at, layout);
        if let Some(trace) = &mut self.trace {
            let is_ahead = token.start != self.tally.delivered_end;
            trace.placed((token.start.0, token.end.0), token.times_ns.1, is_ahead, self.frame);
            for index in 0..layout.marker_count() {
                let marker = token.start.0 + layout.marker_at(index) as u64;
                trace.mark(Class::Marker, (marker, marker), token.frame);
            }
        }
        self.tally.note_len(layout.wire_len() as u64, token.frame);
        self.check_pad(&token, layout);
        if self.tally.crc
            && self.arrivals.begins_in(token.end.0.saturating_sub(CRC_LEN as u64 - 1)..token.end.0)
        {
            self.tally.crc_split = Some(token.frame);
        }
        token.part = self.take(ulpdu, &token);
        self.comment(&token);
        Ok(token)
    }

    fn deliver(&mut self, token: Token) -> Result<(), Infallible> {
        let Token { start, end, frame, times_ns, part, is_noted } = token;
        if is_noted {
            self.held.give(1, self.notes);
        }
        self.tally.delivered_start(start.0, self.starts);
        if let Some(trace) = &mut self.trace {
            trace.delivered((start.0, end.0), times_ns.1);
            let arrived = (times_ns.0, frame);
            match part {
                Part::Tagged { opcode, header, len } => {
                    trace.message(opcode.bits(), arrived, len, header.last);
                }
                Part::Untagged { opcode, header, len, .. } => {
                    trace.message(opcode.bits(), arrived, len, header.last);
                }
                Part::Terminate => trace.message(Opcode::Terminate.bits(), arrived, 0, true),
                Part::Unusable => {}
            }
        }
        self.judge_rtr(&part, frame);
        let (from, order) = (self.from, &mut self.tally.order);
        self.tally.delivered_end = end;
        order.fpdu(from, frame, self.findings);
        match part {
            Part::Unusable => {
                order.forget();
                self.requested.forget(self.notes);
                self.answered.forget(self.notes);
            }
            Part::Terminate => order.terminated(frame),
            Part::Tagged { opcode, header, len } => {
                let whole = order.tagged(opcode, &header, len, (from, frame), self.findings);
                if let Some(response) = whole {
                    self.answered.response(response, self.now_ns, self.notes, self.findings);
                }
            }
            Part::Untagged { opcode, header, len, request } => {
                order.untagged(&header, len, (from, frame), self.findings);
                if header.qn == QueueNumber::SEND {
                    order.sent(opcode, (from, frame), self.findings);
                    self.requested.send(header.msn, (frame, times_ns.0));
                }
                if let Some(request) = request {
                    self.ask(request, (frame, times_ns.0));
                }
            }
        }
        Ok(())
    }

    fn pass_over(&mut self, fpdu: &FaultyFpdu<'_>) -> Option<Token> {
        let (from, layout) = (self.from, fpdu.layout());
        self.count(layout);
        let mut token = self.token(fpdu.start(), layout);
        for marker in fpdu.wrong_markers() {
            self.tally.marker_errors += 1;
            let frame = self.arrivals.frame_before(marker + 4).unwrap_or(self.frame);
            self.findings.add(Kind::Marker, from, frame, || {
                format!("the marker at stream byte {marker} does not point at its FPDU")
            });
        }
        if let Some(trace) = &mut self.trace {
            trace.mark(Class::Wrong, (token.start.0, token.end.0), token.frame);
        }
        if fpdu.error().fault == MpaFault::Crc {
            self.tally.crc_bad += 1;
            self.findings.add(Kind::Crc, from, token.frame, || {
                format!(
                    "wrong CRC, FPDU of {} bytes at stream byte {}",
                    layout.wire_len(),
                    token.start
                )
            });
        } else {
            self.tally.crc_good += u64::from(self.tally.crc);
            token.part = self.take(&fpdu.ulpdu(), &token);
        }
        self.comment(&token);
        Some(token)
    }
}

fn in_error(terminate: &Terminate) -> Option<DdpHeader> {
    DdpHeader::parse(terminate.ddp_header.as_ref()?).ok()
}

fn described(header: &DdpHeader, segment_len: Option<u16>) -> String {
    let opcode = Control::from_byte(header.rsvd_ulp()).opcode;
    let len = segment_len.map_or(String::new(), |len| {
        format!(" of {} bytes", usize::from(len).saturating_sub(header.len()))
    });
    match header {
        DdpHeader::Tagged(TaggedHeader { stag, to, .. }) => {
            format!("{opcode}{len} to STag {stag} at {:#x}", to.0)
        }
        DdpHeader::Untagged(UntaggedHeader { qn, msn, mo, .. }) => {
            format!("{opcode}{len}, message {} of queue {} at offset {}", msn.0, qn.0, mo.0)
        }
    }
}

/// Most Terminates listed for one direction; a valid stream has at most one.
const TERMINATES_MAX: usize = 100;
