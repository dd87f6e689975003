//! The states of a connection and the transitions between them (RFC 9293 §3.3.2), as data.

use std::fmt;

/// A connection's state (RFC 9293 §3.3.2). LISTEN belongs to the port, not to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// No connection: nothing is sent or accepted.
    Closed,
    /// A SYN was sent, none received.
    SynSent,
    /// A SYN was received and answered; our SYN is not acknowledged yet.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// Our FIN was sent, not acknowledged; the peer may still send.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer's FIN was received; we may still send.
    CloseWait,
    /// Both FINs were sent, ours is not acknowledged.
    Closing,
    /// The peer closed first; our FIN was sent and is not acknowledged.
    LastAck,
    /// Both directions are closed; the state lasts until old segments have left the network.
    TimeWait,
}

/// Event that moves a connection from state to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A SYN without an ACK arrived: simultaneous open.
    PeerSyn,
    /// Both SYNs are acknowledged.
    SynsAcknowledged,
    /// Our FIN went out.
    FinSent,
    /// Our FIN was acknowledged.
    FinAcknowledged,
    /// The peer's FIN arrived and everything before it was received.
    PeerFin,
    /// The 2·MSL timer expired.
    TimeWaitOver,
    /// The connection ended early: RST, a timeout, or a close before it was established.
    Abandoned,
}

impl State {
    /// Returns the state after `trigger`; `None` if the trigger has no meaning in this state.
    #[must_use]
    pub const fn after(self, trigger: Trigger) -> Option<Self> {
        Some(match (self, trigger) {
            (Self::Closed, _) => return None,
            (_, Trigger::Abandoned) => Self::Closed,
            (Self::SynSent, Trigger::PeerSyn) => Self::SynReceived,
            (Self::SynSent | Self::SynReceived, Trigger::SynsAcknowledged) => Self::Established,
            (Self::Established, Trigger::FinSent) => Self::FinWait1,
            (Self::Established, Trigger::PeerFin) => Self::CloseWait,
            (Self::FinWait1, Trigger::FinAcknowledged) => Self::FinWait2,
            (Self::FinWait1, Trigger::PeerFin) => Self::Closing,
            (Self::FinWait2, Trigger::PeerFin) => Self::TimeWait,
            (Self::CloseWait, Trigger::FinSent) => Self::LastAck,
            (Self::Closing, Trigger::FinAcknowledged) => Self::TimeWait,
            (Self::LastAck, Trigger::FinAcknowledged) => Self::Closed,
            (Self::TimeWait, Trigger::TimeWaitOver) => Self::Closed,
            _ => return None,
        })
    }

    /// Returns true if new data may be sent.
    #[must_use]
    pub const fn can_send(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    #[must_use]
    pub(crate) const fn can_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Both initial sequence numbers are agreed (RFC 9293 §3.5: "synchronized states").
    #[must_use]
    pub(crate) const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent | Self::SynReceived)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "CLOSED",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECEIVED",
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 10] = [
        State::Closed,
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
    ];
    const TRIGGERS: [Trigger; 7] = [
        Trigger::PeerSyn,
        Trigger::SynsAcknowledged,
        Trigger::FinSent,
        Trigger::FinAcknowledged,
        Trigger::PeerFin,
        Trigger::TimeWaitOver,
        Trigger::Abandoned,
    ];

    /// The diagram of RFC 9293 §3.3.2, Figure 5, as a table.
    #[test]
    fn the_transition_table_is_the_rfc_diagram() {
        let mut table = String::new();
        for state in STATES {
            for trigger in TRIGGERS {
                if let Some(next) = state.after(trigger).filter(|_| trigger != Trigger::Abandoned) {
                    table += &format!("{state} {trigger:?} {next}\n");
                }
            }
        }
        let expected = "\
            SYN-SENT PeerSyn SYN-RECEIVED\n\
            SYN-SENT SynsAcknowledged ESTABLISHED\n\
            SYN-RECEIVED SynsAcknowledged ESTABLISHED\n\
            ESTABLISHED FinSent FIN-WAIT-1\n\
            ESTABLISHED PeerFin CLOSE-WAIT\n\
            FIN-WAIT-1 FinAcknowledged FIN-WAIT-2\n\
            FIN-WAIT-1 PeerFin CLOSING\n\
            FIN-WAIT-2 PeerFin TIME-WAIT\n\
            CLOSE-WAIT FinSent LAST-ACK\n\
            CLOSING FinAcknowledged TIME-WAIT\n\
            LAST-ACK FinAcknowledged CLOSED\n\
            TIME-WAIT TimeWaitOver CLOSED\n";
        assert_eq!(table, expected);
    }

    #[test]
    fn every_open_state_can_be_abandoned_and_a_closed_one_stays_closed() {
        for state in STATES {
            let expected = (state != State::Closed).then_some(State::Closed);
            assert_eq!(state.after(Trigger::Abandoned), expected, "{state}");
        }
    }

    // spec: TCP-9293-9
    #[test]
    fn each_direction_closes_independently() {
        assert!(State::CloseWait.can_send() && !State::CloseWait.can_receive());
        assert!(!State::FinWait2.can_send() && State::FinWait2.can_receive());
    }
}
