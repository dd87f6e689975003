//! The action that gives jobs of other projects RDMA, as a runner runs it (`tools/action/try`), with
//! the worked examples of `docs/rdma-in-ci.md` as the jobs.

use std::path::Path;

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::programs::program;

/// Runs the action, and an example of `docs/ci` as the step after it.
fn run(example: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = program("bash")
        .arg(root.join("tools/action/try"))
        .arg(example)
        .env("URNIC_BUILT", Path::new(env!("CARGO_BIN_EXE_urnic")).parent().unwrap())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{example}: {}\n{printed}", output.status);
}

netns_tests! {
    with ["bash", "cc", "/usr/include/infiniband/verbs.h"];

    fn a_job_has_rdma_for_a_c_program() {
        run("c");
    }
}

netns_tests! {
    with ["bash", "cargo", "cc", "/usr/include/infiniband/verbs.h"];

    fn a_job_has_rdma_for_a_rust_crate() {
        run("rust");
    }
}

netns_tests! {
    with ["bash", "ucx_perftest"];

    fn a_job_has_rdma_for_a_program_on_ucx() {
        run("ucx");
    }
}
