//! Delay of answers to RDMA Reads of no bytes, which only say that everything before them is
//! placed. If such an answer waits a moment, it goes in one write with the application's own
//! answer. Where no message follows, answers do not wait.

use urnic_engine::time::{Duration, Instant};

/// Limit of an answer's wait for a message. A polling application needs a tenth of this time.
const WAIT_MAX: Duration = Duration::from_micros(20);

/// Consecutive waits in vain after which answers are sent at once.
const MISSES_MAX: u32 = 4;

/// Answers sent at once before one waits again: twice as many each time that no message followed.
const AT_ONCE_MAX: u32 = 1024;

#[derive(Debug)]
pub(super) struct AnswerWait {
    until: Option<Instant>,
    misses: u32,
    at_once: u32,
    at_once_next: u32,
}

impl AnswerWait {
    pub(super) const fn new() -> Self {
        Self { until: None, misses: 0, at_once: 0, at_once_next: 1 }
    }

    /// Returns true if the bytes are `only_answers` and should wait a moment.
    pub(super) fn waits(&mut self, now: Instant, only_answers: bool) -> bool {
        match self.until {
            None if !only_answers => false,
            None if self.at_once > 0 => {
                self.at_once -= 1;
                false
            }
            None => {
                self.until = Some(now + WAIT_MAX);
                true
            }
            Some(_) if !only_answers => {
                *self = Self::new();
                false
            }
            Some(until) if now < until => true,
            Some(_) => {
                self.missed();
                false
            }
        }
    }

    const fn missed(&mut self) {
        self.until = None;
        self.misses += 1;
        if self.misses >= MISSES_MAX {
            self.at_once = self.at_once_next;
            let doubled = self.at_once_next * 2;
            self.at_once_next = if doubled < AT_ONCE_MAX { doubled } else { AT_ONCE_MAX };
        }
    }

    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000);

    #[test]
    fn response_is_sent_with_the_following_message() {
        let mut answers = AnswerWait::new();
        for _ in 0..100 {
            assert!(answers.waits(BEGIN, true));
            assert_eq!(answers.poll_timeout(), Some(BEGIN + WAIT_MAX));
            assert!(answers.waits(BEGIN + WAIT_MAX / 2, true));
            assert!(!answers.waits(BEGIN + WAIT_MAX / 2, false));
            assert_eq!(answers.poll_timeout(), None);
        }
    }

    #[test]
    fn responses_do_not_wait_if_no_message_follows() {
        let (mut answers, mut now, mut waited) = (AnswerWait::new(), BEGIN, 0);
        for _ in 0..100_000 {
            if answers.waits(now, true) {
                waited += 1;
                now = now + WAIT_MAX;
                assert!(!answers.waits(now, true), "no longer than that");
            }
        }
        assert!((MISSES_MAX..150).contains(&waited), "{waited}");
        // A message follows again, and the answers before it wait again.
        while !answers.waits(now, true) {}
        assert!(!answers.waits(now, false));
        assert!(answers.waits(now, true));
    }

    #[test]
    fn messages_without_responses_do_not_wait() {
        let mut answers = AnswerWait::new();
        assert!(!answers.waits(BEGIN, false));
        assert_eq!(answers.poll_timeout(), None);
    }
}
