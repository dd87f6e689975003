//! Live frames of an interface, through the same receive code, in one pass.
//!
//! Earlier frames cannot be read again: a connection is followed only if its handshake is seen.
//! Frames wait for a second, or until there are too many, to learn if they belong to iWARP, and how
//! they are aligned.

mod file;

use std::collections::{HashMap, VecDeque};

use urnic_engine::tcp::{Flags, SeqNum};
use urnic_netdev::capture::LinkType;

pub use crate::observe::passed::LiveFigures;
pub use file::LiveFile;

use crate::judge::findings::Listing;
use crate::limits::{LIVE_BYTES_MAX, LIVE_FRAMES_MAX};
use crate::observe::connection::{Finished, ReplayedConnection};
use crate::observe::direction::Shared;
use crate::read::packet::{Checksum, Segment};
use crate::read::scan::{ConnectionPlan, Connections, SidePlan};
use crate::read::tunnel;
use crate::report::comments::Comments;

/// Selection of frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// TCP connections with an MPA startup.
    Iwarp,
    /// TCP connections from or to these ports, with any contents.
    Ports(Vec<u16>),
    /// All frames.
    All,
}

/// A frame of an Ethernet interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveFrame {
    /// Time when it passed, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Set if it was sent; otherwise it was received.
    pub is_outbound: bool,
    /// Original length in bytes.
    pub original_len: usize,
    /// Its bytes, or the captured part.
    pub bytes: Vec<u8>,
}

/// Follows the connections of an interface.
#[derive(Debug)]
pub struct Live {
    wanted: Wanted,
    known: Connections,
    opening: HashMap<usize, [Option<SeqNum>; 2]>,
    connections: HashMap<usize, ReplayedConnection>,
    shared: Shared,
    listing: Listing,
    comments: Comments,
    number: u64,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    ended: LiveFigures,
    bytes: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    connection: Option<usize>,
    is_wanted: bool,
    frame: LiveFrame,
}

impl Live {
    /// Creates the state before the first frame.
    #[must_use]
    pub fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            known: Connections::endless(),
            opening: HashMap::new(),
            connections: HashMap::new(),
            shared: Shared::without_images(),
            listing: Listing::new(),
            comments: Comments::default(),
            number: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            ended: LiveFigures::default(),
            bytes: 0,
        }
    }

    /// Handles a frame. Calls `sink` with the frames that have waited long enough, and comments.
    pub fn handle(&mut self, frame: LiveFrame, sink: &mut impl FnMut(&LiveFrame, Option<&str>)) {
        self.number += 1;
        let number = self.number;
        let mut connection = None;
        let mut is_wanted = self.wanted == Wanted::All;
        let datagram = LinkType::Ethernet.ip_packet(&frame.bytes).unwrap_or_default();
        if let Some(segment) = datagram
            .filter(|_| frame.original_len <= frame.bytes.len())
            .and_then(|datagram| Segment::parse(tunnel::innermost(datagram), frame.at_ns, false))
        {
            if let Wanted::Ports(ports) = &self.wanted {
                let ends = [segment.source, segment.target];
                is_wanted = ends.iter().any(|end| ports.contains(&end.port()));
            }
            if is_wanted || self.wanted == Wanted::Iwarp {
                connection = self.follow(number, &segment);
            }
        }
        if let Some(known) = connection.and_then(|ordinal| self.connections.get(&ordinal)) {
            if known.is_mpa() {
                self.bytes += frame.original_len as u64;
            } else if known.is_other() {
                // Its frames leave room for others.
                connection = None;
            }
        }
        let at_ns = frame.at_ns;
        if is_wanted || connection.is_some() {
            self.waiting_bytes += frame.bytes.len();
            self.waiting.push_back(Waiting { number, connection, is_wanted, frame });
        }
        self.release(at_ns, sink);
    }

    /// Releases the frames that have waited long enough at `now_ns`.
    pub fn release(&mut self, now_ns: u64, sink: &mut impl FnMut(&LiveFrame, Option<&str>)) {
        let due_ns = now_ns.saturating_sub(LIVE_WAIT_NS);
        while let Some(first) = self.waiting.front()
            && (first.frame.at_ns <= due_ns
                || self.waiting.len() > LIVE_FRAMES_MAX
                || self.waiting_bytes > LIVE_BYTES_MAX)
        {
            self.give_first(sink);
        }
        let over = self.waiting.front().map_or(self.number, |first| first.number - 1);
        let _not_wanted = self.comments.take(over);
        while self.comments.overflow().is_some() {}
    }

    /// Releases all frames at the end of the capture.
    pub fn finish(&mut self, sink: &mut impl FnMut(&LiveFrame, Option<&str>)) {
        while !self.waiting.is_empty() {
            self.give_first(sink);
        }
    }

    fn give_first(&mut self, sink: &mut impl FnMut(&LiveFrame, Option<&str>)) {
        let Some(Waiting { number, connection, is_wanted, frame }) = self.waiting.pop_front()
        else {
            return;
        };
        self.waiting_bytes -= frame.bytes.len();
        let comment = self.comments.take(number).filter(|comment| !comment.is_empty());
        let known = connection.and_then(|ordinal| self.connections.get(&ordinal));
        // The comment of an ended connection still shows that it was iWARP.
        if is_wanted || comment.is_some() || known.is_some_and(ReplayedConnection::is_mpa) {
            sink(&frame, comment.as_deref());
        }
    }

    /// Returns the number of its connection if it is followed.
    fn follow(&mut self, number: u64, segment: &Segment<'_>) -> Option<usize> {
        let flags = segment.header.flags;
        if segment.checksum == Checksum::Wrong {
            let ordinal = self.known.find(number, segment, false)?.ordinal;
            if self.connections.get(&ordinal).is_some_and(ReplayedConnection::is_mpa) {
                self.comments.line(number, "wrong checksum: its receiver drops it");
            }
            return Some(ordinal);
        }
        let is_syn = flags.contains(Flags::SYN);
        if !is_syn && !self.known.is_followed(segment) {
            return None;
        }
        let place = self.known.find(number, segment, true)?;
        if let Some(ended) = place.ended {
            self.end(ended.ordinal);
        }
        let ordinal = place.ordinal;
        if is_syn && !self.connections.contains_key(&ordinal) {
            let isns = self.opening.entry(ordinal).or_default();
            isns[place.side].get_or_insert(segment.header.seq);
            if let [Some(first), Some(second)] = *isns {
                let side = |isn| SidePlan { isn, handshake_seen: true, resumed: None };
                let plan = ConnectionPlan { sides: [side(first), side(second)] };
                let ends = match place.side {
                    0 => [segment.source, segment.target],
                    _ => [segment.target, segment.source],
                };
                let mut connection =
                    ReplayedConnection::new(ends, plan, number, self.listing.clone());
                connection.comment(&self.comments);
                self.connections.insert(ordinal, connection);
                self.opening.remove(&ordinal);
            }
        }
        if let Some(connection) = self.connections.get_mut(&ordinal) {
            connection.handle(place.side, segment, number, &mut self.shared);
            connection.note_lost(place.side, segment, number, &mut self.shared);
            if flags.contains(Flags::RST) {
                connection.note_reset();
            }
        }
        Some(ordinal)
    }

    fn end(&mut self, ordinal: usize) {
        self.opening.remove(&ordinal);
        let Some(connection) = self.connections.remove(&ordinal) else { return };
        if connection.is_mpa() {
            connection.add_figures(&mut self.ended);
            self.ended.bytes_held = 0;
            self.ended.connections_open = 0;
        }
        let Finished { errors, report, .. } = connection.finish(&mut self.shared);
        self.listing.give(&report.findings);
        self.ended.errors += errors;
    }

    #[cfg(test)]
    pub(crate) fn followed(&self) -> usize {
        self.opening.len() + self.connections.len()
    }

    #[cfg(test)]
    pub(crate) fn comments(&self) -> usize {
        self.comments.open()
    }

    /// Counts since the beginning.
    #[must_use]
    pub fn figures(&self) -> LiveFigures {
        let mut figures = LiveFigures { bytes: self.bytes, ..self.ended };
        for connection in self.connections.values().filter(|one| one.is_mpa()) {
            connection.add_figures(&mut figures);
        }
        figures
    }
}

/// Time for which frames wait, in nanoseconds.
const LIVE_WAIT_NS: u64 = 1_000_000_000;
