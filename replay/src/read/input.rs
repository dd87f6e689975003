//! Captures from pipes: they can be read only once, but replay reads twice.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Source of a capture.
#[derive(Debug)]
pub enum Input {
    /// A file, opened again for each pass.
    File(PathBuf),
    /// A source that can be read only once, and a copy of its data, deleted with the process.
    Once {
        /// Set until it is opened.
        source: Option<Box<File>>,
        /// Data read so far.
        copy: Option<File>,
    },
}

/// A capture being read.
#[derive(Debug)]
pub enum Opened {
    /// A file, or the copy.
    File(File),
    /// First pass: data is copied while it is read.
    First {
        /// The source.
        source: Box<File>,
        /// The copy.
        copy: File,
    },
}

impl Input {
    /// Opens the source of the capture at `path`; standard input for `-`.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn of(path: &Path) -> io::Result<Self> {
        let source = if path.as_os_str() == "-" {
            File::from(rustix::io::dup(io::stdin())?)
        } else {
            let file = File::open(path)?;
            if file.metadata()?.is_file() {
                return Ok(Self::File(path.to_owned()));
            }
            file
        };
        Ok(Self::Once { source: Some(Box::new(source)), copy: None })
    }

    /// Starts reading at the first byte.
    ///
    /// # Errors
    /// If the file cannot be opened, or the copy cannot be created.
    pub fn open(&mut self) -> io::Result<Opened> {
        match self {
            Self::File(path) => File::open(path).map(Opened::File),
            Self::Once { source, copy } => {
                if let Some(source) = source.take() {
                    let spool = tempfile::tempfile().map_err(copying)?;
                    *copy = Some(spool.try_clone().map_err(copying)?);
                    return Ok(Opened::First { source, copy: spool });
                }
                let copy = copy.as_ref().ok_or(io::ErrorKind::NotFound)?;
                let mut again = copy.try_clone().map_err(copying)?;
                again.seek(SeekFrom::Start(0)).map_err(copying)?;
                Ok(Opened::File(again))
            }
        }
    }
}

impl Read for Opened {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::First { source, copy } => {
                let len = source.read(buffer)?;
                copy.write_all(&buffer[..len]).map_err(copying)?;
                Ok(len)
            }
        }
    }
}

fn copying(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("copying what comes from a pipe: {error}"))
}
