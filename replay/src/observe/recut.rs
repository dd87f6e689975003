//! Places where segments without whole FPDUs were cut, as far as a capture shows.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) aligned: u64,
    pub(crate) unaligned: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// Counts at the place that had a segment first, and at another.
    pub(crate) places: [Cut; 2],
    /// Set if segments are longer than the MSS.
    pub(crate) is_offloaded: bool,
    /// Set if checksums are not filled in: the frames were captured in the sending host.
    pub(crate) is_at_sender: bool,
    /// Set if FPDUs are longer than the sender's segments.
    pub(crate) has_long_fpdus: bool,
}

impl Evidence {
    pub(crate) fn told(&self) -> &'static str {
        let [first, second] = self.places;
        let is_whole = |cut: Cut| cut.aligned > 0 && cut.aligned >= 9 * cut.unaligned;
        match () {
            () if is_whole(first) && second.unaligned > 0 && !is_whole(second) => {
                "they are aligned at the place that captured them first, and not at the other: a \
                 device between the two recut them"
            }
            () if is_whole(second) && first.unaligned > 0 && !is_whole(first) => {
                "they are aligned at one place, and not at the place that captured them first: a \
                 device between the two joined or cut them"
            }
            () if self.has_long_fpdus => {
                "the sender's FPDUs are longer than its segments, even if a device also cut them"
            }
            () if self.is_offloaded => {
                "segments are longer than the MSS, so a device joined or cut them outside this capture: the \
                 segments on the wire are not known"
            }
            () if self.is_at_sender => {
                "they were captured in the sending host, before its device: the sender's own TCP cut them"
            }
            () => {
                "one place cannot show if the sender's own TCP or a device on the way cut them: \
                 capture at the sender, too"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_locates_where_segments_were_cut() {
        let none = Cut::default();
        let (whole, cut) = (Cut { aligned: 90, unaligned: 10 }, Cut { aligned: 5, unaligned: 95 });
        let told = |places, flags: [bool; 3]| {
            let [is_offloaded, is_at_sender, has_long_fpdus] = flags;
            Evidence { places, is_offloaded, is_at_sender, has_long_fpdus }.told()
        };
        assert!(told([whole, cut], [true; 3]).contains("between the two recut"));
        assert!(told([cut, whole], [true; 3]).contains("between the two joined or cut"));
        assert!(told([cut, cut], [true, true, true]).contains("longer than its segments"));
        assert!(told([cut, none], [true, true, false]).contains("are not known"));
        assert!(told([cut, none], [false, true, false]).contains("own TCP cut them"));
        assert!(told([cut, none], [false; 3]).contains("one place cannot show"));
        assert!(told([whole, none], [false; 3]).contains("one place cannot show"));
    }
}
