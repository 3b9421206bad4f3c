//! Limits of connections, interfaces, downloads and rates, and the slots that count against them.

pub mod admission;
pub mod slots;
