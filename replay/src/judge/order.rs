//! Rules about the order of messages, checked as FPDUs are delivered.

use std::collections::VecDeque;

use urnic_engine::ddp::DdpError;
use urnic_engine::ddp::untagged::UntaggedQueue;
use urnic_engine::types::{Msn, QueueNumber, Stag, TaggedOffset};
use urnic_engine::wire::ddp::{TaggedHeader, UntaggedHeader};
use urnic_engine::wire::rdmap::{Opcode, ReadRequest};

use super::findings::{Findings, Kind};
use crate::figures::plural;
use crate::limits::{Holding, Room};

#[derive(Debug)]
pub(crate) struct Order {
    queues: [Queue; 4],
    write: Option<Open>,
    response: Option<Open>,
    last: Last,
    terminate_frame: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Unknown,
    Write,
    Other,
}

#[derive(Clone, Copy, Debug)]
enum Queue {
    Known(UntaggedQueue),
    /// Inside a message whose beginning was not seen; the next message is known again.
    Inside(Msn),
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    stag: Stag,
    next: TaggedOffset,
    frame: u64,
    start: TaggedOffset,
    len: u64,
}

impl Order {
    pub(crate) const fn new() -> Self {
        Self {
            queues: [Queue::Known(UntaggedQueue::new()); 4],
            write: None,
            response: None,
            last: Last::Other,
            terminate_frame: None,
        }
    }

    /// An FPDU could not be used, so its message is unknown.
    pub(crate) fn forget(&mut self) {
        self.queues = [Queue::Unknown; 4];
        self.write = None;
        self.response = None;
        self.last = Last::Unknown;
    }

    /// RFC 7306 §6: Immediate Data refers to the RDMA Write before it.
    pub(crate) fn sent(
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

    /// RFC 5040 §5.4: after a Terminate nothing else may be sent on the stream.
    pub(crate) fn fpdu(&self, from: &'static str, frame: u64, findings: &mut Findings) {
        if let Some(terminate) = self.terminate_frame {
            findings.add(Kind::AfterTerminate, from, frame, || {
                format!("goes on sending after its Terminate of frame {terminate}")
            });
        }
    }

    pub(crate) fn terminated(&mut self, frame: u64) {
        self.terminate_frame.get_or_insert(frame);
    }

    pub(crate) fn untagged(
        &mut self,
        header: &UntaggedHeader,
        len: usize,
        (from, frame): (&'static str, u64),
        findings: &mut Findings,
    ) {
        let UntaggedHeader { qn, msn, mo, last, .. } = *header;
        // The only message of the Terminate queue ends the stream; siw uses any number for it.
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

    /// Returns the place and length of a Read Response after its last segment.
    pub(crate) fn tagged(
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
        // RFC 5041 §5.2: an empty message takes one segment, whose STag and TO have no meaning.
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
    /// Derives the state of an unknown queue from a segment.
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

pub(crate) type Answered = ((u64, u64), u64);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    stag: Stag,
    to: TaggedOffset,
    len: u64,
    frame: u64,
}

impl Response {
    fn fits(&self, request: &ReadRequest) -> bool {
        let place = (request.sink_stag, request.sink_to);
        let is_same_place = place == (self.stag, self.to) || request.size == 0;
        is_same_place && u64::from(request.size) == self.len
    }
}

/// Reads the request of a peer that forgets to convert its fields to network byte order.
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

/// Matches Requests and Responses of one requester in either order of arrival.
#[derive(Debug)]
pub(crate) struct Reads {
    requests: VecDeque<(ReadRequest, (u64, u64))>,
    responses: VecDeque<(Response, u64)>,
    /// True while all Requests and Responses were seen, and kept until they were matched.
    is_complete: bool,
    held: Holding,
}

impl Reads {
    pub(crate) fn new() -> Self {
        Self {
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            is_complete: true,
            held: Holding::of_notes(),
        }
    }

    /// A message of either stream was missed, or there was no room for it.
    pub(crate) fn forget(&mut self, notes: &mut Room) {
        self.held.give_all(notes);
        *self = Self { is_complete: false, ..Self::new() };
    }

    pub(crate) fn request(
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

    pub(crate) fn response(
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

    pub(crate) fn open(&self) -> usize {
        self.requests.len()
    }

    /// Stops matching if there is none.
    fn has_room(&mut self, notes: &mut Room) -> bool {
        let has_room = self.held.take(notes);
        if !has_room {
            self.forget(notes);
        }
        has_room
    }

    /// RFC 5040 §5.5 (20): Responses come in the order of the Requests. A message makes one pair at
    /// most.
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
                         {} bytes to STag {} at {:#x}, and the Read Response of frame {} fits it",
                        read.size, read.sink_stag, read.sink_to.0, response.frame
                    )
                });
                return Some((asked, answered_ns));
            }
            findings.add(Kind::ResponseMismatch, "", response.frame, || {
                format!(
                    "Read Response of {} bytes to STag {} at {:#x}; the Request of frame {} asks for \
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

    /// `all_seen`: the requester's stream was delivered completely.
    pub(crate) fn finish(&mut self, all_seen: bool, notes: &mut Room, findings: &mut Findings) {
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
