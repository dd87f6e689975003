//! Explicit congestion notification: agreeing on it, echoing marks, and answering echoes
//! (RFC 3168 §6.1, RFC 8257 §3).

use arrayvec::ArrayVec;

use super::header::{Ecn, Flags, Header};
use super::seq::SeqNum;

/// Whether a connection uses ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnUse {
    /// Never.
    Off,
    /// When the peer asks for it.
    #[default]
    Accept,
    /// Ask for it, once: a SYN that has to be retransmitted does not, for there are paths that drop
    /// SYNs that ask (RFC 3168 §6.1.1.1).
    Ask,
}

/// The state of one connection.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct EcnState {
    choice: EcnUse,
    /// Marks are echoed one by one (RFC 8257 §3.2), not until the peer has reduced its window.
    exact: bool,
    /// Our SYN asked.
    asked: bool,
    /// Both ends use ECN.
    pub(crate) agreed: bool,
    /// Acknowledgments carry ECE ("DCTCP.CE" when exact).
    echo: bool,
    /// The next new data tells that the window was reduced.
    pub(crate) cwr_due: bool,
    /// Acknowledgments that must go first: their numbers, and whether they carry ECE.
    early: ArrayVec<(SeqNum, bool), EARLY_MAX>,
}

/// Changes between marked and unmarked segments that are told apart in one burst of arrivals.
const EARLY_MAX: usize = 4;
const SETUP: Flags = Flags::ECE.union(Flags::CWR);

impl EcnState {
    pub(crate) fn new(choice: EcnUse, exact: bool) -> Self {
        let early = ArrayVec::new();
        Self { choice, exact, asked: false, agreed: false, echo: false, early, cwr_due: false }
    }

    /// ECN bits of our SYN (RFC 3168 §6.1.1).
    pub(crate) fn syn_flags(&mut self, answer: bool, again: bool) -> Flags {
        if answer {
            return if self.agreed { Flags::ECE } else { Flags::empty() };
        }
        self.asked = self.choice == EcnUse::Ask && !again;
        if self.asked { SETUP } else { Flags::empty() }
    }

    /// The peer's SYN, or SYN-ACK.
    pub(crate) fn take_syn(&mut self, flags: Flags) {
        self.agreed = if flags.contains(Flags::ACK) {
            // "an ECN-setup SYN-ACK packet" has ECE set and CWR not.
            self.asked && flags.intersection(SETUP) == Flags::ECE
        } else {
            self.choice != EcnUse::Off && flags.contains(SETUP)
        };
    }

    /// ECN bits of an acknowledgment.
    pub(crate) fn echo_flags(&self) -> Flags {
        if self.echo { Flags::ECE } else { Flags::empty() }
    }

    /// Acceptable data came in. `unacknowledged`: the number to acknowledge, if data before it
    /// waits for its acknowledgment.
    pub(crate) fn on_data(&mut self, header: &Header, unacknowledged: Option<SeqNum>) {
        let marked = header.ecn == Ecn::Experienced;
        if !self.exact {
            // RFC 3168 §6.1.3: ECE in all acknowledgments until a CWR comes.
            self.echo &= !header.flags.contains(Flags::CWR);
            self.echo |= marked;
        } else if marked != self.echo {
            // RFC 8257 §3.2: what came before is acknowledged with its own mark.
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

    /// An acknowledgment that must go before the others: its number and its ECN bits.
    pub(crate) fn take_early(&mut self) -> Option<(SeqNum, Flags)> {
        let (number, echo) = self.early.pop_at(0)?;
        Some((number, if echo { Flags::ECE } else { Flags::empty() }))
    }

    /// ECN bits of new data.
    pub(crate) fn data_flags(&mut self) -> Flags {
        if std::mem::take(&mut self.cwr_due) { Flags::CWR } else { Flags::empty() }
    }

    /// The IP field of new data. Retransmissions and segments without data are not ECN-capable
    /// (RFC 3168 §6.1.4, §6.1.5).
    pub(crate) const fn data_field(&self) -> Ecn {
        if self.agreed { Ecn::Capable0 } else { Ecn::NotCapable }
    }
}
