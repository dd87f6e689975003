//! Every bound of a replay, in one place: a capture may hold anything, and be of any length.
//!
//! What grows with the file is counted against one of these limits, for all connections together.
//! What is counted in items costs some 100 bytes for each.

/// Connections that are followed at one time. One more, and the one that has been idle longest is
/// let go, those that never carried data first: SYNs to every address push out none that is used.
pub(super) const CONNECTIONS_MAX: usize = 4096;
/// Connections of one file that are followed at all: what the first pass finds out about each is
/// kept for the second.
pub(super) const CONNECTIONS_TOTAL_MAX: usize = 1 << 20;
/// Connections with an MPA startup that are reported.
pub(super) const REPORTED_MPA_MAX: usize = 4096;
/// Other connections that are reported.
pub(super) const REPORTED_OTHERS_MAX: usize = 1024;
/// Findings of all connections of a file that are listed, beside those that each has in any case.
pub(super) const FINDINGS_MAX: usize = 1 << 14;
/// Findings of one connection that are listed whatever the others have.
pub(super) const FINDINGS_OWN: usize = 8;

/// Items kept about streams: ranges seen, frames that brought them, segments not judged yet, pieces
/// that wait, FPDUs ahead of the delivery point, open Reads.
pub(super) const NOTES_MAX: usize = 1 << 19;
/// Items that each direction of a connection has whatever the others keep: a stream that is in
/// order needs no more.
pub(super) const NOTES_OWN: usize = 16;
/// Items of one direction, at most: one connection leaves room to others.
pub(super) const NOTES_EACH_MAX: usize = NOTES_MAX / 8;
/// Starts of FPDUs that are remembered to judge later copies of their segments.
pub(super) const STARTS_MAX: usize = 1 << 21;
/// Of those, starts of one direction.
pub(super) const STARTS_EACH_MAX: usize = STARTS_MAX / 8;
/// Bytes that wait for others before them.
pub(super) const WAITING_MAX: usize = 64 << 20;
/// The widest window of a zstd frame, in bytes: what `zstd -d` takes unless told otherwise.
pub(super) const ZSTD_WINDOW_MAX: u64 = 128 << 20;
/// Bytes that a packed file may unpack to whatever its length: some seconds of work.
pub(super) const UNPACKED_FREE: u64 = 1 << 30;
/// Beyond that, how many times its length a packed file may unpack to. Captures of traffic pack to a
/// tenth of their length or more.
pub(super) const UNPACKED_RATIO_MAX: u64 = 64;
/// Bytes that a member of gzip or a frame of zstd counts as unpacked, besides its content: making its
/// decoder takes about as long.
pub(super) const PART_COST: u64 = 4096;
/// Members of gzip or frames of zstd in a row that are empty: each takes as long as some KiB.
pub(super) const EMPTY_PARTS_MAX: usize = 1024;
/// Link types that are named of those that are not read: more are a file made by hand.
pub(super) const LINK_TYPES_NAMED_MAX: usize = 4;
/// Frames that are remembered to recognise copies of them.
pub(super) const COPIES_REMEMBERED: usize = 1 << 14;
/// Bytes kept of streams whose beginning the capture lacks, to find their FPDUs again, with what it
/// takes to keep them.
pub(super) const SAMPLES_LEN_MAX: usize = 16 << 20;
/// Of those, bytes and segments of one stream.
pub(super) const SAMPLE_LEN_MAX: usize = 128 << 10;
pub(super) const SAMPLE_PIECES_MAX: usize = 1024;
/// Segments with a wrong checksum that are remembered between the passes.
pub(super) const DAMAGED_MAX: usize = 1 << 18;

/// Connections of a file that there are pictures of: those with the most bytes.
pub(super) const PICTURED_MAX: usize = 16;
/// Marks of one kind in one picture, at most and at least; what falls beside each other is one.
pub(super) const MARKS_MAX: usize = 2048;
pub(super) const MARKS_MIN: usize = 512;

/// Comments on frames that are open at a time, for what is found out later about them.
pub(super) const COMMENTS_OPEN_MAX: usize = 1 << 16;
/// Bytes of these comments.
pub(super) const COMMENTS_BYTES_MAX: usize = 32 << 20;
/// Bytes of the comment on one frame, about: a frame may hold thousands of FPDUs.
pub(super) const COMMENT_LEN_MAX: usize = 4096;
/// Frames of an interface that wait for what is found out about them.
pub(super) const LIVE_FRAMES_MAX: usize = 1 << 16;
/// Their bytes.
pub(super) const LIVE_BYTES_MAX: usize = 32 << 20;
/// The longest block of pcapng that is copied in memory, in bytes; a longer one goes by way of a file.
pub(super) const BLOCK_LEN_MAX: usize = 64 << 20;

/// Bytes kept of what was placed under steering tags.
pub(super) const IMAGE_BYTES_MAX: usize = 1 << 30;
/// Those of them that are in memory. Once half of it is taken, whole pages go to a file.
pub(super) const IMAGE_MEMORY_MAX: usize = 64 << 20;
/// Separate pieces of memory that they are in.
pub(super) const EXTENTS_MAX: usize = 1 << 19;
/// Steering tags written to.
pub(super) const STAGS_MAX: usize = 1 << 16;
/// Bytes never written, over all images of a file, that are digested: that costs only time.
pub(super) const HOLE_BYTES_MAX: u64 = 256 << 20;
/// The longest image that is digested.
pub(super) const SPAN_MAX: u128 = 1 << 30;

const _: () = assert!(COMMENT_LEN_MAX < u16::MAX as usize / 2);
const _: () = assert!(CONNECTIONS_MAX <= CONNECTIONS_TOTAL_MAX);
const _: () = assert!(2 * CONNECTIONS_MAX * NOTES_OWN <= NOTES_MAX);

/// What is left of a limit.
#[derive(Debug)]
pub(super) struct Room {
    left: usize,
}

impl Room {
    pub(super) const fn new(max: usize) -> Self {
        Self { left: max }
    }

    /// Takes `count`, if there is so much.
    pub(super) const fn take(&mut self, count: usize) -> bool {
        match self.left.checked_sub(count) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// How much can be taken.
    pub(super) const fn left(&self) -> usize {
        self.left
    }

    /// Gives back what was taken.
    pub(super) const fn give(&mut self, count: usize) {
        self.left += count;
    }
}

/// What one owner holds of a shared room: some is its own in any case, and it gets at most its
/// share of the rest.
#[derive(Debug)]
pub(super) struct Holding {
    held: usize,
    own: usize,
    held_max: usize,
}

impl Holding {
    /// Of [`NOTES_MAX`].
    pub(super) const fn of_notes() -> Self {
        Self { held: 0, own: NOTES_OWN, held_max: NOTES_EACH_MAX }
    }

    /// Of [`STARTS_MAX`].
    pub(super) const fn of_starts() -> Self {
        Self { held: 0, own: NOTES_OWN, held_max: STARTS_EACH_MAX }
    }

    /// Takes room for one item, if there is any.
    pub(super) const fn take(&mut self, room: &mut Room) -> bool {
        let has_room = self.held < self.own || self.held < self.held_max && room.take(1);
        if has_room {
            self.held += 1;
        }
        has_room
    }

    /// Gives back the room of `count` items.
    pub(super) fn give(&mut self, count: usize, room: &mut Room) {
        let shared_before = self.held.saturating_sub(self.own);
        self.held -= count;
        room.give(shared_before - self.held.saturating_sub(self.own));
    }

    /// Gives back everything.
    pub(super) fn give_all(&mut self, room: &mut Room) {
        self.give(self.held, room);
    }

    /// Whether there is room for another item.
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
    fn what_is_given_back_can_be_taken_again() {
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
