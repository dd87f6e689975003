//! The `urnic` command: the library's functions on a terminal.
//!
//! This file only dispatches: each command is a file in [`cmd`].
//!
//! Exit status: 0 on success, 1 if a verification failed, 2 if the command failed (usage, files, a
//! peer that does not answer).
#![forbid(unsafe_code)]

mod address;
mod bw;
mod capture;
mod channel;
mod client;
mod clock;
mod cmd;
mod commented;
mod counters;
mod demo;
mod device;
mod figure;
#[cfg(test)]
mod figures_page;
mod file_report;
mod help;
mod host;
mod ib;
mod impair;
mod info;
mod interrupt;
mod keys;
mod lat;
mod logging;
mod measure;
mod network;
mod progress;
mod protocol;
mod report;
mod rping;
mod server;
mod size;
mod terminated;
mod top;
mod transfer;
mod units;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(test)]
#[global_allocator]
static COUNTING: urnic_testkit::counting::Counting = urnic_testkit::counting::Counting;

/// A software RNIC: RDMA over plain Ethernet, in user space.
#[derive(Debug, Parser)]
#[command(name = "urnic", version = env!("URNIC_VERSION"), propagate_version = true)]
#[command(arg_required_else_help = true, after_long_help = EXAMPLES, after_help = SHORT)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Log to standard error, with times: off, error, warn, info, debug or trace, for all or for
    /// modules (urnic::tcp=debug)
    #[arg(long, global = true, env = "URNIC_LOG", value_name = "LEVEL", hide_env_values = true,
          value_parser = logging::filter, help_heading = "Diagnosis")]
    log: Option<logging::Filter>,
}

const SHORT: &str = "\
A server is HOST, HOST:PORT or [IPV6]:PORT. 'urnic --help' has examples, 'urnic COMMAND --help' more.";

const EXAMPLES: &str = "\
A server is HOST, HOST:PORT or [IPV6]:PORT; the default port is 7174. 'urnic COMMAND --help' has
more; 'urnic man DIR' writes manual pages, 'urnic completions SHELL' completions.

Exit status: 0 on success, 1 if a verification failed, 2 if the command failed (options, files, a
peer that does not answer), 130 if a signal ended it before it had a result.

Environment:
  URNIC_LOG  as --log
  URNIC_TOP  1 shows the endpoint of a command to 'urnic top', as --top
  XDG_RUNTIME_DIR  folder of the sockets for 'urnic top' and of the libraries of 'urnic run'
  TMPDIR  folder for copies of standard input that has to be read twice
  COLUMNS  width of these texts if standard output is no terminal; 100 without it
  NO_COLOR  leaves out colours

Examples:
  urnic serve --listen 0.0.0.0 --dir /srv/files
      Serve peers over the kernel's TCP: no privilege is needed.
  urnic ping server                      Does it answer, and how soon?
  urnic bw server --op read --bidir      How high is the rate, both ways at once?
  urnic lat server --all-sizes           How long does a message take, by its size?
  urnic put backup.tar server            Send a file to it.
  urnic demo                             See it work within one process.
  urnic replay capture.pcap              See what happened in a capture.";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(cmd::serve::Args),
    Ping(cmd::ping::Args),
    Bw(cmd::bw::Args),
    Lat(cmd::lat::Args),
    Put(cmd::put::Args),
    Get(cmd::get::Args),
    Keygen(cmd::keygen::Args),
    Info(cmd::info::Args),
    Demo(cmd::demo::Args),
    Replay(cmd::replay::Args),
    Capture(cmd::capture::Args),
    Top(cmd::top::Args),
    Rping(cmd::rping::Args),
    Run(cmd::run::Args),
    Sim(cmd::sim::Args),
    Impair(cmd::impair::Args),
    Ibgate(cmd::ibgate::Args),
    Ibswitch(cmd::ibswitch::Args),
    Completions(cmd::completions::Args),
    Man(cmd::man::Args),
    /// Print every option of every command
    #[command(hide = true)]
    DumpOptions,
}

impl Command {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(args) => cmd::demo::run(&args),
            Self::Serve(args) => cmd::serve::run(&args),
            Self::Ping(args) => cmd::ping::run(&args),
            Self::Bw(args) => cmd::bw::run(&args),
            Self::Lat(args) => cmd::lat::run(&args),
            Self::Put(args) => cmd::put::run(&args),
            Self::Get(args) => cmd::get::run(&args),
            Self::Keygen(args) => cmd::keygen::run(&args),
            Self::Info(args) => cmd::info::run(&args),
            Self::Replay(args) => cmd::replay::run(&args),
            Self::Capture(args) => cmd::capture::run(&args),
            Self::Top(args) => cmd::top::run(&args),
            Self::Rping(args) => cmd::rping::run(&args),
            Self::Run(args) => cmd::run::run(&args),
            Self::Sim(args) => cmd::sim::run(&args),
            Self::Impair(args) => cmd::impair::run(&args),
            Self::Ibgate(args) => cmd::ibgate::run(&args),
            Self::Ibswitch(args) => cmd::ibswitch::run(&args),
            Self::Completions(args) => cmd::completions::run(&args, &mut Cli::command()),
            Self::Man(args) => cmd::man::run(&args, Cli::command()),
            Self::DumpOptions => cmd::dump_options::run(&mut Cli::command()),
        }
    }
}

const EXIT_UNVERIFIED: u8 = 1;
/// Exit status of a command that failed; clap uses it for wrong usage.
const EXIT_UNUSABLE: u8 = 2;

fn parse() -> Result<Cli, clap::Error> {
    let mut tree = help::tree::<Cli>();
    let matches = tree.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut tree))
}

fn main() -> ExitCode {
    // Also for a command line that cannot be parsed: who asked for JSON gets the reason as JSON.
    let mut words = std::env::args_os().skip(1).take_while(|word| word != "--");
    let (mut is_json, mut is_stream) = (false, false);
    words.by_ref().for_each(|word| {
        is_json |= word == OsStr::new("--json");
        is_stream |= word == OsStr::new("-");
    });
    // Standard output belongs to the file.
    is_json &= !is_stream;
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            if is_json && error.use_stderr() {
                let text = error.render().to_string();
                report::fail_as_json(text.trim_start_matches("error: "), EXIT_UNUSABLE);
            }
            error.exit();
        }
    };
    logging::start(cli.log);
    match cli.command.run() {
        Ok(code) => code,
        // The reader has read enough, for example 'head -1'.
        Err(error) if report::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let status = match () {
                () if error.is::<client::Unverified>() => EXIT_UNVERIFIED,
                () if file_report::is_interrupted(&error) => interrupt::STATUS,
                () => EXIT_UNUSABLE,
            };
            let text = format!("{error:#}");
            report::complain(&text);
            if is_json {
                report::fail_as_json(&text, status);
            }
            ExitCode::from(status)
        }
    }
}
