//! Common parts of `bw`, `lat` and `ping`: operations, times, output while they run.

mod intervals;
mod op;
mod processor;
mod times;

pub(crate) use intervals::{Interval, Intervals};
pub(crate) use op::{Op, message_size, sizes};
pub(crate) use processor::{Processor, processor_time};
pub(crate) use times::{Bar, Samples, Times, Timing, bars, histogram};
