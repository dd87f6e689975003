//! Gives the shared library its version script, `rdma.map`, and its name.
//!
//! rustc passes a script of its own, without versions, and GNU ld takes only one. So the linker is
//! found by the compiler under `OUT_DIR` (`-B`): a shell script that puts ours in the place of
//! rustc's among its arguments and starts the real `ld.bfd`. Only GNU ld will do: lld takes both
//! scripts and leaves every name without a version, of which the loader complains at each start.

use std::error::Error;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the loader calls the library; programs know it by the names of its two links.
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
    // As one argument each: the path may have spaces.
    println!("cargo::rustc-cdylib-link-arg=-B{}", out.display());
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    Ok(())
}

fn variable(name: &str) -> Result<PathBuf, String> {
    env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set"))
}

/// The linker's stand-in. A name of the script without a definition does not stop it: the test
/// `symbols` lists all of them instead of the first. Without a script to replace it fails, so that
/// no library without versions comes about by a change of rustc's.
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

/// As one word of a shell's.
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

/// GNU ld for the target: with the target's prefix where that is another machine.
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

/// Whether this is a program, and GNU ld by what it says of itself.
fn is_gnu(program: &PathBuf) -> bool {
    let said = Command::new(program).arg("--version").output();
    said.is_ok_and(|said| said.stdout.starts_with(b"GNU ld"))
}
