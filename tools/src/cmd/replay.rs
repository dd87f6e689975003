//! `urnic replay`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use anyhow::Context;
use urnic_replay::compare::Comparison;
use urnic_replay::input::Input;
use urnic_replay::{FileReport, Options, PicturedFile, Report, Written, compare, page, text};

use crate::report::{complain, print, print_json};
use crate::{EXIT_UNUSABLE, EXIT_UNVERIFIED, commented, size};

/// Analyse captures of iWARP with the engine's receive code
///
/// Nothing is sent to a network. Frames of pcap and pcapng files (Ethernet, raw IP, IP over
/// InfiniBand, Linux cooked, PPP; with VLAN tags, MPLS labels, GRE, VXLAN or IP in IP around them)
/// go through the engine's own TCP, MPA, DDP and RDMAP receive code, one passive endpoint per
/// direction. The command makes up buffers for the STags that occur, and reports a hash of the data
/// written to each. Findings say where a peer departed from the RFCs (error), where a session
/// failed or the capture is incomplete (warning), and other facts worth knowing (note).
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Capture files, pcap or pcapng, plain or compressed by gzip or zstd; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Write an HTML page with pictures of the connections: one file that needs no other
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Write each picture as a file of its own into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Write a copy of the capture to this file, as pcapng, each frame of iWARP with a comment that
    /// Wireshark shows; the name - is standard output, with no other output there
    ///
    /// A comment gives the frame's position in its stream and its alignment with FPDUs, the FPDUs
    /// that it completes, and the rules that they break. Everything else in the capture stays as it
    /// is: names, interfaces, secrets, earlier comments.
    #[arg(long, short, value_name = "FILE.pcapng")]
    write: Option<PathBuf>,

    /// Compare the longest connections of two captures; or of one capture, with placement out of
    /// order and with placement in order only. With --json or --report, the output is the
    /// comparison
    #[arg(long)]
    compare: bool,

    /// Unpack at most this much of a compressed file, such as 20G
    ///
    /// Without it the limit is 1 GiB, or 64 times the length of the file if that is more. The
    /// command refuses the rest of a file with more data: a short file could take hours.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    unpack_max: Option<u64>,

    /// Exit with status 1 if any finding is an error
    #[arg(long)]
    strict: bool,
}

const EXAMPLES: &str = "\
Exit status: 0 if all files were read, 1 with --strict if a finding is an error, 2 if a file cannot
be read, or with --write if it cannot be copied completely. Of a truncated capture the complete
frames are read. Input from a pipe is copied to a temporary file, because it is read twice.

Examples:
  urnic replay pcaps/siw-write-crc.pcap
  urnic replay --json a.pcap b.pcapng | jq '.files[].connections[].findings'
  urnic replay --strict *.pcapng
  urnic replay --report page.html pcaps/demo-markers-reorder.pcapng
  urnic replay --write commented.pcapng capture.pcap
  urnic replay --compare before.pcap after.pcap
  urnic replay --compare --report page.html before.pcap after.pcap
  ssh host tcpdump -i eth0 -w - tcp port 7174 | urnic replay -";

fn replay_file(
    path: &Path,
    options: Options,
    write: Option<&Path>,
) -> anyhow::Result<(PicturedFile, Written)> {
    let mut input = Input::of(path);
    let mut open = || match &mut input {
        Ok(input) => input.open(),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    };
    let name = path.to_string_lossy();
    let Some(target) = write else {
        return Ok((urnic_replay::replay_with(options, &name, open), Written::default()));
    };
    let (mut file, comments) = urnic_replay::replay_commented(options, &name, &mut open)
        .context("making a temporary file")?;
    // If nothing could be read, the report says so.
    let mut written = Written::default();
    if file.report.frames > 0 || file.report.error.is_none() {
        let is_own = commented::is_same(path, target);
        let copied = open().and_then(|source| commented::write(comments, source, target, is_own));
        written = copied.with_context(|| format!("writing {}", target.display()))?;
        commented::tell(target, &written);
        file.report.written = Some(written);
    }
    Ok((file, written))
}

fn write_pictures(
    args: &Args,
    files: &[PicturedFile],
    compared: Option<&Result<Comparison<'_>, String>>,
) -> anyhow::Result<()> {
    let page = || match compared {
        None => Some(page::of(files)),
        Some(Ok(compared)) => Some(compare::page(compared)),
        // A failed comparison has no page.
        Some(Err(_)) => None,
    };
    if let Some((path, page)) = args.report.as_ref().and_then(|path| Some((path, page()?))) {
        fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(folder) = &args.svg {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        for (name, svg) in page::pictures(files) {
            let path = folder.join(name).with_extension("svg");
            fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_pictured = args.compare || args.report.is_some() || args.svg.is_some();
    let options = Options { is_pictured, unpacked_max: args.unpack_max };
    let write = args.write.as_deref();
    let is_stream = write.is_some_and(|target| target.as_os_str() == "-");
    if write.is_some() && args.files.len() > 1 {
        anyhow::bail!(
            "--write takes one capture: join several first (mergecap -w all.pcapng FILE ...)"
        );
    }
    if is_stream && (args.json || args.compare) {
        anyhow::bail!("--write - leaves no room on standard output for --json or --compare");
    }
    let replayed = args.files.iter().map(|path| replay_file(path, options, write));
    let (files, written): (Vec<PicturedFile>, Vec<Written>) =
        replayed.collect::<anyhow::Result<_>>()?;
    let is_written_whole = !written.iter().any(|written| written.is_malformed);
    let compared = args.compare.then(|| compare::of(&files));
    write_pictures(args, &files, compared.as_ref())?;
    let mut is_readable = true;
    for FileReport { file, error, .. } in files.iter().map(|one| &one.report) {
        if let Some(error) = error {
            is_readable = false;
            complain(&format!("{file}: {error}"));
        }
    }
    let printed = match compared {
        _ if is_stream => Some(Ok(())),
        Some(Ok(compared)) if args.json => Some(print_json(&compared)),
        Some(Ok(compared)) => Some(print(compare::text(&compared).trim_end())),
        Some(Err(_)) if !is_readable && !args.json => Some(Ok(())),
        Some(Err(reason)) => return Err(anyhow::Error::msg(reason)),
        None => None,
    };
    let report = Report { files: files.into_iter().map(|file| file.report).collect() };
    let printed = printed.unwrap_or_else(|| match args.json {
        true => print_json(&report),
        false => print(text::of(&report).trim_end()),
    });
    match printed {
        // A reader that has read enough may close the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        result => result.context("writing the report")?,
    }
    Ok(match () {
        () if !is_readable || !is_written_whole => ExitCode::from(EXIT_UNUSABLE),
        () if args.strict && report.has_errors() => ExitCode::from(EXIT_UNVERIFIED),
        () => ExitCode::SUCCESS,
    })
}
