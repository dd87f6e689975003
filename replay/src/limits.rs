//! All bounds of a replay: a capture may hold anything, and be of any length.
//!
//! Everything that grows with the file counts against one of these limits, for all connections
//! together. An item costs some 100 bytes.

/// Connections followed at a time. The one that is idle longest is evicted, first connections
/// without data: a scan with SYNs evicts no connection in use.
pub(super) const CONNECTIONS_MAX: usize = 4096;
/// Connections followed in total: the second pass needs results of the first.
pub(super) const CONNECTIONS_TOTAL_MAX: usize = 1 << 20;
/// Reported connections with an MPA startup.
pub(super) const REPORTED_MPA_MAX: usize = 4096;
/// Other reported connections.
pub(super) const REPORTED_OTHERS_MAX: usize = 1024;
/// Listed findings of all connections of a file, beyond the number that each may always have.
pub(super) const FINDINGS_MAX: usize = 1 << 14;
/// Findings of one connection that are always listed.
pub(super) const FINDINGS_OWN: usize = 8;

/// Items about streams: ranges, frames, segments not judged yet, waiting pieces, FPDUs, open Reads.
pub(super) const NOTES_MAX: usize = 1 << 19;
/// Items that each direction of a connection may always have: enough for an in-order stream.
pub(super) const NOTES_OWN: usize = 16;
/// Most items of one direction: one connection leaves room for others.
pub(super) const NOTES_EACH_MAX: usize = NOTES_MAX / 8;
/// Starts of FPDUs, kept to judge later copies of their segments.
pub(super) const STARTS_MAX: usize = 1 << 21;
/// Most starts of one direction.
pub(super) const STARTS_EACH_MAX: usize = STARTS_MAX / 8;
/// Bytes that wait for earlier bytes.
pub(super) const WAITING_MAX: usize = 64 << 20;
/// Widest window of a zstd frame, in bytes: the default limit of `zstd -d`.
pub(super) const ZSTD_WINDOW_MAX: u64 = 128 << 20;
/// Bytes to which any compressed file may decompress: some seconds of work.
pub(super) const UNPACKED_FREE: u64 = 1 << 30;
/// Ratio of the decompressed length to the file's, beyond that. Captures of traffic compress to a
/// tenth of their length or more.
pub(super) const UNPACKED_RATIO_MAX: u64 = 64;
/// Bytes that a gzip member or zstd frame costs: creating its decoder takes as long.
pub(super) const PART_COST: u64 = 4096;
/// Consecutive empty gzip members or zstd frames: each takes as long as some KiB.
pub(super) const EMPTY_PARTS_MAX: usize = 1024;
/// Unsupported link types that are named: files with more are made by hand.
pub(super) const LINK_TYPES_NAMED_MAX: usize = 4;
/// Frames kept to recognise copies.
pub(super) const COPIES_REMEMBERED: usize = 1 << 14;
/// Bytes, with overhead, of streams whose beginning the capture lacks, to find their FPDUs.
pub(super) const SAMPLES_LEN_MAX: usize = 16 << 20;
/// Bytes and segments among these of one stream.
pub(super) const SAMPLE_LEN_MAX: usize = 128 << 10;
pub(super) const SAMPLE_PIECES_MAX: usize = 1024;
/// Segments with a wrong checksum kept between the passes.
pub(super) const DAMAGED_MAX: usize = 1 << 18;

/// Connections of a file with pictures: those with the most bytes.
pub(super) const PICTURED_MAX: usize = 16;
/// Most and fewest marks of one kind in one picture; adjacent marks are merged.
pub(super) const MARKS_MAX: usize = 2048;
pub(super) const MARKS_MIN: usize = 512;

/// Pending comments on frames, for later findings about them.
pub(super) const COMMENTS_OPEN_MAX: usize = 1 << 16;
/// Bytes of these comments.
pub(super) const COMMENTS_BYTES_MAX: usize = 32 << 20;
/// Approximate longest comment on one frame, in bytes: a frame may hold thousands of FPDUs.
pub(super) const COMMENT_LEN_MAX: usize = 4096;
/// Frames of a live capture that wait for later findings.
pub(super) const LIVE_FRAMES_MAX: usize = 1 << 16;
/// Their bytes.
pub(super) const LIVE_BYTES_MAX: usize = 32 << 20;

/// Bytes placed under steering tags that are kept.
pub(super) const IMAGE_BYTES_MAX: usize = 1 << 30;
/// Bytes among these in memory. When half of it is used, whole pages go to a file.
pub(super) const IMAGE_MEMORY_MAX: usize = 64 << 20;
/// Separate pieces of memory that hold them.
pub(super) const EXTENTS_MAX: usize = 1 << 19;
pub(super) const STAGS_MAX: usize = 1 << 16;
/// Bytes never written, over all images of a file, that are digested, which only costs time.
pub(super) const HOLE_BYTES_MAX: u64 = 256 << 20;
/// Longest image that is digested.
pub(super) const SPAN_MAX: u128 = 1 << 30;

const _: () = assert!(COMMENT_LEN_MAX < u16::MAX as usize / 2);
const _: () = assert!(CONNECTIONS_MAX <= CONNECTIONS_TOTAL_MAX);
const _: () = assert!(2 * CONNECTIONS_MAX * NOTES_OWN <= NOTES_MAX);

#[derive(Debug)]
pub(super) struct Room {
    left: usize,
}

impl Room {
    pub(super) const fn new(max: usize) -> Self {
        Self { left: max }
    }

    pub(super) const fn take(&mut self, count: usize) -> bool {
        match self.left.checked_sub(count) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    pub(super) const fn left(&self) -> usize {
        self.left
    }

    pub(super) const fn give(&mut self, count: usize) {
        self.left += count;
    }
}

/// Part of a shared room: an owner always has some of its own, and at most its share of the rest.
#[derive(Debug)]
pub(super) struct Holding {
    held: usize,
    own: usize,
    held_max: usize,
}

impl Holding {
    pub(super) const fn of_notes() -> Self {
        Self { held: 0, own: NOTES_OWN, held_max: NOTES_EACH_MAX }
    }

    pub(super) const fn of_starts() -> Self {
        Self { held: 0, own: NOTES_OWN, held_max: STARTS_EACH_MAX }
    }

    pub(super) const fn take(&mut self, room: &mut Room) -> bool {
        let has_room = self.held < self.own || self.held < self.held_max && room.take(1);
        if has_room {
            self.held += 1;
        }
        has_room
    }

    pub(super) fn give(&mut self, count: usize, room: &mut Room) {
        let shared_before = self.held.saturating_sub(self.own);
        self.held -= count;
        room.give(shared_before - self.held.saturating_sub(self.own));
    }

    pub(super) fn give_all(&mut self, room: &mut Room) {
        self.give(self.held, room);
    }

    pub(super) const fn has_room(&self, room: &Room) -> bool {
        self.held < self.own || self.held < self.held_max && room.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_has_its_own_items_and_at_most_its_share_of_the_others() {
        let mut room = Room::new(10);
        let mut greedy = Holding { held: 0, own: 2, held_max: 6 };
        let taken = (0..20).filter(|_| greedy.take(&mut room)).count();
        assert_eq!((taken, room.left), (6, 6));
        assert!(!greedy.has_room(&room));
        let mut second = Holding { held: 0, own: 2, held_max: 20 };
        assert_eq!((0..20).filter(|_| second.take(&mut room)).count(), 8);
        let mut late = Holding { held: 0, own: 2, held_max: 6 };
        assert!(late.has_room(&room));
        assert_eq!((0..20).filter(|_| late.take(&mut room)).count(), 2, "its own");
        assert!(!late.has_room(&room));
    }

    #[test]
    fn returned_items_can_be_taken_again() {
        let mut room = Room::new(10);
        let mut holding = Holding { held: 0, own: 2, held_max: 9 };
        while holding.take(&mut room) {}
        assert_eq!((holding.held, room.left), (9, 3));
        holding.give(3, &mut room);
        assert_eq!((holding.held, room.left), (6, 6));
        holding.give(5, &mut room);
        assert_eq!((holding.held, room.left), (1, 10));
        while holding.take(&mut room) {}
        holding.give_all(&mut room);
        assert_eq!((holding.held, room.left), (0, 10));
        assert!(room.take(10) && !room.take(1));
    }
}
