//! The `urnic` command.

fn main() {}
