//! The process `yoke-ingress-xds`.

use clap::Parser as _;
use yoke_ingress_xds::arguments::Arguments;
use yoke_ingress_xds::process::run;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    yoke_runtime::init_tracing("yoke-ingress-xds")?;
    yoke_runtime::install_crypto();
    run(arguments).await
}
