//! Rules about what follows what, checked as FPDUs are delivered.

use std::collections::VecDeque;

use urnic_engine::ddp::DdpError;
use urnic_engine::ddp::untagged::UntaggedQueue;
use urnic_engine::types::{Msn, QueueNumber, Stag, TaggedOffset};
use urnic_engine::wire::ddp::{TaggedHeader, UntaggedHeader};
use urnic_engine::wire::rdmap::{Opcode, ReadRequest};

use super::figures::plural;
use super::findings::{Findings, Kind};
use super::limits::{Holding, Room};

/// What one end has sent so far, in stream order.
#[derive(Debug)]
pub(super) struct Order {
    /// By queue number.
    queues: [Queue; 4],
    write: Option<Open>,
    response: Option<Open>,
    /// What was sent last of RDMA Writes, Sends and Immediate Data.
    last: Last,
    /// Frame that completed its Terminate.
    terminate_frame: Option<u64>,
}

/// The message before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Unknown,
    Write,
    Other,
}

/// One untagged queue, seen from outside.
#[derive(Clone, Copy, Debug)]
enum Queue {
    Known(UntaggedQueue),
    /// Inside a message whose beginning was not seen; the one after it is known again.
    Inside(Msn),
    Unknown,
}

/// A tagged message of which the last segment did not come yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    stag: Stag,
    next: TaggedOffset,
    frame: u64,
    /// Where it began, and bytes so far.
    start: TaggedOffset,
    len: u64,
}

impl Order {
    pub(super) const fn new() -> Self {
        Self {
            queues: [Queue::Known(UntaggedQueue::new()); 4],
            write: None,
            response: None,
            last: Last::Other,
            terminate_frame: None,
        }
    }

    /// An FPDU could not be used: what it was part of is unknown.
    pub(super) fn forget(&mut self) {
        self.queues = [Queue::Unknown; 4];
        self.write = None;
        self.response = None;
        self.last = Last::Unknown;
    }

    /// A Send or Immediate Data. RFC 7306 §6: Immediate Data tells of the RDMA Write before it.
    pub(super) fn sent(
        &mut self,
        opcode: Opcode,
        (from, frame): (&'static str, u64),
        findings: &mut Findings,
    ) {
        let is_immediate = matches!(opcode, Opcode::Immediate | Opcode::ImmediateSolicited);
        if is_immediate && self.last == Last::Other {
            findings.add(Kind::ImmediateAlone, from, frame, || {
                format!("{opcode} without an RDMA Write before it")
            });
        }
        self.last = Last::Other;
    }

    /// Any FPDU. RFC 5040 §5.4: after a Terminate nothing else may be sent on the stream.
    pub(super) fn fpdu(&self, from: &'static str, frame: u64, findings: &mut Findings) {
        if let Some(terminate) = self.terminate_frame {
            findings.add(Kind::AfterTerminate, from, frame, || {
                format!("goes on sending after its Terminate of frame {terminate}")
            });
        }
    }

    pub(super) fn terminated(&mut self, frame: u64) {
        self.terminate_frame.get_or_insert(frame);
    }

    /// A segment of an untagged message.
    pub(super) fn untagged(
        &mut self,
        header: &UntaggedHeader,
        len: usize,
        (from, frame): (&'static str, u64),
        findings: &mut Findings,
    ) {
        let UntaggedHeader { qn, msn, mo, last, .. } = *header;
        // The one message of the Terminate queue ends the stream; siw numbers it as it likes.
        if qn == QueueNumber::TERMINATE {
            return;
        }
        let index = usize::try_from(qn.0).unwrap_or(usize::MAX);
        let Some(queue) = self.queues.get_mut(index) else { return };
        let learned = match *queue {
            Queue::Known(mut known) => match known.deliver(msn, mo, len, last) {
                Ok(_) => Queue::Known(known),
                Err(error) => {
                    let kind = match error {
                        DdpError::UntaggedMsnRange => Kind::MessageNumber,
                        _ => Kind::MessageOffset,
                    };
                    findings.add(kind, from, frame, || {
                        format!(
                            "{error} on queue {}: message {} at offset {}, message {} is due",
                            qn.0,
                            msn.0,
                            mo.0,
                            known.msn().0
                        )
                    });
                    Queue::learn(header, len)
                }
            },
            Queue::Inside(_) if last => Queue::Known(UntaggedQueue::starting_at(msn.next())),
            Queue::Inside(inside) => Queue::Inside(inside),
            Queue::Unknown => Queue::learn(header, len),
        };
        *queue = learned;
    }

    /// A segment of a tagged message. Returns the place and length of a Read Response when this was
    /// its last segment.
    pub(super) fn tagged(
        &mut self,
        opcode: Opcode,
        header: &TaggedHeader,
        len: usize,
        (from, frame): (&'static str, u64),
        findings: &mut Findings,
    ) -> Option<Response> {
        let slot = match opcode {
            Opcode::RdmaWrite => &mut self.write,
            Opcode::ReadResponse => &mut self.response,
            _ => return None,
        };
        let TaggedHeader { stag, to, last, .. } = *header;
        // RFC 5041 §5.2: an empty message takes one segment, whose STag and TO mean nothing.
        let mut open = match slot.take() {
            Some(open) if open.stag == stag && open.next == to => open,
            Some(open) => {
                findings.add(Kind::TaggedMessage, from, frame, || {
                    format!(
                        "the {opcode} to STag {} that began in frame {} is not finished, \
                         and a segment for STag {stag} at {:#x} follows",
                        open.stag, open.frame, to.0
                    )
                });
                Open { stag, next: to, frame, start: to, len: 0 }
            }
            None => Open { stag, next: to, frame, start: to, len: 0 },
        };
        open.len += len as u64;
        open.next = TaggedOffset(to.0.wrapping_add(len as u64));
        if !last {
            *slot = Some(open);
            return None;
        }
        if opcode == Opcode::RdmaWrite {
            self.last = Last::Write;
        }
        let response = Response { stag, to: open.start, len: open.len, frame };
        (opcode == Opcode::ReadResponse).then_some(response)
    }
}

impl Queue {
    /// What a segment says about a queue of which nothing is known.
    fn learn(header: &UntaggedHeader, len: usize) -> Self {
        if header.last {
            return Self::Known(UntaggedQueue::starting_at(header.msn.next()));
        }
        let mut queue = UntaggedQueue::starting_at(header.msn);
        match queue.deliver(header.msn, header.mo, len, false) {
            Ok(_) => Self::Known(queue),
            Err(_) => Self::Inside(header.msn),
        }
    }
}

/// The frame of a Read Request and when it came, and when the last byte of its Response came.
pub(super) type Answered = ((u64, u64), u64);

/// A whole Read Response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Response {
    stag: Stag,
    to: TaggedOffset,
    len: u64,
    frame: u64,
}

impl Response {
    /// Returns true if it fills the place that `request` names, whole.
    fn fits(&self, request: &ReadRequest) -> bool {
        let place = (request.sink_stag, request.sink_to);
        let is_same_place = place == (self.stag, self.to) || request.size == 0;
        is_same_place && u64::from(request.size) == self.len
    }
}

/// Returns a Read Request as a peer means it that forgets to convert its fields to network byte order.
fn swapped(request: &ReadRequest) -> ReadRequest {
    let ReadRequest { sink_stag, sink_to, size, source_stag, source_to } = *request;
    ReadRequest {
        sink_stag: Stag(sink_stag.0.swap_bytes()),
        sink_to: TaggedOffset(sink_to.0.swap_bytes()),
        size: size.swap_bytes(),
        source_stag: Stag(source_stag.0.swap_bytes()),
        source_to: TaggedOffset(source_to.0.swap_bytes()),
    }
}

/// The RDMA Reads of one requester: Requests and Responses are matched whichever is seen first.
#[derive(Debug)]
pub(super) struct Reads {
    /// With the frame of each, and when it came.
    requests: VecDeque<(ReadRequest, (u64, u64))>,
    /// With the time of the last byte of each.
    responses: VecDeque<(Response, u64)>,
    /// Requests and Responses were all seen so far, and kept until they were matched.
    is_complete: bool,
    held: Holding,
}

impl Reads {
    pub(super) fn new() -> Self {
        Self {
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            is_complete: true,
            held: Holding::of_notes(),
        }
    }

    /// Something of either stream was missed, or found no room: matching has no ground any more.
    pub(super) fn forget(&mut self, notes: &mut Room) {
        self.held.give_all(notes);
        *self = Self { is_complete: false, ..Self::new() };
    }

    pub(super) fn request(
        &mut self,
        request: ReadRequest,
        arrived: (u64, u64),
        notes: &mut Room,
        findings: &mut Findings,
    ) -> Option<Answered> {
        if !self.is_complete || !self.has_room(notes) {
            return None;
        }
        self.requests.push_back((request, arrived));
        self.match_up(notes, findings)
    }

    pub(super) fn response(
        &mut self,
        response: Response,
        now_ns: u64,
        notes: &mut Room,
        findings: &mut Findings,
    ) -> Option<Answered> {
        if !self.is_complete || !self.has_room(notes) {
            return None;
        }
        self.responses.push_back((response, now_ns));
        self.match_up(notes, findings)
    }

    /// Requests without an answer so far.
    pub(super) fn open(&self) -> usize {
        self.requests.len()
    }

    /// Takes room for one more; gives matching up where there is none.
    fn has_room(&mut self, notes: &mut Room) -> bool {
        let has_room = self.held.take(notes);
        if !has_room {
            self.forget(notes);
        }
        has_room
    }

    /// RFC 5040 §5.5 (20): Responses come in the order of the Requests. One more of either makes at most
    /// one pair.
    fn match_up(&mut self, notes: &mut Room, findings: &mut Findings) -> Option<Answered> {
        let (Some(&(request, asked)), Some(&(response, answered_ns))) =
            (self.requests.front(), self.responses.front())
        else {
            return None;
        };
        self.requests.pop_front();
        self.responses.pop_front();
        self.held.give(2, notes);
        if !response.fits(&request) {
            let read = swapped(&request);
            if response.fits(&read) {
                findings.add(Kind::ReadRequestSwapped, "", asked.0, || {
                    format!(
                        "the fields of the Read Request are in little-endian order: read so, it asks for \
                         {} octets to STag {} at {:#x}, and the Read Response of frame {} fits it",
                        read.size, read.sink_stag, read.sink_to.0, response.frame
                    )
                });
                return Some((asked, answered_ns));
            }
            findings.add(Kind::ResponseMismatch, "", response.frame, || {
                format!(
                    "Read Response of {} octets to STag {} at {:#x}; the Request of frame {} asks for \
                     {} to STag {} at {:#x}",
                    response.len,
                    response.stag,
                    response.to.0,
                    asked.0,
                    request.size,
                    request.sink_stag,
                    request.sink_to.0
                )
            });
        }
        Some((asked, answered_ns))
    }

    /// The capture is at its end. `all_seen`: the requester's stream was delivered whole.
    pub(super) fn finish(&mut self, all_seen: bool, notes: &mut Room, findings: &mut Findings) {
        self.held.give_all(notes);
        if let Some((response, _)) = self.responses.front().filter(|_| all_seen) {
            let count = self.responses.len();
            findings.add(Kind::ResponseUnasked, "", response.frame, || {
                format!("{} that no Read Request asked for", plural(count as u64, "Read Response"))
            });
        }
        if let Some((_, (frame, _))) = self.requests.front() {
            let count = self.requests.len();
            findings.add(Kind::ReadUnanswered, "", *frame, || {
                let requests = plural(count as u64, "Read Request");
                format!("{requests} without a Response in the capture")
            });
        }
    }
}
