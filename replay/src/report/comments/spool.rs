//! Final comments, in a file that is deleted with the process, until the capture is written.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

#[derive(Debug)]
pub(crate) struct Spool {
    file: BufWriter<File>,
}

#[derive(Debug)]
pub(crate) struct Spooled {
    file: BufReader<File>,
    next: Option<(u64, String)>,
}

impl Spool {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { file: BufWriter::new(tempfile::tempfile()?) })
    }

    pub(crate) fn put(&mut self, (frame, text): (u64, String)) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let len = u32::try_from(text.len()).unwrap_or(0);
        self.file.write_all(&frame.to_ne_bytes())?;
        self.file.write_all(&len.to_ne_bytes())?;
        self.file.write_all(text.as_bytes())
    }

    pub(crate) fn read(self) -> io::Result<Spooled> {
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        let mut spooled = Spooled { file: BufReader::new(file), next: None };
        spooled.advance()?;
        Ok(spooled)
    }
}

impl Spooled {
    /// Skips comments on earlier frames.
    pub(crate) fn of(&mut self, frame: u64) -> io::Result<Option<String>> {
        while let Some((number, text)) = self.next.take() {
            if number > frame {
                self.next = Some((number, text));
                break;
            }
            self.advance()?;
            if number == frame {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    fn advance(&mut self) -> io::Result<()> {
        let (mut number, mut len) = ([0; 8], [0; 4]);
        self.next = match self.file.read_exact(&mut number) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(error),
            Ok(()) => {
                self.file.read_exact(&mut len)?;
                let mut text = String::new();
                let len = u64::from(u32::from_ne_bytes(len));
                self.file.by_ref().take(len).read_to_string(&mut text)?;
                Some((u64::from_ne_bytes(number), text))
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_gets_its_own_comment() {
        let mut spool = Spool::new().unwrap();
        for (frame, text) in [(2, "two"), (3, ""), (5, "five"), (9, "nine")] {
            spool.put((frame, text.to_owned())).unwrap();
        }
        let mut spooled = spool.read().unwrap();
        let found: Vec<_> = (1..=6).map(|frame| spooled.of(frame).unwrap()).collect();
        let five = Some("five".to_owned());
        assert_eq!(found, [None, Some("two".to_owned()), None, None, five, None]);
        assert_eq!(spooled.of(20).unwrap(), None);
    }
}
