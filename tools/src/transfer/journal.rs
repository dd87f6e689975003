//! Journal of the verified chunks of an incomplete file.
//!
//! A text file beside the incomplete one: a line about the file, then one for each verified chunk.
//! It may end anywhere, because its writer may be killed. A chunk in it is checked again before
//! use: after a loss of power the file may hold less than was written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};

use crate::transfer::chunk_count;

#[derive(Debug)]
pub(crate) struct Journal {
    /// `None` for a file that no later attempt can resume.
    file: Option<File>,
    chunks: BTreeMap<u64, u32>,
}

impl Journal {
    /// Begins a new journal if the file is none, or that of another file.
    pub(crate) fn open(mut file: File, len: u64) -> io::Result<Self> {
        let mut text = String::new();
        let len_max = HEADER_LEN_MAX + chunk_count(len).saturating_mul(LINE_LEN_MAX);
        // A file that is not text is no journal.
        let _not_text = (&file).take(len_max).read_to_string(&mut text);
        if let Some(chunks) = parse(&text, len) {
            let end = text.rfind('\n').map_or(0, |at| at as u64 + 1);
            // A truncated line is overwritten.
            file.set_len(end)?;
            file.seek(io::SeekFrom::End(0))?;
            return Ok(Self { file: Some(file), chunks });
        }
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(header(len).as_bytes())?;
        Ok(Self { file: Some(file), chunks: BTreeMap::new() })
    }

    pub(crate) const fn unkept() -> Self {
        Self { file: None, chunks: BTreeMap::new() }
    }

    pub(crate) const fn chunks(&self) -> &BTreeMap<u64, u32> {
        &self.chunks
    }

    pub(crate) fn add(&mut self, index: u64, crc: u32) -> io::Result<()> {
        if self.chunks.insert(index, crc) != Some(crc)
            && let Some(file) = &mut self.file
        {
            file.write_all(format!("{index} {crc:08x}\n").as_bytes())?;
        }
        Ok(())
    }

    /// The file as a whole is wrong.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.chunks.clear();
        self.file.as_ref().map_or(Ok(()), |file| file.set_len(0))
    }
}

fn header(len: u64) -> String {
    format!("urnic-journal 1 {len}\n")
}

/// `None` if it is not the journal of a file of `len` bytes. Later lines override earlier ones.
fn parse(text: &str, len: u64) -> Option<BTreeMap<u64, u32>> {
    let lines = text.strip_prefix(&header(len))?;
    let whole = &lines[..lines.rfind('\n').map_or(0, |at| at + 1)];
    whole
        .lines()
        .map(|line| {
            let (index, crc) = line.split_once(' ')?;
            let index = index.parse().ok().filter(|index| *index < chunk_count(len))?;
            Some((index, u32::from_str_radix(crc, 16).ok()?))
        })
        .collect()
}

const HEADER_LEN_MAX: u64 = 64;
const LINE_LEN_MAX: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::CHUNK_LEN;

    #[test]
    fn a_journal_is_read_up_to_where_its_writer_was_stopped() {
        let len = 5 * CHUNK_LEN;
        let text = header(len) + "0 00000001\n3 deadbeef\n4 000";
        assert_eq!(parse(&text, len), Some(BTreeMap::from([(0, 1), (3, 0xdead_beef)])));
        assert_eq!(parse(&header(len), len), Some(BTreeMap::new()));
    }

    #[test]
    fn invalid_and_foreign_journals_are_ignored() {
        let len = 5 * CHUNK_LEN;
        for text in [
            String::new(),
            "something else\n".into(),
            header(len + 1),
            header(len) + "5 00000001\n",
            header(len) + "x\n",
            header(len) + "0 g\n",
        ] {
            assert_eq!(parse(&text, len), None, "{text}");
        }
    }

    /// A writer that was killed leaves a line without its end, or without its text.
    #[test]
    fn a_line_cut_short_does_not_spoil_the_lines_added_after_it() {
        let len = 5 * CHUNK_LEN;
        for stump in ["4", "4 00", "4 00000000"] {
            let mut file = crate::transfer::unnamed_file().unwrap();
            file.write_all((header(len) + "0 00000001\n" + stump).as_bytes()).unwrap();
            let again = || {
                let mut file = file.try_clone().unwrap();
                file.rewind().unwrap();
                Journal::open(file, len).unwrap()
            };
            let mut journal = again();
            assert_eq!(journal.chunks(), &BTreeMap::from([(0, 1)]), "{stump}");
            journal.add(2, 7).unwrap();
            journal.add(0, 3).unwrap();
            let expected = BTreeMap::from([(0, 3), (2, 7)]);
            assert_eq!(again().chunks(), &expected, "{stump}");
            // The journal of another file is neither used nor extended.
            let mut file = file.try_clone().unwrap();
            file.rewind().unwrap();
            assert!(Journal::open(file, len + 1).unwrap().chunks().is_empty());
        }
    }

    #[test]
    fn forgotten_chunks_stay_forgotten_in_the_next_attempt() {
        let file = crate::transfer::unnamed_file().unwrap();
        let again = || {
            let mut file = file.try_clone().unwrap();
            file.rewind().unwrap();
            Journal::open(file, CHUNK_LEN).unwrap()
        };
        let mut journal = again();
        journal.add(0, 9).unwrap();
        journal.add(0, 9).unwrap();
        assert_eq!(file.metadata().unwrap().len(), header(CHUNK_LEN).len() as u64 + 11, "once");
        assert_eq!(again().chunks().len(), 1);
        journal.forget().unwrap();
        assert!(journal.chunks().is_empty() && again().chunks().is_empty());
    }
}
