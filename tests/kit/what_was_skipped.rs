//! The last test of a package: says what those before it did without, and how to run it all.

fn main() {
    urnic_testkit::summary::print(env!("CARGO_PKG_NAME"));
}
