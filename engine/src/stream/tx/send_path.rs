//! Choice between gathering payload in place and copying it into the frame.

/// Method by which payload gets into frames.
///
/// A frame that references many short runs of memory costs the kernel more than one run of the same
/// length: a super-frame at MTU 1500 has 88 runs, with markers 300. Copying them into the frame,
/// with the CRC in the same pass, can be faster. Copied bytes are counted:
/// [`RdmaTxCounters::bytes_staged`](crate::counters::RdmaTxCounters::bytes_staged).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendPath {
    /// Decides by the device: runs of memory shorter than
    /// [`Capabilities::gather_len_min`](urnic_netdev::Capabilities::gather_len_min) are copied.
    /// Payload that markers cut is copied too if it has a CRC: a digest that resumes after each
    /// marker takes longer than a copy and one digest over it.
    #[default]
    Auto,
    /// All payload is gathered in place. Only the device may copy.
    Gather,
    /// All payload is copied into the frame.
    Stage,
}

impl SendPath {
    /// Returns true if payload that markers cut is copied, whatever the device reports.
    pub(super) const fn stages_marked(self) -> bool {
        matches!(self, Self::Auto)
    }

    /// Shortest run that is gathered in place. `device` is the value that the device reports.
    pub(super) const fn gather_len_min(self, device: usize) -> usize {
        match self {
            Self::Auto => device,
            Self::Gather => 0,
            Self::Stage => usize::MAX,
        }
    }
}
