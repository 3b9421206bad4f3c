//! Tests that disturb the whole stack, or measure times. They run one after the other
//! (`--test-threads=1`).

mod base;
mod healing;
mod make;
mod operators;
mod routing;
mod supervisor;
