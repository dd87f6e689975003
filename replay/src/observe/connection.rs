//! One TCP connection of a capture: its two directions, and the terms of its startup.

mod live;
mod terms;

use std::net::SocketAddr;

use urnic_engine::tcp::{self, Flags, SeqNum};
use urnic_engine::wire::mpa::StartupKind;

use super::direction::{Around, Direction, Shared, Terms};
use super::pending_requests::PendingRequests;
use super::startup::Frame;
use crate::judge::findings::{Findings, Found, Kind, Listing};
use crate::limits::CONNECTIONS_MAX;
use crate::read::packet::Segment;
use crate::read::scan::{ConnectionPlan, Resumed};
use crate::report::comments::Comments;
use crate::report::{ConnectionReport, DirectionReport, MarkersReport, MpaReport, hex, text_of};
use crate::trace::answers::Answers;
use crate::trace::{ConnectionTrace, Extent, SideTrace};
use terms::AgreedTerms;

/// A connection being replayed. Side 0 sent the first frame.
#[derive(Debug)]
pub(crate) struct ReplayedConnection {
    ends: [SocketAddr; 2],
    sides: [Direction; 2],
    /// Requests of each side to the other.
    pending_requests: [PendingRequests; 2],
    findings: Findings,
    first_frame: u64,
    state: State,
    /// Frame and acknowledgment number of the initiator's data before the Reply was seen.
    early: Option<(u64, SeqNum)>,
    /// Set after the order of the first messages was checked.
    first_is_judged: bool,
    now_ns: u64,
    first_ns: Option<u64>,
    payload_ns: Option<(u64, u64)>,
    is_unscaled: bool,
    out_of_order: bool,
    is_reset: bool,
    resumed: [Option<Resumed>; 2],
}

#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) report: ConnectionReport,
    pub(crate) errors: u64,
    pub(crate) unlisted: u64,
    pub(crate) trace: Option<ConnectionTrace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Full operation; the number of the initiator's side.
    Full(usize),
    /// There will be no full operation.
    Refused,
}

impl ReplayedConnection {
    pub(crate) fn new(
        ends: [SocketAddr; 2],
        plan: ConnectionPlan,
        first_frame: u64,
        listing: Listing,
    ) -> Self {
        Self {
            ends,
            sides: plan.sides.map(Direction::new),
            pending_requests: [PendingRequests::new(), PendingRequests::new()],
            findings: Findings::new(listing),
            first_frame,
            state: State::Open,
            early: None,
            first_is_judged: false,
            now_ns: 0,
            first_ns: None,
            payload_ns: None,
            is_unscaled: false,
            out_of_order: true,
            is_reset: false,
            resumed: plan.sides.map(|side| side.resumed),
        }
    }

    pub(crate) fn trace(&mut self, extent: &Extent, marks_max: usize) {
        for (side, direction) in self.sides.iter_mut().enumerate() {
            let trace = SideTrace::new(extent, side, marks_max);
            self.pending_requests[side].answers =
                Some(Box::new(Answers::new(trace.canvas, marks_max)));
            direction.trace = Some(Box::new(trace));
        }
    }

    pub(crate) fn comment(&mut self, comments: &Comments) {
        self.findings.comments = Some(comments.clone());
    }

    pub(crate) const fn place_in_order(&mut self) {
        self.out_of_order = false;
    }

    pub(crate) fn handle(
        &mut self,
        side: usize,
        segment: &Segment<'_>,
        frame: u64,
        shared: &mut Shared,
    ) {
        self.note_time(segment);
        if self.state == State::Open && self.resumed.iter().any(Option::is_some) {
            self.resume(shared);
        }
        self.note_options(side, segment);
        self.sides[1 - side].acknowledged(segment, frame);
        if self.is_beyond_startup(side, segment) {
            self.judge_first(side, segment, frame);
        }
        let (direction, mut around) = self.split(side, shared);
        direction.handle(segment, frame, &mut around);
        if self.state == State::Open {
            self.settle(shared);
        }
    }

    const fn note_time(&mut self, segment: &Segment<'_>) {
        let at_ns = segment.at_ns;
        self.now_ns = at_ns;
        if self.first_ns.is_none() && at_ns > 0 {
            self.first_ns = Some(at_ns);
        }
        // Zero means no timestamp.
        if !segment.payload.is_empty() && at_ns > 0 {
            let (first, last) = match self.payload_ns {
                Some(span) => span,
                None => (at_ns, at_ns),
            };
            self.payload_ns = Some((
                if at_ns < first { at_ns } else { first },
                if at_ns > last { at_ns } else { last },
            ));
        }
    }

    /// The capture lacks the beginning, but its FPDUs were found.
    fn resume(&mut self, shared: &mut Shared) {
        self.state = State::Full(0);
        self.first_is_judged = true;
        for side in [0, 1] {
            // Earlier requests may be missing.
            self.pending_requests[side].forget(&mut shared.notes);
            let Some(resumed) = self.resumed[side] else {
                self.sides[side].discard(shared);
                continue;
            };
            self.sides[side].resume(resumed, self.out_of_order);
            let from = self.name(side);
            self.findings.add(Kind::Resumed, from, self.first_frame, || {
                let Resumed { markers, crc, .. } = resumed;
                let by = match (markers, crc) {
                    (true, true) => "markers and CRCs",
                    (true, false) => "markers; it has no CRCs",
                    (false, _) => "CRCs; it has no markers",
                };
                format!(
                    "the capture begins in the middle of this connection: its FPDUs were found by their \
                     {by}. Which end opened it is not known: the one that sent first here is called \
                     initiator"
                )
            });
        }
    }

    /// Records limits that the options of a SYN set for the other side.
    fn note_options(&mut self, side: usize, segment: &Segment<'_>) {
        let tcp::Header { flags, ref options, .. } = segment.header;
        if !flags.contains(Flags::SYN) {
            return;
        }
        let other = &mut self.sides[1 - side];
        other.behaviour.mss = options.mss;
        other.behaviour.acks.asked(segment.at_ns);
        // RFC 7323 §2.3: 14 at most.
        other.behaviour.window_scale = options.window_scale.map(|shift| u32::from(shift).min(14));
        // RFC 7323 §2.2: windows are scaled only if both SYNs have the option.
        self.is_unscaled |= options.window_scale.is_none();
        for side in &mut self.sides {
            if self.is_unscaled {
                side.behaviour.window_scale = Some(0);
            }
            if let Some(trace) = &mut side.trace {
                trace.window_scale = side.behaviour.window_scale.unwrap_or(0);
            }
        }
    }

    fn split<'a>(
        &'a mut self,
        side: usize,
        shared: &'a mut Shared,
    ) -> (&'a mut Direction, Around<'a>) {
        let from = self.name(side);
        let [first, second] = &mut self.pending_requests;
        let (requested, answered) = if side == 0 { (first, second) } else { (second, first) };
        let around = Around {
            shared,
            findings: &mut self.findings,
            requested,
            answered,
            from,
            now_ns: self.now_ns,
            out_of_order: self.out_of_order,
        };
        (&mut self.sides[side], around)
    }

    /// Returns the side that sent the Request or was sent a Reply; else that of the first frame.
    fn initiator(&self) -> usize {
        let sent = |side: usize, kind| {
            self.sides[side].startup().is_some_and(|frame| frame.header.kind == kind)
        };
        match () {
            () if sent(0, StartupKind::Request) => 0,
            () if sent(1, StartupKind::Request) => 1,
            () if sent(0, StartupKind::Reply) => 1,
            () => 0,
        }
    }

    fn name(&self, side: usize) -> &'static str {
        if side == self.initiator() { "initiator" } else { "responder" }
    }

    fn is_beyond_startup(&self, side: usize, segment: &Segment<'_>) -> bool {
        if self.first_is_judged || segment.payload.is_empty() {
            return false;
        }
        let end = segment.header.seq.plus(u32::try_from(segment.payload.len()).unwrap_or(0));
        let direction = &self.sides[side];
        direction.startup().is_some_and(|frame| direction.is_acknowledged_beyond(end, frame.end))
    }

    /// Checks the order of the first messages. A segment was sent too early only if no earlier
    /// frame allows it, and its acknowledgment shows that its sender had not received one either.
    fn judge_first(&mut self, side: usize, segment: &Segment<'_>, frame: u64) {
        let other = &self.sides[1 - side];
        if !segment.header.flags.contains(Flags::ACK) {
            return;
        }
        let ack = segment.header.ack;
        if side == self.initiator() {
            self.first_is_judged = true;
            if other.startup().is_none() {
                self.early = Some((frame, ack));
            }
            return;
        }
        let Some(request) = other.startup() else { return };
        self.first_is_judged = true;
        // RFC 5044 §7.1.2 (4): the responder sends no FPDU until it has received one.
        if !other.is_beyond_startup() && !other.is_acknowledged_beyond(ack, request.end) {
            self.findings.add(Kind::ResponderEarly, "", frame, || {
                "the responder sends in full operation before the initiator's first FPDU".to_owned()
            });
        }
    }

    /// Starts or refuses full operation when both startup frames are complete.
    fn settle(&mut self, shared: &mut Shared) {
        self.try_settle(shared);
        if self.state == State::Refused {
            for side in &mut self.sides {
                side.discard(shared);
            }
        }
    }

    fn try_settle(&mut self, shared: &mut Shared) {
        let initiator = self.initiator();
        let (Some(request), Some(reply)) =
            (self.sides[initiator].startup(), self.sides[1 - initiator].startup())
        else {
            return;
        };
        let (request, reply) = (request.clone(), reply.clone());
        self.state = State::Refused;
        if let Some((frame, ack)) = self.early
            && !self.sides[1 - initiator].is_acknowledged_beyond(ack, reply.end - 1)
        {
            self.findings.add(Kind::InitiatorEarly, "", frame, || {
                "the initiator sends in full operation before it has the Reply".to_owned()
            });
        }
        match (request.header.kind, reply.header.kind) {
            (StartupKind::Request, StartupKind::Reply) => {}
            (kind, _) => {
                self.findings.add(Kind::BothInitiate, "", reply.frame, || {
                    format!("both ends send an MPA {kind:?}")
                });
                return;
            }
        }
        self.note_startup(&request, &reply);
        if reply.header.reject {
            self.findings.add(Kind::Rejected, "", reply.frame, || {
                "the responder rejects the connection".to_owned()
            });
            return;
        }
        self.state = State::Full(initiator);
        let terms = AgreedTerms::of(&request, &reply);
        let [at_initiator, at_responder] = terms.ird;
        self.pending_requests[initiator].ird = at_responder;
        self.pending_requests[1 - initiator].ird = at_initiator;
        for (side, markers) in
            [(initiator, terms.markers.to_responder), (1 - initiator, terms.markers.to_initiator)]
        {
            let (direction, mut around) = self.split(side, shared);
            let rtr = terms.rtr.filter(|_| side == initiator);
            let terms = Terms { markers, crc: terms.crc, version: terms.version, rtr };
            direction.enter_full_operation(terms, &mut around);
        }
    }

    pub(crate) fn let_go(&mut self) {
        let frame = self.sides.iter().map(|side| side.last_frame).max().unwrap_or_default();
        self.findings.add(Kind::LetGo, "", frame, || {
            format!(
                "idle longest of {CONNECTIONS_MAX} connections, it was evicted for another: what it \
                 sent later is reported as a connection of its own"
            )
        });
    }

    pub(crate) fn finish(mut self, shared: &mut Shared) -> Finished {
        self.note_what_is_missing();
        let mut is_whole = [false; 2];
        for side in [0, 1] {
            let (direction, mut around) = self.split(side, shared);
            is_whole[side] = direction.finish(&mut around);
        }
        for side in [0, 1] {
            self.pending_requests[side].finish(
                is_whole[side],
                &mut shared.notes,
                &mut self.findings,
            );
        }
        for side in [0, 1] {
            self.note_crc_split(side);
            let (from, other) = (self.name(side), self.name(1 - side));
            if self.sides[side].tally().is_some() {
                self.sides[side].behaviour.note(from, other, &mut self.findings);
            }
        }
        let initiator = self.initiator();
        let directions =
            [(initiator, "initiator"), (1 - initiator, "responder")].map(|(side, from)| {
                DirectionReport {
                    profile: self.findings.profile(from),
                    ..self.sides[side].report(from, &mut shared.images)
                }
            });
        let mpa = self.mpa_report();
        let [first, second] = &self.sides;
        let handshakes =
            first.behaviour.acks.round_trip_ns().zip(second.behaviour.acks.round_trip_ns());
        let handshake_ns = handshakes.map(|(first, second)| first + second);
        for side in &mut self.sides {
            side.release(shared);
        }
        let both = [initiator, 1 - initiator];
        let answers = both.map(|side| self.pending_requests[side].answers.take());
        let traces = [initiator, 1 - initiator].map(|side| self.sides[side].trace.take());
        let trace = match (traces, answers) {
            ([Some(first), Some(second)], [Some(answer), Some(other)]) => {
                let answers = [*answer, *other];
                Some(ConnectionTrace { sides: [*first, *second], answers })
            }
            _ => None,
        };
        let Found { list, errors, unlisted } = self.findings.into_found();
        let report = ConnectionReport {
            initiator: self.ends[initiator].to_string(),
            responder: self.ends[1 - initiator].to_string(),
            first_ns: self.first_ns,
            span_ns: self.payload_ns.map_or(0, |(first, last)| last - first),
            handshake_ns,
            mpa,
            directions: directions.into(),
            findings: list,
        };
        Finished { report, errors, unlisted, trace }
    }

    /// Linux 6.1's `siw_get_trailer` overwrites the first part of a CRC with the second, and
    /// refuses a valid FPDU.
    fn note_crc_split(&mut self, side: usize) {
        let refuses = self.sides[side].tally().is_some_and(|tally| {
            tally.terminate.iter().any(|one| (one.layer, one.etype, one.code) == (2, 0, 2))
        });
        let sent = self.sides[1 - side].tally();
        if let Some(tally) = sent.filter(|tally| refuses && tally.crc_bad == 0)
            && let Some(frame) = tally.crc_split
        {
            let from = self.name(side);
            self.findings.add(Kind::CrcSplit, from, frame, || {
                "refuses the CRC of an FPDU that is right and came in two segments with the border \
                 inside its CRC, as siw of Linux 6.1 does"
                    .to_owned()
            });
        }
    }

    fn note_what_is_missing(&mut self) {
        if self.state != State::Open {
            return;
        }
        let initiator = self.initiator();
        let request = self.sides[initiator].startup();
        let has_reply = self.sides[1 - initiator].startup().is_some();
        let starts_midway = self.sides.iter().any(|side| side.has_data() && !side.handshake_seen);
        let (kind, text) = match (request, has_reply) {
            (Some(_), _) => (
                Kind::NoReply,
                "the capture has no MPA Reply: framing is not known and no FPDU can be located",
            ),
            (None, true) => (
                Kind::NoRequest,
                "the capture has no MPA Request: framing is not known and no FPDU can be located",
            ),
            (None, false) if self.findings.has(Kind::StartupFrame) => return,
            (None, false) if starts_midway => (
                Kind::MidConnection,
                "the capture begins in the middle of this connection: if it is MPA, its startup \
                 frames are missing, and there are too few FPDUs in a row with markers or right CRCs \
                 to locate them by",
            ),
            (None, false) => {
                (Kind::NotMpa, "no MPA Request at the start of this connection: not MPA")
            }
        };
        let frame = request.map_or(self.first_frame, |frame| frame.frame);
        self.findings.add(kind, "", frame, || text.to_owned());
    }

    fn mpa_report(&self) -> Option<MpaReport> {
        let initiator = self.initiator();
        let startup = |side: usize, kind| {
            self.sides[side].startup().filter(|frame| frame.header.kind == kind)
        };
        let request = startup(initiator, StartupKind::Request)?;
        let reply = startup(1 - initiator, StartupKind::Reply);
        let settled = reply.map(|reply| AgreedTerms::of(request, reply));
        let depths = |frame: &Frame| frame.enhanced.map(|word| (word.ird, word.ord));
        let responder = reply.and_then(depths);
        Some(MpaReport {
            revision: reply.unwrap_or(request).header.revision,
            crc: settled.map_or(request.header.crc, |settled| settled.crc),
            accepted: reply.map(|reply| !reply.header.reject),
            markers: settled.map_or_else(
                || MarkersReport { to_initiator: request.header.markers, to_responder: false },
                |settled| settled.markers,
            ),
            initiator_private_data: hex(&request.private_data),
            responder_private_data: reply
                .map_or_else(String::new, |reply| hex(&reply.private_data)),
            private_texts: [Some(request), reply]
                .map(|frame| frame.and_then(|frame| text_of(&frame.private_data))),
            ird: depths(request).map(|(ird, _)| ird),
            ord: depths(request).map(|(_, ord)| ord),
            responder_ird: responder.map(|(ird, _)| ird),
            responder_ord: responder.map(|(_, ord)| ord),
            peer_to_peer: request.enhanced.is_some_and(|word| word.peer_to_peer),
        })
    }
}
