//! Gives the shared library its version script, `rdma.map`, and its name.
//!
//! The drivers that programs link import the same private names from the node of their release
//! (`IBVERBS_PRIVATE_34`, `57` and so on). GNU ld puts a name into one node only, so the names of
//! the first are put into the others by assignments of a linker script.
//!
//! rustc passes a script of its own, without versions, and GNU ld takes only one. So the compiler
//! finds the linker under `OUT_DIR` (`-B`): a shell script that replaces rustc's script among its
//! arguments by this package's, and starts the real `ld.bfd`. Only GNU ld works: lld takes both
//! scripts and leaves every name without a version, and the loader complains about that at each
//! start.

use std::error::Error;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Name of the library for the loader; programs know it by its two links.
const SONAME: &str = "liburnic_rdma.so.1";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=rdma.map");
    println!("cargo::rerun-if-env-changed=PATH");
    let map = variable("CARGO_MANIFEST_DIR")?.join("rdma.map");
    let out = variable("OUT_DIR")?;
    let Some(linker) = find_linker()? else {
        println!(
            "cargo::error=urnic-verbs needs GNU ld for the versions of its symbols, and there is \
             neither `ld.bfd` nor a GNU `ld` in PATH: install binutils"
        );
        return Ok(());
    };
    let wrapper = out.join("ld.bfd");
    fs::write(&wrapper, script(&map, &linker))?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    let aliases = out.join("private.ld");
    fs::write(&aliases, private_aliases(&fs::read_to_string(&map)?))?;
    println!("cargo::rustc-cdylib-link-arg={}", aliases.display());
    // Two separate arguments, because the path may have spaces.
    println!("cargo::rustc-cdylib-link-arg=-B{}", out.display());
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    Ok(())
}

/// Returns assignments that put each name of the first private node into the later ones, but for
/// that by which drivers register: it has the number of its node.
fn private_aliases(map: &str) -> String {
    let (mut node, mut names, mut later) = ("", Vec::new(), Vec::new());
    for line in map.lines() {
        if let Some((name, "")) = line.split_once(" {") {
            node = name;
            if node.starts_with(PRIVATE) && node != FIRST_PRIVATE {
                later.push(node);
            }
        } else if let Some(name) = line.strip_prefix("        ").and_then(|l| l.strip_suffix(';'))
            && node == FIRST_PRIVATE
            && !name.starts_with("verbs_register_driver_")
        {
            names.push(name);
        }
    }
    let each = later.iter().flat_map(|node| names.iter().map(move |name| (node, name)));
    each.map(|(node, name)| format!("\"{name}@{node}\" = {name};\n")).collect()
}

const PRIVATE: &str = "IBVERBS_PRIVATE_";
const FIRST_PRIVATE: &str = "IBVERBS_PRIVATE_34";

fn variable(name: &str) -> Result<PathBuf, String> {
    env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set"))
}

/// Returns the wrapper script for the linker. Names of the version script without a definition do
/// not stop the wrapper: the test `symbols` lists all of them instead of the first. The wrapper
/// fails if there is no script to replace, so that a change of rustc cannot produce a library
/// without versions.
fn script(map: &Path, linker: &Path) -> Vec<u8> {
    let mut script = b"#!/bin/sh\n\
        # Written by urnic-verbs' build.rs: GNU ld with the version script of the package.\n\
        found=\n\
        for argument in \"$@\"; do\n\
        \tshift\n\
        \tcase \"$argument\" in\n\
        \t--version-script=*) found=1; argument=--version-script="
        .to_vec();
    script.extend(quoted(map.as_os_str()));
    script.extend(
        b" ;;\n\
        \t--no-undefined-version) continue ;;\n\
        \t@*) echo \"urnic-verbs: arguments in a file: $argument\" >&2; exit 1 ;;\n\
        \tesac\n\
        \tset -- \"$@\" \"$argument\"\n\
        done\n\
        if [ -n \"$found\" ]; then\n\
        \texec ",
    );
    script.extend(quoted(linker.as_os_str()));
    script.extend(
        b" \"$@\"\n\
        fi\n\
        echo 'urnic-verbs: no --version-script among the arguments of the linker' >&2\n\
        exit 1\n",
    );
    script
}

/// Quotes text as one word of a shell.
fn quoted(text: &OsStr) -> Vec<u8> {
    let mut word = vec![b'\''];
    for &octet in text.as_bytes() {
        match octet {
            b'\'' => word.extend(b"'\\''"),
            _ => word.push(octet),
        }
    }
    word.push(b'\'');
    word
}

/// Finds GNU ld for the target: with the target's prefix if that is another machine.
fn find_linker() -> Result<Option<PathBuf>, String> {
    let (target, host) = (variable("TARGET")?, variable("HOST")?);
    let prefix = if target == host {
        String::new()
    } else {
        // `aarch64-unknown-linux-gnu` is `aarch64-linux-gnu` to Debian's tools.
        format!("{}-", target.display().to_string().replace("-unknown-", "-"))
    };
    let path = variable("PATH")?;
    let folders: Vec<_> = env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
    let found = ["ld.bfd", "ld"].iter().find_map(|name| {
        folders.iter().map(|folder| folder.join(format!("{prefix}{name}"))).find(is_gnu)
    });
    Ok(found)
}

/// Returns true if this is GNU ld, by its version text.
fn is_gnu(program: &PathBuf) -> bool {
    let said = Command::new(program).arg("--version").output();
    said.is_ok_and(|said| said.stdout.starts_with(b"GNU ld"))
}
