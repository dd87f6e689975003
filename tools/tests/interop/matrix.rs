//! The engine against the Linux driver siw and the stock programs of rdma-core, in a guest.
//!
//! ```text
//! cargo test -p urnic-tools --test interop            all of it, guest build included
//! cargo test -p urnic-tools --test interop -- WORD…   the cases whose name contains a WORD
//! ```
//!
//! Needs root (network namespaces, Debian packages). The guest is kept in `$URNIC_CACHE`, by default
//! `target/interop`; `tools/tests/interop/guest/build.sh CACHE --remove` removes it. Without the programs
//! this prints why it skips; with `URNIC_REQUIRE=1` that fails.
#![expect(clippy::print_stdout, reason = "a table of what worked is what this program is for")]
#![expect(clippy::disallowed_methods, reason = "real programs run in real time")]

mod behind_gate;
mod drop_in;
mod guest;
mod lab;
mod liar;
mod many;
mod pings;
mod process;
mod refusals;
mod shared;
mod sudden;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use urnic_testkit::programs;

use crate::guest::{Guest, Network};
use crate::lab::Lab;
use crate::table::Table;

/// Set in a process that runs inside a namespace: the folder of the guest.
const INSIDE: &str = "URNIC_INTEROP_INSIDE";
/// Set beside it: the name of the part of the cases that the process runs.
const PART: &str = "URNIC_INTEROP_PART";

fn main() -> ExitCode {
    let outcome = if std::env::var_os(INSIDE).is_some() { inside() } else { outside() };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("interop: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the guest, then runs the cases in a namespace whose end ends all processes in it.
fn outside() -> anyhow::Result<bool> {
    if let Some(missing) = missing() {
        urnic_testkit::skip("interop", &missing);
        return Ok(true);
    }
    let cache = cache();
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/guest/build.sh");
    let built = Command::new(build).arg(&cache).status().context("building the guest")?;
    ensure!(built.success(), "the guest could not be built");
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    // A guest has one processor and often waits: two parts at the same time take half as long.
    // Selected cases are few: one guest.
    let is_selection = words.iter().any(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let parts: &[&str] = if is_selection { &["all"] } else { &["single", "many"] };
    let mut running = Vec::new();
    for part in parts {
        // `unshare` ignores signals: the kernel must kill it when this process ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "--pid", "--fork", "--kill-child"])
            .arg("--")
            .arg(std::env::current_exe()?)
            .args(&words)
            .env(INSIDE, &cache)
            .env(PART, part)
            .spawn()
            .context("setpriv")?;
        running.push(child);
    }
    let mut is_success = true;
    for mut child in running {
        is_success &= child.wait()?.success();
    }
    Ok(is_success)
}

/// Returns the reason why this cannot run here.
fn missing() -> Option<String> {
    if let Some(missing) = programs::missing(["unshare", "setpriv", "apt-get", "dpkg", "sh"]) {
        return Some(format!("{missing}: this needs Debian"));
    }
    let allowed = Command::new("unshare").args(["--net", "--pid", "--fork", "true"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return Some("no right to make network namespaces: run it as root".to_owned());
    }
    (!Path::new("/dev/net/tun").exists()).then(|| "no /dev/net/tun".to_owned())
}

fn cache() -> PathBuf {
    std::env::var_os("URNIC_CACHE").map_or_else(
        // Next to the folder of the build profile.
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("interop"),
        PathBuf::from,
    )
}

fn inside() -> anyhow::Result<bool> {
    let Some(cache) = std::env::var_os(INSIDE) else { bail!("no guest") };
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut table = Table::new(words);
    lab::network()?;
    let guest = table.once("guest boots", || Guest::boot(Path::new(&cache), Network::Tap))?;
    let mut lab = Lab::new(guest);
    let part = std::env::var(PART)?;
    if part != "many" {
        pings::run(&mut lab, &mut table)?;
        drop_in::run(&mut lab, &mut table)?;
        refusals::run(&mut lab, &mut table)?;
        sudden::run(&mut lab, &mut table)?;
    }
    if part != "single" {
        many::run(&mut lab, &mut table)?;
        shared::run(&mut lab, &mut table)?;
        behind_gate::run(&mut lab, &mut table)?;
    }
    Ok(table.finish())
}
