//! Where frames go, and when that is enough.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use urnic_netdev::interface::Name;
use urnic_replay::live::{LiveFile, LiveFrame};

/// Where frames go.
pub(crate) struct Sink {
    pub(super) file: Option<LiveFile<Box<dyn Write>>>,
    /// Frames so far.
    pub(super) frames: u64,
    count_max: u64,
    len_max: u64,
    /// Enough has been taken.
    pub(super) is_full: bool,
    error: Option<io::Error>,
}

impl Sink {
    /// Frames go into a new file at `path`, or are only counted: as many, and a file as long, at most.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(crate) fn new(
        path: Option<&Path>,
        interface: Name,
        count_max: Option<u64>,
        len_max: Option<u64>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            file: path.map(|path| create(path, interface)).transpose()?,
            frames: 0,
            count_max: count_max.unwrap_or(u64::MAX),
            len_max: len_max.unwrap_or(u64::MAX),
            is_full: false,
            error: None,
        })
    }

    pub(super) fn take(&mut self, frame: &LiveFrame, comment: Option<&str>) {
        if self.is_full || self.error.is_some() {
            return;
        }
        if let Some(file) = &mut self.file {
            match file.frame(frame, comment, self.len_max) {
                Ok(true) => {}
                Ok(false) => {
                    self.is_full = true;
                    return;
                }
                Err(error) => self.error = Some(error),
            }
        }
        self.frames += 1;
        self.is_full = self.frames >= self.count_max;
    }

    /// Writes what is buffered, and tells what went wrong.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(file) = &mut self.file
            && self.error.is_none()
        {
            self.error = file.flush().err();
        }
        self.error.take().map_or(Ok(()), |error| Err(error).context("writing the capture"))
    }
}

/// Opens the file.
fn create(path: &Path, interface: Name) -> anyhow::Result<LiveFile<Box<dyn Write>>> {
    let sink: Box<dyn Write> = if path.as_os_str() == "-" {
        Box::new(BufWriter::new(io::stdout()))
    } else {
        let file = fs::File::create(path).with_context(|| format!("making {}", path.display()))?;
        Box::new(BufWriter::new(file))
    };
    let program = format!("urnic {}", env!("URNIC_VERSION"));
    LiveFile::new(sink, interface.as_str(), &program).context("writing the capture")
}
