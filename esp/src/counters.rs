//! Counters of all packets, and the reasons to drop one.

/// Reason to drop a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// Not a well-formed IP packet, or an ESP packet that is too short or has a wrong length.
    Malformed,
    /// A fragment: packets are reassembled before ESP, and are not cut before it.
    Fragment,
    /// Longer than an IP packet can be after encapsulation.
    TooLong,
    /// The caller's buffer has too little room in front of or behind the packet.
    NoRoom,
    /// A policy says DISCARD, or no policy matches.
    Policy,
    /// Cleartext that a policy protects, ICMP errors about protected packets included.
    Cleartext,
    /// No association has the SPI, or none was made in time for packets that waited.
    NoAssociation,
    /// Addresses, ports or encapsulation differ from those of the association.
    WrongForm,
    /// Sequence number received before, or left of the window.
    Replay,
    /// Integrity check value wrong.
    BadIcv,
    /// Padding or next header wrong, although the integrity check value is right.
    BadTrailer,
    /// The packet inside does not match the selector or the policy of its association.
    WrongSelector,
    /// The association's lifetime ended.
    LifetimeEnded,
    /// Dummy packet (RFC 4303 §2.6).
    Dummy,
    /// Congestion was marked on the outer header, but the inner packet is not ECN-capable (RFC 6040
    /// §4.2).
    Congestion,
    /// Too many packets wait for an association.
    WaitingFull,
    /// The cryptographic library refused to work.
    Crypto,
}

impl DropReason {
    /// All reasons, in the order of the table.
    pub const ALL: [Self; 17] = [
        Self::Malformed,
        Self::Fragment,
        Self::TooLong,
        Self::NoRoom,
        Self::Policy,
        Self::Cleartext,
        Self::NoAssociation,
        Self::WrongForm,
        Self::Replay,
        Self::BadIcv,
        Self::BadTrailer,
        Self::WrongSelector,
        Self::LifetimeEnded,
        Self::Dummy,
        Self::Congestion,
        Self::WaitingFull,
        Self::Crypto,
    ];

    /// Name of the counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Fragment => "fragments",
            Self::TooLong => "too_long",
            Self::NoRoom => "no_room",
            Self::Policy => "policy",
            Self::Cleartext => "cleartext",
            Self::NoAssociation => "no_association",
            Self::WrongForm => "wrong_form",
            Self::Replay => "replays",
            Self::BadIcv => "bad_icv",
            Self::BadTrailer => "bad_trailer",
            Self::WrongSelector => "wrong_selector",
            Self::LifetimeEnded => "lifetime_ended",
            Self::Dummy => "dummies",
            Self::Congestion => "congestion",
            Self::WaitingFull => "waiting_full",
            Self::Crypto => "crypto",
        }
    }
}

/// Packets and the bytes of their IP packets, in clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

impl Volume {
    pub(crate) const fn add(&mut self, len: usize) {
        self.packets += 1;
        self.bytes += len as u64;
    }
}

/// Counters of one processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sealed.
    pub sealed: Volume,
    /// Packets opened and accepted.
    pub opened: Volume,
    /// Packets sent in clear by a policy.
    pub bypassed_out: u64,
    /// Packets received in clear and admitted by a policy.
    pub bypassed_in: u64,
    /// NAT-keepalives received.
    pub keepalives: u64,
    /// Packets that had to wait for an association.
    pub waited: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Packets dropped for a reason.
    #[must_use]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Names and values of all counters of dropped packets.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason.name(), self.dropped(reason)))
    }

    pub(crate) const fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_and_a_name_of_its_own() {
        let mut counters = Counters::default();
        for (times, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, times, "{reason:?} is at its place");
            (0..times).for_each(|_| counters.drop(reason));
        }
        let table: Vec<_> = counters.drops().collect();
        assert!(table.iter().map(|(_, count)| *count).eq(0..17));
        let names: std::collections::BTreeSet<_> = table.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), table.len());
    }
}
