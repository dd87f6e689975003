//! Lifetime of an association: limits by bytes, packets and time, soft and hard (RFC 4301 §4.4.2.1).

/// Two limits of one quantity: at the soft one a new association is asked for, at the hard one this
/// association ends. `u64::MAX` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Value from which on a new association is due.
    pub soft: u64,
    /// Value at which the association ends.
    pub hard: u64,
}

impl Limit {
    /// No limit.
    pub const NONE: Self = Self { soft: u64::MAX, hard: u64::MAX };
}

impl Default for Limit {
    fn default() -> Self {
        Self::NONE
    }
}

/// Limits of an association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Bytes of the packets inside.
    pub bytes: Limit,
    /// Packets.
    pub packets: Limit,
    /// Nanoseconds since the association was added.
    pub time_ns: Limit,
}

/// How much of a lifetime was used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    lifetime: Lifetime,
    since_ns: u64,
    bytes: u64,
    packets: u64,
    /// The soft limit was reported.
    soft_reported: bool,
}

/// State of a lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// No limit is reached.
    Young,
    /// A soft limit is reached.
    Soft,
    /// A hard limit is reached.
    Hard,
}

impl Usage {
    pub(crate) const fn new(lifetime: Lifetime, now_ns: u64) -> Self {
        Self { lifetime, since_ns: now_ns, bytes: 0, packets: 0, soft_reported: false }
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) const fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the age with another packet of `len` bytes.
    pub(crate) fn age_with(&self, now_ns: u64, len: usize) -> Age {
        self.age_of(now_ns, self.bytes.saturating_add(len as u64), self.packets.saturating_add(1))
    }

    /// Returns the age as it is.
    pub(crate) fn age(&self, now_ns: u64) -> Age {
        self.age_of(now_ns, self.bytes, self.packets)
    }

    /// Bytes and packets may reach the hard limit, but not exceed it.
    fn age_of(&self, now_ns: u64, bytes: u64, packets: u64) -> Age {
        let Lifetime { bytes: of_bytes, packets: of_packets, time_ns } = self.lifetime;
        let age_ns = now_ns.saturating_sub(self.since_ns);
        if bytes > of_bytes.hard || packets > of_packets.hard || age_ns >= time_ns.hard {
            Age::Hard
        } else if bytes >= of_bytes.soft || packets >= of_packets.soft || age_ns >= time_ns.soft {
            Age::Soft
        } else {
            Age::Young
        }
    }

    /// Counts a packet.
    pub(crate) const fn charge(&mut self, len: usize) {
        self.bytes = self.bytes.saturating_add(len as u64);
        self.packets = self.packets.saturating_add(1);
    }

    /// Returns true the first time that a soft limit is reached, or that `other` says so.
    pub(crate) fn take_soft_if(&mut self, other: bool, now_ns: u64) -> bool {
        let due = !self.soft_reported && (other || self.age(now_ns) == Age::Soft);
        self.soft_reported |= due;
        due
    }

    /// Returns the time at which the next limit of time is reached.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let Limit { soft, hard } = self.lifetime.time_ns;
        let limit = if self.soft_reported { hard } else { soft.min(hard) };
        (limit != u64::MAX).then(|| self.since_ns.saturating_add(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quantity_has_a_soft_and_a_hard_limit() {
        let limit = Limit { soft: 3, hard: 5 };
        let bytes = Lifetime { bytes: limit, ..Lifetime::default() };
        let packets = Lifetime { packets: limit, ..Lifetime::default() };
        for lifetime in [bytes, packets] {
            let mut usage = Usage::new(lifetime, 0);
            let ages: Vec<_> = (0..6)
                .map(|_| {
                    let age = usage.age_with(0, 1);
                    usage.charge(1);
                    age
                })
                .collect();
            let expected = [Age::Young, Age::Young, Age::Soft, Age::Soft, Age::Soft, Age::Hard];
            assert_eq!(ages, expected, "{lifetime:?}");
            assert_eq!((usage.bytes(), usage.packets()), (6, 6));
        }
        let mut usage = Usage::new(Lifetime { time_ns: limit, ..Lifetime::default() }, 100);
        assert_eq!(usage.deadline(), Some(103));
        let ages = [99, 102, 103, 104, 105].map(|now_ns| usage.age_with(now_ns, 1));
        assert_eq!(ages, [Age::Young, Age::Young, Age::Soft, Age::Soft, Age::Hard]);
        assert_eq!(
            [102, 103, 104].map(|now_ns| usage.take_soft_if(false, now_ns)),
            [false, true, false]
        );
        assert_eq!(usage.deadline(), Some(105));
    }

    #[test]
    fn without_limits_an_association_lives_for_ever() {
        let mut usage = Usage::new(Lifetime::default(), 0);
        usage.charge(usize::MAX - 1);
        assert_eq!((usage.age(u64::MAX - 1), usage.deadline()), (Age::Young, None));
    }
}
