//! Makes the engine's files in this package use loom's atomics instead of the standard ones.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=loom");
}
