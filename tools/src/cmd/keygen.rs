//! `urnic keygen`.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::keys::{Key, check_name};
use crate::report;

/// Make a key for 'urnic serve --keys' and for its clients
///
/// Writes one line, the name and the key, to a new file that only you can read.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file; it must not exist yet
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Name of the key in the server's log; the file's name without its extension if this is not
    /// given
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

const EXAMPLES: &str = "\
Client and server need the same key: each proves to the other that it has it. The server's file has
a line for each client, with rights after the key: read lets the client get files, write lets it put
files; folder=DIR is a folder within --dir that holds its files, and quota=SIZE limits what it puts.
Without rights a client can only measure: ping, bw, lat. Who has the file has the rights.

Exit status: 0 when the key was made, 2 when not.

Examples:
  urnic keygen alice.key
      Make a key with the name alice.
  (umask 077; echo \"$(cat alice.key) read write quota=10G\" >> server.keys)
      Give its holder rights at the server; no other user may read that file.
  urnic serve --listen 0.0.0.0 --dir /srv/files --keys server.keys
  urnic put backup.tar server --key alice.key";

/// Runs the command.
///
/// # Errors
/// If the file exists or cannot be written, or the name is invalid.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = args.file.display();
    let name = match &args.name {
        Some(name) => name.clone(),
        None => args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    };
    check_name(&name).with_context(|| format!("'{name}' cannot be the name (--name)"))?;
    let key = Key::random()?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&args.file);
    let mut file = file.with_context(|| shown.to_string())?;
    writeln!(file, "{name} {}", key.text()).with_context(|| shown.to_string())?;
    report::print(&format!("{shown} has the key of {name}"))?;
    Ok(ExitCode::SUCCESS)
}
