//! A thread for each transfer: reads, checks and writes the file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{
    Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel,
};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use urnic::{Qp, monotonic_now};
use urnic_engine::time::Instant;

use crate::channel::Channel;
use crate::protocol::{CHECKS_MAX, Control};
use crate::server::accounts::Place;

/// Handle of a thread that answers control messages about a file, in order.
#[derive(Debug)]
pub(super) struct ControlThread {
    /// `None` after the session has ended.
    questions: Option<SyncSender<Control>>,
    answers: Receiver<Control>,
    open: usize,
    answered_at: Instant,
    has_last_word: bool,
    gone: Arc<AtomicBool>,
}

impl ControlThread {
    /// The thread holds `place` until it ends. It calls `waker` after each answer and at its end.
    pub(super) fn start(
        place: &Arc<Place>,
        waker: &Waker,
        work: impl FnOnce(&Desk) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (sender, questions) = sync_channel(CHECKS_MAX);
        let (answers_tx, answers) = channel();
        let gone = Arc::new(AtomicBool::new(false));
        let at_end = WakeAtEnd(waker.clone());
        let desk = Desk { questions, answers: answers_tx, at_end, gone: Arc::clone(&gone) };
        let place = Arc::clone(place);
        let body = move || {
            // The place is free when all resources of the thread are, also if the work panics.
            let _place = place;
            let desk = desk;
            work(&desk);
        };
        thread::Builder::new()
            .name("urnic-file".to_owned())
            .spawn(body)
            .context("starting a thread for the file")?;
        Ok(Self {
            questions: Some(sender),
            answers,
            open: 0,
            answered_at: monotonic_now(),
            has_last_word: false,
            gone,
        })
    }

    pub(super) fn ask(&mut self, question: Control) -> anyhow::Result<()> {
        let Some(questions) = &self.questions else { bail!("the file's thread has ended") };
        match questions.try_send(question) {
            Ok(()) => {
                self.open += 1;
                Ok(())
            }
            Err(TrySendError::Full(_)) => bail!("the peer asked too many questions at a time"),
            Err(TrySendError::Disconnected(_)) => bail!("the file's thread has ended"),
        }
    }

    /// Forwards an answer, or sends [`Control::Working`] every [`WORKING_INTERVAL`].
    pub(super) fn turn(&mut self, qp: &Qp, to: &mut Channel) -> anyhow::Result<Option<Control>> {
        match self.answers.try_recv() {
            Ok(answer) => {
                self.open = self.open.saturating_sub(1);
                self.answered_at = monotonic_now();
                to.send(qp, &answer)?;
                self.has_last_word = matches!(answer, Control::Failed(_) | Control::NotVerified);
                return Ok(Some(answer));
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) if self.open == 0 => {}
            Err(TryRecvError::Disconnected) => bail!("the file's thread has ended"),
        }
        if self.open > 0 && monotonic_now() - self.answered_at >= WORKING_INTERVAL {
            self.answered_at = monotonic_now();
            to.send(qp, &Control::Working)?;
        }
        Ok(None)
    }

    /// Returns true if the peer was sent the reason of a failure, after which no answers follow.
    pub(super) const fn has_last_word(&self) -> bool {
        self.has_last_word
    }

    pub(super) const fn is_working(&self) -> bool {
        self.open > 0
    }

    pub(super) fn due(&self) -> Option<Instant> {
        (self.open > 0).then(|| self.answered_at + WORKING_INTERVAL)
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
        self.questions = None;
    }
}

struct WakeAtEnd(Waker);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}

/// The thread's end of the channels to its session.
pub(super) struct Desk {
    questions: Receiver<Control>,
    answers: Sender<Control>,
    /// Dropped after `answers`: the answers end first, then the session is woken.
    at_end: WakeAtEnd,
    gone: Arc<AtomicBool>,
}

impl Desk {
    /// `None` if the session is over.
    pub(super) fn next(&self) -> Option<Control> {
        self.questions.recv().ok().filter(|_| self.is_wanted())
    }

    /// [`TryRecvError::Disconnected`] if the session is over.
    pub(super) fn try_next(&self) -> Result<Control, TryRecvError> {
        // Questions of a session that is over still wait in the channel.
        if !self.is_wanted() {
            return Err(TryRecvError::Disconnected);
        }
        self.questions.try_recv()
    }

    /// Long work checks at every step that the session still exists.
    pub(super) fn is_wanted(&self) -> bool {
        !self.gone.load(Ordering::Relaxed)
    }

    pub(super) fn give(&self, answer: Control) {
        // The session may be over.
        let _gone = self.answers.send(answer);
        self.at_end.0.wake_by_ref();
    }
}

/// Interval of [`Control::Working`] messages while an answer is awaited.
const WORKING_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::server::accounts::Accounts;
    use crate::server::places::{Share, Source};

    /// Creates a desk whose session has ended after it asked `questions`.
    pub(in crate::server) fn desk_of_one_that_left(
        questions: Vec<Control>,
    ) -> (Desk, Receiver<Control>) {
        let (sender, receiver) = sync_channel(CHECKS_MAX);
        for question in questions {
            sender.send(question).unwrap();
        }
        let (answers, given) = channel();
        let gone = Arc::new(AtomicBool::new(true));
        let at_end = WakeAtEnd(Waker::noop().clone());
        (Desk { questions: receiver, answers, at_end, gone }, given)
    }

    #[test]
    fn no_request_of_an_ended_session_is_processed() {
        let (desk, _given) = desk_of_one_that_left(vec![Control::ShaRequest]);
        assert_eq!(desk.next(), None);
        assert!(!desk.is_wanted());
        let (desk, _given) = desk_of_one_that_left(vec![Control::DigestRequest { index: 0 }]);
        assert_eq!(desk.try_next(), Err(TryRecvError::Disconnected));
    }

    #[derive(Default)]
    struct Called(AtomicBool);

    impl std::task::Wake for Called {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// In every case of its end, so that its session does not wait for an answer that never comes.
    #[test]
    fn end_of_the_thread_is_signalled_after_its_last_answer() {
        let source = Source::of(([127, 0, 0, 1], 1).into());
        let mut accounts = Accounts::new(crate::server::tests::limits().places);
        let grant = accounts.take(Share { source, memory: 0 }).unwrap();
        let called = Arc::new(Called::default());
        let waker = Waker::from(Arc::clone(&called));
        let control_thread = ControlThread::start(grant.place().unwrap(), &waker, |_| {}).unwrap();
        drop(grant);
        while !called.0.load(Ordering::Acquire) {
            thread::yield_now();
        }
        assert_eq!(control_thread.answers.try_recv(), Err(TryRecvError::Disconnected));
        while accounts.taken().0.peers > 0 {
            thread::yield_now();
        }
    }
}
