//! Output of captured frames, and its limits.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use urnic_netdev::interface::Name;
use urnic_replay::live::{LiveFile, LiveFrame};

pub(crate) struct Sink {
    pub(super) target: Option<Target>,
    pub(super) frames: u64,
    /// Frames that the interface has lost, as far as known.
    pub(super) frames_lost: u64,
    count_max: u64,
    len_max: u64,
    pub(super) is_full: bool,
    error: Option<anyhow::Error>,
}

pub(super) struct Target {
    file: LiveFile<Box<dyn Write>>,
    interface: Name,
    snap_len: Option<u32>,
    path: PathBuf,
    ring: Option<Ring>,
}

struct Ring {
    files_max: usize,
    /// The last one is open.
    kept: VecDeque<PathBuf>,
    number: u64,
}

impl Sink {
    /// Frames go into a new file at `path`, or are only counted, up to the limits. With
    /// `files_max`, frames go on in the next file when one is full, and so many files are kept. A
    /// frame is cut to `snap_len` bytes.
    pub(crate) fn new(
        path: Option<&Path>,
        interface: Name,
        count_max: Option<u64>,
        len_max: Option<u64>,
        files_max: Option<usize>,
        snap_len: Option<u32>,
    ) -> anyhow::Result<Self> {
        let target = path.map(|path| Target::create(path, interface, files_max, snap_len));
        Ok(Self {
            target: target.transpose()?,
            frames: 0,
            frames_lost: 0,
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
        if let Some(target) = &mut self.target {
            match target.frame(frame, comment, self.len_max, self.frames_lost) {
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

    /// Returns an earlier error.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(target) = &mut self.target
            && self.error.is_none()
        {
            self.error = target.file.flush().context(WRITING).err();
        }
        self.error.take().map_or(Ok(()), Err)
    }

    /// Returns the file's name.
    pub(super) fn finish(&mut self, now_ns: u64) -> anyhow::Result<String> {
        let Some(target) = self.target.take() else { return Ok("no file".to_owned()) };
        let name = target.name();
        target.file.finish(now_ns, self.frames_lost).context(WRITING)?;
        Ok(name)
    }
}

impl Target {
    fn create(
        path: &Path,
        interface: Name,
        files_max: Option<usize>,
        snap_len: Option<u32>,
    ) -> anyhow::Result<Self> {
        let ring = files_max.map(|files_max| Ring { files_max, kept: VecDeque::new(), number: 1 });
        let first =
            ring.as_ref().map_or_else(|| path.to_owned(), |ring| numbered(path, ring.number));
        let file = create(&first, interface, snap_len)?;
        let mut target = Self { file, interface, snap_len, path: path.to_owned(), ring };
        if let Some(ring) = &mut target.ring {
            ring.kept.push_back(first);
        }
        Ok(target)
    }

    /// Returns false if the file is full, and no other file follows.
    fn frame(
        &mut self,
        frame: &LiveFrame,
        comment: Option<&str>,
        len_max: u64,
        frames_lost: u64,
    ) -> anyhow::Result<bool> {
        if self.file.frame(frame, comment, len_max).context(WRITING)? {
            return Ok(true);
        }
        if self.ring.is_none() {
            return Ok(false);
        }
        self.next_file(frame.at_ns, frames_lost)?;
        if !self.file.frame(frame, comment, len_max).context(WRITING)? {
            anyhow::bail!(
                "a file of --max-size has no room for a frame of {} bytes",
                frame.bytes.len().min(self.snap_len.map_or(usize::MAX, |len| len as usize))
            );
        }
        Ok(true)
    }

    /// Deletes the oldest.
    fn next_file(&mut self, now_ns: u64, frames_lost: u64) -> anyhow::Result<()> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        ring.number += 1;
        let path = numbered(&self.path, ring.number);
        let next = create(&path, self.interface, self.snap_len)?;
        std::mem::replace(&mut self.file, next).finish(now_ns, frames_lost).context(WRITING)?;
        ring.kept.push_back(path);
        if ring.kept.len() > ring.files_max
            && let Some(oldest) = ring.kept.pop_front()
        {
            let _gone = fs::remove_file(oldest);
        }
        Ok(())
    }

    /// Names the last file, and counts the files before it.
    fn name(&self) -> String {
        let last = self.ring.as_ref().and_then(|ring| Some((ring.kept.back()?, ring.kept.len())));
        match last {
            Some((path, files)) if files > 1 => {
                format!("{} and the {} before it", path.display(), files - 1)
            }
            Some((path, _)) => path.display().to_string(),
            None => self.path.display().to_string(),
        }
    }
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let dot = if extension.is_empty() { "" } else { "." };
    path.with_file_name(format!("{name}.{number:05}{dot}{extension}"))
}

fn create(
    path: &Path,
    interface: Name,
    snap_len: Option<u32>,
) -> anyhow::Result<LiveFile<Box<dyn Write>>> {
    let sink: Box<dyn Write> = if path.as_os_str() == "-" {
        Box::new(BufWriter::new(io::stdout()))
    } else {
        let file = fs::File::create(path).with_context(|| format!("making {}", path.display()))?;
        Box::new(BufWriter::new(file))
    };
    let program = format!("urnic {}", env!("URNIC_VERSION"));
    LiveFile::new(sink, interface.as_str(), &program, snap_len).context(WRITING)
}

const WRITING: &str = "writing the capture";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn frame(number: u64) -> LiveFrame {
        LiveFrame { at_ns: number, is_outbound: false, original_len: 1000, bytes: vec![0; 1000] }
    }

    fn files(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn ring(folder: &Path, files_max: usize, frames: u64) -> String {
        let path = folder.join("a.pcapng");
        let interface = "lo".parse().unwrap();
        let mut sink =
            Sink::new(Some(&path), interface, None, Some(4000), Some(files_max), None).unwrap();
        for number in 0..frames {
            sink.take(&frame(number), None);
            sink.check().unwrap();
        }
        assert_eq!((sink.frames, sink.is_full), (frames, false));
        sink.finish(0).unwrap()
    }

    #[test]
    fn a_full_file_is_followed_by_the_next_and_the_newest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        // Three frames of 1000 bytes are in a file of 4000.
        let told = ring(folder.path(), 3, 16);
        let kept = [4, 5, 6].map(|number| format!("a.{number:05}.pcapng"));
        assert_eq!(files(folder.path()), BTreeSet::from(kept.clone()));
        assert!(told.ends_with("a.00006.pcapng and the 2 before it"), "{told}");
        for name in kept {
            let len = fs::metadata(folder.path().join(&name)).unwrap().len();
            assert!((1000..=4000).contains(&len), "{name}: {len}");
        }
    }

    #[test]
    fn every_file_of_a_ring_has_the_snap_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcapng");
        let interface = "lo".parse().unwrap();
        let mut sink =
            Sink::new(Some(&path), interface, None, Some(700), Some(9), Some(200)).unwrap();
        for number in 0..5 {
            sink.take(&frame(number), None);
            sink.check().unwrap();
        }
        sink.finish(0).unwrap();
        let files = files(folder.path());
        assert!(files.len() > 1, "{files:?}");
        for name in files {
            let octets = fs::read(folder.path().join(&name)).unwrap();
            let section_len = u32::from_le_bytes(octets[4..8].try_into().unwrap());
            let at = usize::try_from(section_len).unwrap() + 12;
            assert_eq!(octets[at..at + 4], 200_u32.to_le_bytes(), "{name}");
        }
    }

    #[test]
    fn a_ring_of_one_file_keeps_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let told = ring(folder.path(), 1, 7);
        assert_eq!(files(folder.path()), BTreeSet::from(["a.00003.pcapng".to_owned()]));
        assert!(told.ends_with("a.00003.pcapng"), "{told}");
    }

    #[test]
    fn a_frame_that_no_file_has_room_for_ends_a_ring() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let interface = "lo".parse().unwrap();
        let mut sink = Sink::new(Some(&path), interface, None, Some(512), Some(2), None).unwrap();
        sink.take(&frame(0), None);
        let told = sink.check().unwrap_err().to_string();
        assert!(told.contains("no room for a frame of 1000 bytes"), "{told}");
        assert_eq!(numbered(&path, 2), folder.path().join("a.00002"));
    }

    #[test]
    fn a_capture_ends_with_the_requested_frame() {
        let mut sink = Sink::new(None, "lo".parse().unwrap(), Some(3), None, None, None).unwrap();
        let full = [0, 1, 2, 3].map(|number| {
            sink.take(&frame(number), None);
            (sink.frames, sink.is_full)
        });
        assert_eq!(full, [(1, false), (2, false), (3, true), (3, true)]);
        assert_eq!(sink.finish(0).unwrap(), "no file");
    }
}
