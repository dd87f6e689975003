//! The processes that are reading an answer: limited in number and in time.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::limits::{READ_TIME_MAX, READERS_MAX};
use urnic_engine::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Audience {
    readers: Vec<Reader>,
}

#[derive(Debug)]
struct Reader {
    stream: UnixStream,
    answer: Arc<str>,
    written: usize,
    until: Instant,
}

impl Audience {
    pub(super) const fn is_full(&self) -> bool {
        self.readers.len() >= READERS_MAX
    }

    /// The stream never blocks.
    pub(super) fn admit(&mut self, now: Instant, stream: UnixStream, answer: Arc<str>) {
        if !self.is_full() && stream.set_nonblocking(true).is_ok() {
            self.readers.push(Reader { stream, answer, written: 0, until: now + READ_TIME_MAX });
        }
    }

    /// Drops readers that have everything, have closed or take too long.
    pub(super) fn write(&mut self, now: Instant) {
        self.readers.retain_mut(|reader| reader.write() && now < reader.until);
    }

    pub(super) fn streams(&self) -> impl Iterator<Item = &UnixStream> {
        self.readers.iter().map(|reader| &reader.stream)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.readers.iter().map(|reader| reader.until).min()
    }
}

impl Reader {
    fn write(&mut self) -> bool {
        loop {
            let rest = &self.answer.as_bytes()[self.written..];
            if rest.is_empty() {
                return false;
            }
            match self.stream.write(rest) {
                Ok(len) => self.written += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::thread;

    use super::*;

    #[test]
    fn clients_that_do_not_read_are_limited_and_dropped_in_time() {
        let answer: Arc<str> = "x".repeat(1 << 20).into();
        let (mut audience, now) = (Audience::default(), Instant::ZERO);
        let mut silent = Vec::new();
        for number in 0..READERS_MAX + 3 {
            assert_eq!(audience.is_full(), number >= READERS_MAX, "{number}");
            let (near, far) = UnixStream::pair().unwrap();
            audience.admit(now, near, Arc::clone(&answer));
            silent.push(far);
            audience.write(now);
        }
        assert_eq!(audience.streams().count(), READERS_MAX);
        let until = audience.deadline().unwrap();
        audience.write(until);
        assert!(!audience.is_full() && audience.deadline().is_none());
    }

    #[test]
    fn reading_client_gets_all_beside_one_that_does_not_read() {
        let answer: Arc<str> = "0123456789".repeat(1 << 16).into();
        let (mut audience, now) = (Audience::default(), Instant::ZERO);
        let (near, _silent) = UnixStream::pair().unwrap();
        audience.admit(now, near, Arc::clone(&answer));
        let (near, mut far) = UnixStream::pair().unwrap();
        audience.admit(now, near, Arc::clone(&answer));
        let reader = thread::spawn(move || {
            let mut text = String::new();
            far.read_to_string(&mut text).unwrap();
            text
        });
        while audience.streams().count() > 1 {
            audience.write(now);
            thread::yield_now();
        }
        assert!(reader.join().unwrap() == *answer);
    }
}
