//! The last test of a package: prints what was skipped before, and the packages to install.

fn main() {
    urnic_testkit::summary::print(env!("CARGO_PKG_NAME"));
}
