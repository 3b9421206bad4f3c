//! Commands of an authenticated client: parsing, permission check, execution and formatting of the
//! answer.

pub mod exec;
pub mod execute;
pub mod parse;
pub mod report;
pub mod session;
pub mod worker_binary;
