//! Step 2: gives the segments of a connection to the engine's receive code, and substitutes what a
//! real endpoint would have.

pub(crate) mod alignment;
pub(crate) mod arrivals;
pub(crate) mod connection;
pub(crate) mod direction;
pub(crate) mod image;
pub(crate) mod observer;
pub(crate) mod pages;
pub(crate) mod passed;
pub(crate) mod pending_requests;
pub(crate) mod recut;
pub(crate) mod rtr;
pub(crate) mod startup;
pub(crate) mod tally;
