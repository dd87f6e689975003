//! The last test of a package: says what those before it did without, and what to install.

fn main() {
    urnic_testkit::summary::print(env!("CARGO_PKG_NAME"));
}
