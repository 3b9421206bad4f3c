//! What disturbs the whole machine, or is timed: one after the other (`--test-threads=1`).

mod base;
mod healing;
mod make;
mod operators;
mod routing;
mod supervisor;
