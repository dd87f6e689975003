//! C programs beside the tests: compiled against the headers and libraries of the distribution, and
//! run on this library.

use std::path::{Path, PathBuf};

use urnic_testkit::programs;

use super::{Libraries, free_port, has};

/// Compiles the program. Skips the test by name if the compiler or the header is missing.
pub(super) fn compile(
    test: &str,
    libraries: &Libraries,
    name: &str,
    header: &str,
    linked: &[&str],
) -> Option<PathBuf> {
    if !has(test, &["cc"]) {
        return None;
    }
    if !Path::new(header).exists() {
        urnic_testkit::skip(test, &format!("{header} is missing"));
        return None;
    }
    let program = libraries.0.path().join(name);
    let source = format!("{}/tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = programs::program("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source).args(linked);
    let compiled = compiler.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(program)
}

/// Does the same as [`compile`], for a program of rdma_cm.
pub(super) fn compile_cm(test: &str, libraries: &Libraries, name: &str) -> Option<PathBuf> {
    let header = "/usr/include/rdma/rdma_cma.h";
    compile(test, libraries, name, header, &["-lrdmacm", "-libverbs", "-lpthread"])
}

/// Runs a program of rdma_cm on a free port, with each personality of the device. The program
/// checks its results itself, or prints why it cannot (`skipped: `). `variables` are its
/// environment.
pub(super) fn run(test: &str, name: &str, variables: &[(&str, &str)]) {
    let libraries = Libraries::new();
    let Some(program) = compile_cm(test, &libraries, name) else { return };
    for iwarp in [false, true] {
        let line = format!("{} {}", program.display(), free_port());
        let said = libraries.start_with(&line, iwarp, variables).finish();
        if let Some(reason) = said.lines().find_map(|line| line.strip_prefix("skipped: ")) {
            return urnic_testkit::skip(test, reason);
        }
        assert!(said.contains("all is well"), "{said}");
    }
}
