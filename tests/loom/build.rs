//! The files of the engine that this package looks at take loom's atomics for the standard ones.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=loom");
}
