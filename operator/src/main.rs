//! `yoke-operator`: see the crate's documentation.

use clap::Parser as _;
use yoke_operator::{Arguments, run};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    run(Arguments::parse()).await
}
