//! Files without a name, for data from standard input and to standard output.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file is deleted with its last handle.
pub(crate) fn unnamed_file() -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!(".urnic-{}-{number}", process::id()));
        let mut options = OpenOptions::new();
        match options.read(true).write(true).create_new(true).mode(0o600).open(&path) {
            // Left by a process that was killed exactly here.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => {
                fs::remove_file(&path)?;
                return Ok(file);
            }
        }
    }
}

pub(crate) fn spooled(input: &mut impl io::Read) -> io::Result<File> {
    let mut file = unnamed_file()?;
    io::copy(input, &mut file)?;
    Ok(file)
}
