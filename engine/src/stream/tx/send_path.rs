//! Choice between gathering payload in place and copying it into the frame.

/// Method by which payload gets into frames. Many short runs of memory cost the kernel more than
/// one run: a super-frame at MTU 1500 has 88 runs, with markers 300. Copying them, with the CRC in
/// the same pass, can be faster
/// ([`RdmaTxCounters::bytes_staged`](crate::counters::RdmaTxCounters::bytes_staged)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendPath {
    /// Copies runs shorter than the device's
    /// [`gather_len_min`](urnic_netdev::Capabilities::gather_len_min), and payload that markers cut
    /// if it has a CRC: a digest that resumes after each marker takes longer than a copy and one
    /// digest over it.
    #[default]
    Auto,
    /// All payload is gathered in place. Only the device may copy.
    Gather,
    /// All payload is copied into the frame.
    Stage,
}

impl SendPath {
    pub(super) const fn stages_marked(self) -> bool {
        matches!(self, Self::Auto)
    }

    pub(super) const fn gather_len_min(self, device: usize) -> usize {
        match self {
            Self::Auto => device,
            Self::Gather => 0,
            Self::Stage => usize::MAX,
        }
    }
}
