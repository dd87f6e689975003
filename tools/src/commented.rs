//! Writes the output of `urnic replay --write`: the capture with a comment on each frame of iWARP.

use std::io::BufWriter;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::{fs, io};

use tempfile::{Builder, NamedTempFile};
use urnic_replay::{FrameComments, Written};

use crate::report::{complain, count};

pub(crate) fn is_same(source: &Path, target: &Path) -> bool {
    let source = match source.as_os_str() == "-" {
        true => rustix::fs::fstat(io::stdin()),
        false => rustix::fs::stat(source),
    };
    let file = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let target = rustix::fs::stat(target);
    source.is_ok_and(|source| target.is_ok_and(|target| file(source) == file(target)))
}

/// The new file replaces an earlier one when it is complete, and the capture itself (`is_own`) only
/// if all frames were copied.
pub(crate) fn write(
    comments: FrameComments,
    source: impl io::Read,
    target: &Path,
    is_own: bool,
) -> io::Result<Written> {
    let is_other = fs::metadata(target).is_ok_and(|known| !known.is_file());
    if target.as_os_str() == "-" {
        return comments.write(source, &mut BufWriter::new(io::stdout().lock()));
    }
    if is_other {
        let sink = fs::File::options().write(true).open(target)?;
        return comments.write(source, &mut BufWriter::new(sink));
    }
    // Replaces the target of a link, not the link.
    let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file = new_file(folder.unwrap_or_else(|| Path::new(".")), fs::metadata(&target).ok())?;
    let mut sink = BufWriter::new(file);
    let written = comments.write(source, &mut sink)?;
    if let (true, Some(why)) = (is_own, written.cut) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{why} after frame {}: later frames would be lost, so the capture was not changed; \
                 write to another file",
                written.frames
            ),
        ));
    }
    sink.into_inner().map_err(io::IntoInnerError::into_error)?.persist(target)?;
    Ok(written)
}

/// Creates a file that will replace `known`, with its permissions, and its owner if permitted.
fn new_file(folder: &Path, known: Option<fs::Metadata>) -> io::Result<NamedTempFile> {
    let Some(known) = known else {
        return Builder::new().permissions(fs::Permissions::from_mode(0o666)).tempfile_in(folder);
    };
    let file = NamedTempFile::new_in(folder)?;
    let _is_allowed = fchown(file.as_file(), Some(known.uid()), Some(known.gid()));
    file.as_file().set_permissions(known.permissions())?;
    Ok(file)
}

pub(crate) fn tell(target: &Path, written: &Written) {
    let name = match target.as_os_str() == "-" {
        true => "standard output".to_owned(),
        false => target.display().to_string(),
    };
    complain(&format!(
        "{name}: {} frames, {} with a comment",
        count(written.frames),
        count(written.commented)
    ));
    if let Some(why) = written.cut {
        complain(&format!("{why}: the copy ends with frame {}", written.frames));
    }
    if written.no_place > 0 {
        complain(&format!("{} frames have no place for their comment", written.no_place));
    }
    if written.late > 0 {
        complain(&format!(
            "{} findings came long after their frame: they are not in its comment",
            written.late
        ));
    }
}
