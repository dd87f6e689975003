//! One file for each command: its arguments and its execution.

pub(crate) mod bw;
pub(crate) mod capture;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod dump_options;
pub(crate) mod get;
pub(crate) mod ibgate;
pub(crate) mod ibswitch;
pub(crate) mod impair;
pub(crate) mod info;
pub(crate) mod keygen;
pub(crate) mod lat;
pub(crate) mod man;
pub(crate) mod ping;
pub(crate) mod put;
pub(crate) mod replay;
pub(crate) mod rping;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod top;
