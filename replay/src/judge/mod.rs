//! Step 3: compares what was observed with the rules of the RFCs, and words the findings.

pub(crate) mod acks;
pub(crate) mod advice;
pub(crate) mod atomics;
pub(crate) mod behaviour;
pub(crate) mod file_findings;
pub(crate) mod findings;
pub(crate) mod order;
