//! The stages of a connection's life and how each one ends, on every lower layer. The progress of
//! the startup and the closed halves determine the [`Stage`]. Its [`Row`] has the timer and the
//! events; [`Stage::meets`] derives the outcome of each action of the peer. Dropping a handle
//! closes the connection. A listener that ends leaves its connections in their stages. The end is
//! reported once: nothing is left to deliver, all work is completed, all memory except the
//! addresses is released. TIME-WAIT follows.

use crate::limits::{
    CLOSE_SILENCE_NS, FIRST_FPDU_PROBE_NS, LINGER_EXTENSIONS_MAX, LINGER_NS,
    MPA_FIRST_FPDU_TIMEOUT_NS, MPA_REPLY_TIMEOUT_NS, MPA_REQUEST_TIMEOUT_NS, OPEN_TIMEOUT_NS,
};
use crate::time::Duration;

/// Stage of a connection's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The Request waits for TCP to be established (RFC 9293 MUST-23).
    Opening,
    /// An initiator waits for the Reply.
    AwaitingReply,
    /// A responder waits for the Request.
    AwaitingRequest,
    /// The application must answer the Request.
    Answering,
    /// Bytes pass unframed: MPA has not been started, or was rejected (RFC 5044 §7.1.2 (6)).
    Streaming,
    /// This end closes in streaming mode, also after a rejection.
    Leaving,
    /// A responder waits for the ready-to-receive message it has asked for (RFC 6581 §9.2).
    AwaitingRtr,
    /// A responder without ready-to-receive message waits for the first FPDU (RFC 5044 §7.1.2 (4)).
    AwaitingFirstFpdu,
    /// Full operation in both directions.
    Running,
    /// The peer has closed; this end may go on sending (RFC 5041 §6.2.1).
    PeerClosed,
    /// This end closes, and has work that it must not send before the initiator's first FPDU.
    Silenced,
    /// This end closes, and finishes posted work.
    Draining,
    /// This end has closed; the peer may go on sending (RFC 5041 §6.2.1).
    HalfClosed,
    /// Both ends have closed; this end's FIN is not acknowledged.
    BothClosed,
    /// The startup or the stream has failed: a Terminate and a FIN are all that is sent.
    Failed,
    /// Reported as closed. The TCP of this crate keeps the addresses for two segment lifetimes.
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
    /// Probes every [`LifeTimes::probe`]: only a peer whose TCP is silent is given up.
    Probes,
    /// The 2·MSL timer of the lower layer (RFC 9293 §3.6.1).
    TimeWait,
}

/// Keep-alive probes by which the lower layer finds out if the peer is still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Probes {
    /// No probes: the peer's TCP acknowledges what this end has sent, or is given up.
    #[default]
    Off,
    /// While the initiator's first FPDU is awaited: [`Timer::Probes`].
    FirstFpdu,
    /// While a Response is awaited: the peer's TCP may have acknowledged the request before the
    /// peer disappeared, and nothing outstanding would reveal that.
    Response,
}

/// Event that restarts a stage's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// None: the stage ends with its timer.
    Never,
    /// An FPDU received, or bytes newly acknowledged by the peer.
    Progress,
    /// Bytes newly acknowledged by the peer, at most [`LINGER_EXTENSIONS_MAX`] times the duration.
    Acknowledgment,
}

/// Effect of a stage's timer when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// None.
    Nothing,
    /// The startup has failed; this end closes.
    FailStartup,
    /// All work fails, and this end closes: [`Stage::Failed`].
    GiveUp,
    /// All work fails, and the connection is reset.
    Reset,
}

/// Event that the application gets before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// None, only the end.
    Nothing,
    /// [`StreamEvent::StartupFailed`](super::StreamEvent::StartupFailed).
    StartupFailed,
    /// [`StreamEvent::PeerClosed`](super::StreamEvent::PeerClosed).
    PeerClosed,
    /// [`StreamEvent::Failed`](super::StreamEvent::Failed).
    Failed,
}

/// The table's entry for one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Timer that bounds the stage; `None` if the application decides how long it lasts.
    pub timer: Option<Timer>,
    /// Event that restarts the timer.
    pub restart: Restart,
    /// Effect of the timer when it expires.
    pub expiry: Expiry,
    /// Event when the peer closes its half.
    pub peer_closes: Notice,
    /// Event when the connection breaks: the peer resets it, or does not answer.
    pub lost: Notice,
}

/// Action of a peer in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// It continues as the protocol requires: FPDUs in full operation.
    Acts,
    /// It sends nothing, not even acknowledgments.
    IsSilent,
    /// Its TCP answers probes but takes no bytes, and nothing else arrives.
    AnswersProbes,
    /// It closes its half.
    Closes,
    /// It resets the connection.
    Resets,
}

/// Result of a peer's action in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The stage continues, or is followed by another stage of the table.
    Lasts,
    /// The effect in the row's [`Expiry`], after this timer.
    Expires(Timer),
    /// The application gets this event; the connection continues until this end closes.
    Tells(Notice),
    /// The application gets this event, and the end.
    Ends(Notice),
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
        const fn of(timer: Option<T>, restart: R, expiry: E, notice: [Notice; 2]) -> Row {
            Row { timer, restart, expiry, peer_closes: notice[0], lost: notice[1] }
        }
        const STARTUP: [Notice; 2] = [Notice::StartupFailed; 2];
        const FULL: [Notice; 2] = [Notice::PeerClosed, Notice::Failed];
        const STREAMING: [Notice; 2] = [Notice::PeerClosed, Notice::Nothing];
        const UNTOLD: [Notice; 2] = [Notice::Nothing; 2];
        match self {
            Self::Opening => of(Some(T::Open), R::Never, E::FailStartup, STARTUP),
            Self::AwaitingReply => of(Some(T::Reply), R::Never, E::FailStartup, STARTUP),
            // spec: SEC-T-6
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

    /// Result of `peer` in this stage. In every stage R2 (RFC 9293 §3.8.3) bounds the time for data
    /// that the peer does not acknowledge, and [`Probes::Response`] the time for a Response if its
    /// TCP is silent.
    #[must_use]
    pub const fn meets(self, peer: Peer) -> Outcome {
        let Row { timer, restart, peer_closes, lost, .. } = self.row();
        match (peer, timer) {
            // RFC 9293 §3.10.7.4: the peer may have left TIME-WAIT while this end's FIN was lost.
            (Peer::Acts | Peer::Resets, _) if matches!(self, Self::BothClosed) => {
                Outcome::Ends(Notice::Nothing)
            }
            (Peer::Resets, _) => Outcome::Ends(lost),
            (Peer::Closes, _) => match self {
                // There is no connection yet that the peer could close.
                Self::Opening => Outcome::Expires(Timer::Open),
                // The peer's FIN arrived before: a repeated one changes nothing.
                Self::PeerClosed => Outcome::Lasts,
                Self::BothClosed => Outcome::Expires(Timer::CloseSilence),
                Self::TimeWait => Outcome::Expires(Timer::TimeWait),
                // RFC 5044 §7.1.2 (4): this end can never send its posted work.
                Self::Silenced => Outcome::Ends(Notice::Failed),
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
    /// All actions of a peer.
    pub const ALL: [Self; 5] =
        [Self::Acts, Self::IsSilent, Self::AnswersProbes, Self::Closes, Self::Resets];
}

/// Durations of the timers in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeTimes {
    /// Until TCP is established ([`OPEN_TIMEOUT_NS`]); see
    /// [`tcp::Config::syn_timeout`](crate::tcp::Config::syn_timeout).
    pub open: Duration,
    /// Time from established TCP to a whole Reply ([`MPA_REPLY_TIMEOUT_NS`]).
    pub reply: Duration,
    /// Time until a whole Request has arrived ([`MPA_REQUEST_TIMEOUT_NS`]).
    pub request: Duration,
    /// Time until the initiator's first FPDU, if this end needs it ([`MPA_FIRST_FPDU_TIMEOUT_NS`]).
    pub first_fpdu: Duration,
    /// Time without progress of the peer, after this end has closed ([`CLOSE_SILENCE_NS`]).
    pub close_silence: Duration,
    /// Time until the peer closes after a rejection or a failure ([`LINGER_NS`]).
    pub linger: Duration,
    /// Time between probes while the initiator's first FPDU is awaited ([`FIRST_FPDU_PROBE_NS`]).
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
    /// Duration of `timer`; `None` for the timers of the lower layer.
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

    pub(crate) fn longest(&self, timer: Timer) -> Option<Duration> {
        Some(self.of(timer)? * LINGER_EXTENSIONS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stage, timer, its restart, its expiry; the event for a close, the event for a loss.
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
    fn stage_table_has_the_documented_rows() {
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
