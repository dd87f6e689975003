//! The stages of a connection's life and how each one ends: one table, the same over the TCP of
//! this crate and over a byte stream of the kernel.
//!
//! A [`Stage`] follows from what the startup has come to and which half is closed. Its [`Row`] says
//! which timer bounds it, what restarts that timer, what happens when it runs out, and what the
//! application is told when the peer closes or the connection breaks. [`Stage::meets`] reads the
//! row for each thing a peer can do.
//!
//! A handle that is dropped closes, as one that is held does when it is told to: there are no stages of
//! its own for it. A listener that goes lets no more in; the connections it has made stay in theirs.
//!
//! Whatever the stage, the end is told once: the lower layer has nothing more to deliver, all work
//! is completed, and all memory but the addresses is released. TIME-WAIT comes after that.

use crate::limits::{
    CLOSE_SILENCE_NS, FIRST_FPDU_PROBE_NS, LINGER_EXTENSIONS_MAX, LINGER_NS,
    MPA_FIRST_FPDU_TIMEOUT_NS, MPA_REPLY_TIMEOUT_NS, MPA_REQUEST_TIMEOUT_NS, OPEN_TIMEOUT_NS,
};
use crate::time::Duration;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The Request waits for TCP to be established (RFC 9293 MUST-23).
    Opening,
    /// An initiator waits for the Reply.
    AwaitingReply,
    /// A responder waits for the Request.
    AwaitingRequest,
    /// The application is to answer the Request.
    Answering,
    /// Bytes pass as they are: MPA has not been started, or was rejected (RFC 5044 §7.1.2 (6)).
    Streaming,
    /// This end closes in streaming mode, so after a rejection, too.
    Leaving,
    /// A responder waits for the ready-to-receive message it has asked for (RFC 6581 §9.2).
    AwaitingRtr,
    /// A responder without that waits for the initiator's first FPDU, which may take as long as the
    /// initiator likes (RFC 5044 §7.1.2 (4)).
    AwaitingFirstFpdu,
    /// Full operation in both directions.
    Running,
    /// The peer has closed; this end may go on sending (RFC 5041 §6.2.1).
    PeerClosed,
    /// This end closes, and has work that it may not send before the initiator's first FPDU.
    Silenced,
    /// This end closes, and finishes posted work.
    Draining,
    /// This end has closed; the peer may go on sending (RFC 5041 §6.2.1).
    HalfClosed,
    /// Both ends have closed; our FIN is not acknowledged.
    BothClosed,
    /// The startup or the stream has failed: a Terminate and a FIN are all that is sent.
    Failed,
    /// Told as closed. TCP of this crate keeps the addresses for two segment lifetimes.
    TimeWait,
}

/// A timer of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timer {
    /// [`LifeTimes::open`].
    Open,
    /// [`LifeTimes::reply`].
    Reply,
    /// [`LifeTimes::request`].
    Request,
    /// [`LifeTimes::first_fpdu`].
    FirstFpdu,
    /// [`LifeTimes::close_silence`].
    CloseSilence,
    /// [`LifeTimes::linger`].
    Linger,
    /// Keep-alive probes of the lower layer, [`LifeTimes::probe`] apart: only a peer whose TCP does
    /// not answer them is given up.
    Probes,
    /// The 2·MSL timer of the lower layer (RFC 9293 §3.6.1).
    TimeWait,
}

/// Whether the lower layer is to find out by keep-alive probes if the peer is still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Probes {
    /// No: what this end has sent, the peer's TCP acknowledges or is given up.
    #[default]
    Off,
    /// While the initiator's first FPDU is awaited: [`Timer::Probes`].
    FirstFpdu,
    /// While a Response to a Read or an Atomic is awaited: the request may be acknowledged long
    /// before, and a peer that is gone by then owes nothing that TCP could miss.
    Response,
}

/// What restarts a stage's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Nothing: the stage ends with its timer.
    Never,
    /// An FPDU received, or bytes that the peer acknowledges for the first time.
    Progress,
    /// Bytes that the peer acknowledges for the first time, until
    /// [`LINGER_EXTENSIONS_MAX`] times the duration have passed.
    Acknowledgment,
}

/// What happens when a stage's timer runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Nothing is left to happen.
    Nothing,
    /// The startup has failed; this end closes.
    FailStartup,
    /// All work fails, and this end closes: [`Stage::Failed`].
    GiveUp,
    /// All work fails, and the connection is reset.
    Reset,
}

/// What the application is told before the end, if the end is told at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing but the end.
    Nothing,
    /// [`StreamEvent::StartupFailed`](super::StreamEvent::StartupFailed).
    StartupFailed,
    /// [`StreamEvent::PeerClosed`](super::StreamEvent::PeerClosed).
    PeerClosed,
    /// [`StreamEvent::Failed`](super::StreamEvent::Failed).
    Failed,
}

/// What the table has for one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What bounds the stage; `None` where the application decides how long it lasts.
    pub timer: Option<Timer>,
    /// What restarts the timer.
    pub restart: Restart,
    /// What happens when it runs out.
    pub expiry: Expiry,
    /// What is told when the peer closes its half.
    pub peer_closes: Told,
    /// What is told when the connection breaks: the peer resets it, or does not answer.
    pub lost: Told,
}

/// What a peer does in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// It goes on as the protocol has it: FPDUs in full operation.
    Acts,
    /// Nothing comes from it, not even acknowledgments.
    IsSilent,
    /// Its TCP answers, but takes no bytes, and nothing else comes.
    AnswersProbes,
    /// It closes its half.
    Closes,
    /// It resets the connection.
    Resets,
}

/// What comes of a stage when the peer does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The stage goes on, or another takes its place that the table has.
    Lasts,
    /// As the row's [`Expiry`] says, after this timer.
    Expires(Timer),
    /// The application is told this; the connection goes on until this end closes.
    Tells(Told),
    /// The application is told this, and the end.
    Ends(Told),
}

impl Stage {
    /// All stages, in the order of a life.
    pub const ALL: [Self; 16] = [
        Self::Opening,
        Self::AwaitingReply,
        Self::AwaitingRequest,
        Self::Answering,
        Self::Streaming,
        Self::Leaving,
        Self::AwaitingRtr,
        Self::AwaitingFirstFpdu,
        Self::Running,
        Self::PeerClosed,
        Self::Silenced,
        Self::Draining,
        Self::HalfClosed,
        Self::BothClosed,
        Self::Failed,
        Self::TimeWait,
    ];

    /// The table.
    #[must_use]
    pub const fn row(self) -> Row {
        use {Expiry as E, Restart as R, Timer as T};
        const fn of(timer: Option<T>, restart: R, expiry: E, told: [Told; 2]) -> Row {
            Row { timer, restart, expiry, peer_closes: told[0], lost: told[1] }
        }
        const STARTUP: [Told; 2] = [Told::StartupFailed; 2];
        const FULL: [Told; 2] = [Told::PeerClosed, Told::Failed];
        const STREAMING: [Told; 2] = [Told::PeerClosed, Told::Nothing];
        const UNTOLD: [Told; 2] = [Told::Nothing; 2];
        match self {
            Self::Opening => of(Some(T::Open), R::Never, E::FailStartup, STARTUP),
            Self::AwaitingReply => of(Some(T::Reply), R::Never, E::FailStartup, STARTUP),
            Self::AwaitingRequest => of(Some(T::Request), R::Never, E::FailStartup, STARTUP),
            Self::Answering => of(None, R::Never, E::Nothing, STARTUP),
            Self::Streaming => of(None, R::Never, E::Nothing, STREAMING),
            Self::Leaving => of(Some(T::Linger), R::Acknowledgment, E::Reset, STREAMING),
            Self::AwaitingRtr => of(Some(T::FirstFpdu), R::Progress, E::GiveUp, FULL),
            Self::AwaitingFirstFpdu => of(Some(T::Probes), R::Never, E::GiveUp, FULL),
            Self::Running | Self::PeerClosed => of(None, R::Never, E::Nothing, FULL),
            Self::Silenced => of(Some(T::FirstFpdu), R::Progress, E::GiveUp, FULL),
            Self::Draining => of(Some(T::CloseSilence), R::Progress, E::GiveUp, FULL),
            Self::HalfClosed => of(Some(T::CloseSilence), R::Progress, E::Reset, FULL),
            Self::BothClosed => of(Some(T::CloseSilence), R::Progress, E::Reset, FULL),
            Self::Failed => of(Some(T::Linger), R::Acknowledgment, E::Reset, UNTOLD),
            Self::TimeWait => of(Some(T::TimeWait), R::Never, E::Nothing, UNTOLD),
        }
    }

    /// What comes of the stage when the peer does `peer`. Work that the peer's TCP does not
    /// acknowledge has its own bound there (R2 of RFC 9293 §3.8.3), whatever the stage; and so has a
    /// Response that does not come from a TCP that does not answer either ([`Probes::Response`]).
    #[must_use]
    pub const fn meets(self, peer: Peer) -> Outcome {
        let Row { timer, restart, peer_closes, lost, .. } = self.row();
        match (peer, timer) {
            // RFC 9293 §3.10.7.4: the peer may have left TIME-WAIT while our FIN was being lost.
            (Peer::Acts | Peer::Resets, _) if matches!(self, Self::BothClosed) => {
                Outcome::Ends(Told::Nothing)
            }
            (Peer::Resets, _) => Outcome::Ends(lost),
            (Peer::Closes, _) => match self {
                // There is nothing yet that the peer could close.
                Self::Opening => Outcome::Expires(Timer::Open),
                // The peer's FIN has come before: repeated, it changes nothing.
                Self::PeerClosed => Outcome::Lasts,
                Self::BothClosed => Outcome::Expires(Timer::CloseSilence),
                Self::TimeWait => Outcome::Expires(Timer::TimeWait),
                // RFC 5044 §7.1.2 (4): what this end has posted never can be sent.
                Self::Silenced => Outcome::Ends(Told::Failed),
                Self::Streaming
                | Self::AwaitingRtr
                | Self::AwaitingFirstFpdu
                | Self::Running
                | Self::Draining => Outcome::Tells(peer_closes),
                _ => Outcome::Ends(peer_closes),
            },
            (_, None) | (Peer::AnswersProbes, Some(Timer::Probes)) => Outcome::Lasts,
            (Peer::Acts, Some(timer)) => match restart {
                Restart::Never if matches!(self, Self::TimeWait) => Outcome::Expires(timer),
                Restart::Never | Restart::Progress => Outcome::Lasts,
                Restart::Acknowledgment => Outcome::Expires(timer),
            },
            (Peer::IsSilent | Peer::AnswersProbes, Some(timer)) => Outcome::Expires(timer),
        }
    }
}

impl Peer {
    /// All that a peer can do.
    pub const ALL: [Self; 5] =
        [Self::Acts, Self::IsSilent, Self::AnswersProbes, Self::Closes, Self::Resets];
}

/// How long the timers of the table run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeTimes {
    /// For TCP to be established ([`OPEN_TIMEOUT_NS`]). A port's TCP has its own bound besides:
    /// [`tcp::Config::syn_timeout`](crate::tcp::Config::syn_timeout).
    pub open: Duration,
    /// For a whole Reply, from when TCP is established ([`MPA_REPLY_TIMEOUT_NS`]).
    pub reply: Duration,
    /// For a whole Request ([`MPA_REQUEST_TIMEOUT_NS`]).
    pub request: Duration,
    /// For the initiator's first FPDU where this end has asked for one, or closes
    /// ([`MPA_FIRST_FPDU_TIMEOUT_NS`]).
    pub first_fpdu: Duration,
    /// For a peer without progress, once this end closes ([`CLOSE_SILENCE_NS`]).
    pub close_silence: Duration,
    /// For the peer to close after a rejection or a failure ([`LINGER_NS`]).
    pub linger: Duration,
    /// Between keep-alive probes while the initiator's first FPDU is awaited
    /// ([`FIRST_FPDU_PROBE_NS`]).
    pub probe: Duration,
}

impl Default for LifeTimes {
    fn default() -> Self {
        Self {
            open: Duration::from_nanos(OPEN_TIMEOUT_NS),
            reply: Duration::from_nanos(MPA_REPLY_TIMEOUT_NS),
            request: Duration::from_nanos(MPA_REQUEST_TIMEOUT_NS),
            first_fpdu: Duration::from_nanos(MPA_FIRST_FPDU_TIMEOUT_NS),
            close_silence: Duration::from_nanos(CLOSE_SILENCE_NS),
            linger: Duration::from_nanos(LINGER_NS),
            probe: Duration::from_nanos(FIRST_FPDU_PROBE_NS),
        }
    }
}

impl LifeTimes {
    /// How long `timer` runs; `None` for those of the lower layer.
    #[must_use]
    pub const fn of(&self, timer: Timer) -> Option<Duration> {
        match timer {
            Timer::Open => Some(self.open),
            Timer::Reply => Some(self.reply),
            Timer::Request => Some(self.request),
            Timer::FirstFpdu => Some(self.first_fpdu),
            Timer::CloseSilence => Some(self.close_silence),
            Timer::Linger => Some(self.linger),
            Timer::Probes | Timer::TimeWait => None,
        }
    }

    /// The longest that acknowledgments may deferred the end of a stage.
    pub(crate) fn longest(&self, timer: Timer) -> Option<Duration> {
        Some(self.of(timer)? * LINGER_EXTENSIONS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stage, timer, what restarts it, what happens then; what is told of a close, of a loss.
    const TABLE: &str = "\
        Opening Open Never FailStartup StartupFailed StartupFailed\n\
        AwaitingReply Reply Never FailStartup StartupFailed StartupFailed\n\
        AwaitingRequest Request Never FailStartup StartupFailed StartupFailed\n\
        Answering - Never Nothing StartupFailed StartupFailed\n\
        Streaming - Never Nothing PeerClosed Nothing\n\
        Leaving Linger Acknowledgment Reset PeerClosed Nothing\n\
        AwaitingRtr FirstFpdu Progress GiveUp PeerClosed Failed\n\
        AwaitingFirstFpdu Probes Never GiveUp PeerClosed Failed\n\
        Running - Never Nothing PeerClosed Failed\n\
        PeerClosed - Never Nothing PeerClosed Failed\n\
        Silenced FirstFpdu Progress GiveUp PeerClosed Failed\n\
        Draining CloseSilence Progress GiveUp PeerClosed Failed\n\
        HalfClosed CloseSilence Progress Reset PeerClosed Failed\n\
        BothClosed CloseSilence Progress Reset PeerClosed Failed\n\
        Failed Linger Acknowledgment Reset Nothing Nothing\n\
        TimeWait TimeWait Never Nothing Nothing Nothing\n";

    #[test]
    fn the_table_is_this() {
        let mut table = String::new();
        for stage in Stage::ALL {
            let Row { timer, restart, expiry, peer_closes, lost } = stage.row();
            let timer = timer.map_or_else(|| "-".to_owned(), |timer| format!("{timer:?}"));
            table +=
                &format!("{stage:?} {timer} {restart:?} {expiry:?} {peer_closes:?} {lost:?}\n");
        }
        assert_eq!(table, TABLE);
    }

    #[test]
    fn a_stage_lasts_for_ever_only_where_the_application_decides() {
        for stage in Stage::ALL {
            let row = stage.row();
            let applications =
                [Stage::Answering, Stage::Streaming, Stage::Running, Stage::PeerClosed];
            assert_eq!(row.timer.is_none(), applications.contains(&stage), "{stage:?}");
            // A peer that says nothing at all keeps no stage that has a timer.
            let silence = stage.meets(Peer::IsSilent);
            assert_eq!(silence, row.timer.map_or(Outcome::Lasts, Outcome::Expires), "{stage:?}");
            assert!(!matches!(stage.meets(Peer::Resets), Outcome::Lasts | Outcome::Expires(_)));
        }
    }

    #[test]
    fn each_timer_has_its_limit() {
        let times = LifeTimes::default();
        let seconds = |timer| times.of(timer).map(|duration| duration.as_secs());
        assert_eq!(seconds(Timer::Open), Some(180));
        assert_eq!(seconds(Timer::Reply), Some(30));
        assert_eq!(seconds(Timer::Request), Some(30));
        assert_eq!(seconds(Timer::FirstFpdu), Some(30));
        assert_eq!(seconds(Timer::CloseSilence), Some(100));
        assert_eq!(seconds(Timer::Linger), Some(20));
        assert_eq!([seconds(Timer::Probes), seconds(Timer::TimeWait)], [None, None]);
        assert_eq!(times.probe.as_secs(), 75);
        assert_eq!(times.longest(Timer::Linger).unwrap().as_secs(), 100);
    }
}
