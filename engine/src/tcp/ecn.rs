//! Explicit congestion notification (RFC 3168 §6.1, RFC 8257 §3).

use arrayvec::ArrayVec;

use super::header::{Ecn, Flags, Header};
use super::seq::SeqNum;

/// Use of ECN by a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnUse {
    /// ECN is not used.
    Off,
    /// ECN is used if the peer offers it.
    #[default]
    Accept,
    /// Our SYN offers ECN, but no retransmitted one: some paths drop such SYNs (RFC 3168 §6.1.1.1).
    Ask,
}

#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct EcnState {
    choice: EcnUse,
    /// Marks are echoed one by one (RFC 8257 §3.2), not until the peer has reduced its window.
    exact: bool,
    asked: bool,
    pub(crate) agreed: bool,
    /// Acknowledgments carry ECE ("DCTCP.CE" when exact).
    echo: bool,
    /// The next new data must carry CWR: the window was reduced.
    pub(crate) cwr_due: bool,
    /// Acknowledgments that must be sent before others: their numbers, and whether they carry ECE.
    early: ArrayVec<(SeqNum, bool), EARLY_MAX>,
}

/// Most changes between marked and unmarked segments that one burst of arrivals can record.
const EARLY_MAX: usize = 4;
const SETUP: Flags = Flags::ECE.union(Flags::CWR);

impl EcnState {
    pub(crate) fn new(choice: EcnUse, exact: bool) -> Self {
        let early = ArrayVec::new();
        Self { choice, exact, asked: false, agreed: false, echo: false, early, cwr_due: false }
    }

    /// Returns the ECN bits of our SYN (RFC 3168 §6.1.1).
    pub(crate) fn syn_flags(&mut self, answer: bool, again: bool) -> Flags {
        if answer {
            return if self.agreed { Flags::ECE } else { Flags::empty() };
        }
        self.asked = self.choice == EcnUse::Ask && !again;
        if self.asked { SETUP } else { Flags::empty() }
    }

    pub(crate) fn take_syn(&mut self, flags: Flags) {
        self.agreed = if flags.contains(Flags::ACK) {
            // "an ECN-setup SYN-ACK packet" has ECE set and CWR not.
            self.asked && flags.intersection(SETUP) == Flags::ECE
        } else {
            self.choice != EcnUse::Off && flags.contains(SETUP)
        };
    }

    pub(crate) fn echo_flags(&self) -> Flags {
        if self.echo { Flags::ECE } else { Flags::empty() }
    }

    /// `unacknowledged` is the number to acknowledge if earlier data is not acknowledged yet.
    pub(crate) fn on_data(&mut self, header: &Header, unacknowledged: Option<SeqNum>) {
        let marked = header.ecn == Ecn::Experienced;
        if !self.exact {
            // RFC 3168 §6.1.3: ECE in all acknowledgments until a CWR arrives.
            self.echo &= !header.flags.contains(Flags::CWR);
            self.echo |= marked;
        } else if marked != self.echo {
            // RFC 8257 §3.2: earlier data is acknowledged with its own mark.
            if let Some(number) = unacknowledged
                && !self.early.is_full()
            {
                self.early.push((number, self.echo));
            }
            self.echo = marked;
        }
    }

    pub(crate) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Takes an acknowledgment that must be sent before the others: its number and its ECN bits.
    pub(crate) fn take_early(&mut self) -> Option<(SeqNum, Flags)> {
        let (number, echo) = self.early.pop_at(0)?;
        Some((number, if echo { Flags::ECE } else { Flags::empty() }))
    }

    pub(crate) fn data_flags(&mut self) -> Flags {
        if std::mem::take(&mut self.cwr_due) { Flags::CWR } else { Flags::empty() }
    }

    /// Retransmissions and segments without data are not ECN-capable (RFC 3168 §6.1.4, §6.1.5).
    pub(crate) const fn data_field(&self) -> Ecn {
        if self.agreed { Ecn::Capable0 } else { Ecn::NotCapable }
    }
}
