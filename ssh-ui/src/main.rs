//! The `yoke-ssh-ui` process; the library has all of its code.

use clap::Parser as _;
use yoke_ssh_ui::arguments::Arguments;
use yoke_ssh_ui::process::run;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    yoke_runtime::init_tracing("yoke-ssh-ui")?;
    yoke_runtime::install_crypto();
    run(arguments).await
}
