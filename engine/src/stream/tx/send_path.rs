//! Whether payload is gathered from where it is, or copied into the frame.

/// How payload gets into frames.
///
/// A frame that refers to many short runs of memory costs the kernel more than one run of the same
/// length does: a super-frame at MTU 1500 is 88 runs, with markers 300. Copying them into the
/// frame, with the CRC in the same pass, can be sooner done. What is copied is counted:
/// [`RdmaTxCounters::bytes_staged`](crate::counters::RdmaTxCounters::bytes_staged).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendPath {
    /// As the device says: runs of memory shorter than
    /// [`Capabilities::gather_len_min`](urnic_netdev::Capabilities::gather_len_min) are copied. So is
    /// payload that markers cut, if it has a CRC: a digest that is begun anew behind each marker takes
    /// longer than the copy of what it then runs over in one go.
    #[default]
    Auto,
    /// All payload is gathered from where it is. Nothing is copied but by the device.
    Gather,
    /// All payload is copied into the frame.
    Stage,
}

impl SendPath {
    /// Whether payload that markers cut is copied, whatever the device says.
    pub(super) const fn stages_marked(self) -> bool {
        matches!(self, Self::Auto)
    }

    /// Bytes of a run from which on it is gathered, on a device that says `device`.
    pub(super) const fn gather_len_min(self, device: usize) -> usize {
        match self {
            Self::Auto => device,
            Self::Gather => 0,
            Self::Stage => usize::MAX,
        }
    }
}
